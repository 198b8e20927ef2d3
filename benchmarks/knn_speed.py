"""Time of a nearest-neighbour search and its score, as ratios to faiss's exact search.

faiss brings a copy of OpenBLAS that falls back to its slowest kernels on a processor it does not
know; unless OPENBLAS_CORETYPE is set, it is told the best ones that the processor can run. The
matrix product that an exact search cannot do without is timed beside them.
"""

import argparse
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from measurement import (
    create_parser,
    parse_arguments,
    print_table,
    progress,
    ratio,
    show,
    summarise,
    time_interleaved,
    write_report,
)
from torch import Tensor
from torch.nn.functional import normalize

from weince_lightning.functional.neighbours import nearest_neighbours, neighbour_scores

REFERENCE = "faiss IndexFlatIP"
K = 50


def known_kernels() -> str:
    """Name kernels of OpenBLAS for the instructions of this processor; empty is its own choice."""
    processor = Path("/proc/cpuinfo").read_text()
    names = {"avx512f": "SKYLAKEX", "avx2": "HASWELL"}
    return next((name for flag, name in names.items() if flag in processor), "")


def faiss_search(queries: Tensor, bank: Tensor, threads: int) -> Callable[[], Any]:
    """Return a call that scales to unit length, builds the index and searches it."""
    os.environ.setdefault("OPENBLAS_CORETYPE", known_kernels())  # read when faiss is loaded
    import faiss

    faiss.omp_set_num_threads(threads)

    def call() -> Any:
        index = faiss.IndexFlatIP(bank.shape[1])
        index.add(normalize(bank).numpy())
        return index.search(normalize(queries).numpy(), min(K, len(bank)))

    return call


def product(queries: Tensor, bank: Tensor, block_size: int = 512) -> Callable[[], None]:
    """Return a call of all similarities, block by block, which are not looked at."""
    similarity = torch.empty(min(block_size, len(queries)), len(bank))

    def call() -> None:
        for block in queries.split(block_size):
            torch.mm(block, bank.T, out=similarity[: len(block)])

    return call


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all cases in turn; faiss is left out where it is not installed."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"queries": arguments.queries, "bank": arguments.bank}
    queries, bank = (
        torch.randn(size, arguments.features, generator=generator) for size in sizes.values()
    )
    labels = [
        torch.randint(arguments.classes, (size,), generator=generator) for size in sizes.values()
    ]
    cases: dict[str, Callable[[], Any]] = {
        "nearest_neighbours": lambda: nearest_neighbours(queries, bank, K),
        "neighbour_scores": lambda: neighbour_scores(queries, labels[0], bank, labels[1]),
        "matrix product": product(queries, bank),
    }
    agreement = None
    if find_spec("faiss") is not None:
        cases = {REFERENCE: faiss_search(queries, bank, arguments.threads), **cases}
        theirs = torch.from_numpy(cases[REFERENCE]()[1])
        agreement = (theirs == cases["nearest_neighbours"]().indices).float().mean().item()
    times = time_interleaved(cases, arguments.rounds, arguments.max_seconds)
    return [
        {
            "case": name,
            "seconds": summarise(samples),
            "ratio_to_faiss": ratio(samples, times[REFERENCE]) if REFERENCE in times else None,
            "ratio_to_product": ratio(samples, times["matrix product"]),
            "agreement_with_faiss": agreement if name == "nearest_neighbours" else None,
        }
        for name, samples in times.items()
    ]


def main() -> None:
    """Run the benchmark."""
    parser = create_parser(__doc__, features=512)
    parser.add_argument("--bank", type=int, default=50_000, help="rows that are searched")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7, help="most rounds")
    parser.add_argument("--max-seconds", type=float, default=120.0, help="after 5 rounds")
    parser.add_argument("--threads", type=int, default=2)
    quick = {"bank": 500, "queries": 100, "features": 32, "rounds": 3, "threads": 1}
    arguments = parse_arguments(parser, quick)
    torch.set_num_threads(arguments.threads)
    rows = measure(arguments)
    arguments.openblas_coretype = os.environ.get("OPENBLAS_CORETYPE")
    path = write_report(arguments, rows)
    print(
        f"{arguments.queries} queries, bank of {arguments.bank}, D = {arguments.features}, the "
        f"{K} nearest, float32, {arguments.threads} threads: median (quartiles).\n"
    )
    print_table(
        ("what", "s", "ratio to faiss", "ratio to product"),
        [
            (
                row["case"],
                show(row["seconds"]),
                show(row["ratio_to_faiss"]),
                show(row["ratio_to_product"]),
            )
            for row in rows
        ],
    )
    if REFERENCE not in (row["case"] for row in rows):
        print("\nSkipped: faiss, not installed (the extra benchmarks brings it).")
    progress(f"Written to {path}")


if __name__ == "__main__":
    main()
