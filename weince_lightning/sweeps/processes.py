"""Commands in processes of their own, whose start is cheap and whose end ends nothing else."""

import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from weince_lightning.checks import check_integer
from weince_lightning.sweeps.commands import Command, Commands


class CommandProcesses:
    """Start commands, and stop all of them on demand.

    Python with torch and Lightning takes seconds to start. A server process imports them once, and
    every command begins as a copy of it, where the system can do that.

    Args:
        commands: The commands; only their ``entry`` and ``preload`` are used here.
        threads: Threads of torch in each process.

    Attributes:
        is_stopped: Whether the running commands were told to stop, and no others start.
    """

    def __init__(self, commands: Commands, threads: int) -> None:
        has_server = "forkserver" in multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if has_server else "spawn")
        if has_server:
            self._context.set_forkserver_preload([*commands.preload])
            forkserver.ensure_running()  # while this process does something else
        self.threads = threads
        self._entry = commands.entry
        self.is_stopped = False
        self._running: list[BaseProcess] = []
        self._lock = threading.RLock()  # signal handlers come in between

    def run(self, command: Command, name: str, arguments: list[str], log: Path) -> int:
        """Run a command to its end.

        Args:
            command: What is run.
            name: Name of the command, such as ``fit``.
            arguments: What stands after it.
            log: The file to which its output is added.

        Returns:
            The exit status, negative for the signal that killed the process.
        """
        parts = (command, name, arguments, str(log), self.threads, self._entry)
        with self._lock:
            if self.is_stopped:
                return 128 + signal.SIGTERM
            process: BaseProcess = self._context.Process(target=_run, args=parts)
            process.start()
            self._running.append(process)
            if self.is_stopped:  # by a signal while it was starting
                process.terminate()
        process.join()
        with self._lock:
            self._running.remove(process)
        return process.exitcode if process.exitcode is not None else 1

    def stop(self) -> None:
        """Let a training finish its step and save it; end everything else."""
        self._send(BaseProcess.terminate)

    def kill(self) -> None:
        """End everything at once."""
        self._send(BaseProcess.kill)

    def wait(self) -> None:
        """Wait for the running commands to end."""
        for process in [*self._running]:
            process.join()

    def _send(self, end: Callable[[BaseProcess], None]) -> None:
        with self._lock:
            self.is_stopped = True
            for process in self._running:
                end(process)


def available_threads(jobs: int) -> int:
    """Share the processors that this process may use among some that run side by side.

    Example:
        >>> available_threads(10_000)
        1
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, count // jobs)


def threads_of_runs(jobs: int, threads: int | None = None) -> int:
    """Decide how many threads each run has.

    Args:
        jobs: Runs side by side.
        threads: What was asked for, at least 1; None is what ``OMP_NUM_THREADS`` says, or else a
            share of the processors.

    Raises:
        ValueError: If ``threads`` is below 1.
    """
    if threads is not None:
        return check_integer("threads", threads, at_least=1)
    of_environment = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    is_number = of_environment.isdecimal() and int(of_environment) > 0
    return int(of_environment) if is_number else available_threads(jobs)


def _run(
    command: Command, name: str, arguments: list[str], log: str, threads: int, entry: str
) -> None:
    """Run a command in this process, as if it had been typed."""
    _die_with_the_parent()
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Both streams may have been made for other descriptors than 1 and 2, by a test for one.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    for unwanted in ("SIGUSR1", "SIGUSR2"):
        # A cluster sends them to all processes of a job; the one that waits for this one knows.
        if hasattr(signal, unwanted):
            signal.signal(getattr(signal, unwanted), signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "SLURM_JOB_NAME" in os.environ:
        # To Lightning: start processes yourself, and leave it to us to requeue the cluster's job.
        os.environ["SLURM_JOB_NAME"] = "interactive"
    # As for the command: classes of a project in the working folder can be named.
    sys.path.insert(0, "")
    # A training on several devices starts this process's command again for each of them.
    sys.argv = ["weince", name, *arguments]
    sys.modules["__main__"] = importlib.import_module(entry)
    importlib.import_module("torch").set_num_threads(threads)
    command(arguments)


def _die_with_the_parent() -> None:
    """See that nobody goes on writing into a folder that the next sweep works in."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        sentinel = parent.sentinel
        threading.Thread(target=lambda: (wait([sentinel]), os._exit(1)), daemon=True).start()
