"""The refusal of a checkpoint whose weights or loss state do not fit the module."""

from collections.abc import Iterable, Mapping
from typing import Any

from weince_lightning.losses.descriptions import flatten

_QUEUE = ".queue."
_OF_THE_NETWORK = ("backbone", "backbone_options", "in_channels", "image_size", "projection_dim")
_OF_THE_LOSS = ("queue_size", "memory_bank_size", "link", "top_m_terms")


class CheckpointMismatchError(RuntimeError):
    """The weights or the state of the loss in a checkpoint do not fit the module."""


def explain_mismatch(
    message: str,
    saved: Mapping[str, Any],
    own: Mapping[str, Any],
    saved_settings: Mapping[str, Any] | None,
    own_settings: Mapping[str, Any],
) -> str:
    """Name what differs between a state and a module: settings, or else tensors, and queues.

    Args:
        message: What torch said.
        saved: State of the checkpoint.
        own: State of the module.
        saved_settings: What the saved module was built from, None if unknown.
        own_settings: What the module was built from.

    Returns:
        The sentences, in one line.
    """
    differing = [
        key
        for key in {**own, **saved}
        if (key in own) != (key in saved)
        or (_QUEUE not in key and _shape(own[key]) != _shape(saved[key]))
    ]
    names = _different_settings(saved_settings or own_settings, own_settings, differing)
    tensors = [key for key in differing if _QUEUE not in key]
    if tensors and not names:
        names = [f"{tensors[0]}{f' and {len(tensors) - 1} more tensors' if tensors[1:] else ''}"]
    opening = "The checkpoint must fit the module, got another one"
    sentences = [f"{opening}{': ' if names else ''}{', '.join(names)}."]
    for key in (key for key in differing if key.endswith(f"{_QUEUE}vectors")):
        place = key.removesuffix(".vectors")
        sentences.append(
            f"The checkpoint has a queue of {len(saved[key])} keys ({place}), the module none: "
            "give the loss its queue_size or memory_bank_size."
            if key in saved
            else f"The module has a queue ({place}), the checkpoint none: leave queue_size and "
            "memory_bank_size of the loss at 0."
        )
    # What torch reports besides names and shapes, such as a queue that is too small.
    lines = [line.strip() for line in message.splitlines()[1:]]
    counted = ("Missing key", "Unexpected key", "size mismatch")
    sentences += [line for line in lines if line and not line.startswith(counted)]
    return " ".join(sentences)


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None)


def _different_settings(
    saved: Mapping[str, Any], own: Mapping[str, Any], keys: Iterable[str]
) -> list[str]:
    """Name the settings that shape what differs, with both values."""
    in_loss = {key.startswith("loss.") for key in keys}
    was, now = (
        {
            name: value
            for setting, description in settings.items()
            for name, value in flatten(description, setting).items()
            if value != "[]"
            and (
                (False in in_loss and setting in _OF_THE_NETWORK)
                or (True in in_loss and setting == "loss" and _shapes_the_loss(name))
            )
        }
        for settings in (saved, own)
    )
    return [
        f"{name} {was.get(name, 'unset')} instead of {now.get(name, 'unset')}"
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]


def _shapes_the_loss(name: str) -> bool:
    """Whether a setting decides what state there is: its class, its keys, its links and terms."""
    parts = name.split("/")
    return name == "loss" or (parts[1] in _OF_THE_LOSS and len(parts) < 4)
