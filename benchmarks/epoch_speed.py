"""Time of a training epoch, as a ratio to lightly's SimCLR with PyTorch Lightning.

lightly trains as its example for PyTorch Lightning does: LightlyDataset with SimCLRTransform,
MultiViewCollate, SimCLRProjectionHead, NTXentLoss and a Trainer. Ours is ContrastiveModule with
WEINCELoss and VisionData. Images, encoder, batch, optimizer and number of steps are the same, and
what is timed is the whole of ``Trainer.fit``, one epoch, without logger and checkpoints. What is
different: SimCLRTransform blurs half of the views too, so lightly is timed with our augmentation as
well, image by image as it does; and its projection head has BatchNorm. Neither normalises.
"""

import argparse
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightly.data import LightlyDataset
from lightly.data.multi_view_collate import MultiViewCollate
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from lightly.transforms.multi_view_transform import MultiViewTransform
from lightning.pytorch import LightningModule, Trainer
from measurement import (
    create_parser,
    parse_arguments,
    print_table,
    progress,
    ratio,
    show,
    summarise,
    time_interleaved,
    write_report,
)
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from weince_lightning import ContrastiveModule
from weince_lightning.data import VisionData
from weince_lightning.data.images import Images, StoredImages
from weince_lightning.data.table import DATASETS
from weince_lightning.networks import build_encoder, feature_dimension

LEARNING_RATE = 3e-4
RANDOM = "random"
"""Noise in the size and number of colours of CIFAR: the time is that of real images."""
REFERENCE, SAME_VIEWS = "lightly", "lightly, our augmentation"
ONE_BY_ONE, AT_ONCE = "ours", "ours, batch_augmentation"


class SimCLR(LightningModule):
    """SimCLR of lightly's parts, around an encoder of ours."""

    def __init__(self, arguments: argparse.Namespace, data: VisionData) -> None:
        super().__init__()
        shape = (data.in_channels, data.image_size)
        self.backbone = build_encoder(arguments.backbone, *shape)
        width = feature_dimension(self.backbone, *shape)
        self.projection_head = SimCLRProjectionHead(width, width, arguments.features)
        self.criterion = NTXentLoss(temperature=0.5)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch of two views."""
        views = batch[0]
        loss: Tensor = self.criterion(*(self.projection_head(self.backbone(x)) for x in views))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer that ContrastiveModule has by default."""
        return torch.optim.Adam(self.parameters(), lr=LEARNING_RATE)


class LabelledImages(torch.utils.data.Dataset[Any]):
    """Images with their labels, as torchvision's data sets give them."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.transform: Callable[[Any], Any] | None = None  # which LightlyDataset sets

    def __len__(self) -> int:
        """Count the images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return an image, transformed, and its label."""
        image: Any = self.images[index]
        if self.transform is not None:
            image = self.transform(image)
        return image, int(self.images.labels[index])


def fit(arguments: argparse.Namespace, module: LightningModule, **data: Any) -> None:
    """Train for one short epoch."""
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=arguments.steps,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, **data)
    if trainer.global_step != arguments.steps:
        raise ValueError(f"steps must be at most those of an epoch, got {arguments.steps}.")


def lightlys(arguments: argparse.Namespace, transform: Any) -> Callable[[], None]:
    """Return a call that trains as lightly's example does."""
    data = VisionData(arguments.dataset, arguments.data_dir)
    images = LabelledImages(DATASETS[arguments.dataset].read(data.data_dir, "train"))

    def call() -> None:
        loader = DataLoader(
            LightlyDataset.from_torch_dataset(images, transform=transform),
            batch_size=arguments.batch_size,
            collate_fn=MultiViewCollate(),
            shuffle=True,
            drop_last=True,
            num_workers=arguments.workers,
        )
        fit(arguments, SimCLR(arguments, data), train_dataloaders=loader)

    return call


def ours(arguments: argparse.Namespace, batch_augmentation: bool) -> Callable[[], None]:
    """Return a call that trains WEINCE with our module and data."""
    data = VisionData(
        arguments.dataset,
        arguments.data_dir,
        arguments.batch_size,
        arguments.workers,
        batch_augmentation=batch_augmentation,
    )

    def call() -> None:
        module = ContrastiveModule(
            arguments.backbone,
            None,
            data.in_channels,
            data.image_size,
            arguments.features,
            LEARNING_RATE,
        )
        fit(arguments, module, datamodule=data)

    return call


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all ways to train in turn."""
    row = DATASETS[arguments.dataset]
    tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    same = v2.Compose([*row.augmentation(row.image_size), *tensor])
    cases = {
        REFERENCE: lightlys(arguments, SimCLRTransform(row.image_size, normalize=None)),
        SAME_VIEWS: lightlys(arguments, MultiViewTransform([same, same])),
        ONE_BY_ONE: ours(arguments, batch_augmentation=False),
        AT_ONCE: ours(arguments, batch_augmentation=True),
    }
    times = time_interleaved(cases, arguments.rounds)
    return [
        {
            "case": name,
            "seconds": summarise(times[name]),
            "ratio_to_lightly": ratio(times[name], times[REFERENCE]),
            "ratio_to_same_views": ratio(times[name], times[SAME_VIEWS]),
        }
        for name in cases
    ]


def read_noise(data_dir: Path, split: str) -> Images:
    """Draw as many images as CIFAR has."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)
    return StoredImages([pixels], generator.integers(10, size=len(pixels)))


def main() -> None:
    """Run the benchmark."""
    DATASETS[RANDOM] = DATASETS["cifar10"]._replace(read=read_noise)
    parser = create_parser(__doc__, features=64)
    parser.add_argument("--dataset", default="fashion_mnist", help=f"or {RANDOM}: CIFAR's size")
    parser.add_argument("--data-dir", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--backbone", default="convnet")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4, help="of the epoch")
    parser.add_argument("--workers", type=int, default=0, help="processes that load images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    quick = {"dataset": RANDOM, "batch_size": 8, "steps": 2, "rounds": 2, "threads": 1}
    arguments = parse_arguments(parser, quick)
    torch.set_num_threads(arguments.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    rows = measure(arguments)
    print(
        f"{arguments.backbone}, {arguments.dataset}, {arguments.steps} steps of "
        f"{arguments.batch_size} images, {arguments.workers} workers, {arguments.threads} threads: "
        "median (quartiles) of the epoch's time.\n"
    )
    print_table(
        ("training", "time", "to lightly", "to lightly, our augmentation"),
        [
            (
                row["case"],
                f"{show(row['seconds'])} s",
                show(row["ratio_to_lightly"]),
                show(row["ratio_to_same_views"]),
            )
            for row in rows
        ],
    )
    progress(f"Written to {write_report(arguments, rows)}")


if __name__ == "__main__":
    main()
