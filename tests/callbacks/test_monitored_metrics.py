"""Metrics of which it is known before training that they will be absent."""

import contextlib
import io

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from PIL import Image

from weince_lightning import ContrastiveModule
from weince_lightning.callbacks import KNNMonitor, OnlineLinearProbe
from weince_lightning.callbacks.monitored_metrics import MonitoredMetrics
from weince_lightning.cli import main
from weince_lightning.data import VisionData

pytestmark = pytest.mark.filterwarnings("ignore:.*logs no")
UNLABELED = ("base", "data/image_folder", "loss/weince")


@pytest.fixture
def folder(tmp_path):
    """A folder of images without classes."""
    (tmp_path / "images" / "train").mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for number in range(24):
        pixels = torch.randint(256, (8, 8, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(tmp_path / "images" / "train" / f"{number}.png")
    return tmp_path / "images"


def fit(data, *callbacks, module=None, **options):
    """Train for an epoch of one step."""
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        max_epochs=1, limit_train_batches=1, callbacks=[*callbacks, MonitoredMetrics()], **options,
    )  # fmt: skip
    trainer.fit(module or ContrastiveModule("convnet", in_channels=3, image_size=8), data)
    return trainer


def unlabeled(folder):
    return VisionData("image_folder", folder, batch_size=10, image_size=8)


def test_images_without_labels_train_under_the_packaged_layers(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    layers = [f"-c={name}" for name in UNLABELED]
    options = ["--data.data_dir=images", "--data.image_size=8", "--data.batch_size=10"]
    options += ["--model.backbone=convnet", "--trainer.max_epochs=5"]
    quick = ["--trainer.enable_progress_bar=false", "--trainer.logger=false"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main(["fit", *layers, *options, *quick])
    assert "checkpoint of the best val/loss (" in said.getvalue()
    assert "weince evaluate" not in said.getvalue()
    assert "weince diagnose" not in said.getvalue()  # there are no test images
    assert "  weince export checkpoints/" in said.getvalue()
    told = [line for line in capsys.readouterr().err.splitlines() if "knn/top1" in line]
    assert told[0].startswith("weince: checkpoints follow val/loss instead of knn/top1: ")


@pytest.mark.parametrize("monitor", [KNNMonitor((1,)), OnlineLinearProbe(3)])
def test_the_lowest_validation_loss_takes_the_place_of_a_metric_of_labels(
    monitor, folder, tmp_path
):
    saver = ModelCheckpoint(tmp_path, monitor=f"{monitor.name}/top1", mode="max")
    trainer = fit(unlabeled(folder), monitor, saver)
    assert (saver.monitor, saver.mode) == ("val/loss", "min")
    assert saver.best_model_score == trainer.callback_metrics["val/loss"]


def test_what_cannot_follow_the_loss_is_refused_before_the_first_epoch(folder, tmp_path):
    stop = EarlyStopping("knn/top1", mode="max")
    with pytest.raises(ValueError, match=r"logged, got 'knn/top1' for EarlyStopping: the samples"):
        fit(unlabeled(folder), KNNMonitor((1,)), stop, default_root_dir=tmp_path)

    class Foreign(LightningModule):
        def training_step(self, batch):
            raise AssertionError("nothing is trained")

        validation_step = training_step

        def configure_optimizers(self):
            return None

    saver = ModelCheckpoint(tmp_path, monitor="knn/top1")
    with pytest.raises(ValueError, match="for ModelCheckpoint"):
        fit(unlabeled(folder), KNNMonitor((1,)), saver, module=Foreign())


@pytest.mark.parametrize(
    ("follower", "number"),
    [
        (ModelCheckpoint(monitor="knn/top1", every_n_epochs=2), 2),
        (EarlyStopping("knn/top1", mode="max"), 1),
    ],
)
def test_a_metric_read_in_epochs_that_do_not_log_it_is_refused(follower, number, tmp_path):
    with pytest.raises(ValueError, match=rf"must divide that of \w+, {number}, which fol.*got 3\."):
        fit(VisionData("digits"), KNNMonitor((1,), every_n_epochs=3), follower,
            default_root_dir=tmp_path)  # fmt: skip


def test_labelled_data_change_nothing(tmp_path):
    saver = ModelCheckpoint(tmp_path, monitor="knn/top1", mode="max", every_n_epochs=3)
    module = ContrastiveModule("convnet", in_channels=1, image_size=8)
    fit(
        VisionData("digits", image_size=8), KNNMonitor((1,), every_n_epochs=3), saver, module=module
    )
    assert (saver.monitor, saver.mode) == ("knn/top1", "max")
