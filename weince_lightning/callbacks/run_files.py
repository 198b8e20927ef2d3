"""Folders and files of a run, as its trainer knows them."""

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


def log_folder(trainer: Trainer) -> Path | None:
    """Return the folder of the first logger that has one of its own for each run."""
    for logger in trainer.loggers:
        # Asked of the logger, not of the trainer: `trainer.log_dir` waits for all processes.
        folder = getattr(logger, "log_dir", None)
        if isinstance(folder, (str, Path)):  # fast_dev_run's logger answers to any name
            return Path(folder)
    return None


def checkpoint_folder(trainer: Trainer) -> Path | None:
    """Return the folder of the first checkpoint callback; known once a run has been set up."""
    callback = trainer.checkpoint_callback
    if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
        return Path(callback.dirpath)
    return None


def newest_checkpoint(trainer: Trainer) -> Path | None:
    """Return the checkpoint of this run that was written last."""
    folder = checkpoint_folder(trainer)
    files = [] if folder is None else list(folder.glob("*.ckpt"))
    return max(files, key=lambda file: file.stat().st_mtime, default=None)
