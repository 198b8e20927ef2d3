"""Interleaved timing, peak memory, and the table and JSON in which a benchmark reports.

Peak memory is read from ``/proc``: the benchmarks run on Linux.
"""

import argparse
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

RESULTS = Path(__file__).parent / "results"
MIN_ROUNDS = 5
"""Rounds that are timed whatever they cost, unless fewer are asked for."""

Result = TypeVar("Result")


class Summary(NamedTuple):
    """Repeated measurements of one thing."""

    median: float
    first_quartile: float
    third_quartile: float
    samples: list[float]
    """In the order in which they were taken."""


def summarise(samples: Sequence[float]) -> Summary:
    """Return the median and the quartiles of at least one measurement."""
    first, median, third = samples[0], samples[0], samples[0]
    if len(samples) > 1:
        first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, first, third, list(samples))


def ratio(samples: Sequence[float], reference: Sequence[float]) -> Summary | None:
    """Divide round by round, then summarise: what slows a whole round cancels.

    None if the reference is 0 in a round, as the memory of a tiny batch can be.
    """
    if 0.0 in reference:
        return None
    return summarise([a / b for a, b in zip(samples, reference, strict=True)])


def time_calls(case: Callable[[], object], calls: int = 1) -> float:
    """Return the seconds of a call, as the mean over some in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        case()
    return (time.perf_counter() - start) / calls


def time_interleaved(
    cases: Mapping[str, Callable[[], object]],
    rounds: int,
    max_seconds: float = math.inf,
    min_sample: float = 0.05,
) -> dict[str, list[float]]:
    """Time cases in the order A B C A B C ..., so that all see the same state of the machine.

    Args:
        cases: What to time, by name; each is called once or twice before.
        rounds: How often each case is timed.
        max_seconds: No round begins after that time, once there are ``MIN_ROUNDS``.
        min_sample: A case that takes fewer seconds is called as often as fills them.

    Returns:
        Seconds per call of each case, one number per round.
    """
    calls = {}
    for name, case in cases.items():
        seconds = time_calls(case, 1)
        if seconds < min_sample:  # the first call may have loaded something
            seconds = time_calls(case, 1)
        calls[name] = max(1, math.ceil(min_sample / seconds))
    samples: dict[str, list[float]] = {name: [] for name in cases}
    start = time.perf_counter()
    for done in range(rounds):
        if done >= MIN_ROUNDS and time.perf_counter() - start > max_seconds:
            break
        for name, case in cases.items():
            samples[name].append(time_calls(case, calls[name]))
    return samples


def peak_memory(call: Callable[[], Result]) -> tuple[int, Result]:
    """Return the bytes of physical memory that a call needs above those held before, and its value.

    Memory that the process holds but does not use, and that the call takes, does not count: for a
    figure to show, measure in a process of its own, after a tiny call of the same kind.
    """
    held = _memory_status("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far becomes the present
    except OSError:
        held = _memory_status("VmHWM")
    value = call()
    return max(0, _memory_status("VmHWM") - held), value


def available_memory() -> int:
    """Return the bytes that new processes can take before the machine runs short."""
    return _read_kibibytes("/proc/meminfo", "MemAvailable")


def _memory_status(field: str) -> int:
    return _read_kibibytes("/proc/self/status", field)


def _read_kibibytes(file: str, field: str) -> int:
    """Read a line such as ``VmRSS:  123 kB`` as bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(file).read_text(), flags=re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{file} must have a line {field}, got none; the benchmark needs Linux.")
    return 1024 * int(found.group(1))


def in_own_process(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function of a module in a fresh process and return what it returns."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def create_parser(description: str | None, features: int = 128) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    first = (description or "").splitlines()[0]
    parser = argparse.ArgumentParser(
        description=first, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where to write; None is benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="seconds, to see that it runs")
    parser.add_argument("--features", type=int, default=features, help="length of the embeddings")
    return parser


def parse_arguments(parser: argparse.ArgumentParser, quick: dict[str, Any]) -> argparse.Namespace:
    """Parse the command line; with ``--quick`` other defaults hold."""
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**quick)
    return parser.parse_args()


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table, the first column to the left and the others to the right."""
    widths = [max(3, *map(len, column)) for column in zip(headers, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    for row in (headers, rule, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("| " + " | ".join(cells) + " |")


def show(summary: Summary | None, scale: float = 1.0) -> str:
    """Write ``median (first quartile-third quartile)`` for a table, in three digits."""
    if summary is None:
        return "-"
    median, first, third = (_three_digits(scale * value) for value in summary[:3])
    return f"{median} ({first}-{third})"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def progress(text: str) -> None:
    """Tell a person who waits, apart from the table."""
    print(text, file=sys.stderr, flush=True)


def write_report(arguments: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write settings, machine and rows as JSON; a :class:`Summary` becomes an object.

    To be called as soon as there is a row: an interrupted run leaves what it has measured.

    Args:
        arguments: The command line, as parsed.
        rows: What was measured, in plain values and summaries.

    Returns:
        Where it was written.
    """
    name = Path(sys.argv[0]).stem
    path = arguments.json or RESULTS / f"{name}{'_quick' if arguments.quick else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in vars(arguments).items() if key != "json"}
    report = {
        "benchmark": name,
        "settings": settings,
        "machine": _describe_machine(),
        "rows": [{key: _plain(value) for key, value in row.items()} for row in rows],
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return path


def _plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Summary) else value


def _describe_machine() -> dict[str, Any]:
    packages = ("torch", "numpy", "lightly", "lightning", "pytorch-metric-learning", "faiss-cpu")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in packages},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
