"""Time of forward and backward of the losses, as ratios to lightly's NTXentLoss.

The three matrix products that every such loss needs (the similarities, and the gradients of
anchors and candidates) are timed beside them, block by block as a loss would at best.
"""

from collections.abc import Callable
from typing import Any

import torch
from compared_losses import (
    LOSSES,
    REFERENCE,
    MemoryForecast,
    add_comparison_options,
    compare_sizes,
    draw_views,
    forward_backward,
)
from measurement import (
    create_parser,
    parse_arguments,
    peak_memory,
    ratio,
    show,
    summarise,
    time_interleaved,
)
from torch import Tensor

PRODUCTS = "three products"


def three_products(z0: Tensor, z1: Tensor, block_size: int = 512) -> Callable[[], object]:
    """Return a call of the three matrix products of a loss over both views, and of nothing else."""
    rows = torch.cat([z0, z1]).detach()
    similarity = torch.empty(min(block_size, len(rows)), len(rows))
    anchors, candidates = torch.empty_like(rows), torch.zeros_like(rows)

    def call() -> None:
        for start in range(0, len(rows), block_size):
            block = rows[start : start + block_size]
            part = similarity[: len(block)]
            torch.mm(block, rows.T, out=part)
            torch.mm(part, rows, out=anchors[start : start + block_size])
            candidates.addmm_(part.T, block, beta=float(start > 0))

    return call


def measure(samples: int, arguments: Any, forecast: MemoryForecast) -> list[dict[str, Any]]:
    """Time all cases at one size, or say why not."""
    views = draw_views(samples, arguments.features)
    cases: dict[str, Callable[[], object]] = {}
    skipped = {name: forecast.refuse(name, samples) for name in arguments.losses}
    values = {}
    for name in (name for name, reason in skipped.items() if reason is None):
        call = forward_backward(LOSSES[name].create(), *views)
        peak, values[name] = peak_memory(call)
        forecast.record(name, samples, peak)
        cases[name] = call
    cases[PRODUCTS] = three_products(*views)
    times = time_interleaved(cases, arguments.rounds, arguments.max_seconds)
    reference = times.get(REFERENCE)
    rows: list[dict[str, Any]] = []
    for name in (*arguments.losses, PRODUCTS):
        row = dict.fromkeys(("seconds", "ratio_to_lightly", "ratio_to_products"))
        if name in times:
            row["seconds"] = summarise(times[name])
            row["ratio_to_lightly"] = reference and ratio(times[name], reference)
            row["ratio_to_products"] = ratio(times[name], times[PRODUCTS])
        about = {"samples": samples, "loss": name, "value": values.get(name)}
        rows.append({**about, **row, "skipped": skipped.get(name)})
    return rows


def show_cell(row: dict[str, Any]) -> str:
    """Write the time of the reference, and of all where it is missing; else the ratio to it."""
    if row["loss"] == REFERENCE or row["ratio_to_lightly"] is None:
        return f"{show(row['seconds'], 1e3)} ms"
    return show(row["ratio_to_lightly"])


def main() -> None:
    """Run the benchmark."""
    parser = create_parser(__doc__)
    add_comparison_options(parser, [64, 256, 1024, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=21, help="most rounds at each size")
    parser.add_argument("--max-seconds", type=float, default=30.0, help="per size, after 5 rounds")
    arguments = parse_arguments(parser, {"sizes": [64, 128], "rounds": 3, "threads": 1})
    torch.set_num_threads(arguments.threads)
    title = (
        f"Forward and backward, D = {arguments.features}, float32, {arguments.threads} threads: "
        "time of lightly's NTXentLoss, ratios of the others to it; median (quartiles)."
    )
    compare_sizes(arguments, measure, show_cell, title)


if __name__ == "__main__":
    main()
