"""Many runs, one after the other or side by side, with a line for each."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from weince_lightning.sweeps.commands import Commands
from weince_lightning.sweeps.execution import RunFailedError, RunStoppedError, execute
from weince_lightning.sweeps.folder import RunFolder
from weince_lightning.sweeps.plan import SweepError
from weince_lightning.sweeps.processes import CommandProcesses


class Outcome(NamedTuple):
    """What became of the runs."""

    failures: dict[str, str]
    """What happened, by the names of the runs that failed."""

    signum: int | None
    """The signal that stopped the sweep, if one did."""

    num_runs: int
    """How many were to be carried out."""


def carry_out(
    todo: Sequence[RunFolder],
    commands: Commands,
    processes: CommandProcesses,
    jobs: int,
    keep_checkpoints: bool,
    say: Callable[[str], None],
) -> Outcome:
    """Carry out runs; what fails is noted, and the others go on.

    Args:
        todo: The runs, in order.
        commands: What trains and evaluates.
        processes: Where they run.
        jobs: How many at a time.
        keep_checkpoints: Whether the checkpoints stay once there is a result.
        say: Takes a line for each run that begins or has come to its end.
    """
    failures: dict[str, str] = {}
    lines = [
        partial(say, f"{folder.run.name}: run {number} of {len(todo)}, its log is {folder.log}")
        for number, folder in enumerate(todo, 1)
    ]
    begin, finished = time.monotonic(), 0
    with _signals(processes) as received, ThreadPoolExecutor(jobs) as pool:
        futures = {
            pool.submit(_timed, folder, commands, processes, keep_checkpoints, started): folder
            for folder, started in zip(todo, lines, strict=True)
        }
        for future in as_completed(futures):
            name = futures[future].run.name
            try:
                result, seconds = future.result()
            except RunStoppedError:
                continue
            except (RunFailedError, SweepError, OSError) as error:
                failures[name] = str(error)
                said = f"FAILED {name}: {error}"
            else:
                finished += 1
                said = f"{name}: {_duration(seconds)}{_numbers(result['evaluation'])}"
            left = len(todo) - finished - len(failures)
            pace = (time.monotonic() - begin) / (finished + len(failures))
            rest = f"; {left} left, about {_duration(left * pace)}" if left else ""
            say(f"{said}{rest}")
    return Outcome(failures, received[0] if received else None, len(todo))


def _timed(
    folder: RunFolder,
    commands: Commands,
    processes: CommandProcesses,
    keep_checkpoints: bool,
    say_started: Callable[[], None],
) -> tuple[dict[str, Any], float]:
    if not processes.is_stopped:
        say_started()
    begin = time.monotonic()
    return execute(folder, commands, processes, keep_checkpoints), time.monotonic() - begin


@contextmanager
def _signals(processes: CommandProcesses) -> Iterator[list[int]]:
    """Stop on Ctrl-C or SIGTERM, at once on a second Ctrl-C; yields the signals received."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # Python lets the main thread alone handle signals
        return

    def receive(signum: int, frame: object) -> None:
        received.append(signum)
        if received.count(signal.SIGINT) > 1:
            processes.kill()
            return
        if len(received) == 1:
            # Python's own streams cannot be written to while they are being written to.
            os.write(2, b"\nweince: stopping once what trains is saved; Ctrl-C again: at once.\n")
        processes.stop()

    before = {signum: signal.signal(signum, receive) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _numbers(evaluation: Mapping[str, Any]) -> str:
    """Name the validation accuracies, in per cent."""
    said = []
    for part, label in (("linear", "linear"), ("knn", "kNN")):
        for metric, value in evaluation.get(part, {}).items():
            if metric.startswith("val_top1"):
                said.append(f"{label} {100 * value['mean']:.2f} %")
    return f", validation {', '.join(said)}" if said else ""


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
