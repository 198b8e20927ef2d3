"""What test_knn_processes.py lets three processes do: python knn_processes.py FOLDER.

Each rank saves what its monitor logged, which features it got, and what that cost.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from callbacks.conftest import Data, Images, Module
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from weince_lightning import distributed
from weince_lightning.callbacks import KNNMonitor
from weince_lightning.evaluation.features import extract_features

PROCESSES = 3
IMAGES = Images(21, seed=2, num_views=1)


class NoisyData(Data):
    """So noisy that no score is perfect."""

    def _loader(self, split: str, num_views: int, **options: Any) -> DataLoader:
        loader = super()._loader(split, num_views, **options)
        views = loader.dataset.views
        views += torch.randn(views.shape, generator=torch.Generator().manual_seed(views.shape[1]))
        return loader


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return (IMAGES[i] for i in range(21))


def deal(rank: int, processes: int) -> DataLoader:
    """A loader as Lightning makes it: the sampler repeats images until all have as many."""
    return DataLoader(IMAGES, 4, sampler=DistributedSampler(IMAGES, processes, rank))


LOADERS = {
    "in order": lambda rank: DataLoader(IMAGES, 4),
    "fewer batches than processes": lambda rank: DataLoader(IMAGES, 20),
    "one batch": lambda rank: DataLoader(IMAGES, 30),
    "shuffled": lambda rank: DataLoader(IMAGES, 4, shuffle=True, drop_last=True),
    "padded": lambda rank: deal(rank, PROCESSES + 1),
    "a stream": lambda rank: DataLoader(Stream(), 4),
    "a list": lambda rank: list(DataLoader(IMAGES, 4)),
}


def make_trainer(callbacks: list[Callback], **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=PROCESSES,
        # BatchNorm's statistics stay each process's own.
        strategy=DDPStrategy(broadcast_buffers=False),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **options,
    )


def knn_metrics(trainer: Trainer) -> dict[str, float]:
    metrics = trainer.callback_metrics.items()
    return {name: value.item() for name, value in metrics if name.startswith("knn")}


def extract(module: Module, loader: Any) -> dict[str, Any]:
    """Extract features with all processes; count the images that this one's encoder saw."""
    seen: list[int] = []
    hook = module.encoder.register_forward_hook(lambda *call: seen.append(len(call[2])))
    before = [buffer.clone() for buffer in module.buffers()]
    features, labels = extract_features(module, loader, is_shared=True)
    hook.remove()
    return {
        "features": features,
        "labels": labels,
        "seen": seen,
        "buffers": before,
        "buffers after": [buffer.clone() for buffer in module.buffers()],
    }


def main(folder: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = Module()
    callbacks = [KNNMonitor(k=(3, 7)), ModelCheckpoint(folder, "last")]
    trainer = make_trainer(callbacks, max_epochs=2, num_sanity_val_steps=2)
    data = NoisyData()
    trainer.fit(module, data)
    found: dict[str, Any] = {"fit": knn_metrics(trainer)}
    for split in ("train", "val"):
        found[split] = [tuple(batch) for batch in data.evaluation_dataloader(split)]
    rank = distributed.rank()
    for name, create in LOADERS.items():
        # The shuffled orders of the ranks differ.
        torch.manual_seed(rank)
        found[name] = extract(module, create(rank))
    trainer = make_trainer([KNNMonitor()], enable_checkpointing=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.validate(module, Data(unlabelled=48), verbose=False)
    messages = [str(each.message) for each in caught if "KNNMonitor" in str(each.message)]
    found["unlabelled"] = {"metrics": knn_metrics(trainer), "warnings": messages}
    torch.save(found, Path(folder) / f"{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
