"""The end of a training, told by what it left: weights, numbers and files."""

import os
import re

import pytest
import torch
from cases import few
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from test_cli import command_after, run
from torch.utils.data import DataLoader

from weince_lightning.callbacks.run_end import why_no_success
from weince_lightning.callbacks.run_files import written_checkpoints

SAVER = "{class_path: ModelCheckpoint, init_args: {filename: %s}}"
BEST, LAST = SAVER % "best, monitor: val/loss", SAVER % "last"
QUICK = (
    "-c=digits",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.limit_train_batches=3",
    "--trainer.limit_val_batches=1",
    f"--trainer.callbacks=[{BEST}, {LAST}]",
)
SAVED = "runs/digits/version_0/checkpoints/"


def failure(capsys, folder, *arguments):
    """Standard output and the error of a training that is no success."""
    with pytest.raises(SystemExit) as caught:
        run(folder, "fit", *QUICK, *arguments)
    assert caught.value.code.startswith("weince: error: ")
    assert "\n" not in caught.value.code
    return capsys.readouterr().out, caught.value.code


class Spoil(Callback):
    """Make a weight infinite in the third epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            with torch.no_grad():
                next(pl_module.parameters()).view(-1)[0] = torch.inf


@pytest.mark.parametrize(
    "options", few([["--model.learning_rate=1e30"], ["--trainer.precision=16-true"]])
)
def test_weights_that_are_not_finite_are_no_success(options, tmp_path, capsys):
    _, error = failure(capsys, tmp_path, *options, "--trainer.max_epochs=1")
    assert re.search(r"weights must be finite, got others in \d+ of 26 tensors\. No chec", error)


@pytest.mark.slow
def test_a_broken_trial_run_is_not_said_to_work(tmp_path, capsys):
    options = ("--trainer.fast_dev_run=2", "--model.learning_rate=1e30")
    failure(capsys, tmp_path, *options, "--trainer.callbacks=null")


@pytest.mark.slow
def test_a_training_without_a_step_is_no_success(tmp_path, capsys):
    _, error = failure(capsys, tmp_path, "--trainer.limit_train_batches=0")
    assert "must take at least one step, got none" in error


def test_the_report_names_files_that_callbacks_wrote(tmp_path):
    best = SAVER % "'{epoch}-{knn/top1:.3f}', monitor: knn/top1, mode: max"
    early = SAVER % "early, every_n_train_steps: 2"
    monitor = "{class_path: weince_lightning.callbacks.KNNMonitor, init_args: {k: [1]}}"
    callbacks = f"--trainer.callbacks=[{monitor}, {best}, {early}]"
    output = run(tmp_path, "fit", *QUICK, "--trainer.max_epochs=1", callbacks)
    (written,) = (tmp_path / SAVED).glob("epoch=0-knn/top1=*.ckpt")
    shown = re.search(rf"  checkpoint of the best knn/top1 \(([\d.]+)\) +{SAVED}epoch", output)
    assert float(shown[1]) == pytest.approx(float(written.stem.partition("=")[2]), abs=6e-4)
    assert re.search(rf"  newest checkpoint, of step 2 of 3 +{SAVED}early.ckpt\n", output)
    assert "none:" not in output
    assert tmp_path / command_after("Next", output)[-1] == written


def trained(folder, module, *callbacks, max_epochs=1):
    """Train a tiny module of Lightning, two steps for each epoch."""
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        max_epochs=max_epochs, limit_train_batches=2, limit_val_batches=1, default_root_dir=folder,
        callbacks=[*callbacks],
    )  # fmt: skip
    trainer.fit(module)
    return trainer


class Told(BoringModel):
    """A module that logs one number in validation."""

    def __init__(self, name, value):
        super().__init__()
        self.name, self.value = name, value

    def on_validation_epoch_end(self):
        self.log(self.name, self.value)


@pytest.mark.parametrize(
    ("name", "value", "monitor", "why"),
    [
        ("val/loss", torch.nan, None, "the loss must be finite, got nan as val/loss"),
        ("gain", torch.nan, "gain", "the metric of a best checkpoint must be finite"),
        ("gain", torch.nan, None, None),
        ("gain", -torch.inf, "gain", None),
    ],
)
def test_numbers_that_are_not_finite_count_where_the_run_needs_them(
    name, value, monitor, why, tmp_path
):
    found = why_no_success(trained(tmp_path, Told(name, value), ModelCheckpoint(monitor=monitor)))
    assert found is None if why is None else found.startswith(why)


def test_the_last_finite_checkpoint_is_named(tmp_path):
    (tmp_path / "config.yaml").touch()
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    trainer = trained(tmp_path, BoringModel(), Spoil(), saver, max_epochs=4)
    assert f"finite weights is {tmp_path}/epoch=1.ckpt. " in why_no_success(trainer)
    (tmp_path / "epoch=1.ckpt").write_bytes(b"PK, torn")
    assert f"finite weights is {tmp_path}/epoch=0.ckpt. " in why_no_success(trainer)


def test_a_batch_larger_than_the_data_is_named_with_the_mend(tmp_path):
    module = BoringModel()
    loader = DataLoader(RandomDataset(32, 5), batch_size=8, drop_last=True)
    module.train_dataloader = lambda: loader
    why = why_no_success(trained(tmp_path, module))
    assert why.startswith("batch_size must be at most the number of training samples, 5, where")


@pytest.mark.parametrize(("value", "is_success"), [(torch.inf, True), (torch.nan, False)])
def test_a_buffer_may_be_infinite_but_not_nan(value, is_success, tmp_path):
    module = BoringModel()
    module.register_buffer("mask", torch.tensor([0.0, value]))
    trainer = trained(tmp_path, module)
    assert (why_no_success(trainer) is None) == is_success
    assert "at least one step" in why_no_success(trainer, steps_before=2)


def test_checkpoints_of_an_earlier_run_in_the_same_folder_are_not_of_this_one(tmp_path):
    trainer = Trainer(logger=False, callbacks=[ModelCheckpoint(tmp_path)])
    assert written_checkpoints(trainer) == []
    names = ("older.ckpt", "config.yaml", "val/loss=1.ckpt", "last.ckpt")
    for second, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (second, second))
    assert written_checkpoints(trainer) == [tmp_path / "last.ckpt", tmp_path / "val/loss=1.ckpt"]
