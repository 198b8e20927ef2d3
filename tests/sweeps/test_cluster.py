"""The same runs as jobs, with submitit's own executors in place of a cluster."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from sweep_folders import RUNS, SWEEP

from weince_lightning.cli import main
from weince_lightning.cli.arguments import UsageError
from weince_lightning.cli.sweep import sweep
from weince_lightning.cli.sweep_commands import COMMANDS
from weince_lightning.sweeps import SweepError, read_sweep
from weince_lightning.sweeps.cluster import ClusterJob, connect
from weince_lightning.sweeps.folder import run_folder

SLURM = ["--engine", "slurm", "--slurm.timeout_min", "60"]


OWN_CLASS = """
import os, pathlib, signal, weince_lightning
class Terminated(weince_lightning.ContrastiveModule):
    def on_train_batch_end(self, *rest):
        mark = pathlib.Path("terminated")
        if self.trainer.global_step == 4 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)
"""


def one_job(work, options):
    """One run as a job."""
    work.write("small.yaml", {**SWEEP, "options": options})
    folder = run_folder(work.output, read_sweep("small.yaml").runs()[0])
    return ClusterJob(folder, COMMANDS, keep_checkpoints=True)


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def number_of_the_job(folder):
    """The number of the process that carries out the one job of a working folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"submitit.core._submit" in command and (process / "cwd").resolve() == folder:
                return int(process.name)
    raise AssertionError


@pytest.mark.slow
def test_jobs_give_the_results_of_the_sweep_here_and_done_ones_are_left_out(finished, work, capsys):
    sweep(["small.yaml", *SLURM], cluster="local")
    said = capsys.readouterr().out
    assert [line.split(": ")[1] for line in said.splitlines() if line.startswith("job ")] == RUNS
    wait_for(lambda: len(work.results()) == len(RUNS))
    assert work.results() == finished.results()
    sweep(["small.yaml", *SLURM], cluster="local")
    said = capsys.readouterr().out
    assert "4 of them done" in said
    assert "\njob " not in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_a_preempted_job_saves_its_training_and_goes_on_when_it_is_requeued(work):
    job = one_job(work, {"trainer.max_epochs": 60})
    executor = connect(work.path / "jobs", {"timeout_min": 60}, "local")
    [submitted] = [executor.submit(job)]
    wait_for((job.folder.checkpoints / "last.ckpt").is_file)
    os.kill(number_of_the_job(work.path), signal.SIGUSR2)
    submitted.result()
    assert job.folder.is_done
    log = job.folder.log.read_text()
    assert "Interrupted. Saved step" in log
    assert "interrupted.ckpt" in log.partition("--ckpt_path=")[2].splitlines()[0]


@pytest.mark.slow
def test_a_job_goes_on_while_the_cluster_ends_its_processes_one_by_one(work):
    (work.path / "own_class.py").write_text(OWN_CLASS)
    job = one_job(work, {"model": "own_class.Terminated", "model.backbone": "convnet"})
    executor = connect(work.path / "jobs", {"timeout_min": 60}, "debug")
    executor.submit(job).result()
    assert (work.path / "terminated").is_file()
    assert job.folder.is_done
    assert job.folder.log.read_text().count("weince fit -c") == 2


def test_settings_reach_the_cluster_and_unknown_ones_are_refused(tmp_path):
    with pytest.raises(SweepError, match=r"--slurm: .*'walltime'"):
        connect(tmp_path, {"timeout_min": 60, "walltime": 3}, "local")
    with pytest.raises(SweepError, match=r"timeout_min must be given"):
        connect(tmp_path, {"partition": "gpu"}, "local")
    settings = {"timeout_min": 60, "gpus_per_node": 1, "partition": "gpu", "max_num_timeout": 9}
    assert connect(tmp_path, settings, "local").parameters["timeout_min"] == 60


def test_without_submitit_one_line_says_how_to_install_it(work, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SystemExit, match="2"):
        main(["sweep", "small.yaml", *SLURM])
    said = capsys.readouterr().err
    assert "pip install weince-lightning[slurm]" in said
    assert said.count("\n") == 1


def test_settings_of_the_cluster_are_refused_by_the_command(work):
    with pytest.raises(UsageError, match="walltime"):
        sweep(["small.yaml", *SLURM, "--slurm.walltime", "4:00:00"], cluster="local")
    assert not (work.output / "sweep.yaml").exists()
