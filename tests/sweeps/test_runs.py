"""Decisions of a sweep for each of its runs: threads, loggers, the checkpoint that counts."""

import pytest
from sweep_folders import RUNS, SWEEP

from weince_lightning.cli.sweep_commands import COMMANDS
from weince_lightning.sweeps import read_sweep
from weince_lightning.sweeps.execution import _furthest, command_lines
from weince_lightning.sweeps.folder import run_folder
from weince_lightning.sweeps.loggers import run_loggers
from weince_lightning.sweeps.processes import available_threads, threads_of_runs

TENSORBOARD = {
    "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
    "init_args": {"save_dir": "runs", "name": "mine"},
}
WANDB = {
    "class_path": "lightning.pytorch.loggers.WandbLogger",
    "init_args": {"project": "mine", "save_dir": "runs"},
}


def first_run(work):
    return run_folder(work.output, read_sweep("small.yaml").runs()[0])


@pytest.mark.parametrize(
    ("environment", "threads", "expected"),
    [("3", None, 3), ("3", 2, 2), ("4,2", None, 4), ("", None, available_threads(2))],
)
def test_the_environment_and_the_option_decide_on_threads(
    environment, threads, expected, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    assert threads_of_runs(2, threads) == expected


def test_loggers_of_layers_write_to_the_folder_of_the_run(work):
    work.write("logged.yaml", {"trainer": {"logger": [TENSORBOARD, WANDB]}})
    work.write("small.yaml", {**SWEEP, "layers": ["layer.yaml", "logged.yaml"]})
    folder = first_run(work)
    csv, tensorboard, wandb = run_loggers(folder, COMMANDS.find_layer)
    own = {"save_dir": str(folder.path), "name": "", "version": ""}
    assert csv["class_path"].endswith("CSVLogger")
    assert csv["init_args"] == tensorboard["init_args"] == own
    expected = {"project": "mine", "save_dir": str(folder.path), "name": RUNS[0]}
    assert wandb["init_args"] == expected
    assert "TensorBoardLogger" in command_lines(folder, "last.ckpt", COMMANDS.find_layer)[0]


def test_a_checkpoint_in_a_folder_that_a_metric_made_counts(finished, monkeypatch, tmp_path):
    monkeypatch.chdir(finished.path)
    run = first_run(finished).run
    folder = run_folder(tmp_path, run)
    (folder.checkpoints / "val").mkdir(parents=True)
    moved = folder.checkpoints / "val" / "loss=1.0.ckpt"
    moved.write_bytes((finished.run(run.name) / "checkpoints" / "last.ckpt").read_bytes())
    assert _furthest(folder) == moved
