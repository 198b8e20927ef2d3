"""Results that are kept from step to step, because steps are alike."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def kept(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Keep what a function returned for its last eight arguments; compilers see it without.

    They would trace through ``lru_cache`` too, but warn of it.
    """
    cached: Any = lru_cache(maxsize=8)(function)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        result: Result = cached(*args, **kwargs)
        return result

    return call
