"""The comparison for programs: JSON and CSV, fractions, every configuration and seed."""

import csv
import io
from typing import Any

from weince_lightning.reporting.comparison import ComparedArm, Comparison, Configuration
from weince_lightning.reporting.intervals import Summary
from weince_lightning.reporting.main_table import comparisons_made
from weince_lightning.reporting.settings import read_settings
from weince_lightning.reporting.wording import strange_lines


def as_record(comparison: Comparison, command: str) -> dict[str, Any]:
    """Turn a comparison into plain values.

    Args:
        comparison: What to write.
        command: The command that made it.

    Returns:
        Values that JSON can hold; no number in it is infinite or NaN.
    """
    results, settings = comparison.results, read_settings(comparison.results)
    return {
        "command": command,
        "select": comparison.select,
        "baseline": results.plan.baseline,
        "planned_seeds": list(results.plan.seeds),
        "seeds": list(comparison.seeds),
        "incomplete": comparison.is_incomplete,
        "comparisons": comparisons_made(comparison),
        "arms": {arm.name: _arm(arm, comparison) for arm in comparison.arms},
        "problems": strange_lines(comparison),
        "settings": dict(settings.shared),
        "differing_settings": settings.differing,
        "sweep": results.plan.source,
    }


def _arm(arm: ComparedArm, comparison: Comparison) -> dict[str, Any]:
    return {
        "label": arm.label,
        "chosen": arm.chosen.point if arm.chosen else None,
        "tied": list(arm.tied),
        "metrics": {metric: _summary(summary) for metric, summary in arm.summaries.items()},
        "differences": {
            metric: _summary(difference) | {"excludes_zero": difference.excludes_zero}
            for metric, difference in arm.differences.items()
        },
        "paper": {
            metric: {"mean": mean, "half_width": half} for metric, (mean, half) in arm.paper.items()
        },
        "configurations": {
            each.point: _configuration(each, arm, comparison) for each in arm.configurations
        },
    }


def _configuration(each: Configuration, arm: ComparedArm, comparison: Comparison) -> dict[str, Any]:
    metrics = {}
    for metric in comparison.metrics:
        summary = each.summary(metric)
        if summary:
            values = {str(seed): value for seed, value in each.values(metric).items()}
            metrics[metric] = _summary(summary) | {"values": values}
    return {
        "point": dict(comparison.results.plan.arms[arm.name].points()[each.point]),
        "seeds": list(each.runs),
        "missing": list(each.missing),
        "lacking": list(each.missing_metric),
        "complete": each.is_complete,
        "metrics": metrics,
    }


def _summary(summary: Summary) -> dict[str, Any]:
    low, high = summary.interval or (None, None)
    return {
        "mean": summary.mean,
        "half_width": summary.half_width,
        "low": low,
        "high": high,
        "num_seeds": summary.num_seeds,
    }


def as_csv(comparison: Comparison) -> str:
    """Write one row for each configuration and metric, with a column for each planned seed.

    Args:
        comparison: What to write.

    Returns:
        The table; a cell is empty where there is no number.
    """
    seeds = comparison.results.plan.seeds
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["arm", "point", "chosen", "complete", "metric", "num_seeds", "mean", "low", "high"]
        + [f"seed_{seed}" for seed in seeds]
    )
    for arm in comparison.arms:
        for each in arm.configurations:
            flags = [str(flag).lower() for flag in (each is arm.chosen, each.is_complete)]
            for metric in comparison.metrics:
                values, summary = each.values(metric), each.summary(metric)
                numbers = ["0", "", "", ""]
                if summary:
                    low, high = summary.interval or ("", "")
                    numbers = [str(each) for each in (summary.num_seeds, summary.mean, low, high)]
                writer.writerow(
                    [arm.name, each.point, *flags, metric, *numbers]
                    + [values.get(seed, "") for seed in seeds]
                )
    return text.getvalue()
