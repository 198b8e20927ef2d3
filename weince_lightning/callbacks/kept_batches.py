"""Batches of an evaluation epoch that wait for its end, on the CPU and within a bound."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weince_lightning.data.padding import Padding
from weince_lightning.distributed import gather, shared_counts


class Pairs(NamedTuple):
    """The two views of some samples."""

    features: Tensor
    """Shape ``(samples, 2, features)``."""
    projections: Tensor
    """Shape ``(samples, 2, projection_dim)``."""


class KeptBatches:
    """Keeps whole batches, of a large split every second, fourth, ... one.

    Which ones follows from the numbers of all processes' samples, so that any number of processes
    keeps the same. What a distributed sampler repeats is left out.

    Args:
        max_samples: Samples kept, at least 1; the first batch of each loader stays whatever its
            size.
    """

    def __init__(self, max_samples: int) -> None:
        self.max_samples = max_samples
        self._batches: dict[tuple[int, int], Pairs] = {}
        self._stride = 1
        self._padding = Padding()

    def start(self, loaders: Any) -> None:
        """Begin an epoch with nothing; see :meth:`Padding.start`."""
        self._batches, self._stride = {}, 1
        self._padding.start(loaders)

    def add(self, pairs: Pairs, batch_idx: int, dataloader_idx: int) -> None:
        """Keep this process's part of a batch, if it is its turn."""
        own = self._padding.count(len(pairs.projections), dataloader_idx).own
        if batch_idx % self._stride == 0:
            kept = Pairs(*(tensor[:own].cpu() for tensor in pairs))
            self._batches[dataloader_idx, batch_idx] = kept
            while self._has_too_many(self._table()):
                self._thin()

    def join(self, device: torch.device) -> list[Pairs]:
        """Return the batches of all processes together, in float32, and keep nothing.

        Every process must call it.

        Args:
            device: Where the processes exchange, and where the result is.
        """
        widths = [0, 0]  # of a process without any batch
        for pairs in self._batches.values():
            widths = [tensor.shape[-1] for tensor in pairs]
        shared = shared_counts([self._stride, *widths], device)
        stride, *widths = (max(column) for column in zip(*shared, strict=True))
        while self._stride < stride:
            self._thin()
        own = torch.tensor(self._table(), dtype=torch.int64, device=device).view(-1, 3)
        table = gather(own).tolist()
        while self._has_too_many(table):
            self._thin()
            table = [row for row in table if row[1] % self._stride == 0]
        parts = []
        for part, width in enumerate(widths):
            kept = [pairs[part].float() for pairs in self._batches.values()]
            rows = gather(torch.cat([torch.empty(0, 2, width), *kept]).to(device))
            parts.append(torch.split(rows, [samples for *_, samples in table]))
        self._batches = {}
        joined: dict[tuple[int, int], list[Pairs]] = {}
        for (loader, index, _), *pair in zip(table, *parts, strict=True):
            joined.setdefault((loader, index), []).append(Pairs(*pair))
        return [Pairs(*map(torch.cat, zip(*each, strict=True))) for each in joined.values()]

    def _table(self) -> list[list[int]]:
        """Loader, number and samples of every kept batch."""
        return [[*key, len(pairs.projections)] for key, pairs in self._batches.items()]

    def _has_too_many(self, table: Iterable[list[int]]) -> bool:
        """Whether the batches exceed the bound, and there are some that thinning can drop."""
        samples = sum(row[2] for row in table)
        return samples > self.max_samples and any(row[1] for row in table)

    def _thin(self) -> None:
        """Keep every second one of the kept batches."""
        self._stride *= 2
        batches = self._batches.items()
        self._batches = {key: pairs for key, pairs in batches if key[1] % self._stride == 0}
