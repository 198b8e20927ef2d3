"""What test_tail_monitor.py runs as a script in two processes.

python tail_processes.py FOLDER: train under TailMonitor with several loggers, then read what the
figure shows of batches that the processes share unequally; save what each rank has.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader
from two_processes import NUM_IMAGES, SIZE, network, pairs

from weince_lightning import ContrastiveModule, WEINCELoss
from weince_lightning.callbacks import TailMonitor
from weince_lightning.callbacks.tail.summary import read_picture

LOSSES = {
    "views": lambda: WEINCELoss(0.2),
    "queries": lambda: WEINCELoss(0.2, layout="queries"),
    "queue": lambda: WEINCELoss(0.2, queue_size=30),
    "bank": lambda: WEINCELoss(0.2, memory_bank_size=30),
    "each for itself": lambda: WEINCELoss(0.2, gather_distributed=False),
}
SAMPLES = 23
SPLIT = 14
"""Samples of the first process."""


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        yield tuple(torch.randn(2, SAMPLES, 6, generator=generator, dtype=torch.float64).unbind())


def picture(name: str, rows: slice) -> dict[str, Any]:
    """What the figure shows of the last batch, after the others have been trained on."""
    loss = LOSSES[name]()
    *earlier, last = [[view[rows] for view in views] for views in batches()]
    for views in earlier:
        loss(*views)
    with torch.no_grad():
        found = read_picture(*last, loss.eval().terms(*last), loss)
    return {**found._asdict(), "tails": [tail._asdict() for tail in found.tails]}


class LocalAnchors(Callback):
    """Keeps the gates of this process's anchors, step by step."""

    def __init__(self) -> None:
        self.gates: list[Tensor] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.gates.append(outputs["terms"].tail.gate)


def train(folder: Path) -> tuple[list[Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    local = LocalAnchors()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=[TensorBoardLogger(folder, "tensorboard"), CSVLogger(folder, "csv")],
        callbacks=[TailMonitor(2, figure=True), local],
        default_root_dir=folder,
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    loader = DataLoader(pairs(), batch_size=NUM_IMAGES // 4)
    module = ContrastiveModule(nn.Sequential(network()), WEINCELoss(0.2), 1, SIZE)
    trainer.fit(module, loader, loader)
    return local.gates, dict(trainer.callback_metrics)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    gates, metrics = train(Path(folder))
    rank = torch.distributed.get_rank()
    rows = slice(SPLIT) if rank == 0 else slice(SPLIT, None)
    pictures = {name: picture(name, rows) for name in LOSSES}
    found = {"gates": gates, "metrics": metrics, "pictures": pictures}
    torch.save(found, Path(folder) / f"{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
