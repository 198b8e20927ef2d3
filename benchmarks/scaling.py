"""Time and memory of each process as their number grows, the samples per process being fixed.

With n samples per process and N over all W of them, a process compares its own 2n anchors with
2N candidates: the model is n x N for the time and, in blocks of one size, N for the memory.
Processes share the cores, so the time that is compared with the model is that of the processor.
Each measurement starts its processes anew.
"""

import argparse
import json
import time
from datetime import timedelta
from itertools import product
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from compared_losses import LOSSES, draw_views, forward_backward
from measurement import (
    create_parser,
    parse_arguments,
    peak_memory,
    print_table,
    progress,
    ratio,
    show,
    summarise,
    write_report,
)

OURS = ("InfoNCELoss", "WEINCELoss")


class Case(NamedTuple):
    """What is measured."""

    loss: str
    samples: int
    processes: int


class Measured(NamedTuple):
    """One start of all processes."""

    cpu_seconds: float
    """Processor time of a step, median over the steps, mean over the processes."""
    wall_seconds: float
    """The same of the time on the clock."""
    peak_bytes: float
    """Peak memory above the inputs, the largest of all processes."""


def run_process(rank: int, case: Case, arguments: argparse.Namespace, folder: str) -> None:
    """Measure in one process and leave the result in a file."""
    torch.set_num_threads(arguments.threads)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=case.processes,
        timeout=timedelta(minutes=10),
    )
    criterion: Any = LOSSES[case.loss].create()
    criterion.block_size = arguments.block_size
    forward_backward(criterion, *draw_views(8, arguments.features, rank))()
    call = forward_backward(criterion, *draw_views(case.samples, arguments.features, rank))
    peak, _ = peak_memory(call)
    cpu, wall = [], []
    for _ in range(arguments.steps):
        dist.barrier()
        start = time.process_time(), time.perf_counter()
        call()
        cpu.append(time.process_time() - start[0])
        wall.append(time.perf_counter() - start[1])
    found = Measured(median(cpu), median(wall), peak)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measure(case: Case, arguments: argparse.Namespace) -> Measured:
    """Start the processes of a case, wait for them and join what they found."""
    with TemporaryDirectory() as folder:
        mp.spawn(run_process, (case, arguments, folder), nprocs=case.processes)
        files = [Path(folder, f"{rank}.json") for rank in range(case.processes)]
        cpu, wall, peak = zip(*(json.loads(file.read_text()) for file in files), strict=True)
    return Measured(fmean(cpu), fmean(wall), max(peak))


def describe(case: Case, first: Case, found: dict[Case, list[Measured]]) -> dict[str, Any]:
    """Set a case beside the first of its loss, round by round, and beside the model."""
    cpu, wall, peak = zip(*found[case], strict=True)
    first_cpu, _, first_peak = zip(*found[first], strict=True)
    all_samples = case.samples * case.processes
    return {
        **case._asdict(),
        "cpu_seconds": summarise(cpu),
        "wall_seconds": summarise(wall),
        "peak_bytes": summarise(peak),
        "time_growth": ratio(cpu, first_cpu),
        "time_model": case.samples * all_samples / (first.samples * first.samples),
        "memory_growth": ratio(peak, first_peak),
        "memory_model": all_samples / first.samples,
    }


def show_row(row: dict[str, Any]) -> tuple[str, ...]:
    """Write a row of the table."""
    return (
        row["loss"],
        str(row["samples"]),
        str(row["processes"]),
        show(row["wall_seconds"], 1e3),
        show(row["cpu_seconds"], 1e3),
        show(row["time_growth"]),
        f"{row['time_model']:g}",
        show(row["peak_bytes"], 2**-20),
        show(row["memory_growth"]),
        f"{row['memory_model']:g}",
    )


def main() -> None:
    """Run the benchmark."""
    parser = create_parser(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--samples", type=int, nargs="+", default=[512, 1024], help="per process")
    parser.add_argument("--losses", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--block-size", type=int, default=256, help="anchors compared at once")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each case")
    parser.add_argument("--steps", type=int, default=5, help="timed in each start")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    quick = {"processes": [1, 2], "samples": [64], "losses": ["WEINCELoss"], "rounds": 1}
    arguments = parse_arguments(parser, quick)
    # The smallest case is the first, with which the others are compared.
    sizes = sorted(arguments.samples), sorted({1, *arguments.processes})
    cases = [Case(*case) for case in product(arguments.losses, *sizes)]
    found: dict[Case, list[Measured]] = {case: [] for case in cases}
    for done in range(arguments.rounds):
        progress(f"round {done + 1} of {arguments.rounds}")
        for case in cases:
            found[case].append(measure(case, arguments))
    firsts = {case.loss: case for case in reversed(cases)}
    rows = [describe(case, firsts[case.loss], found) for case in cases]
    print(
        f"Forward and backward of n samples in each of W processes, D = {arguments.features}, "
        f"float32, blocks of {arguments.block_size}, threads per process: {arguments.threads}. "
        "Median (quartiles); growth is the ratio to the first row of the loss, beside what the "
        "model says.\n"
    )
    headers = ("loss", "n", "W", "wall ms", "CPU ms", "growth", "n x N")
    print_table((*headers, "peak MiB", "growth", "N"), [show_row(row) for row in rows])
    progress(f"Written to {write_report(arguments, rows)}")


if __name__ == "__main__":
    main()
