"""The digest of the evaluation data: every image counts."""

import os

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from weince_lightning.data import VisionData
from weince_lightning.evaluation.cache import data_digest

COUNT = 1000


def test_each_pixel_in_memory_counts():
    loader = VisionData("digits", val_fraction=0).evaluation_dataloader("train")
    before = data_digest(loader)
    (block,) = loader.dataset.images.blocks
    for place in (1, 700, len(loader.dataset) - 2):
        pixels = block[loader.dataset.positions[place]]
        pixels[3, 4] ^= 1
        assert data_digest(loader) != before
        pixels[3, 4] ^= 1
    assert data_digest(loader) == before


def test_each_file_counts_wherever_the_folder_lies(tmp_path):
    rng = np.random.default_rng(0)
    for label in "ab":
        for split in ("train", "test"):
            (tmp_path / "images" / split / label).mkdir(parents=True)
            for number in range(100):
                pixels = rng.integers(256, size=(4, 4), dtype=np.uint8)
                path = tmp_path / "images" / split / label / f"{number:02}.bmp"
                Image.fromarray(pixels).save(path)

    def digest(folder):
        data = VisionData("image_folder", folder, image_size=4, val_fraction=0)
        return data_digest(data.evaluation_dataloader("test"))

    before = digest(tmp_path / "images")
    moved = tmp_path / "moved"
    (tmp_path / "images").rename(moved)
    assert digest(moved) == before
    changed = moved / "test" / "b" / "37.bmp"
    size = changed.stat().st_size
    Image.fromarray(rng.integers(256, size=(4, 4), dtype=np.uint8)).save(changed)
    os.utime(changed, (1, 1))
    assert changed.stat().st_size == size
    assert digest(moved) != before


class Labelled(Dataset):
    """Data of others, whose labels are known without an image, as torchvision's are."""

    def __init__(self):
        self.images = torch.arange(COUNT, dtype=torch.float32).reshape(COUNT, 1, 1, 1)
        self.targets = [0] * COUNT

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


@pytest.mark.parametrize("batch_size", [7, 100])
def test_each_image_of_others_counts_whatever_the_batches(batch_size):
    data = Labelled()
    before = data_digest(DataLoader(data, batch_size=batch_size))
    assert data_digest(DataLoader(data, batch_size=64, shuffle=True)) == before
    data.images[501] += 0.5
    assert data_digest(DataLoader(data, batch_size=batch_size)) != before
