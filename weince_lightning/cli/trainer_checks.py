"""Settings of the trainer that Lightning refuses late, in other words, or not at all."""

from typing import Any

from lightning.pytorch.accelerators import AcceleratorRegistry

from weince_lightning.checks import check_integer

_LEAST = {"max_epochs": -1, "max_steps": -1, "log_every_n_steps": 0, "check_val_every_n_epoch": 1}
"""The smallest number of each; -1 is no limit."""


def check_trainer(settings: Any) -> None:
    """Refuse numbers that mean nothing, and accelerators that this machine lacks.

    Args:
        settings: Arguments of the trainer, as attributes; those that are None are not given.

    Raises:
        ValueError: If one cannot be used; the message begins with its name.
    """
    for name, least in _LEAST.items():
        if (value := getattr(settings, name, None)) is not None:
            check_integer(name, value, at_least=least)
    given = getattr(settings, "accelerator", None)
    kinds = ("cuda", "mps") if given == "gpu" else (given,)
    known = [kind for kind in kinds if kind in AcceleratorRegistry.available_accelerators()]
    if known and not any(AcceleratorRegistry.get(kind).is_available() for kind in known):
        raise ValueError(
            f"accelerator must be one that this machine has, got {given!r}. Leave it out, or "
            "set it to cpu."
        )
