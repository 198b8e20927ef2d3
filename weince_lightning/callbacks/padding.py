"""Samples that a distributed sampler repeats, so that all processes get as many."""

import math
from typing import Any

from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DistributedSampler


class Padding:
    """Tells the samples of an evaluation epoch from their repetitions.

    With several processes Lightning gives validation and test loaders torch's
    ``DistributedSampler``: rank r of W gets every W-th sample from the r-th on, and where that does
    not come out even, the last samples of some ranks are the first of the data set once more. They
    stand last on their rank, so counting tells which they are; nothing is asked of the device or of
    other processes. Loaders with a sampler of another kind are taken to repeat nothing.
    """

    def __init__(self) -> None:
        self._left: list[float] = []

    def start(self, loaders: Any) -> None:
        """Begin an epoch.

        Args:
            loaders: ``trainer.val_dataloaders`` or ``trainer.test_dataloaders``.
        """
        self._left = [_own_samples(each) for each in CombinedLoader(loaders).flattened]

    def count_own(self, batch_size: int, dataloader_idx: int) -> int:
        """Say how many samples of the next batch, from its first, are no repetitions.

        Args:
            batch_size: Samples of the batch on this process.
            dataloader_idx: As Lightning gives it to the hooks.
        """
        own = int(min(batch_size, self._left[dataloader_idx]))
        self._left[dataloader_idx] -= own
        return own


def _own_samples(loader: Any) -> float:
    """Samples that a loader gives this process, repetitions aside; no bound where not known."""
    # A batch sampler of the user's own has the sampler inside.
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", getattr(loader, "sampler", None))
    if not isinstance(sampler, DistributedSampler):
        return math.inf
    return len(range(sampler.rank, len(sampler.dataset), sampler.num_replicas))  # type: ignore[arg-type]
