"""What test_evaluate.py names by class path, and an evaluation in a process that it kills.

python evaluating_process.py CHECKPOINT [OPTION ...]: evaluate, saving the state after every step.
"""

import sys
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from weince_lightning.cli import main
from weince_lightning.evaluation import linear


class OwnEncoder(nn.Module):
    """An encoder of a user, each of whose features is one of few sums: exact in any batch."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randint(-2, 3, (16, size)).float())

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight


class OwnData(LightningDataModule):
    """A data module of a user: no val_fraction, a validation part or none, loaders that shuffle."""

    changed_image: int | None = None
    changed_label: int | None = None

    def __init__(self, size: int = 7, shuffle: bool = True, has_val: bool = True):
        super().__init__()
        self.size, self.shuffle, self.has_val = size, shuffle, has_val
        generator = torch.Generator().manual_seed(3)
        labels = torch.arange(120) % 3
        images = torch.randint(8, (120, 1, 4, 4), generator=generator) / 8
        images[torch.arange(120), 0, labels, 0] += 1
        if self.changed_image is not None:
            images[self.changed_image] += 1
        if self.changed_label is not None:
            labels[self.changed_label] += 1
        parts = zip(images.split(40), labels.split(40), strict=True)
        names = ("train", "val", "test")
        self.parts = dict(zip(names, (TensorDataset(*part) for part in parts), strict=True))

    def evaluation_dataloader(self, split: str) -> DataLoader[Any]:
        if split == "val" and not self.has_val:
            raise ValueError("split must not be 'val'.")
        return DataLoader(self.parts[split], batch_size=self.size, shuffle=self.shuffle)


if __name__ == "__main__":
    linear.SECONDS_BETWEEN_SAVES = 0.0
    main(["evaluate", *sys.argv[1:]])
