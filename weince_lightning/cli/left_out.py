"""Callbacks of the layers that ``--without`` leaves out."""

from typing import Any

from weince_lightning.checks import did_you_mean


def remove_callbacks(settings: Any) -> dict[str, str]:
    """Remove the callbacks that ``without`` names, and ``without`` itself: a resume has neither.

    Args:
        settings: Of one command; the callbacks are under ``trainer``.

    Returns:
        What stands before the slash in the metrics of each, and its class.

    Raises:
        ValueError: If there is no such callback.
    """
    names = settings.pop("without", None) or []
    callbacks = settings.trainer.get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    kinds = [callback.class_path.rpartition(".")[2] for callback in callbacks]
    removed: dict[str, str] = {}
    for name in names:
        if name not in kinds:
            there_are = ", ".join(dict.fromkeys(kinds)) or "none"
            raise ValueError(
                f"--without must name a callback of the layers, got {name!r}. There are: "
                f"{there_are}.{did_you_mean(name, kinds)}"
            )
        for callback, kind in zip(callbacks, kinds, strict=True):
            if kind == name:
                prefix = (callback.get("init_args") or {}).get("name")
                removed[prefix or name.removesuffix("Monitor").lower()] = name
    if removed:
        settings.trainer.callbacks = [
            callback for callback, kind in zip(callbacks, kinds, strict=True) if kind not in names
        ]
    return removed
