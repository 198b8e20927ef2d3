"""What a sweep was to run: its arms, their configurations, the seeds."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weince_lightning.sweeps import read_sweep

PaperNumber = tuple[float, float | None]
"""Mean and half-width of its 95 % interval, as the paper gives them."""


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
    source: str | None
    """The text of the sweep file; None if the plan was made up from what was found."""
    arguments: Mapping[str, list[str]]
    """What each run was to be trained with, by ``arm/point/seed_...``; empty if nothing says."""


def read_plan(file: Path) -> Plan:
    """Read a sweep file.

    Args:
        file: The file.

    Returns:
        The plan.

    Raises:
        SweepError: If it is no sweep file.
    """
    sweep = read_sweep(file)
    arms = {}
    for name, arm in sweep.arms.items():
        paper = {metric: (mean, half) for metric, (mean, half) in sweep.paper.get(name, {}).items()}
        arms[name] = PlannedArm(" ".join(arm.label.split()), arm.points(), paper)
    arguments = {run.name: run.fit_arguments for run in sweep.runs()}
    source = file.read_text(encoding="utf-8")
    return Plan(arms, tuple(sweep.seeds), sweep.baseline, source, arguments)


def in_order_of_numbers(names: Iterable[str]) -> list[str]:
    """Sort names so that ``k=5`` stands before ``k=20`` and ``t=0.05`` before ``t=0.1``."""

    def key(name: str) -> tuple[list[str | float], str]:
        # Text and numbers alternate, so that like is compared with like.
        parts = enumerate(re.split(r"(\d+(?:\.\d+)?)", name))
        return [float(part) if place % 2 else part for place, part in parts], name

    return sorted(names, key=key)
