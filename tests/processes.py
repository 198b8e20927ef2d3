"""Python in processes of its own, as tests run it: a deadlock ends, with all that was started.

Python with torch and Lightning takes seconds to start. A server imports them once, and each process
begins as a copy of it.
"""

import atexit
import contextlib
import multiprocessing
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

TESTS = Path(__file__).parent
WITH_TQDM = "--trainer.callbacks+=lightning.pytorch.callbacks.TQDMProgressBar"
"""Of `weince fit`. Where Rich is there Lightning takes its bar, of which a pipe sees the end."""
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT: Any = multiprocessing.get_context(METHOD)
PRELOADED = ["pytest", "lightly.models.modules", "sklearn.datasets"]
PRELOADED += ["weince_lightning." + name for name in ("callbacks", "data", "losses", "module")]
PRELOADED += ["weince_lightning.cli.lightning_cli", "weince_lightning.cli.evaluate"]
if METHOD == "forkserver":
    CONTEXT.set_forkserver_preload(PRELOADED)


class Python:
    """A running Python, with this project and its tests to be imported and one thread.

    Args:
        arguments: A script or ``-m`` and a module, and what stands after it.
        folder: The working folder.
        environment: Variables beside those of this process.
    """

    def __init__(
        self,
        *arguments: object,
        folder: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
        variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        variables.update(environment or {})
        reader, writer = CONTEXT.Pipe(duplex=False)
        parts = ([*map(str, arguments)], str(folder or Path.cwd()), variables, writer)
        self._process = CONTEXT.Process(target=_become, args=parts)
        self._process.start()
        writer.close()
        self._output: Connection = reader
        self._seen = b""

    @property
    def pid(self) -> int:
        """Its number, and that of the group of all that it starts."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def send(self, signum: int) -> None:
        """Send a signal to it and to all that it started, as terminals and clusters do."""
        os.killpg(self.pid, signum)

    def read_until(self, pattern: bytes) -> None:
        """Wait until it has written the pattern."""
        while not re.search(pattern, self._seen):
            assert self._read(timeout=300), self._seen.decode()

    def finish(self, timeout: float) -> str:
        """Wait for its end, or end it and all that it started; return all that it wrote."""
        end = time.monotonic() + timeout
        try:
            while self._read(end - time.monotonic()):
                pass
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            raise
        self._process.join()
        return self._seen.decode()

    def _read(self, timeout: float) -> bytes:
        """Read what it has written; nothing is the end."""
        if not select.select([self._output.fileno()], [], [], max(0, timeout))[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout, self._seen)
        part = os.read(self._output.fileno(), 1 << 16)
        self._seen += part
        return part


def _become(
    arguments: list[str], folder: str, environment: dict[str, str], output: Connection
) -> None:
    """Run what Python would with these arguments."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    # As in a fresh Python. Else workers would come from a server that a signal to the group ends,
    # and the command would take them for dead while they clean up.
    multiprocessing.set_start_method(None, force=True)
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    ours = environment["PYTHONPATH"].split(os.pathsep)
    sys.path[:0] = ["" if is_module else str(Path(arguments[0]).parent.resolve()), *ours]
    try:
        if is_module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a copy of the server ends without them


def run_python(*arguments: object, timeout: float, **options: Any) -> str:
    """Run Python to its end, which must be a good one; returns what it wrote."""
    process = Python(*arguments, **options)
    output = process.finish(timeout)
    assert process.returncode == 0, output
    return output


def run_ranks(processes: int, *arguments: object, timeout: float) -> None:
    """Run a script as a launcher such as torchrun does: in processes that find each other."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        Python(*arguments, environment={**meeting, "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]
    end = time.monotonic() + timeout
    try:
        outputs = [process.finish(end - time.monotonic()) for process in started]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send(signal.SIGKILL)
    assert [process.returncode for process in started] == [0] * processes, "\n".join(outputs)


def free_port() -> int:
    """Return the number of a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def spawn(work: Callable[..., None], arguments: Sequence[Any], processes: int) -> None:
    """Call a function with the rank and the arguments in processes, and wait for their end."""
    torch.multiprocessing.start_processes(
        work, args=tuple(arguments), nprocs=processes, start_method=METHOD
    )


def meet(rank: int, sizes: list[int], folder: str) -> slice:
    """Join the other processes; returns the rows of this one."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=len(sizes),
        timeout=timedelta(seconds=60),
    )
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
