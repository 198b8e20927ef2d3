"""docs/clusters.md: its commands for CPUs run to their end, its other commands parse."""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from jsonargparse import capture_parser
from processes import Python, free_port

from weince_lightning.cli.arguments import complete_arguments
from weince_lightning.cli.lightning_cli import WeinceCLI

TEXT = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.+?)\n```", TEXT, re.DOTALL)
COMMANDS = [shlex.split(block.replace("\\\n", " ")) for block in BLOCKS]
(SCRIPT,) = re.findall(r"```sbatch\n(.+?)```", TEXT, re.DOTALL)
TRIED = [command for command in COMMANDS if "cpu" in command]
TWO_STEPS = "--trainer.limit_train_batches=2"
MODULES = {"weince": "weince_lightning", "torchrun": "torch.distributed.run"}

needs_gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or os.name == "nt", reason="needs gloo processes"
)


@pytest.fixture(scope="module")
def parser():
    return capture_parser(lambda: WeinceCLI(["fit"]))


def fit_arguments(command):
    """What stands after ``fit``."""
    return command[command.index("fit") + 1 :]


def of_script():
    """The arguments with which the SLURM script begins a training."""
    return shlex.split(re.search(r"what=\((-c [^)]+)\)", SCRIPT)[1])


def parse(parser, arguments):
    return parser.parse_args(complete_arguments(["fit", *arguments])).fit


def start(command, folder, *options):
    """Start a command of the page in a folder of its own."""
    folder.mkdir(exist_ok=True)
    quiet = "--trainer.enable_progress_bar=false"
    return Python("-m", MODULES[command[0]], *command[1:], quiet, *options, folder=folder)


def assert_trained(folder, output):
    assert "Trained for 1 epochs, 2 steps." in output
    assert (folder / "runs" / "digits" / "version_0" / "checkpoints" / "last.ckpt").is_file()
    assert "Starting with 2 processes" in output


def test_the_page_has_a_command_to_try_for_each_way_but_slurm():
    assert [command[0] for command in TRIED] == ["weince", "torchrun", "torchrun"]


@needs_gloo
@pytest.mark.parametrize(
    "command",
    [pytest.param(TRIED[0], marks=pytest.mark.slow), TRIED[1]],  # DDP has tests of its own
    ids=["weince", "torchrun"],
)
@pytest.mark.slow
def test_command_for_one_machine_runs_to_its_end(command, tmp_path):
    process = start(command, tmp_path / "run", TWO_STEPS)
    output = process.finish(timeout=240)
    assert process.returncode == 0, output
    assert_trained(tmp_path / "run", output)


@needs_gloo
@pytest.mark.slow
def test_two_launchers_meet_and_train_as_one(tmp_path):
    command = [part.replace(":29500", f":{free_port()}") for part in TRIED[2]]
    assert command != TRIED[2]
    processes = [start(command, tmp_path / name, TWO_STEPS) for name in ("first", "second")]
    outputs = [process.finish(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    (ran,) = (path for path in tmp_path.iterdir() if (path / "runs").is_dir())
    assert_trained(ran, outputs[["first", "second"].index(ran.name)])
    (validate,) = (command for command in COMMANDS if "validate" in command)
    checkpoint = "runs/digits/version_0/checkpoints/last.ckpt"
    process = start([checkpoint if part == "CHECKPOINT" else part for part in validate], ran)
    output = process.finish(timeout=240)
    assert process.returncode == 0, output
    assert "val/loss" in output


@needs_gloo
@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_the_launcher_goes_on_from_there(tmp_path):
    command = TRIED[1]
    checkpoints = tmp_path / "runs" / "digits" / "version_0" / "checkpoints"
    process = start(command, tmp_path, "--trainer.max_epochs=1000")
    while process.returncode is None and not (checkpoints / "last.ckpt").exists():
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)  # torchrun alone
    output = process.finish(timeout=240)
    assert process.returncode == 1
    saved = torch.load(checkpoints / "interrupted.ckpt", weights_only=True)
    epochs = saved["epoch"] + 1
    fit = command.index("fit") + 1
    resumed = [*command[:fit], "--ckpt_path", re.search(r"--ckpt_path (\S+)", output)[1]]
    process = start(resumed, tmp_path, f"--trainer.max_epochs={epochs}")
    output = process.finish(timeout=240)
    assert f"Trained for {epochs} epochs, {10 * epochs} steps." in output


@pytest.mark.parametrize("command", [c for c in COMMANDS if "fit" in c and c not in TRIED])
def test_command_for_gpus_parses_and_keeps_the_papers_batch(parser, command):
    config = parse(parser, fit_arguments(command))
    processes = config.trainer.num_nodes * int(config.trainer.devices)
    assert config.data.init_args.batch_size * processes == 256
    if command[0] == "torchrun":
        launched = dict(itertools.pairwise(command))
        assert config.trainer.num_nodes == int(launched["--nnodes"])
        assert int(config.trainer.devices) == int(launched["--nproc-per-node"])


def test_slurm_script_asks_for_the_processes_that_it_trains_on(parser):
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", SCRIPT, re.MULTILINE))
    config = parse(parser, of_script())
    assert config.trainer.num_nodes == int(asked["nodes"])
    assert int(config.trainer.devices) == int(asked["ntasks-per-node"])
    assert asked["gpus-per-node"] == asked["ntasks-per-node"]
    assert config.data.init_args.batch_size * 8 == 256
    assert config.data.init_args.num_workers < int(asked["cpus-per-task"])
    assert "runs/pretrain/" in SCRIPT
    assert {logger.init_args.name for logger in config.trainer.logger} == {"pretrain"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_slurm_script_is_a_shell_script():
    subprocess.run(["bash", "-n"], input=SCRIPT.encode(), check=True)
