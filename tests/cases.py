"""The cases of a test that the default run takes; ``pytest -m slow`` takes the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], *positions: int) -> list[Any]:
    """Mark all cases as slow but those at the positions; without positions, but the first.

    A tuple is a case of several arguments.
    """
    cases = list(cases)
    kept = {range(len(cases))[position] for position in positions or (0,)}
    return [
        case
        if i in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for i, case in enumerate(cases)
    ]
