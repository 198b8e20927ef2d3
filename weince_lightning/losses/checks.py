"""The door: what people pass to the losses is checked here, once."""

import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TypeVar

import torch
from torch import Tensor

Choice = TypeVar("Choice", bound=str)


def check_number(
    name: str,
    value: float,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    instead: str | None = None,
) -> float:
    """Return a finite number in its range, or refuse it by name and say what else would do."""
    if isinstance(value, bool) or not isinstance(value, Real):
        wanted = "a number" if instead is None else f"{instead} or a number"
        raise TypeError(f"{name} must be {wanted}, got {value!r}.")
    if not (math.isfinite(value) and value > above and at_least <= value <= at_most):
        bounds = [
            f"above {above:g}" if above > -math.inf else "",
            f"at least {at_least:g}" if at_least > -math.inf else "",
            f"at most {at_most:g}" if at_most < math.inf else "",
        ]
        wanted = " and ".join(bound for bound in bounds if bound)
        raise ValueError(f"{name} must be {wanted or 'finite'}, got {value!r}.")
    return value


def check_integer(name: str, value: int, *, at_least: int) -> int:
    """Return an integer that is large enough, or refuse it by name."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}.")
    return int(value)


def check_flag(name: str, value: bool) -> bool:
    """Return a bool, or refuse it by name: strings such as "False" would count as true."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return value


def check_choice(name: str, value: Choice, choices: Sequence[Choice]) -> Choice:
    """Return one of a few words, or refuse it and name the nearest."""
    if value not in choices:
        known = ", ".join(f'"{choice}"' for choice in choices)
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        mend = f' Did you mean "{near[0]}"?' if near else ""
        raise ValueError(f"{name} must be one of {known}, got {value!r}.{mend}")
    return value


def check_temperature_tensor(temperature: Tensor) -> Tensor:
    """Return a tensor of one floating-point number, or refuse it; its value is not read."""
    if not isinstance(temperature, Tensor):
        raise TypeError(
            f"temperature must be a 0-dim floating-point tensor here, got {temperature!r}. "
            "Give a number to the constructor."
        )
    if temperature.ndim != 0 or not temperature.is_floating_point():
        raise TypeError(
            "temperature must be a number or a 0-dim floating-point tensor, "
            f"got a {temperature.dtype} tensor of shape {tuple(temperature.shape)}."
        )
    return temperature


def check_temperature(value: float | Tensor) -> float | Tensor:
    """Return a positive number or a positive scalar tensor, or refuse it."""
    if not isinstance(value, Tensor):
        return check_number("temperature", value, above=0.0)
    check_temperature_tensor(value)
    if not value.is_meta:
        check_number("temperature", value.detach().to(torch.float64).item(), above=0.0)
    return value
