"""What the runs of a sweep have in common, and where they differ though they should not."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from weince_lightning.reporting.results import Results, RunResult

LAYERS = "layers."
"""What the names of the digests of the configurations' contents start with."""


class Settings(NamedTuple):
    """Settings of the runs, flattened to ``part.name``."""

    shared: Mapping[str, Any]
    """Those that are the same in all runs that have them."""
    differing: Mapping[str, Mapping[str, list[str]]]
    """The others; for each value, as JSON, the files of the runs that have it."""


def read_settings(results: Results) -> Settings:
    """Compare how the runs were trained and evaluated.

    Args:
        results: The runs.

    Returns:
        The settings of the evaluation, the number of epochs, the versions of the programs and the
        digests of the configurations.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for run in results.runs:
        for name, value in dict(_settings(run)).items():
            values = found.setdefault(name, {})
            values.setdefault(json.dumps(value, sort_keys=True), []).append(run.file)
    shared = {name: json.loads(*values) for name, values in found.items() if len(values) == 1}
    differing = {name: values for name, values in found.items() if len(values) > 1}
    return Settings(shared, differing)


def difference_lines(settings: Settings) -> list[str]:
    """Say in which settings the runs differ, and which runs are the odd ones."""
    lines = []
    for name, values in settings.differing.items():
        parts = []
        for value, files in sorted(values.items(), key=lambda item: -len(item[1])):
            which = f"{len(files)} runs" if len(files) > 2 else " and ".join(files)
            parts.append(f"{value} ({which})")
        lines.append(f"The runs differ in {name}: {'; '.join(parts)}.")
    return lines


def probe_note(settings: Settings) -> str:
    """Say what the linear probe's numbers are not."""
    names = ("converge", "epochs", "learning_rate")
    converge, epochs, rate = (settings.shared.get(f"linear.{name}") for name in names)
    if converge is True:
        return "The linear probe was trained until it converged."
    if epochs is None or rate is None:
        steps = "If it was trained as in the paper, its 100 epochs at a learning rate of 3e-4"
    else:
        steps = f"Its {epochs} epochs at a learning rate of {rate:g}"
    return (
        f"The linear probe is not a converged one. {steps} stop short of convergence: the numbers "
        "compare encoders under one protocol, and say little about what their features could reach."
    )


def _settings(run: RunResult) -> Iterator[tuple[str, Any]]:
    fit = run.record.get("fit")
    history = fit.get("history") if isinstance(fit, dict) else None
    if isinstance(history, dict):
        yield "fit.epochs", max((len(values) for values in history.values()), default=0)
    yield from _flat("", run.record["evaluation"].get("settings"))
    yield from _flat("", {name: run.record.get(name) for name in ("versions", "threads")})
    plan = run.record.get("plan")
    if isinstance(plan, dict):
        yield from _flat(LAYERS, plan.get("layers"))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{prefix}{name}.", inner)
    elif prefix and value is not None:
        yield prefix[:-1], value
