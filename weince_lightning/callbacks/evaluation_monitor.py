"""What monitors of validation have in common with themselves in a test."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class EvaluationMonitor(Callback, ABC):
    """Keeps what the batches of a validation or test epoch tell, and logs at its end.

    In the sanity check outputs are read, so that what cannot be is refused before training, but
    nothing is kept or logged.
    """

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with nothing kept."""
        self._start(trainer.val_dataloaders)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with nothing kept."""
        self._start(trainer.test_dataloaders)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep what the end of the epoch needs."""
        found = self._read(outputs)
        if not trainer.sanity_checking:
            self._keep(found, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what the split shows."""
        if not trainer.sanity_checking:
            self._log(pl_module)

    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = on_validation_epoch_end

    def _refusal(self, wanted: str, outputs: Any) -> TypeError:
        """What :meth:`_read` raises where a step returned something else."""
        found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        return TypeError(
            f"validation_step and test_step must return a dict with {wanted} for "
            f"{type(self).__name__}, got {found}."
        )

    @abstractmethod
    def _start(self, loaders: Any) -> None:
        """Forget what was kept; the loaders of the stage follow."""

    @abstractmethod
    def _read(self, outputs: Any) -> Any:
        """Take from a step's outputs what is needed, or refuse them."""

    @abstractmethod
    def _keep(self, found: Any, batch_idx: int, dataloader_idx: int) -> None:
        """Keep of a batch what :meth:`_read` found."""

    @abstractmethod
    def _log(self, pl_module: LightningModule) -> None:
        """Log what was kept; every process calls it."""
