"""Folders and files of a run, as its trainer knows them."""

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from weince_lightning.folders import files_below


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


def config_path(trainer: Trainer) -> Path | None:
    """Return where the configuration of a run belongs: to its logs, or else its checkpoints."""
    folder = log_folder(trainer) or checkpoint_folder(trainer)
    return None if folder is None else folder / "config.yaml"


def written_checkpoints(trainer: Trainer) -> list[Path]:
    """Return the checkpoints that a run of the command wrote, the newest first.

    They are looked for where the callbacks write, in folders below too: a slash in a metric's name
    makes one of a file name. What is older than the configuration, which is written at the start,
    belongs to another run.
    """
    config = config_path(trainer)
    if config is None or not config.is_file():
        return []
    start = config.stat().st_mtime
    savers = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
    folders = {Path(each.dirpath) for each in savers if each.dirpath is not None}
    files = {file for folder in folders for file in files_below(folder, ".ckpt")}
    ages = {file: file.stat().st_mtime for file in files}
    return sorted((file for file in ages if ages[file] >= start), key=ages.__getitem__)[::-1]
