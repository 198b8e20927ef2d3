"""Results that are kept from step to step, because steps are alike."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from weince_lightning.functional.tracing import is_traced

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def kept(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Keep what a function returned for its last eight arguments, except where it is traced.

    torch.compile would warn of ``lru_cache``, and a tensor made under a transform of
    ``torch.func`` serves no later step.
    """
    cached: Any = lru_cache(maxsize=8)(function)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if is_traced():
            return function(*args, **kwargs)
        result: Result = cached(*args, **kwargs)
        return result

    return call
