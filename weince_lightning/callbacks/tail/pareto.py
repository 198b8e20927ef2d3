"""The shape of the validation samples' tail, once per epoch."""

import math
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from weince_lightning.data.padding import Padding
from weince_lightning.distributed import gather, row_counts, world_size
from weince_lightning.extremes.similarities import pool_views
from weince_lightning.extremes.threshold import fit_threshold
from weince_lightning.functional.vectors import unit_vectors

MAX_SAMPLES = 1000
"""Samples of all processes that are compared with each other."""

_NOT_FOUND = [math.nan] * 3


class TailShapeLog:
    """Keeps the projections of a validation epoch, and logs the shape of their tail.

    Each sample counts once: one that a distributed sampler repeats is as similar to itself as any
    can be.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._num_kept = 0
        self._padding = Padding()

    def start(self, loaders: Any) -> None:
        """Begin an epoch with nothing; see :meth:`Padding.start`."""
        self._kept, self._num_kept = [], 0
        self._padding.start(loaders)

    def keep(self, outputs: Any) -> None:
        """Keep the projections of a batch of the first loader, until there are enough."""
        projections = outputs.get("projections", ()) if isinstance(outputs, dict) else ()
        # Each process has its part of the first samples.
        wanted = -(-MAX_SAMPLES // world_size())
        if len(projections) == 2 and self._num_kept < wanted:
            views = torch.stack([view.detach().float() for view in projections], dim=1)
            own = self._padding.count(len(views), dataloader_idx=0).own
            self._kept.append(views[: min(own, wanted - self._num_kept)])
            self._num_kept += len(self._kept[-1])

    def log(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """Log the shape and its interval; every process must call it.

        Returns:
            Whether there were projections.
        """
        kept, self._kept = self._kept, []
        widths = row_counts(kept[0].shape[2] if kept else 0, pl_module.device)
        if max(widths) == 0:
            return False
        empty = torch.empty(0, 2, max(widths), device=pl_module.device)
        everyone = gather(torch.cat([empty, *kept]))
        found = _NOT_FOUND
        if trainer.is_global_zero:
            layout = getattr(getattr(pl_module, "loss", None), "layout", "views")
            found = _fit(everyone, across=layout != "views")
        shape = trainer.strategy.broadcast(found)
        for name, value in zip(("xi", "xi_low", "xi_high"), shape, strict=True):
            pl_module.log(f"tail/{name}", value)
        return True


def _fit(views: Tensor, across: bool) -> list[float]:
    """Fit the tail, by random numbers of its own."""
    finite = views[views.isfinite().all(dim=2).all(dim=1)]
    unit = unit_vectors(finite).cpu().numpy()
    pooled = pool_views(unit[:, 0], unit[:, 1], across=across)
    if pooled is None:
        return _NOT_FOUND
    fit = fit_threshold(pooled.tail, np.random.default_rng(0), num_resamples=200)
    return _NOT_FOUND if fit.xi is None else [fit.xi, *(fit.xi_interval or _NOT_FOUND[1:])]
