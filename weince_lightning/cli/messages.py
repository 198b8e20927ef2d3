"""Closing messages of the commands: the numbers, where the files are, the next command."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from weince_lightning.callbacks.run_end import readable_checkpoint
from weince_lightning.callbacks.run_files import config_path, log_folder, written_checkpoints
from weince_lightning.cli.run_files import shown
from weince_lightning.evaluation.cache import check_labelled
from weince_lightning.functional.neighbours import NoLabelError
from weince_lightning.module import ContrastiveModule, SentenceModule

_HEADLINES = {
    "train/loss": "training loss",
    "val/loss": "validation loss",
    "test/loss": "test loss",
    "knn/top1": "kNN top-1",
    "probe/val_top1": "linear probe top-1",
    "retrieval/top1": "retrieval top-1",
    "sts/spearman": "similarity as people see it, Spearman",
    "tail/lambda_mean": "mean gate lambda",
    "tail/beta_hat_mean": "mean shape beta-hat",
}


def say(text: str) -> None:
    """Write to standard output, flushed so that it stays in order with the progress bar."""
    sys.stdout.write(text)
    sys.stdout.flush()


def headlines(metrics: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Pick the numbers that a person looks at first."""
    return [
        (f"{label} ({name})", f"{float(metrics[name]):.4f}")
        for name, label in _HEADLINES.items()
        if name in metrics
    ]


def details(metrics: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Name every other number."""
    return [
        (name, f"{float(value):.4f}")
        for name, value in sorted(metrics.items(), key=lambda item: _by_number(item[0]))
        if name not in _HEADLINES
    ]


def _by_number(name: str) -> list[str | int]:
    # k5 stands before k20. Text and digits alternate, so that like is compared with like.
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def table(rows: Iterable[Sequence[str]]) -> str:
    """Set rows in columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"  {line.rstrip()}\n" for line in lines)


def checkpoints(trainer: Trainer, has_new_logs: bool = False) -> list[tuple[str, str]]:
    """Name the checkpoints of a run that are there, and what each is best at."""
    rows = []
    written = written_checkpoints(trainer)
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint) or not callback.best_model_path:
            continue
        path, score = callback.best_model_path, callback.best_model_score
        is_of_run = "://" in path or Path(path) in written
        if callback.monitor is None and is_of_run:
            rows.append((_age(path, trainer.global_step), shown(path)))
        elif is_of_run or (score is not None and Path(path).exists()):
            # Where a run goes on in its own folder, the best may be from before the resume.
            since = " since the resume" if has_new_logs and is_of_run else ""
            value = "" if score is None else f" ({score:.4f})"
            rows.append((f"checkpoint of the best {callback.monitor}{since}{value}", shown(path)))
    return rows


def _age(path: str, steps: int) -> str:
    checkpoint = readable_checkpoint(path)
    progress = checkpoint and checkpoint.progress
    if not progress or progress.steps == steps:
        return "checkpoint of the last epoch"
    return f"newest checkpoint, of step {progress.steps} of {steps}"


def fit_report(trainer: Trainer, has_new_logs: bool = False, is_success: bool = True) -> str:
    """Describe a finished training run, and the command that comes next."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        works = "The trial run works" if is_success else "The trial run is over"
        numbers = table(headlines(trainer.callback_metrics))
        return f"\n{works}; nothing was written.\n{numbers}"
    logs, newest = log_folder(trainer), next(iter(written_checkpoints(trainer)), None)
    config = config_path(trainer)
    rows = headlines(trainer.callback_metrics)
    # Of weights that are not finite none is the best; the error names those to go on from.
    named = checkpoints(trainer, has_new_logs) if is_success else []
    rows += named
    if is_success and trainer.checkpoint_callbacks and not newest and not named:
        rows.append(("checkpoint", "none: the run ended before the first was due"))
    rows += [("logs", shown(logs))] if logs else []
    rows += [("configuration", shown(config))] if config and config.is_file() else []
    following = []
    if newest and is_success:
        following += [f"  weince {command}\n" for command in _next_commands(trainer, newest)]
    if logs and any(isinstance(logger, TensorBoardLogger) for logger in trainer.loggers):
        following.append(f"  tensorboard --logdir {shown(logs.parent)}\n")
    steps = f"{trainer.current_epoch} epochs, {trainer.global_step} steps"
    text = f"\nTrained for {steps}. Numbers of the last epoch:\n{table(rows)}"
    return text + "".join(["\nNext:\n", *following] if following else [])


def _next_commands(trainer: Trainer, checkpoint: Path) -> list[str]:
    """List what can be done with a checkpoint: what needs labels only where there are some."""
    path, module = shown(checkpoint), trainer.lightning_module
    commands = [f"validate --ckpt_path {path}"]
    if isinstance(module, ContrastiveModule) and not isinstance(module, SentenceModule):
        data = trainer.datamodule  # type: ignore[attr-defined]
        train, test = (_has_labels(data, split) for split in ("train", "test"))
        commands += [f"evaluate {path}"] if train and test else []
        is_given = is_overridden("test_dataloader", data) and test is not None
        commands += [f"diagnose {path}"] if is_given else []
        commands.append(f"export {path} --to backbone.pt")
    return commands


def _has_labels(data: LightningDataModule | None, split: str) -> bool | None:
    """Whether a split has labels, as far as is known; None if there is no such split."""
    give = getattr(data, "evaluation_dataloader", None)
    if not callable(give):
        return False
    try:
        with isolate_rng():
            check_labelled(split, give(split))
    except NoLabelError:
        return False
    except (ValueError, FileNotFoundError):
        return None
    return True


def interruption_report(trainer: Trainer, saved: Path | None) -> str:
    """Say how to resume."""
    newest = saved or next(iter(written_checkpoints(trainer)), None)
    if newest is None:
        return "\nInterrupted before the first checkpoint: there is nothing to resume.\n"
    what = f"Saved step {trainer.global_step}" if saved else "The last epoch's checkpoint is there"
    return f"\nInterrupted. {what}. Resume with:\n  weince fit --ckpt_path {shown(newest)}\n"


def evaluation_report(trainer: Trainer, checkpoint: str | None) -> str:
    """Give the numbers of a validation or test run."""
    metrics = trainer.callback_metrics
    source = shown(checkpoint) if checkpoint else "the untrained weights: no --ckpt_path was given"
    return f"\nNumbers of {source}:\n{table(headlines(metrics) + details(metrics))}"
