"""What differs between a checkpoint and the module that it should go into, in words."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

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
    """Say in a few sentences why a state does not fit a module.

    Args:
        message: What torch said.
        saved: State of the checkpoint.
        own: State of the module.
        saved_settings: What the saved module was built from, None if unknown.
        own_settings: What the module was built from.

    Returns:
        The sentences, in one line.
    """
    unknown, missing = saved.keys() - own.keys(), own.keys() - saved.keys()
    shapes = {
        key: (tuple(saved[key].shape), tuple(own[key].shape))
        for key in own
        if isinstance(own[key], Tensor) and isinstance(saved.get(key), Tensor)
    }
    reshaped = {key for key, (a, b) in shapes.items() if a != b and _QUEUE not in key}
    differing = unknown | missing | reshaped
    settings = _different_settings(saved_settings or own_settings, own_settings, differing)
    opening = "The checkpoint must fit the module, got another one"
    sentences = [f"{opening}{': ' if settings else ''}{', '.join(settings)}."]
    sentences += [
        f"The checkpoint has a queue of {len(saved[key])} keys ({_place(key)}), the module none: "
        "give the loss its queue_size or memory_bank_size."
        for key in _queues(unknown)
    ]
    sentences += [
        f"The module has a queue ({_place(key)}), the checkpoint none: leave queue_size and "
        "memory_bank_size of the loss at 0."
        for key in _queues(missing)
    ]
    if listed := _without_queues(unknown, saved):
        sentences.append(f"Only the checkpoint has {_listed(listed)}.")
    if listed := _without_queues(missing, own):
        sentences.append(f"Only the module has {_listed(listed)}.")
    if reshaped:
        first = next(key for key in own if key in reshaped)
        was, wanted = shapes[first]
        sentences.append(f"{_listed(_without_queues(reshaped, own))}: {was} must be {wanted}.")
    # What torch reports besides names and shapes, such as a queue that is too small.
    lines = [line.strip() for line in message.splitlines()[1:]]
    counted = ("Missing key", "Unexpected key", "size mismatch")
    sentences += [line for line in lines if line and not line.startswith(counted)]
    return " ".join(sentences)


def _queues(keys: Iterable[str]) -> list[str]:
    return sorted(key for key in keys if key.endswith(f"{_QUEUE}vectors"))


def _place(key: str) -> str:
    return key.removesuffix(".vectors")


def _without_queues(keys: Iterable[str], state: Mapping[str, Any]) -> list[str]:
    """Put the keys in the order of the state."""
    wanted = set(keys)
    return [key for key in state if key in wanted and _QUEUE not in key]


def _listed(keys: list[str]) -> str:
    more = len(keys) - 1
    return keys[0] + (f" and {more} more tensor{'s' if more > 1 else ''}" if more else "")


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
