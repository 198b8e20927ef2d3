"""The numbers of a training, read back from its CSV logs."""

import csv
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_CURRENT = "metrics.csv"


class History(NamedTuple):
    """What a training logged; None stands for what is not finite."""

    metrics: dict[str, float | None]
    """The last value of each name."""

    epochs: dict[str, list[float | None]]
    """For each epoch the mean of what was logged in it, None where nothing was."""


def set_aside(folder: Path) -> None:
    """Keep the log of an attempt that broke off: the next one writes over it."""
    current = folder / _CURRENT
    if current.is_file():
        current.rename(folder / f"metrics.{len(_logs(folder))}.csv")


def read_history(folder: Path) -> History:
    """Read what all attempts logged; of a step that was trained twice, the later numbers.

    Args:
        folder: The folder of the ``CSVLogger``.

    Returns:
        The numbers of the whole training.
    """
    values: dict[tuple[str, int], tuple[int | None, float]] = {}
    epoch_of: dict[int, int] = {}
    for path in _logs(folder):
        for step, epoch, numbers in _read_log(path):
            values.update({(name, step): (epoch, value) for name, value in numbers.items()})
            if epoch is not None:
                epoch_of[step] = epoch
    steps = sorted(epoch_of)
    metrics: dict[str, float | None] = {}
    by_epoch: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (name, step), (epoch, value) in sorted(values.items(), key=lambda item: item[0][1]):
        metrics[name] = _finite(value)
        if epoch is None and steps:
            # Monitors that write past Lightning name no epoch, and count the steps from 1.
            epoch = epoch_of[steps[min(bisect_left(steps, step - 1), len(steps) - 1)]]
        by_epoch[name][epoch or 0].append(value)
    count = max(epoch_of.values(), default=-1) + 1
    epochs = {
        name: [_mean(means[epoch]) if epoch in means else None for epoch in range(count)]
        for name, means in sorted(by_epoch.items())
    }
    return History(metrics, epochs)


def _logs(folder: Path) -> list[Path]:
    aside = sorted(folder.glob("metrics.*.csv"), key=lambda path: int(path.suffixes[0][1:]))
    return [path for path in [*aside, folder / _CURRENT] if path.is_file()]


def _read_log(path: Path) -> Iterator[tuple[int, int | None, dict[str, float]]]:
    with path.open(encoding="utf-8") as file:
        lines = [*file]
    # A process killed while writing leaves a line that does not end.
    for row in csv.DictReader(line for line in lines if line.endswith("\n")):
        step, epoch = int(row.pop("step")), row.pop("epoch", "")
        numbers = {name: float(value) for name, value in row.items() if value}
        yield step, int(float(epoch)) if epoch else None, numbers


def _mean(values: Sequence[float]) -> float | None:
    return _finite(sum(values) / len(values))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
