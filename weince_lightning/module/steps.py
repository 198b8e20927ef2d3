"""Steps of training, validation and test that log the loss, over each sample once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch

from weince_lightning.data.padding import Count, Padding
from weince_lightning.losses.base import ContrastiveLoss
from weince_lightning.module.saved_settings import RebuildableModule

Stage = Literal["train", "val", "test"]


class LoggingModule(RebuildableModule, ABC):
    """A module whose steps log the loss of :meth:`step`.

    Its value is a mean over samples, of all processes together. In validation and test, samples
    that a distributed sampler repeats are no part of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._padding = Padding()
        self._evaluated_loader: int | None = None
        self._weight: int | None = None

    @abstractmethod
    def step(self, batch: Sequence[Any]) -> dict[str, Any]:
        """Return at least ``loss``, None where there is none, and ``labels``.

        A step asks :meth:`_count_samples` how many of its samples count, and keeps the weight of
        its loss in ``_weight``.
        """

    def training_step(self, batch: Sequence[Any], batch_idx: int) -> dict[str, Any]:
        """Return :meth:`step` and log ``train/loss``."""
        return self._logged_step(batch, "train", batch_idx)

    def validation_step(
        self, batch: Sequence[Any], batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Any]:
        """Return :meth:`step` and log ``val/loss``, the mean over all samples but lone ones.

        Of several loaders each has its own, ``val/loss/dataloader_idx_0`` and so on.
        """
        return self._logged_step(batch, "val", batch_idx, dataloader_idx)

    def test_step(
        self, batch: Sequence[Any], batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Any]:
        """Return :meth:`step` and log ``test/loss``, as :meth:`validation_step` does."""
        return self._logged_step(batch, "test", batch_idx, dataloader_idx)

    def _logged_step(
        self,
        batch: Sequence[Any],
        stage: Stage,
        batch_idx: int,
        dataloader_idx: int = 0,
        add_dataloader_idx: bool = True,
    ) -> dict[str, Any]:
        self._weight = None
        if stage != "train" and isinstance(self.loss, ContrastiveLoss):
            if batch_idx == 0:
                self._padding.start(getattr(self.trainer, f"{stage}_dataloaders"))
            self._evaluated_loader = dataloader_idx
        outputs = self.step(batch)
        self._evaluated_loader = None
        loss = outputs["loss"]
        # A step of a subclass may not count.
        weight = len(outputs["labels"]) if self._weight is None else self._weight
        if loss is None and self._num_processes() > 1:  # all processes must log
            loss, weight = torch.zeros((), device=self.device), 0
        if loss is not None:
            self.log(
                f"{stage}/loss",
                loss,
                on_step=stage == "train",
                on_epoch=stage != "train",
                prog_bar=True,
                batch_size=weight,
                sync_dist=True,
                add_dataloader_idx=add_dataloader_idx,
            )
        return outputs

    def _count_samples(self, batch_size: int) -> Count:
        """Count the samples of a batch for the loss, repetitions aside.

        Together they are the weight of the loss in the mean of an epoch. Lightning averages the
        weights of the processes in integers, so that they must come out even.
        """
        # Losses of others may need as many samples of each process.
        if self._evaluated_loader is None:
            return Count(batch_size, batch_size * self._num_processes())
        count = self._padding.count(batch_size, self._evaluated_loader)
        if self.loss.gather_distributed:
            return count
        # A lone sample has no negative, however many the others have.
        return Count(count.own, count.own * self._num_processes() if count.own > 1 else 0)

    def _num_processes(self) -> int:
        return 1 if self._trainer is None else self.trainer.world_size
