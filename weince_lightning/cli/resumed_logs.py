"""Logs of a training that goes on: those of its run, or new ones."""

import csv
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger

from weince_lightning.callbacks.run_end import readable_checkpoint
from weince_lightning.callbacks.run_files import log_folder
from weince_lightning.checkpoints.files import whole_file
from weince_lightning.checkpoints.record import Checkpoint
from weince_lightning.folders import files_below


def note_of_logs(trainer: Trainer) -> dict[str, Any]:
    """Return what a checkpoint must hold for its run's logs to go on.

    That is the version of each logger (of W&B the id), and the folders of logs and checkpoints.
    """
    folders = [log_folder(trainer)]
    savers = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
    folders += [Path(each.dirpath) for each in savers if each.dirpath is not None]
    versions = (logger.version for logger in trainer.loggers)
    return {
        # Plain values alone, so that the checkpoint loads without classes.
        "versions": [each if isinstance(each, int | str) else None for each in versions],
        "folders": [str(each) for each in dict.fromkeys(folders) if each is not None],
    }


def why_new_logs(checkpoint: Checkpoint, loggers: Any, saved: Any) -> str | None:
    """Say why a training cannot go on in the logs of its run; None if it can.

    Args:
        checkpoint: Where it goes on.
        loggers: Settings of the loggers, as in a file.
        saved: Those in the checkpoint.
    """
    note, path = checkpoint.logs, checkpoint.path.resolve()
    if not note:
        return f"{checkpoint.source} does not say where the logs of its run are"
    within = (Path(folder) for folder in note["folders"])
    folder = next((each for each in within if path.is_relative_to(each.resolve())), None)
    if folder is None:
        return f"{checkpoint.source} lies outside of the folder of its run"
    if loggers != saved:
        return "its loggers have other settings"
    steps = checkpoint.progress.steps if checkpoint.progress else 0
    for other in files_below(folder, ".ckpt"):
        found = None if other.resolve() == path else readable_checkpoint(other)
        if found and found.progress and found.progress.steps > steps:
            return f"{other} is newer than {checkpoint.source}"
    return None


@contextmanager
def versions_given(loggers: Any, versions: Sequence[Any]) -> Iterator[None]:
    """Let loggers whose settings name no version be built with those of a run.

    The settings are as before at the end: the next training takes the next version.
    """
    given = loggers if isinstance(loggers, list) else [loggers]
    changed = []
    for logger, version in zip(given, versions, strict=False):
        arguments = getattr(logger, "init_args", None)
        if arguments is not None and arguments.get("version", "") is None:
            arguments["version"] = version
            changed.append(arguments)
    try:
        yield
    finally:
        for arguments in changed:
            arguments["version"] = None


def keep_rows(logger: Logger, steps: int) -> None:
    """Let a CSV file keep the rows up to the step from which a training goes on.

    Lightning's ``CSVLogger`` deletes the file of a folder in which it begins to write.

    Args:
        logger: Any of Lightning's that has not begun to write, in the process that writes.
        steps: The checkpoint's; later rows will be written again.
    """
    if not isinstance(logger, CSVLogger):
        return
    path = Path(logger.log_dir) / "metrics.csv"
    kept = path.with_name("metrics.csv.kept")
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            lines = [*file]
        # A process killed while writing leaves a line that does not end.
        reader = csv.DictReader(line for line in lines if line.endswith("\n"))
        rows = [row for row in reader if int(row["step"]) <= steps]
        with whole_file(kept) as file:
            text = _written(reader.fieldnames or [], rows)
            file.write(text.encode())
    if not kept.is_file():  # but for one that a killed process left
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Experiment logs directory")
        writer = logger.experiment
    os.replace(kept, path)
    with path.open(encoding="utf-8", newline="") as file:
        writer.metrics_keys = next(csv.reader(file), [])


def _written(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
