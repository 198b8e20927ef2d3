"""Losses and their parts as plain values, and back: what a checkpoint holds in place of objects.

A description has the form that LightningCLI writes: ``{"class_path": ..., "init_args": {...}}``.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weince_lightning import losses

BUILT_IN_PYTHON = "built_in_python"
"""The only key of what stands for an object that cannot be rebuilt; its value names the class."""

_HOME = "weince_lightning.losses"
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def describe(value: object) -> Any:
    """Turn an argument into plain values that say how to build it again.

    Args:
        value: Plain values, losses and parts of this package, and lists and dicts of them.

    Returns:
        Numbers, strings, None, and lists, tuples and dicts of them. An object of another class, a
        subclass of ours included, becomes ``{"built_in_python": its class}``: what its constructor
        was given is not known.

    Example:
        >>> from weince_lightning import WeibitLink
        >>> describe(WeibitLink("pooled"))
        {'class_path': 'weince_lightning.losses.WeibitLink', 'init_args': {'beta': 'pooled'}}
        >>> describe(torch.nn.Flatten())
        {'built_in_python': 'torch.nn.Flatten'}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, nn.ModuleList):
        return [describe(part) for part in value]  # type: ignore[attr-defined]
    if type(value) is tuple:
        return tuple(describe(part) for part in value)
    if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        return {key: describe(part) for key, part in value.items()}
    if isinstance(value, Tensor) and _is_plain_scalar(value):
        arguments = {
            "value": value.item(),
            "dtype": str(value.dtype).removeprefix("torch."),
            "requires_grad": value.requires_grad,
            "is_parameter": isinstance(value, nn.Parameter),
        }
        return {"class_path": f"{__name__}.{scalar_tensor.__name__}", "init_args": arguments}
    kind = type(value)
    if kind.__name__ in losses.__all__ and getattr(losses, kind.__name__) is kind:
        named = [
            p for p in inspect.signature(kind).parameters.values() if p.kind not in _COLLECTING
        ]
        arguments = {each.name: describe(getattr(value, each.name)) for each in named}
        return {"class_path": f"{_HOME}.{kind.__name__}", "init_args": arguments}
    return {BUILT_IN_PYTHON: import_path(value)}


def build(description: Any) -> Any:
    """Build what :func:`describe` described; only classes of this package are ever called.

    Example:
        >>> build(describe([0.5, losses.SoftmaxLink()]))
        [0.5, SoftmaxLink()]
    """
    if type(description) in (list, tuple):
        return type(description)(build(part) for part in description)
    if not isinstance(description, Mapping):
        return description
    create = _creators().get(description.get("class_path", ""))
    if create is None:
        return {key: build(part) for key, part in description.items()}
    return create(**build(description.get("init_args", {})))


def is_ours(description: Any) -> bool:
    """Whether a description is of an object of this package."""
    return isinstance(description, Mapping) and description.get("class_path") in _creators()


def classes_built_in_python(description: Any) -> list[str]:
    """Name the classes in a description that cannot be rebuilt.

    Example:
        >>> classes_built_in_python(describe({"first": torch.nn.Flatten(), "second": 0.5}))
        ['torch.nn.Flatten']
    """
    if isinstance(description, Mapping):
        if description.keys() == {BUILT_IN_PYTHON}:
            return [description[BUILT_IN_PYTHON]]
        description = list(description.values())
    if not isinstance(description, (list, tuple)):
        return []
    return [name for part in description for name in classes_built_in_python(part)]


def flatten(description: Any, name: str) -> dict[str, bool | int | float | str]:
    """Lay a description out in scalars and strings, as loggers show them.

    Example:
        >>> flatten(describe(losses.TopMTerm(losses.WeibitLink(2.0))), "term")
        {'term': 'TopMTerm', 'term/link': 'WeibitLink', 'term/link/beta': 2.0, 'term/top_m': 50, \
'term/weight': 0.5}
    """
    parts: dict[Any, Any] = {}
    flat: dict[str, bool | int | float | str] = {}
    if isinstance(description, Mapping) and BUILT_IN_PYTHON in description:
        flat[name] = _last(description[BUILT_IN_PYTHON])
    elif isinstance(description, Mapping) and "class_path" in description:
        parts = description.get("init_args", {})
        flat[name] = _last(description["class_path"])
        if flat[name] == scalar_tensor.__name__:
            return {name: parts["value"]}
    elif isinstance(description, Mapping) and description:
        parts = dict(description)
    elif isinstance(description, (list, tuple)) and any(isinstance(p, dict) for p in description):
        parts = dict(enumerate(description))
    elif isinstance(description, (list, tuple)):
        flat[name] = str(list(description))
    else:
        is_scalar = isinstance(description, (bool, int, float))
        flat[name] = description if is_scalar else str(description)
    for key, part in parts.items():
        flat.update(flatten(part, f"{name}/{key}"))
    return flat


def import_path(value: object) -> str:
    """Name a class or function, or the class of an object, by the shortest path that imports it.

    Example:
        >>> import_path(torch.nn.Flatten()), import_path(torch.nn.functional.mse_loss)
        ('torch.nn.Flatten', 'torch.nn.functional.mse_loss')
    """
    thing: Any = value if hasattr(value, "__qualname__") else type(value)
    module, name = str(thing.__module__), str(thing.__qualname__)
    while "." in module:
        parent = module.rpartition(".")[0]
        known = sys.modules.get(parent)
        # Names of our own package may be imported late; what others do then is not known.
        is_ours = parent.split(".")[0] == __name__.split(".")[0]
        found = getattr(known, name, None) if is_ours else vars(known or sys).get(name)
        if found is not thing:
            break
        module = parent
    return f"{module}.{name}"


def scalar_tensor(
    value: float, dtype: str = "float32", requires_grad: bool = False, is_parameter: bool = False
) -> Tensor:
    """Build a temperature that is a tensor.

    Args:
        value: The number.
        dtype: Name of a floating-point type of torch.
        requires_grad: Whether it gets a gradient.
        is_parameter: Whether it is a parameter of the loss.

    Example:
        >>> scalar_tensor(0.5, is_parameter=True, requires_grad=True)
        Parameter containing:
        tensor(0.5000, requires_grad=True)
    """
    scalar = torch.tensor(value, dtype=getattr(torch, dtype))
    if is_parameter:
        return nn.Parameter(scalar, requires_grad)
    return scalar.requires_grad_(requires_grad)


def _is_plain_scalar(value: Tensor) -> bool:
    # A leaf: what was computed from a parameter would lose it.
    return value.ndim == 0 and value.is_floating_point() and value.is_leaf and not value.is_meta


def _creators() -> dict[str, Callable[..., Any]]:
    """Map the class paths that may be called."""
    classes = {f"{_HOME}.{name}": getattr(losses, name) for name in losses.__all__}
    return {**classes, f"{__name__}.{scalar_tensor.__name__}": scalar_tensor}


def _last(path: str) -> str:
    return path.rpartition(".")[2]
