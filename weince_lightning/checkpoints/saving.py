"""Lightning's checkpoints, written so that a kill leaves the one before."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO

from weince_lightning.checkpoints.files import whole_file


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write each checkpoint beside the one that it replaces, then take its place at once.

    Lightning itself writes into the system's temporary folder and moves the file from there. Where
    that is another file system, as a ``/tmp`` in memory is, the move is a copy over the checkpoint
    before: a process killed in the middle leaves neither.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(plugins=[AtomicCheckpointIO()], logger=False, accelerator="cpu")
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Save to a file; what does not lie on this machine is left to the parent."""
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            torch.save(checkpoint, file)


def save_atomically(trainer: Trainer) -> None:
    """Give a trainer :class:`AtomicCheckpointIO` in place of Lightning's default.

    What was chosen on purpose, or by the strategy, stays.
    """
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = AtomicCheckpointIO()
