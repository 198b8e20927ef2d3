"""Files of sentences that belong together, a pair a line with tabs between."""

import math
from pathlib import Path
from typing import NamedTuple

from weince_lightning.data.lines import wrong_encoding


class Pair(NamedTuple):
    """Two sentences of a file of pairs."""

    first: str
    """The one that asks, where that makes a difference."""
    second: str
    """The other one."""
    label: float | int
    """How similar people find them, or else the number of the pair in its file."""


def read_scored_pairs(path: Path) -> list[Pair]:
    r"""Read lines ``score \t sentence \t sentence``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is something else, by its number.
    """
    pairs = []
    for number, (score, first, second) in _columns(path, 3):
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{path}, line {number}, must begin with a number, got {score!r}.")
        pairs.append(Pair(first, second, value))
    return pairs


def read_pairs(path: Path) -> list[Pair]:
    r"""Read lines ``sentence \t sentence``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line is something else, by its number.
    """
    rows = enumerate(_columns(path, 2))
    return [Pair(first, second, place) for place, (_, (first, second)) in rows]


def _columns(path: Path, count: int) -> list[tuple[int, list[str]]]:
    """Split each line that is not blank at its tabs, and number it as the file does, from 1."""
    try:
        # It ends lines where Lines does, not at other marks.
        with path.open(encoding="utf-8-sig") as file:
            rows = [
                (number, line.rstrip("\n").split("\t"))
                for number, line in enumerate(file, start=1)
                if line.strip()
            ]
    except UnicodeDecodeError:
        raise wrong_encoding(path) from None
    for number, row in rows:
        if len(row) != count:
            raise ValueError(
                f"{path}, line {number}, must hold {count} columns with tabs between, got "
                f"{len(row)}."
            )
    if not rows:
        raise ValueError(f"{path} must hold at least one pair, got none.")
    return rows
