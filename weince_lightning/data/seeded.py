"""What data modules have in common: an order that a seed decides, so that a training can go on."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, Dataset

from weince_lightning.checks import check_integer
from weince_lightning.data.order import EpochLoader, EpochOrder, outlive_signals


class SeededData(LightningDataModule):
    """Loaders whose order, and what else is random in them, follows from a seed and the epoch.

    Args:
        batch_size: Samples per batch and process, at least 1.
        num_workers: Processes that load samples beside the main one.

    Raises:
        TypeError: If a number is no integer.
        ValueError: If it is out of its range.
    """

    def __init__(self, batch_size: int, num_workers: int) -> None:
        super().__init__()
        check_integer("batch_size", batch_size, at_least=1)
        check_integer("num_workers", num_workers, at_least=0)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self._seed: int | None = None

    def setup(self, stage: str) -> None:
        """Draw the seed of a training run."""
        if stage == "fit":
            self._seed = self._draw_seed()

    def state_dict(self) -> dict[str, Any]:
        """The seed of the training run."""
        return {} if self._seed is None else {"seed": self._seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the samples and views of the run that was saved."""
        self._seed = state_dict["seed"]

    def _seeded_loader(
        self,
        dataset_of: Callable[[int], Dataset[Any]],
        size: int,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> EpochLoader:
        """Return the loader of a training set, which is asked for pairs (sample, seed).

        Args:
            dataset_of: From the seed of the run to the data set.
            size: Number of samples.
            collate: From samples to a batch; None is torch's.
        """
        if not self._is_fitting:
            seed = self._draw_seed()
        elif self._seed is None:  # a subclass has a setup of its own
            seed = self._seed = self._draw_seed()
        else:
            seed = self._seed
        processes = self.trainer.world_size if self.trainer else 1
        return EpochLoader(
            dataset_of(seed),
            EpochOrder(size, seed),
            self._place,
            drop_last=size // processes > self.batch_size,
            **self._options(collate),
        )

    def _fixed_loader(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> DataLoader[Any]:
        return DataLoader(cast(Dataset[Any], dataset), **self._options(collate))

    def _options(self, collate: Callable[[list[Any]], Any] | None) -> dict[str, Any]:
        """Return the options of every loader."""
        return {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "collate_fn": collate,
            "pin_memory": torch.cuda.is_available(),
            "worker_init_fn": outlive_signals,
            # Every iteration draws a seed; without an own generator, from the global one.
            "generator": torch.Generator(),
        }

    @property
    def _is_fitting(self) -> bool:
        state = self.trainer.state if self.trainer else None
        return state is not None and (state.fn, state.status) == ("fit", "running")

    def _draw_seed(self) -> int:
        """Draw a seed, the same on all processes."""
        seed = int(torch.randint(2**63 - 1, ()))
        return self.trainer.strategy.broadcast(seed) if self.trainer else seed

    def _place(self, loader: EpochLoader) -> tuple[int, int] | None:
        """Return where training stands if it is training that asks for the batch."""
        trainer = self.trainer
        if trainer is None or not self._is_fitting or trainer.train_dataloader is None:
            return None
        if loader not in CombinedLoader(trainer.train_dataloader).flattened:
            return None
        return trainer.current_epoch, trainer.fit_loop.batch_idx + 1
