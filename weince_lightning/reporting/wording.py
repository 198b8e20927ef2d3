"""How numbers, metrics and arms are written for people."""

import re

from weince_lightning.reporting.comparison import ComparedArm, Comparison, Configuration
from weince_lightning.reporting.intervals import Summary
from weince_lightning.reporting.results import ACCURACIES
from weince_lightning.reporting.settings import difference_lines, read_settings
from weince_lightning.sweeps.plan import PaperNumber

ABSENT = "-"


def headline_metrics(comparison: Comparison) -> list[str]:
    """Pick the test metrics of the main table: linear probe, and kNN of the largest k.

    Args:
        comparison: Of which arms.

    Returns:
        At most two names.
    """
    accuracies = [name for name in comparison.metrics if re.fullmatch(r"knn\.test_top1_k\d+", name)]
    most = sorted(accuracies, key=lambda name: int(name.rpartition("k")[2]))[-1:]
    return [name for name in comparison.metrics if name == "linear.test_top1"] + most


def validation_of(metric: str) -> str:
    """Name the validation metric beside a test metric."""
    return metric.replace(".test_", ".val_")


def metric_label(metric: str) -> str:
    """Name a metric for people.

    Example:
        >>> [metric_label(name) for name in ("linear.test_top1", "knn.val_top1_k50")]
        ['linear test', 'kNN(50) val']
        >>> [metric_label(name) for name in ("knn.test_recall_at_5", "gradient.cosine")]
        ['R@5 test', 'gradient.cosine']
    """
    found = re.fullmatch(r"(linear|knn)\.(val|test)_(top1|recall_at_)(?:_k)?(\d*)", metric)
    if not found:
        return metric
    part, split, kind, number = found.groups()
    if kind == "recall_at_":
        return f"R@{number} {split}"
    return f"linear {split}" if part == "linear" else f"kNN({number}) {split}"


def in_unit(metric: str, value: float, sign: str = "") -> str:
    """Write a value: accuracies in per cent with two decimals, anything else as a plain number.

    Args:
        metric: Its name.
        value: The value, a fraction if it is an accuracy.
        sign: ``"+"`` to write it also where the number is positive.

    Example:
        >>> in_unit("linear.test_top1", 0.50014), in_unit("knn.test_top1_k50", -0.00001, "+")
        ('50.01', '+0.00')
    """
    if metric.startswith(ACCURACIES):
        return f"{round(100 * value, 2) + 0.0:{sign}.2f}"  # + 0.0: no minus before a zero
    return f"{value:{sign}.4g}"


def mean_text(metric: str, summary: Summary | None, num_seeds: int) -> str:
    """Write a mean and its half-width, and of how many seeds where some are absent."""
    if summary is None:
        return ABSENT
    text = in_unit(metric, summary.mean)
    if summary.half_width is not None:
        text += f" ± {in_unit(metric, summary.half_width)}"
    return text + _seeds_text(summary, num_seeds)


def difference_text(metric: str, difference: Summary | None, num_seeds: int) -> str:
    """Write a difference and its interval, with a star where that excludes 0."""
    if difference is None:
        return ABSENT
    text = in_unit(metric, difference.mean, "+")
    if difference.interval is not None:
        low, high = (in_unit(metric, end, "+") for end in difference.interval)
        text += f" [{low}, {high}]{' *' if difference.excludes_zero else ''}"
    return text + _seeds_text(difference, num_seeds)


def _seeds_text(summary: Summary, num_seeds: int) -> str:
    if summary.num_seeds == num_seeds and num_seeds > 1:
        return ""
    return f" ({counted(summary.num_seeds, 'seed')})"


def paper_text(metric: str, number: PaperNumber | None) -> str:
    """Write a number of the paper."""
    if number is None:
        return ABSENT
    half = "" if number[1] is None else f" ± {in_unit(metric, number[1])}"
    return f"{in_unit(metric, number[0])}{half}"


def counted(number: int, noun: str) -> str:
    """Write a number before a noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def seeds_of(configuration: Configuration) -> str:
    """Say how many of the planned seeds a configuration has."""
    usable = len(configuration.runs) - len(configuration.missing_metric)
    planned = len(configuration.runs) + len(configuration.missing)
    return f"{usable} of {planned}"


def without_number(arm: ComparedArm) -> str:
    """Say why an arm has no number: of how many seeds its fullest configuration has runs."""
    fullest = max(arm.configurations, key=lambda each: len(each.runs) - len(each.missing_metric))
    return f"{seeds_of(fullest)} seeds"


def strange_lines(comparison: Comparison) -> list[str]:
    """Name what could not be read and what looks wrong."""
    problems = [*comparison.results.problems]
    if comparison.results.plan.source is None:
        problems.insert(
            0,
            "There is no sweep.yaml: arms, configurations and seeds are those that were found, and "
            "nothing says which arm is the baseline.",
        )
    for arm in comparison.arms:
        if arm.chosen is not None and arm.left_out:
            problems.append(
                f"{arm.label}: {arm.chosen.point} was chosen without {', '.join(arm.left_out)}, "
                "where seeds are missing. With them the choice may be another one."
            )
    return problems + difference_lines(read_settings(comparison.results))
