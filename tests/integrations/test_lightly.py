"""lightly's SimCLR, MoCo and NNCLR with our losses in place of NTXentLoss, under both Trainers."""

import copy
import importlib
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import few
from lightly.loss import NTXentLoss
from lightly.models.modules import (
    NNCLRPredictionHead,
    NNCLRProjectionHead,
    NNMemoryBankModule,
    SimCLRProjectionHead,
)
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.transforms import SimCLRTransform
from lightly.utils.benchmarking import KNNClassifier, LinearClassifier
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from weince_lightning import ContrastiveModule, InfoNCELoss, WEINCELoss
from weince_lightning.data import VisionData

TRAINERS = ("lightning.pytorch", "pytorch_lightning")
STEPS = 24


class Digits(Dataset):
    """Two views of each image by lightly's transform, as LightlyDataset gives them."""

    def __init__(self) -> None:
        self.transform = SimCLRTransform(
            input_size=16, min_scale=0.5, hf_prob=0.0, gaussian_blur=0.0
        )
        self.images = [
            Image.fromarray((image * 15.9).astype("uint8")).convert("RGB")
            for image in load_digits().images[:512]
        ]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        return self.transform(self.images[index]), index


def backbone() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


def pipelines(lightning: ModuleType) -> dict[str, type]:
    """The three, of the LightningModule of one of the packages."""

    class Pipeline(lightning.LightningModule):
        def __init__(self, criterion: nn.Module) -> None:
            super().__init__()
            self.criterion = criterion
            self.backbone = backbone()
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            (x0, x1), _ = batch
            loss = self.loss(x0, x1)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    class SimCLR(Pipeline):
        def __init__(self, criterion: nn.Module) -> None:
            super().__init__(criterion)
            self.projection_head = SimCLRProjectionHead(512, 64, 32)

        def loss(self, x0: Tensor, x1: Tensor) -> Tensor:
            return self.criterion(*(self.projection_head(self.backbone(x)) for x in (x0, x1)))

    class MoCo(Pipeline):
        def __init__(self, criterion: nn.Module) -> None:
            super().__init__(criterion)
            self.projection_head = SimCLRProjectionHead(512, 64, 32, num_layers=2)
            self.momentum = copy.deepcopy(nn.Sequential(self.backbone, self.projection_head))
            deactivate_requires_grad(self.momentum)

        def loss(self, x0: Tensor, x1: Tensor) -> Tensor:
            online = nn.Sequential(self.backbone, self.projection_head)
            update_momentum(online, self.momentum, m=0.99)
            return self.criterion(online(x0), self.momentum(x1).detach())

    class NNCLR(Pipeline):
        def __init__(self, criterion: nn.Module) -> None:
            super().__init__(criterion)
            self.projection_head = NNCLRProjectionHead(512, 64, 32)
            self.prediction_head = NNCLRPredictionHead(32, 64, 32)
            self.memory_bank = NNMemoryBankModule(size=(256, 32))

        def loss(self, x0: Tensor, x1: Tensor) -> Tensor:
            z0, z1 = (self.projection_head(self.backbone(x)) for x in (x0, x1))
            p0, p1 = self.prediction_head(z0), self.prediction_head(z1)
            z0 = self.memory_bank(z0.detach(), update=False)
            z1 = self.memory_bank(z1.detach(), update=True)
            return 0.5 * (self.criterion(z0, p1) + self.criterion(z1, p0))

    return {"SimCLR": SimCLR, "MoCo": MoCo, "NNCLR": NNCLR}


CRITERIA = {
    "SimCLR": lambda cls, **rest: cls(temperature=0.2, **rest),
    "MoCo": lambda cls, **rest: cls(temperature=0.2, memory_bank_size=(256, 32), **rest),
    "NNCLR": lambda cls, **rest: cls(temperature=0.2, **rest),
}


def train(
    package: str,
    name: str,
    criterion: nn.Module,
    precision: str = "32-true",
    steps: int = STEPS,
) -> list[float]:
    lightning = importlib.import_module(package)
    lightning.seed_everything(0, verbose=False)
    module = pipelines(lightning)[name](criterion)
    loader = DataLoader(Digits(), batch_size=128, shuffle=True, drop_last=True)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, precision=precision,
    )  # fmt: skip
    trainer.fit(module, loader)
    return module.losses


@pytest.mark.parametrize("package", few(TRAINERS))
@pytest.mark.parametrize("name", few(CRITERIA, 1))
def test_lightlys_pipelines_train_with_weince(name: str, package: str):
    losses = train(package, name, CRITERIA[name](WEINCELoss))
    assert len(losses) == STEPS
    # The first step of a bank has no negative; it is full after two.
    start = losses[2:5] if name == "MoCo" else losses[:3]
    assert sum(losses[-3:]) < 0.9 * sum(start)


@pytest.mark.parametrize("name", few(["SimCLR", "NNCLR"], 0))
@pytest.mark.slow
def test_infonce_trains_lightlys_pipelines_as_ntxent_does(name: str):
    ours, theirs, closed = (
        # In single precision rounding grows from step to step.
        train("lightning.pytorch", name, criterion, "64-true", steps=5)
        for criterion in (
            CRITERIA[name](InfoNCELoss),
            CRITERIA[name](NTXentLoss),
            CRITERIA[name](WEINCELoss, gate=0.0),
        )
    )
    assert len(ours) == 5
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert closed == ours


@pytest.fixture(scope="module")
def trained() -> tuple[ContrastiveModule, DataLoader, DataLoader]:
    """A checkpoint's encoder, and loaders of images with labels."""
    data = VisionData("digits", batch_size=128)
    module = ContrastiveModule("convnet", in_channels=1, image_size=16, learning_rate=1e-3)
    trainer = importlib.import_module("lightning.pytorch").Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, data)
    found = []
    for part in ("train", "test"):
        batches = list(data.evaluation_dataloader(part))
        images, labels = (torch.cat(column) for column in zip(*batches, strict=True))
        found.append(DataLoader(TensorDataset(images, labels), batch_size=256))
    return module, *found


@pytest.mark.slow
def test_lightlys_neighbours_and_probe_run_on_our_encoder(trained: Any):
    import pytorch_lightning

    module, train_loader, test_loader = trained
    trainer = pytorch_lightning.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    neighbours = KNNClassifier(
        module.backbone, num_classes=10, knn_k=20, knn_t=0.1, train_dataloader_idx=0,
        val_dataloader_idx=1,
    )  # fmt: skip
    module.backbone.eval()
    (_, found) = trainer.validate(neighbours, [train_loader, test_loader], verbose=False)
    assert found["val_knn_top1/dataloader_idx_1"] > 0.85
    probe = LinearClassifier(
        module.backbone, batch_size_per_device=256, feature_dim=512, num_classes=10
    )
    trainer.fit(probe, train_loader, test_loader)
    assert float(trainer.callback_metrics["val_top1"]) > 0.8
