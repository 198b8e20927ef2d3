"""The settings in a checkpoint as the configuration below all others, and what overrides them."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.utilities import rank_zero_only

from weince_lightning.checkpoints.files import ForeignClassError, check_checkpoint
from weince_lightning.checkpoints.record import Checkpoint, RunSettings, open_module_checkpoint
from weince_lightning.cli.arguments import UsageError, checkpoint_argument, read_config


class TrainingFinishedError(UsageError):
    """A training to be resumed that has nothing left to train."""


def open_given_checkpoint(arguments: Sequence[str]) -> Checkpoint | None:
    """Open the checkpoint behind ``--ckpt_path``; None if there is none on this machine.

    One with objects of other classes counts as empty: options may allow them later.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is damaged, or Lightning did not write it.
    """
    path = checkpoint_argument(arguments)
    if path is None or not Path(path).is_file():
        check_checkpoint(path)
        return None
    try:
        return open_module_checkpoint(path)
    except ForeignClassError:
        return Checkpoint(path, {})


def with_checkpoint_config(arguments: Sequence[str], config: RunSettings | None) -> list[str]:
    """Put the checkpoint's settings under the layers and options of the command line.

    Raises:
        UsageError: If neither the checkpoint nor the command line says what must be known.
    """
    command, *rest = arguments
    given = _given_keys(rest)
    known = {} if config is None else config.settings
    unknown = [key for key in ("model", "data") if key not in known and not _is_set(key, given)]
    if unknown and not {"-h", "--help"} & {*rest}:
        raise UsageError(
            f"--ckpt_path must hold the settings of the {' and the '.join(unknown)}, got "
            f"{checkpoint_argument(rest)!r} without: give -c CONFIG."
        )
    if config is None:
        return [*arguments]
    refuse_built_in_python(
        config.built_in_python, lambda key: _is_set(key, given), "the checkpoint"
    )
    tell(f"weince: using the settings in {config.source}.")
    return [command, "-c", yaml.safe_dump(config.settings, sort_keys=False), *rest]


def refuse_built_in_python(
    classes: Mapping[str, str], is_given: Callable[[str], bool], source: str
) -> None:
    """Refuse to go on without objects that a checkpoint cannot hold.

    Args:
        classes: The class of each such object by its key, such as ``data.sampler``.
        is_given: Whether the command line gives a key.
        source: What the error calls the checkpoint.

    Raises:
        UsageError: If one of them is not given.
    """
    for key, name in classes.items():
        if not is_given(key):
            raise UsageError(
                f"--{key} must be given, by a class path: {source} was written with {name}, built "
                "in Python, which cannot be rebuilt from it."
            )


def report_overrides(saved: Mapping[str, Any], final: Mapping[str, Any]) -> None:
    """Say on standard error, a line each, which settings of a checkpoint do not hold."""
    for key, was, now in _differences(saved, final, ""):
        tell(f"{key}: {shown_value(now)} instead of the checkpoint's {shown_value(was)}")


def refuse_finished(checkpoint: Checkpoint, limits: Any) -> None:
    """Refuse to resume a training that has reached its end.

    Args:
        checkpoint: Where it would go on.
        limits: Arguments of the trainer.

    Raises:
        TrainingFinishedError: If there is nothing left to train.
    """
    progress = checkpoint.progress
    if progress is None or progress.epochs is None:
        return
    for name, done, end in (
        ("max_epochs", progress.epochs, limits.max_epochs),
        ("max_steps", progress.steps, limits.max_steps),
    ):
        if end is not None and 0 <= end <= done:
            raise TrainingFinishedError(
                f"--trainer.{name} must be above {done} to go on from {checkpoint.source}, which "
                f"has trained that many {name[4:]}, got {end}."
            )


def _given_keys(arguments: Sequence[str]) -> set[str]:
    """List what options and layers set, such as ``model.loss.temperature``."""
    keys = {argument.partition("=")[0][2:] for argument in arguments if argument[:2] == "--"}
    for flag, layer in pairwise(arguments):
        if flag == "-c":
            for each in read_config(layer):
                keys.update(each.lines)
    return {key.replace(".init_args", "") for key in keys}


def _is_set(key: str, given: set[str]) -> bool:
    return any(each == key or each.startswith(f"{key}.") for each in given)


def _differences(was: Any, now: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Walk through the settings that both have; a class that was replaced is one difference."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        if was.get("class_path") != now.get("class_path"):
            yield key, was, now
            return
        for name in was:
            if name in now:
                yield from _differences(was[name], now[name], f"{key}.{name}" if key else name)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from _differences(old, new, f"{key}.{number}")
    elif was != now:
        yield key, was, now


def shown_value(value: Any) -> str:
    """Write a value in one line; of an object its class."""
    if isinstance(value, Mapping) and "class_path" in value:
        return str(value["class_path"])
    if isinstance(value, list):
        return f"[{', '.join(map(shown_value, value))}]"
    return "null" if value is None else str(value)


@rank_zero_only
def tell(line: str) -> None:
    """Write a line to standard error, once for all processes."""
    sys.stderr.write(f"{line}\n")
