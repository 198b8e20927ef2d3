"""Checks of plain arguments and hints at misspelled words, for every part of the package.

Nothing but Python's own library is imported here. Tensors are checked in
:mod:`weince_lightning.functional.inputs`.
"""

import difflib
import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from numbers import Integral, Real
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=str)


def check_number(
    name: str,
    value: float,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
    condition: str | None = None,
    instead: str | None = None,
) -> float:
    """Return a finite number that lies within its bounds.

    Args:
        name: The argument, for the error.
        value: What was given.
        above: Bound that the number exceeds.
        at_least: Smallest number.
        below: Bound that the number stays under.
        at_most: Largest number.
        condition: Text of the error in place of the bounds, such as "lie in [0, 1)".
        instead: What else the argument takes, such as "a TailGate object".

    Raises:
        TypeError: If the value is not a real number.
        ValueError: If it is out of bounds, NaN or infinite.

    Example:
        >>> check_number("gate", 1.5, at_least=0, at_most=1)
        Traceback (most recent call last):
        ValueError: gate must be at least 0 and at most 1, got 1.5.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        wanted = "a number" if instead is None else f"{instead} or a number"
        raise TypeError(f"{name} must be {wanted}, got {value!r}.")
    if not (math.isfinite(value) and above < value < below and at_least <= value <= at_most):
        bounds = {"above": above, "at least": at_least, "below": below, "at most": at_most}
        texts = [f"{text} {bound:g}" for text, bound in bounds.items() if math.isfinite(bound)]
        if math.isinf(value) or not texts:
            texts, condition = ["finite"], None
        raise ValueError(f"{name} must {condition or 'be ' + ' and '.join(texts)}, got {value!r}.")
    return value


def check_integer(name: str, value: int, *, at_least: int, at_most: int | None = None) -> int:
    """Return an integer that lies within its bounds.

    Raises:
        TypeError: If the value is not an integer; a bool is none.
        ValueError: If it is out of bounds.

    Example:
        >>> check_integer("top_m", 0, at_least=1)
        Traceback (most recent call last):
        ValueError: top_m must be at least 1, got 0.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}.")
    if value < at_least or (at_most is not None and value > at_most):
        bound = f"at least {at_least}" + ("" if at_most is None else f" and at most {at_most}")
        raise ValueError(f"{name} must be {bound}, got {value}.")
    return int(value)


def check_flag(name: str, value: bool) -> bool:
    """Return a bool; strings such as "False" would count as true.

    Raises:
        TypeError: If the value is not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")
    return value


def check_choice(name: str, value: Choice, choices: Sequence[Choice]) -> Choice:
    """Return one of a few words.

    Raises:
        ValueError: If the value is none of them; the error names the nearest.

    Example:
        >>> check_choice("mix", "logit", ("logits", "losses"))
        Traceback (most recent call last):
        ValueError: mix must be one of "logits", "losses", got 'logit'. Did you mean "logits"?
    """
    if value not in choices:
        known = ", ".join(f'"{choice}"' for choice in choices)
        hint = did_you_mean(value, choices)
        raise ValueError(f"{name} must be one of {known}, got {value!r}.{hint}")
    return value


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import a module that only some installations have.

    Args:
        module: Its name.
        extra: The extra of this package that installs it.
        what: What needs it, for the error.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"{what} needs {library}: pip install weince-lightning[{extra}]"
        ) from error


def did_you_mean(word: object, known: Iterable[str], quote: str = '"') -> str:
    """Return the end of an error that asks for the nearest known word, or nothing.

    Args:
        word: What was given.
        known: The words that are accepted.
        quote: The quotation mark: single in messages of the command line.

    Returns:
        A question with a space before it, empty if no known word is near.

    Example:
        >>> did_you_mean("restnet18", ["resnet18", "vit_small"])
        ' Did you mean "resnet18"?'
    """
    near = nearest_words(word, known)
    return f" Did you mean {quote}{near[0]}{quote}?" if near else ""


def nearest_words(
    word: object, known: Iterable[str], most: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Return the known words most like a given one, the nearest first; case plays no part.

    Args:
        word: What was given.
        known: The words that are accepted.
        most: Largest number of words.
        cutoff: Least similarity, in ``[0, 1]``; 0 always finds one.

    Example:
        >>> nearest_words("RESNET", ["resnet18", "resnet50", "vit"], most=2)
        ['resnet50', 'resnet18']
    """
    by_lower_case = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(word).lower(), by_lower_case, most, cutoff)
    return [by_lower_case[name] for name in found]
