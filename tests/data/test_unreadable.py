"""Files that cannot be read: refused or left out before a training starts."""

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image

from weince_lightning.data import VisionData
from weince_lightning.data.images import MissingDataError

BROKEN = ["3.png", "4.tif", "5.jpg", "6.png"]


@pytest.fixture
def photos(tmp_path):
    """Twenty images, three whose header is no image's or of unknown range, and one cut off."""
    folder = tmp_path / "photos" / "train"
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    for number, pixels in enumerate(noise):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "3.png").write_bytes(b"")
    (folder / "4.png").unlink()
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(folder / "4.tif")
    (folder / "5.png").rename(folder / "5.jpg")
    (folder / "5.jpg").write_bytes(b"not an image")
    whole = (folder / "6.png").read_bytes()
    (folder / "6.png").write_bytes(whole[: len(whole) // 2])
    return folder.parent


def images(photos, **options):
    return VisionData("image_folder", photos, image_size=8, batch_size=4, **options)


def names(data, split="train"):
    found = data.evaluation_dataloader(split).dataset
    return [found.images.paths[position].rpartition("/")[2] for position in found.positions]


class Names(LightningModule):
    """Notes the images that training and validation have, before it trains a step."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = None

    def on_train_start(self):
        self.seen = [names(self.trainer.datamodule, split) for split in ("train", "val")]

    def training_step(self, batch):
        return self.layer(batch[0][0].mean().reshape(1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(data, checkpoint=None, **options):
    module = Names()
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, **{"max_epochs": 1, **options},
    )  # fmt: skip
    trainer.fit(module, data, ckpt_path=checkpoint)
    return trainer, module.seen


def test_headers_are_checked_before_the_training_and_name_the_mend(photos):
    with pytest.raises(MissingDataError) as caught:
        fit(images(photos))
    text = str(caught.value)
    assert f"{photos} must hold images that can be read, got 3 of 20 files that cannot: " in text
    for shown in ("train/3.png (cannot", "train/4.tif (mode F, whose", "train/5.jpg (cannot"):
        assert shown in text
    assert "6.png" not in text
    assert "skip_unreadable=True" in text
    (photos / "train" / "8.png").write_bytes(b"")
    with pytest.raises(MissingDataError, match=r"got 4 of 20 .* and 1 more\. Replace"):
        images(photos).setup("fit")


def test_unreadable_files_are_left_out_and_counted(photos):
    data = images(photos, skip_unreadable=True, val_fraction=0.25)
    with pytest.warns(UserWarning, match="photos: 4 of 20 images cannot be read and are left out"):
        train, val = names(data), names(data, "val")
    assert len(train + val) == 16
    assert not {*train, *val} & {*BROKEN}


@pytest.mark.filterwarnings("ignore:.*left out", "ignore:.*validation_step")
def test_a_resumed_training_has_the_images_of_the_first(photos, tmp_path):
    options = {"skip_unreadable": True, "val_fraction": 0.25}
    trainer, seen = fit(images(photos, **options))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    Image.new("RGB", (8, 8)).save(photos / "train" / "3.png")  # mended since
    assert fit(images(photos, **options), tmp_path / "last.ckpt", max_epochs=2)[1] == seen
    assert fit(images(photos, **options))[1] != seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out", "ignore:.*validation_step")
def test_all_processes_leave_out_what_the_first_found(photos):
    class Checked(VisionData):
        def setup(self, stage):
            files = self._list("train")
            if self.trainer.global_rank:  # another machine, whose copies are whole
                self._listed["train"] = files.part([0, 1, 2])
            super().setup(stage)
            found = self._unreadable.names["train"]
            if found != [f"train/{name}" for name in BROKEN]:
                raise AssertionError(found)

    data = Checked("image_folder", photos, image_size=8, batch_size=4, skip_unreadable=True)
    fit(data, devices=2, strategy="ddp_fork", limit_train_batches=0)


def test_a_folder_without_any_readable_file_is_refused(tmp_path):
    (tmp_path / "0.png").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="1 of 1 images"),
        pytest.raises(MissingDataError, match="can be read, got 1 files that cannot"),
    ):
        images(tmp_path, skip_unreadable=True).train_dataloader()


def test_only_folders_of_images_have_files_to_leave_out():
    with pytest.raises(ValueError, match="skip_unreadable must not be given except for dataset"):
        VisionData("digits", skip_unreadable=True)
