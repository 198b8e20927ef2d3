"""What test_resume.py trains: by itself in one process, as a script in two.

python resumed_runs.py FOLDER: train with ``strategy="ddp"``, go on from a checkpoint in the middle
of an epoch, and save what each rank ends up with.
"""

import csv
import random
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from weince_lightning import ContrastiveModule, WEINCELoss
from weince_lightning.callbacks import (
    GeometryMonitor,
    KNNMonitor,
    OnlineLinearProbe,
    TailMonitor,
)
from weince_lightning.callbacks.loggers import QUANTILES
from weince_lightning.data import VisionData

EPOCHS, BATCHES = 2, 3


class SaveAlways(Callback):
    """A checkpoint at the end of every step, validation and epoch, named by step and place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, trainer: Trainer, place: str) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.global_step} {place}.ckpt")

    def on_train_batch_end(self, trainer: Trainer, *rest: Any) -> None:
        self.save(trainer, "batch")

    def on_validation_end(self, trainer: Trainer, *rest: Any) -> None:
        if not trainer.sanity_checking:
            self.save(trainer, "validation")

    def on_train_epoch_end(self, trainer: Trainer, *rest: Any) -> None:
        self.save(trainer, "epoch")


class DrawFromAll(Callback):
    """Draws from every global stream in each step, as augmentations on a batch do."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        module.log("draw/torch", torch.rand(()))
        module.log("draw/numpy", float(np.random.normal()))
        module.log("draw/python", random.gauss(0, 1))


class SmallBank(VisionData):
    """The digits with a bank of 144 of them: features of the others would take most of the time."""

    def evaluation_dataloader(self, split: Any) -> Any:
        return super().evaluation_dataloader("val")


def make_module() -> ContrastiveModule:
    """A network with running statistics and dropout; a loss with running beta and queue."""
    layers = [nn.Flatten(), nn.Linear(256, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)]
    loss = WEINCELoss.released(layout="queries", queue_size=80)
    return ContrastiveModule(
        nn.Sequential(*layers), loss, 1, 16, 16, 1e-2, schedule="cosine", warmup_fraction=0.5
    )


def train(
    folder: Path,
    checkpoint: Path | None = None,
    data: LightningDataModule | None = None,
    num_workers: int = 0,
    extra: Sequence[Callback] = (),
    **options: Any,
) -> dict[str, Any]:
    """Train to the end; returns all that is left behind, and the logged numbers by step.

    A resumed training starts from another seed: what is equal comes from the checkpoint.
    """
    seed_everything(3 if checkpoint is None else 99, verbose=False)
    module = make_module()
    name = "whole" if checkpoint is None else f"after {checkpoint.stem}"
    callbacks = [TailMonitor(1), KNNMonitor((1, 5)), GeometryMonitor(), DrawFromAll()]
    callbacks += [OnlineLinearProbe(10), OnlineLinearProbe(10, name="probe_2")]
    callbacks += extra
    if checkpoint is None:
        callbacks.append(SaveAlways(folder))
    callbacks.append(ModelCheckpoint(folder / name, monitor="val/loss"))
    trainer = Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        logger=CSVLogger(folder, name, version=""),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_train_batches=BATCHES,
        limit_val_batches=1,
        **{"max_epochs": EPOCHS, "devices": 1, **options},
    )
    with warnings.catch_warnings():
        # "your dataloader is not resumable" would be an untruth.
        warnings.filterwarnings("error", message="You're resuming")
        trainer.fit(
            module,
            data or SmallBank("digits", batch_size=32, num_workers=num_workers),
            ckpt_path=checkpoint,
        )
    trainer.save_checkpoint(folder / name / "end.ckpt")
    end = torch.load(folder / name / "end.ckpt", weights_only=True)
    # It holds paths, which differ.
    end["callbacks"] = {k: v for k, v in end["callbacks"].items() if "ModelCheckpoint" not in k}
    return {"end": end, "logged": logged(folder / name / "metrics.csv")}


def logged(path: Path) -> dict[tuple[str, int], str]:
    """Read the numbers back: by their name and step."""
    with path.open() as file:
        return {
            (name, int(row["step"])): value
            for row in csv.DictReader(file)
            for name, value in row.items()
            if value and name not in ("step", "epoch")
        }


def differences(found: Any, expected: Any, place: str = "") -> list[str]:
    """Name the places where two checkpoints differ in a bit."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if found.keys() != expected.keys():
            return [f"{place}: keys {found.keys() ^ expected.keys()}"]
        return [d for k in found for d in differences(found[k], expected[k], f"{place}.{k}")]
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        if len(found) != len(expected):
            return [f"{place}: lengths {len(found)} and {len(expected)}"]
        pairs = enumerate(zip(found, expected, strict=True))
        return [d for i, (f, e) in pairs for d in differences(f, e, f"{place}[{i}]")]
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        return [] if torch.equal(found, expected) else [place]
    return [] if found == expected else [f"{place}: {found} and {expected}"]


def assert_same(resumed: dict[str, Any], whole: dict[str, Any], step: int) -> None:
    """Everything at the end, and every number logged after a step."""
    found = differences(resumed["end"], whole["end"])
    assert not found, found
    late = {
        (name, at): value
        for (name, at), value in whole["logged"].items()
        # Lightning counts the steps of scalars from 0; those of quantiles are the optimizer's.
        if at >= step + (name.rpartition("_")[2] in QUANTILES)
    }
    assert late.items() <= resumed["logged"].items() <= whole["logged"].items()


def main(folder: str) -> None:
    torch.set_num_threads(1)
    processes = {"devices": 2, "strategy": "ddp"}
    whole = train(Path(folder), **processes)
    resumed = train(Path(folder), Path(folder) / "2 batch.ckpt", **processes)
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)  # nobody called seed_everything
    data = VisionData("digits", batch_size=32)
    seen: list[bytes] = []

    class Watch(Callback):
        def on_train_batch_end(self, *arguments: Any) -> None:
            seen.extend(view.numpy().tobytes() for view in arguments[3][0][0])

    trainer = Trainer(
        accelerator="cpu", callbacks=[Watch()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, max_epochs=1,
        limit_val_batches=0, **processes,
    )  # fmt: skip
    trainer.fit(make_module(), data)
    torch.save(
        {"whole": whole, "resumed": resumed, "seed": data.state_dict()["seed"], "seen": seen},
        Path(folder) / f"{rank}.pt",
    )


if __name__ == "__main__":
    main(sys.argv[1])
