"""A small module and data module that train for real in a fraction of a second."""

from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, Dataset

from weince_lightning.losses import WEINCELoss

NUM_CLASSES = 4


class Images(Dataset):
    """Noisy copies of one pattern per class; two views, or the image itself."""

    def __init__(self, num_images: int, seed: int, num_views: int, unlabelled: int = 0):
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.rand(NUM_CLASSES, 1, 6, 6, generator=torch.Generator().manual_seed(7))
        self.labels = torch.arange(num_images) % NUM_CLASSES
        noise = torch.randn(2, num_images, 1, 6, 6, generator=generator)
        self.views = patterns[self.labels] + 0.2 * noise
        self.labels[:unlabelled] = -1
        self.num_views = num_views

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        if self.num_views == 1:
            return self.views[0, index], self.labels[index]
        return [self.views[0, index], self.views[1, index]], self.labels[index]


class Data(LightningDataModule):
    """48 training, 21 validation and 19 test images; its loaders draw from the global stream."""

    def __init__(
        self,
        unlabelled: int = 0,
        num_val_loaders: int = 1,
        shuffle: bool = True,
        num_val_images: int = 21,
    ):
        super().__init__()
        self.num_val_images = num_val_images
        self.shuffle = shuffle
        self.unlabelled = unlabelled
        self.num_val_loaders = num_val_loaders
        self.evaluated: list[str] = []

    def _loader(self, split: str, num_views: int, **options: Any) -> DataLoader:
        size, seed = {"train": (48, 1), "val": (self.num_val_images, 2), "test": (19, 3)}[split]
        images = Images(size, seed, num_views, min(self.unlabelled, size))
        return DataLoader(images, **{"batch_size": 10, **options})

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", 2, batch_size=16, shuffle=self.shuffle)

    def val_dataloader(self) -> list[DataLoader]:
        return [self._loader("val", 2) for _ in range(self.num_val_loaders)]

    def test_dataloader(self) -> DataLoader:
        return self._loader("test", 2)

    def evaluation_dataloader(self, split: str) -> DataLoader:
        self.evaluated.append(split)
        return self._loader(split, 1)


class Module(LightningModule):
    """Everything a monitor could disturb: BatchNorm, dropout, a submodule kept in evaluation."""

    validates_loss = False

    def __init__(self, loss: Any = None):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(128, 8)
        self.frozen = nn.BatchNorm1d(8)
        self.loss = WEINCELoss() if loss is None else loss

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.encoder(images)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        views, labels = batch
        features = [self(view) for view in views]
        self.frozen.eval()
        projections = [self.frozen(self.head(feature)) for feature in features]
        terms = self.loss.terms(*projections) if hasattr(self.loss, "terms") else None
        loss = self.loss(*projections) if terms is None else terms.loss
        return {
            "loss": loss,
            "terms": terms,
            "features": tuple(feature.detach() for feature in features),
            "projections": tuple(projection.detach() for projection in projections),
            "labels": labels,
        }

    def validation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Any]:
        views, labels = batch
        features = tuple(self(view) for view in views)
        outputs = {"features": features, "labels": labels}
        if self.validates_loss:
            projections = tuple(self.head(feature) for feature in features)
            terms = self.loss.terms(*projections) if len(labels) > 1 else None
            outputs |= {"projections": projections, "terms": terms}
        return outputs

    def test_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return self.validation_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


@pytest.fixture
def make_data():
    return Data


@pytest.fixture
def make_module():
    def make(loss=None):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Module(loss)

    return make


@pytest.fixture
def make_trainer(tmp_path):
    return partial(
        Trainer,
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )


@pytest.fixture
def read_events():
    def read(folder) -> EventAccumulator:
        events = EventAccumulator(str(folder), size_guidance={"histograms": 0})  # 0 keeps all
        events.Reload()
        return events

    return read
