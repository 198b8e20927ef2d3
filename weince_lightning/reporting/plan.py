"""What a sweep was to run: its arms, their configurations, the seeds."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

PaperNumber = tuple[float, float]
"""Mean and half-width of its 95 % interval, as the paper gives them."""


class ReportError(ValueError):
    """A folder that can not be reported on; the message is one line."""


class PlannedArm(NamedTuple):
    """One of the things that are compared."""

    label: str
    """Its name for people."""
    points: Mapping[str, Mapping[str, Any]]
    """Its configurations: the name of each and the options that make it."""
    paper: Mapping[str, PaperNumber]
    """The paper's numbers by metric, fractions."""


class Plan(NamedTuple):
    """What was to run; the order of the arms and points is that of the sweep file."""

    arms: Mapping[str, PlannedArm]
    """By name."""
    seeds: tuple[int, ...]
    """Encoder seeds."""
    baseline: str | None
    """The arm that the others are compared with, None if nothing says."""
    source: Mapping[str, Any] | None
    """The sweep file; None if the plan was made up from what was found."""


def read_plan(file: Path) -> Plan:
    """Read a sweep file.

    Args:
        file: The file.

    Returns:
        The plan.

    Raises:
        ReportError: If it is no sweep file.
    """
    try:
        source = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ReportError(f"{file} can not be read as YAML: {reason}.") from error
    if not isinstance(source, dict):
        raise ReportError(f"{file} must hold a mapping, got {type(source).__name__}.")
    seeds, arms, baseline = source.get("seeds"), source.get("arms"), source.get("baseline")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise ReportError(f"seeds in {file} must be a list of integers, got {seeds!r}.")
    if not isinstance(arms, dict) or not arms:
        raise ReportError(f"arms in {file} must name at least one arm, got {arms!r}.")
    if baseline is not None and baseline not in arms:
        known = ", ".join(map(str, arms))
        raise ReportError(f"baseline in {file} must be one of {known}, got {baseline!r}.")
    paper = source.get("paper") or {}
    return Plan(
        {
            str(name): _arm(str(name), arm or {}, paper.get(name) or {})
            for name, arm in arms.items()
        },
        tuple(dict.fromkeys(seeds)),
        baseline,
        source,
    )


def _arm(name: str, arm: Mapping[str, Any], paper: Mapping[str, Sequence[float]]) -> PlannedArm:
    grid = {path: list(values) for path, values in (arm.get("grid") or {}).items()}
    names = _short_names(grid)
    points = {}
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        parts = [f"{names[path]}={value}" for path, value in settings.items()]
        points[",".join(parts) or "default"] = settings
    label = " ".join(str(arm.get("label") or name).split())
    numbers = {metric: (float(mean), float(half)) for metric, (mean, half) in paper.items()}
    return PlannedArm(label, points, numbers)


def _short_names(paths: Iterable[str]) -> dict[str, str]:
    """Give each option its last components, as few as tell it from the others."""
    pieces = {path: path.split(".") for path in paths}
    names = {}
    for path, own in pieces.items():
        others = [other for other in pieces.values() if other is not own]
        length = 1
        while length < len(own) and any(other[-length:] == own[-length:] for other in others):
            length += 1
        names[path] = ".".join(own[-length:])
    return names


def in_order_of_numbers(names: Iterable[str]) -> list[str]:
    """Sort names so that ``k=5`` stands before ``k=20`` and ``t=0.05`` before ``t=0.1``."""

    def key(name: str) -> tuple[list[str | float], str]:
        # Text and numbers alternate, so that like is compared with like.
        parts = enumerate(re.split(r"(\d+(?:\.\d+)?)", name))
        return [float(part) if place % 2 else part for place, part in parts], name

    return sorted(names, key=key)
