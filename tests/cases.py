"""Which of a test's cases the default run takes; ``pytest -m slow`` takes the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], *positions: int) -> list[Any]:
    """Mark all cases as slow but those at the positions; without positions, but the first."""
    cases = list(cases)
    kept = {range(len(cases))[position] for position in positions or (0,)}
    return [case if i in kept else _slow(case) for i, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    values, marks, name = getattr(case, "values", values), getattr(case, "marks", ()), None
    return pytest.param(*values, marks=(*marks, pytest.mark.slow), id=getattr(case, "id", name))
