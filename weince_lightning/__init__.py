"""Contrastive pretraining with WEINCE (Weibull-enhanced InfoNCE) for PyTorch Lightning.

Public names load on first use, so that importing the losses costs torch and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weince_lightning.losses import (
        ArctanhLink,
        InfoNCELoss,
        PowerLink,
        SoftmaxLink,
        TailGate,
        TailShape,
        TopMTerm,
        WeibitLink,
        WEINCELoss,
    )
    from weince_lightning.module import ContrastiveModule

__all__ = [
    "ArctanhLink",
    "ContrastiveModule",
    "InfoNCELoss",
    "PowerLink",
    "SoftmaxLink",
    "TailGate",
    "TailShape",
    "TopMTerm",
    "WEINCELoss",
    "WeibitLink",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    home = "module" if name == "ContrastiveModule" else "losses"
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
