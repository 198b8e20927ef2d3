"""Python in processes of its own, as tests run it: a deadlock ends, with all that was started."""

import os
import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TESTS = Path(__file__).parent
WITH_TQDM = "--trainer.callbacks+=lightning.pytorch.callbacks.TQDMProgressBar"
"""Of `weince fit`. Where Rich is there Lightning takes its bar, of which a pipe sees the end."""


def start_python(*arguments: object, **options: Any) -> subprocess.Popen:
    """Start Python, with this project and its tests to be imported and one thread each."""
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return subprocess.Popen(
        [sys.executable, "-u", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **options,
    )


def read_until(process: subprocess.Popen, pattern: bytes) -> None:
    """Read what a process writes, a byte at a time, until the pattern stands there."""
    seen = b""
    while not re.search(pattern, seen):
        byte = process.stdout.read(1)
        assert byte, seen.decode()
        seen += byte


def finish(process: subprocess.Popen, timeout: float) -> str:
    """Wait for what a process writes, or end it and all that it started."""
    try:
        return process.communicate(timeout=timeout)[0].decode()
    except subprocess.TimeoutExpired:
        # The second process is a child of the first, and would wait for it for half an hour.
        os.killpg(process.pid, signal.SIGKILL)
        raise


def run_python(*arguments: object, timeout: float) -> None:
    """Run Python to its end, which must be a good one."""
    process = start_python(*arguments)
    output = finish(process, timeout)
    assert process.returncode == 0, output


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
