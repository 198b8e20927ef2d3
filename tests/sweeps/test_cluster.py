"""The same runs as jobs, with submitit's own executors in place of a cluster."""

import subprocess
import sys
import time

import pytest
from sweep_folders import RUNS, SWEEP

submitit = pytest.importorskip("submitit")

from weince_lightning.cli.arguments import UsageError, find_config  # noqa: E402
from weince_lightning.cli.sweep import evaluate, fit, sweep  # noqa: E402
from weince_lightning.sweeps import SweepError, read_sweep  # noqa: E402
from weince_lightning.sweeps.cluster import ClusterJob, connect  # noqa: E402
from weince_lightning.sweeps.execution import Commands  # noqa: E402
from weince_lightning.sweeps.folder import run_folder  # noqa: E402

SLURM = ["--engine", "slurm", "--slurm.timeout_min", "60"]


@pytest.fixture
def job(work):
    """One run as a job; its training takes a while."""
    work.write("small.yaml", {**SWEEP, "options": {"trainer.max_epochs": 40}})
    run = read_sweep("small.yaml").runs()[0]
    commands = Commands(fit, evaluate, find_config)
    folder = run_folder(work.output, run)
    return ClusterJob(folder, commands, ["weince_lightning.cli.command"], keep_checkpoints=True)


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_jobs_give_the_results_of_the_sweep_here_and_done_ones_are_left_out(finished, work, capsys):
    sweep(["small.yaml", *SLURM], cluster="local")
    said = capsys.readouterr().out
    assert [line.split(": ")[1] for line in said.splitlines() if line.startswith("job ")] == RUNS
    wait_for(lambda: len(work.results()) == len(RUNS))
    found, expected = work.results(), finished.results()
    for result in [*found.values(), *expected.values()]:
        result.pop("threads")
    assert found == expected
    sweep(["small.yaml", *SLURM], cluster="local")
    said = capsys.readouterr().out
    assert "4 of them done" in said
    assert "\njob " not in said


def test_a_preempted_job_saves_its_training_and_goes_on_after_the_requeue(job, tmp_path):
    executor = submitit.LocalExecutor(tmp_path / "jobs")
    executor.update_parameters(timeout_min=60)
    submitted = executor.submit(job)
    wait_for((job.folder.checkpoints / "last.ckpt").is_file)
    submitted._interrupt()
    submitted.result()
    log = job.folder.log.read_text()
    assert "Interrupted. Saved step" in log
    assert "interrupted.ckpt" in log.partition("--ckpt_path=")[2].splitlines()[0]
    assert job.folder.is_done


def test_a_job_whose_training_the_cluster_terminates_goes_on(job):
    pass


def test_settings_reach_the_cluster_and_unknown_ones_are_refused(tmp_path):
    with pytest.raises(SweepError, match=r"--slurm: .*'walltime'"):
        connect(tmp_path, {"timeout_min": 60, "walltime": 3}, "local")
    with pytest.raises(SweepError, match=r"timeout_min must be given"):
        connect(tmp_path, {"partition": "gpu"}, "local")
    settings = {"timeout_min": 60, "gpus_per_node": 1, "partition": "gpu", "max_num_timeout": 9}
    assert connect(tmp_path, settings, "local").parameters["timeout_min"] == 60


def test_without_submitit_one_line_says_how_to_install_it(work):
    script = (
        "import sys; sys.modules['submitit'] = None; from weince_lightning.cli import main;"
        f"main(['sweep', 'small.yaml', *{SLURM}])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 2
    assert "pip install weince-lightning[slurm]" in found.stderr
    assert found.stderr.count("\n") == 1


def test_settings_of_the_cluster_are_refused_by_the_command(work):
    with pytest.raises(UsageError, match="walltime"):
        sweep(["small.yaml", *SLURM, "--slurm.walltime", "4:00:00"], cluster="local")
    assert not (work.output / "sweep.yaml").exists()
