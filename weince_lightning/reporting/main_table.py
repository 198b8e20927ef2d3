"""The table that people look at first, as text cells, and the sentence under it."""

from collections.abc import Sequence
from typing import NamedTuple

from weince_lightning.reporting.comparison import ComparedArm, Comparison
from weince_lightning.reporting.wording import (
    ABSENT,
    counted,
    difference_text,
    headline_metrics,
    mean_text,
    metric_label,
    paper_text,
    without_number,
)

SHARPNESS = "loss.effective_temperature"
"""The temperature at which InfoNCE looks as sharply at the hardest negative, where it is known."""


class MainTable(NamedTuple):
    """Cells of plain text; the first two columns are words, the others numbers."""

    header: Sequence[str]
    """Names of the columns."""
    rows: Sequence[Sequence[str]]
    """An arm each, in the order of the plan."""


def main_table(comparison: Comparison) -> MainTable:
    """Set the chosen configurations' test numbers beside their differences and the paper's numbers.

    Args:
        comparison: Of which arms.

    Returns:
        A column of differences stands after each metric if there is a baseline, and one of the
        paper's numbers if it has one for any arm.
    """
    arms, num_seeds = comparison.arms, len(comparison.seeds)
    columns = [["arm", *(arm.label for arm in arms)], ["configuration", *map(_configuration, arms)]]
    for metric in headline_metrics(comparison):
        means = [mean_text(metric, arm.summaries.get(metric), num_seeds) for arm in arms]
        columns.append([metric_label(metric), *means])
        if comparison.results.plan.baseline is not None:
            columns.append(["difference", *(_difference(comparison, arm, metric) for arm in arms)])
        if any(metric in arm.paper for arm in arms):
            columns.append(["paper", *(paper_text(metric, arm.paper.get(metric)) for arm in arms)])
    if SHARPNESS in comparison.metrics:
        found = [arm.summaries.get(SHARPNESS) for arm in arms]
        texts = [f"{summary.mean:.3f}" if summary else ABSENT for summary in found]
        columns.append(["effective temperature", *texts])
    header, *rows = zip(*columns, strict=True)
    return MainTable(header, rows)


def _configuration(arm: ComparedArm) -> str:
    if arm.chosen is None:
        return without_number(arm)
    number = len(arm.configurations)
    if number == 1:
        return arm.chosen.point
    if arm.left_out:
        complete = number - len(arm.left_out)
        return f"{arm.chosen.point} (of {complete} complete, {number} planned)"
    return f"{arm.chosen.point} (of {number})"


def _difference(comparison: Comparison, arm: ComparedArm, metric: str) -> str:
    if arm.name == comparison.results.plan.baseline:
        return "baseline"
    return difference_text(metric, arm.differences.get(metric), len(comparison.seeds))


def comparisons_made(comparison: Comparison) -> int:
    """Count the intervals of differences in the main table."""
    return sum(
        arm.differences[metric].half_width is not None
        for arm in comparison.arms
        for metric in headline_metrics(comparison)
        if metric in arm.differences
    )


def baseline_label(comparison: Comparison) -> str:
    """The baseline's name for people, empty if there is no baseline."""
    plan = comparison.results.plan
    return "" if plan.baseline is None else plan.arms[plan.baseline].label


def caption(comparison: Comparison) -> str:
    """Say what the numbers of the main table are, in plain text."""
    plan, seeds = comparison.results.plan, counted(len(comparison.seeds), "encoder seed")
    if comparison.is_incomplete:
        seeds += f" of {len(plan.seeds)} planned"
    text = f"Test accuracy in per cent: mean ± half-width of the 95 % t-interval over {seeds}."
    if any(len(arm.configurations) > 1 for arm in comparison.arms):
        text += f" Configurations chosen by {comparison.select} (in brackets: of how many)."
    if len(comparison.seeds) == 1:
        text += " One seed gives no interval."
    number = comparisons_made(comparison)
    if number:
        text += (
            f" Differences to {baseline_label(comparison)} are paired by seed, with 95 % "
            f"t-intervals; * marks those that exclude 0 ({counted(number, 'comparison')}, no "
            "interval widened for that)."
        )
    if SHARPNESS in comparison.metrics:
        text += (
            " The effective temperature is that of the InfoNCE loss which would give the hardest "
            "negative the same share of the gradient, on batches of 256 test images at the end of "
            "training."
        )
    return text
