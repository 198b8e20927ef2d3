"""What callbacks/test_sentence_similarity.py runs: by itself in one process, as a script in two.

python sentence_processes.py FOLDER: validate under ``strategy="ddp"`` and save each rank's numbers.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader
from two_processes import make_trainer

from weince_lightning.callbacks import SentenceSimilarityMonitor

LIGHTNING = import_module("lightning")


class Pass(LightningModule):
    """Gives the features that it is given."""

    def validation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Any]:
        first, second, labels = batch
        return {"features": (first, second), "labels": labels}


def draw(generator: torch.Generator, num_pairs: int) -> list[torch.Tensor]:
    """Two sides that resemble each other."""
    first, noise = torch.randn(2, num_pairs, 8, generator=generator)
    return [first, first + noise]


def rows(*columns: Any) -> list[Any]:
    return list(zip(*columns, strict=True))


def validate(*data: Any, num_processes: int = 1, **arguments: Any) -> dict[str, float]:
    monitor = SentenceSimilarityMonitor(**arguments)
    trainer = make_trainer(LIGHTNING, num_processes, callbacks=[monitor])
    trainer.validate(Pass(), [DataLoader(each, batch_size=4) for each in data], verbose=False)
    return {name: value.item() for name, value in trainer.callback_metrics.items()}


def validate_odd_numbers(num_processes: int) -> dict[str, float]:
    """Validate 21 scored pairs and 31 others, which two processes cannot share evenly."""
    generator = torch.Generator().manual_seed(0)
    scored = rows(*draw(generator, 21), torch.rand(21, generator=generator))
    partners = rows(*draw(generator, 31), torch.arange(31))
    return validate(scored, partners, num_processes=num_processes, num_candidates=10)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = validate_odd_numbers(2)
    torch.save(found, Path(sys.argv[1]) / f"{torch.distributed.get_rank()}.pt")
