"""One configuration of each arm, chosen by validation, and its differences to the baseline."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weince_lightning.reporting.intervals import Summary, paired_difference, summarise
from weince_lightning.reporting.plan import PaperNumber
from weince_lightning.reporting.results import Results, Run

DEFAULT_SELECT = "linear.val_top1"
_ROUNDING = 1e-7
"""Equal numbers of hits can give means that differ by so much: accuracies are in float32."""


class Configuration(NamedTuple):
    """A point of an arm and its runs."""

    point: str
    """Its name."""
    runs: Mapping[int, Run]
    """Those that there are, by encoder seed in the order of the plan."""
    missing: Sequence[int]
    """Planned seeds without a run."""
    lacking: Sequence[int]
    """Seeds whose run has no number for the metric of the choice."""

    @property
    def is_complete(self) -> bool:
        """Whether it can be chosen: all planned seeds are there."""
        return not self.missing and not self.lacking

    def values(self, metric: str, seeds: Sequence[int] | None = None) -> dict[int, float]:
        """Give the values of a metric by seed, of some seeds or all."""
        return {
            seed: run.metrics[metric]
            for seed, run in self.runs.items()
            if metric in run.metrics and (seeds is None or seed in seeds)
        }

    def summary(self, metric: str, seeds: Sequence[int] | None = None) -> Summary | None:
        """Summarise a metric over some seeds or all; None if no run has it."""
        values = self.values(metric, seeds)
        return summarise(list(values.values())) if values else None


class Arm(NamedTuple):
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
    arms: Sequence[Arm]
    """In the order of the plan."""
    select: str
    """The validation metric of the choice."""
    seeds: Sequence[int]
    """The encoder seeds over which the chosen configurations are compared."""
    metrics: Sequence[str]
    """All metrics, in the order in which the evaluations have them."""

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

    Example:
        >>> import json, pathlib, tempfile
        >>> from weince_lightning.reporting import compare, read_results
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     point = pathlib.Path(folder, "results", "infonce", "default")
        ...     point.mkdir(parents=True)
        ...     for seed, accuracy in ((7, 0.5), (21, 0.625)):
        ...         evaluation = {"knn": {"test_top1_k50": {"values": [accuracy]}}}
        ...         run = {"arm": "infonce", "point": {}, "seed": seed, "evaluation": evaluation}
        ...         _ = (point / f"seed_{seed}.json").write_text(json.dumps(run))
        ...     comparison = compare(read_results(folder))
        >>> comparison.arms[0].summaries["knn.test_top1_k50"].mean
        0.5625
    """
    metrics = list(dict.fromkeys(metric for run in results.runs for metric in run.metrics))
    _check_select(select, metrics, results)
    arms = [_choose(results, name, select, allow_incomplete) for name in results.plan.arms]
    chosen = [arm.chosen for arm in arms if arm.chosen is not None]
    seeds = [
        seed
        for seed in results.plan.seeds
        if all(seed in configuration.runs for configuration in chosen)
    ]
    arms = [_summarised(arm, metrics, seeds) for arm in arms]
    baseline = next((arm for arm in arms if arm.name == results.plan.baseline), None)
    arms = [_with_differences(arm, baseline, seeds) for arm in arms]
    return Comparison(results, arms, select, seeds, metrics)


def _check_select(select: str, metrics: Sequence[str], results: Results) -> None:
    choices = [metric for metric in metrics if _is_validation(metric)]
    known = f"The results have {', '.join(choices) or 'none'}."
    if not _is_validation(select):
        raise ValueError(f"select must name a validation metric, got {select!r}. {known}")
    has_choice = any(len(arm.points) > 1 for arm in results.plan.arms.values())
    if has_choice and select not in metrics:
        raise ValueError(f"select must name a metric of the results, got {select!r}. {known}")


def _is_validation(metric: str) -> bool:
    return metric.rpartition(".")[2].startswith("val_")


def _choose(results: Results, name: str, select: str, allow_incomplete: bool) -> Arm:
    arm, seeds = results.plan.arms[name], results.plan.seeds
    configurations = []
    for point in arm.points:
        runs = {run.seed: run for run in results.runs if (run.arm, run.point) == (name, point)}
        has_choice = len(arm.points) > 1
        configurations.append(
            Configuration(
                point,
                runs,
                [seed for seed in seeds if seed not in runs],
                [seed for seed in runs if has_choice and select not in runs[seed].metrics],
            )
        )
    able = [configuration for configuration in configurations if configuration.is_complete]
    shared = list(seeds)
    if not able and allow_incomplete:
        able = [each for each in configurations if len(each.runs) > len(each.lacking)]
        usable = [set(each.runs) - set(each.lacking) for each in able]
        shared = [seed for seed in seeds if all(seed in some for some in usable)]
        able = able if shared else []
    chosen, tied = None, list[str]()
    if len(able) == 1:
        chosen = able[0]
    elif able:
        means = [_mean(configuration, select, shared) for configuration in able]
        best = max(means)
        chosen, *others = [
            each for each, mean in zip(able, means, strict=True) if mean >= best - _ROUNDING
        ]
        tied = [other.point for other in others]
    return Arm(name, arm.label, configurations, chosen, tied, {}, {}, arm.paper)


def _mean(configuration: Configuration, metric: str, seeds: Sequence[int]) -> float:
    return summarise(list(configuration.values(metric, seeds).values())).mean


def _summarised(arm: Arm, metrics: Sequence[str], seeds: Sequence[int]) -> Arm:
    summaries = {}
    for metric in metrics:
        summary = arm.chosen.summary(metric, seeds) if arm.chosen else None
        if summary:
            summaries[metric] = summary
    return arm._replace(summaries=summaries)


def _with_differences(arm: Arm, baseline: Arm | None, seeds: Sequence[int]) -> Arm:
    if baseline is None or baseline.chosen is None or arm.chosen is None or arm is baseline:
        return arm
    differences = {}
    for metric in arm.summaries:
        difference = paired_difference(
            arm.chosen.values(metric, seeds), baseline.chosen.values(metric, seeds)
        )
        if difference:
            differences[metric] = difference
    return arm._replace(differences=differences)
