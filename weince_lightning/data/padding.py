"""Samples that a distributed sampler repeats, so that all processes get as many."""

import math
from typing import Any, NamedTuple

from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DistributedSampler

from weince_lightning.distributed import rank, world_size


class Count(NamedTuple):
    """Samples of a batch that are no repetitions."""

    own: int
    """Those of this process."""
    together: int
    """Those of all processes together."""


class Padding:
    """Tells the samples of an evaluation epoch from their repetitions.

    With several processes Lightning gives validation and test loaders torch's
    ``DistributedSampler``: rank r of W gets every W-th sample from the r-th on, and where that does
    not come out even, the last samples of some ranks are the first of the data set once more. They
    stand last on their rank, so counting tells which they are; nothing is asked of the device or of
    other processes. Loaders with a sampler of another kind are taken to repeat nothing.
    """

    def __init__(self) -> None:
        self._left: list[list[float]] = []
        self._ranks: list[int] = []

    def start(self, loaders: Any) -> None:
        """Begin an epoch.

        Args:
            loaders: ``trainer.val_dataloaders`` or ``trainer.test_dataloaders``.
        """
        samplers = [_sampler(each) for each in CombinedLoader(loaders).flattened]
        self._left = [_samples_of_ranks(sampler) for sampler in samplers]
        self._ranks = [rank() if sampler is None else sampler.rank for sampler in samplers]

    def count(self, batch_size: int, dataloader_idx: int) -> Count:
        """Count the samples of the next batch that are no repetitions; they stand first.

        Args:
            batch_size: Samples of the batch on this process.
            dataloader_idx: As Lightning gives it to the hooks.
        """
        left = self._left[dataloader_idx]
        counts = [int(min(batch_size, each)) for each in left]
        self._left[dataloader_idx] = [a - b for a, b in zip(left, counts, strict=True)]
        return Count(counts[self._ranks[dataloader_idx]], sum(counts))


def _sampler(loader: Any) -> DistributedSampler[Any] | None:
    """Return the distributed sampler of a loader; None if it has another kind."""
    # A batch sampler of the user's own has the sampler inside.
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", getattr(loader, "sampler", None))
    return sampler if isinstance(sampler, DistributedSampler) else None


def _samples_of_ranks(sampler: DistributedSampler[Any] | None) -> list[float]:
    """Samples that each process gets, repetitions aside; no bound where not known."""
    if sampler is None:
        return [math.inf] * world_size()
    size = len(sampler.dataset)  # type: ignore[arg-type]
    return [len(range(first, size, sampler.num_replicas)) for first in range(sampler.num_replicas)]
