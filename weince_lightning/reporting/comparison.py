"""One configuration of each arm, chosen by validation, and its differences to the baseline."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from weince_lightning.reporting.intervals import Summary, paired_difference, summarise
from weince_lightning.reporting.results import Results, RunResult, read_results
from weince_lightning.sweeps.plan import PaperNumber

DEFAULT_SELECT = "linear.val_top1"
_ROUNDING = 1e-7
"""Equal numbers of hits can give means that differ by so much: accuracies are in float32."""


class Configuration(NamedTuple):
    """A point of an arm and its runs."""

    point: str
    """Its name."""
    runs: Mapping[int, RunResult]
    """Those that there are, by encoder seed in the order of the plan."""
    missing: Sequence[int]
    """Planned seeds without a run."""
    missing_metric: Sequence[int]
    """Seeds whose run has no number for the metric of the choice."""

    @property
    def is_complete(self) -> bool:
        """Whether it can be chosen: all planned seeds are there."""
        return not self.missing and not self.missing_metric

    def values(self, metric: str, seeds: Sequence[int] | None = None) -> dict[int, float]:
        """Give the values of a metric by seed, of some seeds or all."""
        return {
            seed: run.metrics[metric]
            for seed, run in self.runs.items()
            if metric in run.metrics and (seeds is None or seed in seeds)
        }

    def summary(self, metric: str) -> Summary | None:
        """Summarise a metric over all seeds; None if no run has it."""
        values = self.values(metric)
        return summarise(list(values.values())) if values else None


class ComparedArm(NamedTuple):
    """An arm of the comparison."""

    name: str
    """Its name in the sweep file."""
    label: str
    """Its name for people."""
    configurations: Sequence[Configuration]
    """All planned ones, in the order of the plan."""
    chosen: Configuration | None
    """The one that is compared; None if there is none that could be."""
    tied: Sequence[str]
    """Later configurations whose mean of the choice equals that of the chosen one."""
    summaries: Mapping[str, Summary]
    """The chosen one's metrics over the seeds of the comparison."""
    differences: Mapping[str, Summary]
    """Its paired differences to the baseline; empty for the baseline itself."""
    paper: Mapping[str, PaperNumber]
    """The paper's numbers."""

    @property
    def left_out(self) -> list[str]:
        """Configurations whose missing seeds kept them from the choice, where others had all."""
        if self.chosen is None or not self.chosen.is_complete:
            return []
        return [each.point for each in self.configurations if not each.is_complete]


class Comparison(NamedTuple):
    """The arms of a sweep side by side. All numbers are as in the results: accuracies fractions."""

    results: Results
    """What it was made from."""
    arms: Sequence[ComparedArm]
    """In the order of the plan."""
    select: str
    """The validation metric of the choice."""
    seeds: Sequence[int]
    """The encoder seeds over which the chosen configurations are compared."""
    metrics: Sequence[str]
    """All metrics, in the order in which the evaluations have them."""
    allow_incomplete: bool = False
    """Whether arms without a complete configuration were to be compared too."""

    @property
    def is_incomplete(self) -> bool:
        """Whether planned seeds have no part in it."""
        return len(self.seeds) < len(self.results.plan.seeds)


def compare(
    results: Results, select: str = DEFAULT_SELECT, allow_incomplete: bool = False
) -> Comparison:
    """Choose a configuration in each arm by validation, and compare the chosen ones.

    The choice is that of the largest mean of a validation metric among the configurations of which
    all planned seeds are there; of equal ones the first of the plan. Test metrics have no part in
    it. The chosen ones are compared with that of the baseline seed by seed.

    Args:
        results: What :func:`read_results` gives.
        select: The metric, such as ``knn.val_top1_k50``; larger is better.
        allow_incomplete: Whether an arm without a complete configuration may choose by the seeds
            that all its configurations with results share. All arms are then compared over the
            seeds that all chosen configurations share.

    Returns:
        The comparison.

    Raises:
        ValueError: If ``select`` is no validation metric, or no run has it although there is a
            choice to make.
    """
    metrics = list(dict.fromkeys(metric for run in results.runs for metric in run.metrics))
    _check_select(select, metrics, results)
    arms = [_choose(results, name, select, allow_incomplete) for name in results.plan.arms]
    chosen = [arm.chosen for arm in arms if arm.chosen is not None]
    seeds = [seed for seed in results.plan.seeds if all(seed in each.runs for each in chosen)]
    baseline = next((arm.chosen for arm in arms if arm.name == results.plan.baseline), None)
    arms = [_with_numbers(arm, baseline, metrics, seeds) for arm in arms]
    return Comparison(results, arms, select, seeds, metrics, allow_incomplete)


def report(
    folder: str | Path, select: str = DEFAULT_SELECT, allow_incomplete: bool = False
) -> Comparison:
    """Read the results of a sweep and compare its arms, as ``weince report`` does.

    Nothing is written: :func:`write_report` writes the files.

    Args:
        folder: What ``weince sweep`` wrote; a sweep that is still running can be reported on.
        select: The validation metric of the choice, see :func:`compare`.
        allow_incomplete: Whether arms without a complete configuration are compared too, see
            :func:`compare`.

    Returns:
        The comparison.

    Raises:
        FileNotFoundError: If there is no such folder.
        SweepError: If ``sweep.yaml`` is damaged, or there is no result that can be used.
        ValueError: If ``select`` is no validation metric of the results.

    Example:
        >>> import json, pathlib, tempfile
        >>> from weince_lightning.reporting import report, write_report
        >>> folder = tempfile.TemporaryDirectory()
        >>> point = pathlib.Path(folder.name, "results", "infonce", "default")
        >>> point.mkdir(parents=True)
        >>> for seed, accuracy in ((7, 0.5), (21, 0.625)):
        ...     evaluation = {"knn": {"test_top1_k50": {"values": [accuracy]}}}
        ...     run = {"arm": "infonce", "point": {}, "seed": seed, "evaluation": evaluation}
        ...     _ = (point / f"seed_{seed}.json").write_text(json.dumps(run))
        >>> comparison = report(folder.name)
        >>> comparison.arms[0].summaries["knn.test_top1_k50"].mean
        0.5625
        >>> [file.name for file in write_report(comparison)]
        ['report.json', 'report.md', 'report.csv', 'report.tex', 'report.png']
    """
    return compare(read_results(folder), select, allow_incomplete)


def _check_select(select: str, metrics: Sequence[str], results: Results) -> None:
    choices = [metric for metric in metrics if _is_validation(metric)]
    known = f"The results have {', '.join(choices) or 'none'}."
    if not _is_validation(select):
        raise ValueError(f"select must name a validation metric, got {select!r}. {known}")
    has_choice = any(len(arm.points()) > 1 for arm in results.plan.arms.values())
    if has_choice and select not in metrics:
        raise ValueError(f"select must name a metric of the results, got {select!r}. {known}")


def _is_validation(metric: str) -> bool:
    return metric.rpartition(".")[2].startswith("val_")


def _choose(results: Results, name: str, select: str, allow_incomplete: bool) -> ComparedArm:
    plan, seeds = results.plan, results.plan.seeds
    points, label, paper = plan.arms[name].points(), plan.arms[name].label, plan.paper.get(name, {})
    has_choice = len(points) > 1
    configurations = []
    for point in points:
        runs = {run.seed: run for run in results.runs if (run.arm, run.point) == (name, point)}
        missing = [seed for seed in seeds if seed not in runs]
        lacking = [seed for seed in runs if has_choice and select not in runs[seed].metrics]
        configurations.append(Configuration(point, runs, missing, lacking))
    eligible = [each for each in configurations if each.is_complete]
    shared = list(seeds)
    if not eligible and allow_incomplete:
        eligible = [each for each in configurations if len(each.runs) > len(each.missing_metric)]
        usable = [set(each.runs) - set(each.missing_metric) for each in eligible]
        shared = [seed for seed in seeds if all(seed in some for some in usable)]
        eligible = eligible if shared else []
    chosen, tied = None, list[str]()
    if len(eligible) == 1:
        chosen = eligible[0]
    elif eligible:
        means = [statistics.mean(each.values(select, shared).values()) for each in eligible]
        best = max(means) - _ROUNDING
        chosen, *others = [each for each, mean in zip(eligible, means, strict=True) if mean >= best]
        tied = [other.point for other in others]
    return ComparedArm(name, label, configurations, chosen, tied, {}, {}, paper)


def _with_numbers(
    arm: ComparedArm,
    baseline: Configuration | None,
    metrics: Sequence[str],
    seeds: Sequence[int],
) -> ComparedArm:
    """Add the chosen configuration's means and its differences to the baseline's."""
    if arm.chosen is None:
        return arm
    summaries, differences = {}, {}
    for metric in metrics:
        values = arm.chosen.values(metric, seeds)
        if values:
            summaries[metric] = summarise([*values.values()])
        if values and baseline is not None and arm.chosen is not baseline:
            difference = paired_difference(values, baseline.values(metric, seeds))
            if difference:
                differences[metric] = difference
    return arm._replace(summaries=summaries, differences=differences)
