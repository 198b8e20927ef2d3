"""The settings in a checkpoint, as the configuration under all others, and what overrides them."""

import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from lightning.pytorch.utilities import rank_zero_only

from weince_lightning.checkpoints import check_checkpoint, read_checkpoint
from weince_lightning.cli.arguments import UsageError, checkpoint_argument, read_config
from weince_lightning.layers import merged
from weince_lightning.losses.descriptions import classes_built_in_python
from weince_lightning.module.saved_settings import CHECKPOINT_KEY, read_plain_part

# What belongs to the call that was made, not to the model, its data or their training.
_OF_THE_CALL = ("ckpt_path", "config", "return_predictions", "verbose", "weights_only")


class TrainingFinishedError(UsageError):
    """A training to be resumed that has nothing left to train."""


class CheckpointConfig(NamedTuple):
    """What a checkpoint says of the run that wrote it."""

    settings: dict[str, Any]
    """As in a configuration file."""

    built_in_python: dict[str, str]
    """Arguments of the model and the data that can not be rebuilt, and their classes."""

    source: str
    """Where the settings stand, for people."""


def read_checkpoint_config(arguments: Sequence[str]) -> CheckpointConfig | None:
    """Find the settings behind the ``--ckpt_path`` among the arguments, None if there are none.

    They stand in the checkpoint itself: the configuration that the command wrote, or what module
    and data module say they were built from. A checkpoint of weights alone, as
    ``ModelCheckpoint(save_weights_only=True)`` writes it, may have a configuration beside it.

    As a configuration file does, they name classes that the command imports and calls: reading is
    safe whoever wrote the checkpoint, running what it names is not.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is damaged.
    """
    path = checkpoint_argument(arguments)
    check_checkpoint(path, weights_only=False)
    if path is None or not Path(path).is_file():
        return None
    try:
        checkpoint = read_plain_part(path)
    except pickle.UnpicklingError:
        checkpoint = {}  # It holds other classes, and the options may allow them.
    names = checkpoint.get(CHECKPOINT_KEY) or {}
    if "config" in names:
        return _config(names["config"], path)
    hparams = checkpoint.get("hyper_parameters", {})
    beside = _file_beside(Path(path))
    if beside is not None and ("_instantiator" in hparams or not hparams):
        return _config(merged(read_config(str(beside))), str(beside))
    settings = {}
    for key, part in (
        ("model", hparams),
        ("data", checkpoint.get("datamodule_hyper_parameters", {})),
    ):
        class_path = part.get("_class_path") or names.get(key)
        if class_path is not None and part:
            init_args = {name: value for name, value in part.items() if name[:1] != "_"}
            settings[key] = {"class_path": class_path, "init_args": init_args}
    if "data" in settings and "model" in settings:
        # The command takes them from the data.
        for name in ("in_channels", "image_size"):
            settings["model"]["init_args"].pop(name, None)
    return _config(settings, path) if settings else None


def with_checkpoint_config(arguments: Sequence[str], config: CheckpointConfig | None) -> list[str]:
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
    for key, class_name in config.built_in_python.items():
        if not _is_set(key, given):
            raise UsageError(
                f"--{key} must be given, by a class path: the checkpoint was written with "
                f"{class_name}, built in Python, which can not be rebuilt from it."
            )
    _tell(f"weince: using the settings in {config.source}.")
    return [command, "-c", yaml.safe_dump(config.settings, sort_keys=False), *rest]


def report_overrides(config: CheckpointConfig, final: Mapping[str, Any]) -> None:
    """Say on standard error, a line each, which settings of the checkpoint do not hold."""
    for key, was, now in _differences(config.settings, final, ""):
        _tell(f"{key}: {_shown(now)} instead of the checkpoint's {_shown(was)}")


def refuse_finished(arguments: Any) -> None:
    """Refuse to resume a training that has reached its end.

    Args:
        arguments: Those of ``fit``, with a ``ckpt_path`` that can be loaded.

    Raises:
        TrainingFinishedError: If there is nothing left to train.
    """
    path, limits = arguments.ckpt_path, arguments.trainer
    if arguments.weights_only is False or not Path(path).is_file():
        return
    checkpoint = read_checkpoint(path)
    if "loops" not in checkpoint:
        return
    epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    for name, done, end in (
        ("max_epochs", epochs, limits.max_epochs),
        ("max_steps", checkpoint["global_step"], limits.max_steps),
    ):
        if end is not None and 0 <= end <= done:
            raise TrainingFinishedError(
                f"--trainer.{name} must be above {done} to go on from {path}, which has trained "
                f"that many {name[4:]}, got {end}."
            )


def _config(settings: Any, source: str) -> CheckpointConfig:
    settings = {key: value for key, value in settings.items() if key not in _OF_THE_CALL}
    built_in_python = {}
    for key in ("model", "data"):
        init_args = (settings.get(key) or {}).get("init_args") or {}
        for name, value in [*init_args.items()]:
            if classes := classes_built_in_python(value):
                built_in_python[f"{key}.{name}"] = ", ".join(classes)
                del init_args[name]
    # Tuples and the like become what a configuration file holds.
    plain = yaml.safe_load(yaml.safe_dump(settings, sort_keys=False))
    return CheckpointConfig(plain, built_in_python, source)


def _file_beside(checkpoint: Path) -> Path | None:
    folder = checkpoint.parent
    places = (folder / "config.yaml", folder.parent / "config.yaml")
    return next((place for place in places if place.is_file()), None)


def _given_keys(arguments: Sequence[str]) -> set[str]:
    """List what options and layers set, such as ``model.loss.temperature``."""
    keys = {argument.partition("=")[0][2:] for argument in arguments if argument[:2] == "--"}
    for flag, layer in pairwise(arguments):
        if flag == "-c":
            for each in read_config(layer):
                keys.update(_keys(each.content))
    return {key.replace(".init_args", "") for key in keys}


def _keys(content: Any) -> Iterator[str]:
    for name, part in content.items() if isinstance(content, dict) else ():
        yield name
        yield from (f"{name}.{key}" for key in _keys(part))


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


def _shown(value: Any) -> str:
    """Write a value in one line; of an object its class."""
    if isinstance(value, Mapping) and "class_path" in value:
        return str(value["class_path"])
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return "null" if value is None else str(value)


@rank_zero_only
def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
