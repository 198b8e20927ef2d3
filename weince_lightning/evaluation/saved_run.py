"""Data module and backbone of the run that wrote a checkpoint, built from its settings."""

import logging
from collections.abc import Mapping
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import LightningDataModule
from torch import nn

from weince_lightning.checkpoints.layouts import split_state
from weince_lightning.checkpoints.record import Checkpoint, RunSettings

_log = logging.getLogger(__name__)


def built_data_arguments(run: RunSettings) -> dict[str, str]:
    """Return the data arguments that were objects built in Python, such as ``data.sampler``.

    Args:
        run: Settings of a run.

    Returns:
        Their classes by name. ``data.transforms`` is left out: it augments training images alone.
    """
    return {
        key: name
        for key, name in run.built_in_python.items()
        if key.startswith("data.") and key != "data.transforms"
    }


def saved_backbone(run: RunSettings) -> dict[str, Any] | None:
    """Return class path and arguments of the backbone; None if it has a name or was not saved."""
    init_args = (run.settings.get("model") or {}).get("init_args") or {}
    backbone = init_args.get("backbone")
    return dict(backbone) if isinstance(backbone, Mapping) else None


def build_saved_data(checkpoint: Checkpoint) -> tuple[LightningDataModule, dict[str, Any]]:
    """Build the data module with which a checkpoint was trained.

    The settings name classes that are imported and called, as a configuration file does.

    Args:
        checkpoint: An open checkpoint.

    Returns:
        The data module, and its class path and arguments.

    Raises:
        ValueError: If the settings are not there, hold objects built in Python, or do not fit the
            class.
    """
    run = checkpoint.run_settings
    if run is None or "data" not in run.settings:
        raise ValueError(
            f"data must be given: {checkpoint.source} holds no settings of its data module."
        )
    for key, name in built_data_arguments(run).items():
        raise ValueError(
            f"data must be given: {checkpoint.source} was written with {name} as {key}, built in "
            "Python, which cannot be rebuilt from it."
        )
    return _build(LightningDataModule, run.settings["data"])


def build_saved_backbone(checkpoint: Checkpoint) -> nn.Module | None:
    """Build a backbone that was given by class path; None if it has a name or was not saved."""
    run = checkpoint.run_settings
    settings = None if run is None else saved_backbone(run)
    return None if settings is None else _build(nn.Module, settings)[0]


def warn_of_normalization(checkpoint: Checkpoint | str, data: object) -> None:
    """Say where an encoder that learnt from normalized images is to see images in [0, 1].

    Args:
        checkpoint: An open checkpoint; the name of an encoder, which prepares its images, passes.
        data: What gives the encoder its images, with a ``normalization``.
    """
    if isinstance(checkpoint, str) or getattr(data, "normalization", True) is not None:
        return
    known = checkpoint.normalization
    layout = split_state(checkpoint.state)[0]
    is_foreign = layout == "weince_lightning" and not checkpoint.module_settings
    if known:
        why = f"it learnt from images with mean {known['mean']} and std {known['std']}"
    elif layout == "lightly" or is_foreign:
        why = "lightly's transforms normalize images by default"
    else:
        return
    _log.warning(
        "%s is given images in [0, 1], and %s. If it learnt from normalized images, give their "
        "mean and std: --data.mean, --data.std.",
        checkpoint.source,
        why,
    )


def _build(kind: type, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--part", type=kind)
    try:
        config = parser.parse_object({"part": settings})
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from error
    plain: dict[str, Any] = yaml.safe_load(parser.dump(config, skip_unset=False))["part"]
    return parser.instantiate(config).part, plain
