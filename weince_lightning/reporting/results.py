"""The results of a sweep, read from its folder."""

import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from weince_lightning.folders import files_below
from weince_lightning.sweeps import Arm, Sweep, SweepError, read_sweep
from weince_lightning.sweeps.plan import argument_differences

ACCURACIES = ("linear.", "knn.")
"""What the names of metrics that are fractions of the samples start with."""


class RunResult(NamedTuple):
    """An encoder of one seed, trained and evaluated."""

    arm: str
    """What it is compared as."""
    point: str
    """Name of its configuration in the arm."""
    seed: int
    """Encoder seed."""
    metrics: Mapping[str, float]
    """Finite numbers by name, such as ``linear.test_top1``; probe and split seeds averaged."""
    not_finite: Sequence[str]
    """Names of the others."""
    record: Mapping[str, Any]
    """The whole result file."""
    file: str
    """Where it lies in the folder of the sweep."""


class Results(NamedTuple):
    """What a sweep has brought so far."""

    plan: Sweep
    """What was to run."""
    runs: Sequence[RunResult]
    """What of it has run, in the order of the plan."""
    problems: Sequence[str]
    """One line for each file that cannot be used, or not all of it, and for what looks wrong."""
    folder: str
    """The folder as it was given."""


def read_results(folder: str | Path) -> Results:
    """Read the results of a sweep.

    Files that cannot be used do not stop the reading: they are named in ``problems``. Without
    ``sweep.yaml`` arms, configurations and seeds are those found, and there is no baseline.

    Args:
        folder: What ``weince sweep`` wrote: ``sweep.yaml`` and
            ``results/<arm>/<point>/seed_<seed>.json``.

    Returns:
        The runs of the plan.

    Raises:
        FileNotFoundError: If there is no such folder.
        SweepError: If ``sweep.yaml`` is damaged, or there is no result that can be used.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}.")
    found, problems = list[RunResult](), list[str]()
    for file in files_below(root / "results", ""):
        name = file.relative_to(root).as_posix()
        try:
            found.append(_read_run(file, name))
        except (OSError, ValueError) as error:
            problems.append(f"{name} is left out: {error}")
    plan_file = root / "sweep.yaml"
    plan = read_sweep(plan_file) if plan_file.is_file() else _found_sweep(found)
    arguments = {run.name: run.fit_arguments for run in plan.runs()}
    runs = list[RunResult]()
    for run in found:
        reason = _outside(run, plan, arguments)
        if reason:
            problems.append(f"{run.file} is left out: {reason}")
        else:
            runs.append(run)
    if not runs:
        reason = problems[0] if problems else "the sweep has not finished a run yet"
        raise SweepError(f"there are no results in {root / 'results'}: {reason.rstrip('.')}.")
    order = [(name, point) for name, arm in plan.arms.items() for point in arm.points()]
    runs.sort(key=lambda run: (order.index((run.arm, run.point)), plan.seeds.index(run.seed)))
    return Results(plan, runs, [*problems, *_doubts(runs)], str(folder))


def _read_run(file: Path, name: str) -> RunResult:
    """Read a result file.

    Raises:
        ValueError: If it is not what ``weince sweep`` writes.
    """
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error}).") from error
    if not isinstance(record, dict) or not {"arm", "point", "seed", "evaluation"} <= set(record):
        raise ValueError("it must hold arm, point, seed and evaluation.")
    arm, seed, evaluation = record["arm"], record["seed"], record["evaluation"]
    if not isinstance(record["point"], dict) or not isinstance(evaluation, dict):
        raise ValueError("point and evaluation in it must be mappings.")
    if type(seed) is not int:
        raise ValueError(f"seed in it must be an integer, got {seed!r}.")
    place = name.split("/")
    if len(place) != 4 or place[1] != arm or place[3] != f"seed_{seed}.json":
        raise ValueError(
            f"it must lie in results/{arm}/<point>/seed_{seed}.json by what stands in it."
        )
    metrics = dict(_metrics(evaluation))
    if not metrics:
        raise ValueError("its evaluation holds no metric.")
    finite = {metric: value for metric, value in metrics.items() if math.isfinite(value)}
    others = [metric for metric in metrics if metric not in finite]
    return RunResult(arm, place[2], seed, finite, others, record, name)


def _metrics(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Flatten the parts of an evaluation, averaging over the seeds of probes and splits."""
    for part, content in evaluation.items():
        if part != "settings" and isinstance(content, dict):
            yield from _numbers(part, content)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict) and not isinstance(value.get("values"), list):
        for key, inner in value.items():
            yield from _numbers(f"{name}.{key}", inner)
        return
    if isinstance(value, dict):
        value = _mean(name, value)
    if value is None:
        value = math.nan
    if type(value) not in (int, float):
        return
    if name.startswith(ACCURACIES) and not (math.isnan(value) or 0 <= value <= 1):
        raise ValueError(f"{name} must lie in [0, 1], got {value:g}.")
    yield name, float(value)


def _mean(name: str, value: Mapping[str, Any]) -> float:
    """The mean over the seeds of a probe or split."""
    values, mean = value["values"], value.get("mean")
    numbers = [math.nan if number is None else number for number in values]
    if not numbers or not all(type(number) in (int, float) for number in numbers):
        raise ValueError(f"{name}.values must be a list of numbers, got {values!r}.")
    found = statistics.mean(numbers)
    # They differ where a file was changed by hand.
    if isinstance(mean, int | float) and math.isfinite(found) and abs(mean - found) > 1e-6:
        raise ValueError(f"{name}.mean must be that of its values, {found:g}, got {mean:g}.")
    return found


def _found_sweep(runs: Sequence[RunResult]) -> Sweep:
    """Take what was found for what was planned; nothing says which arm is the baseline."""
    arms = {}
    for arm in in_order_of_numbers({run.arm for run in runs}):
        points = {run.point: run.record["point"] for run in runs if run.arm == arm}
        in_order = {name: points[name] for name in in_order_of_numbers(points)}
        arms[arm] = Arm(arm, arm, [], {}, {}, in_order)
    return Sweep([], {}, tuple(sorted({run.seed for run in runs})), None, arms, {}, {})


def in_order_of_numbers(names: Iterable[str]) -> list[str]:
    """Sort names so that ``k=5`` stands before ``k=20`` and ``t=0.05`` before ``t=0.1``."""

    def key(name: str) -> tuple[list[str | float], str]:
        # Text and numbers alternate, so that like is compared with like.
        parts = enumerate(re.split(r"(\d+(?:\.\d+)?)", name))
        return [float(part) if place % 2 else part for place, part in parts], name

    return sorted(names, key=key)


def _outside(run: RunResult, plan: Sweep, arguments: Mapping[str, Sequence[str]]) -> str:
    """Say why a run is not part of the plan; empty if it is."""
    if run.arm not in plan.arms:
        return f"sweep.yaml has no arm {run.arm!r}."
    points = plan.arms[run.arm].points()
    if run.point not in points:
        return f"sweep.yaml has no configuration {run.point!r} of {run.arm!r}."
    if run.record["point"] != points[run.point]:
        return (
            f"its point is {run.record['point']!r}, that of the plan {dict(points[run.point])!r}."
        )
    if run.seed not in plan.seeds:
        return f"sweep.yaml has no seed {run.seed}."
    fit = run.record.get("fit")
    made = fit.get("arguments") if isinstance(fit, dict) else None
    wanted = arguments[f"{run.arm}/{run.point}/seed_{run.seed}"]
    if plan.source is not None and isinstance(made, list) and made != wanted:
        return f"it was trained with {argument_differences(made, wanted, 'sweep.yaml')}."
    return ""


def _doubts(runs: Sequence[RunResult]) -> Iterator[str]:
    """What looks wrong in runs that are used all the same."""
    # A loss of another kind may have other numbers of its own; accuracies all have.
    known = dict.fromkeys(
        (None if name.startswith(ACCURACIES) else run.arm, name)
        for run in runs
        for name in (*run.metrics, *run.not_finite)
    )
    for run in runs:
        absent = [n for arm, n in known if arm in (None, run.arm) and n not in run.metrics]
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            yield f"{run.file} has no finite number for {', '.join(absent[:3])}{more}."
    first = dict[tuple[str, str, str], RunResult]()
    for run in runs:
        weights = str(run.record["evaluation"].get("weights", run.file))
        twin = first.setdefault((run.arm, run.point, weights), run)
        if twin is not run:
            yield f"{run.file} has the very weights of {twin.file}: they are not two seeds."
