"""What callbacks/test_monitor_processes.py runs: by itself in one process, as a script in two.

python monitor_processes.py FOLDER: run every case with ``strategy="ddp"`` and save what each rank
ends up with.
"""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from two_processes import make_trainer

from weince_lightning import ContrastiveModule, WEINCELoss
from weince_lightning.callbacks import GeometryMonitor, OnlineLinearProbe, TailMonitor

LIGHTNING = import_module("lightning")
SIZE = 6
NUM_CLASSES = 7
FAR = "probe_far"


def pairs(num_images: int, seed: int) -> list[Any]:
    """Two noisy views and a label of each image."""
    generator = torch.Generator().manual_seed(seed)
    images, *noise = torch.randn(3, num_images, 1, SIZE, SIZE, generator=generator)
    views = [images + 0.5 * each for each in noise]
    return [((views[0][i], views[1][i]), i % NUM_CLASSES) for i in range(num_images)]


class Descent(ContrastiveModule):
    """The module with plain descent: one process and two then differ by rounding alone."""

    def __init__(self) -> None:
        network = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 12), nn.Tanh())
        super().__init__(network, WEINCELoss(0.2), in_channels=1, image_size=SIZE, projection_dim=8)

    def validation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Any]:
        return self.step(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def metrics(trainer: Any) -> dict[str, float]:
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


def probes() -> list[OnlineLinearProbe]:
    return [OnlineLinearProbe(NUM_CLASSES), OnlineLinearProbe(9, name=FAR, learning_rate=1e-4)]


def fit(num_processes: int, max_samples: int) -> dict[str, Any]:
    """Train for five epochs; 61 and 5 images are validated, which two processes cannot share."""
    torch.manual_seed(0)
    watchers = [GeometryMonitor(max_samples), *probes(), TailMonitor(fit_threshold=True)]
    trainer = make_trainer(
        LIGHTNING, num_processes, callbacks=watchers, max_epochs=5, num_sanity_val_steps=2
    )
    size = 8 // num_processes
    val = [DataLoader(pairs(61, 2), batch_size=size), DataLoader(pairs(5, 3), batch_size=size)]
    # One batch an epoch: Lightning shuffles what several processes train on.
    trainer.fit(Descent(), DataLoader(pairs(32, 1), batch_size=32 // num_processes), val)
    states = [callback.state_dict() for callback in watchers[1:3]]
    return {
        "metrics": metrics(trainer),
        "weights": [torch.cat([s["weight"].flatten(), s["bias"]]) for s in states],
    }


class SaveSecondStep(Callback):
    """Writes a checkpoint within the epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 2:
            trainer.save_checkpoint(self.path)


def resume(path: Path) -> dict[str, Any]:
    """Train an epoch of four batches at once, and from a checkpoint of its second step."""
    found: dict[str, Any] = {}
    for name, ckpt_path in (("whole", None), ("resumed", path)):
        torch.manual_seed(0)
        watchers = [*probes(), *([] if ckpt_path else [SaveSecondStep(path)])]
        trainer = make_trainer(
            LIGHTNING, 2, callbacks=watchers, max_epochs=1, use_distributed_sampler=False
        )
        # Equal batches: after a resume Lightning begins with the first one again.
        images = 4 * pairs(8, seed=int(os.environ.get("LOCAL_RANK", "0")))
        trainer.fit(Descent(), DataLoader(images, batch_size=8), ckpt_path=ckpt_path)
        found[name] = {key: value for key, value in metrics(trainer).items() if "_top" in key}
        found[f"{name} steps"] = trainer.global_step
    return found


class Uneven(IterableDataset):
    """Gives the first process some batches, and each other one batch less."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        rank = torch.distributed.get_rank()
        yield from pairs(4 * (self.num_batches - min(rank, 1)), seed=rank)


class Foreign(LightningModule):
    """A module that does not talk to other processes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE * SIZE, 4)

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        views, labels = batch
        features: list[Tensor] = [self.layer(view.flatten(1)) for view in views]
        return {"features": features, "projections": features, "labels": labels}


def validate_unevenly(num_batches: int) -> dict[str, float]:
    """Validate where one process has a batch less."""
    torch.manual_seed(0)
    trainer = make_trainer(LIGHTNING, 2, callbacks=[GeometryMonitor()])
    trainer.validate(Foreign(), DataLoader(Uneven(num_batches), batch_size=4), verbose=False)
    return metrics(trainer)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {
        "all": fit(2, max_samples=100),
        "some": fit(2, max_samples=12),
        "resume": resume(folder / "step.ckpt"),
        "uneven": [validate_unevenly(num_batches) for num_batches in (3, 1)],
    }
    torch.save(found, folder / f"{torch.distributed.get_rank()}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
