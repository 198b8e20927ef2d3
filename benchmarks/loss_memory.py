"""Peak memory of forward and backward of the losses, above their inputs.

Each measurement has a process of its own, in which a tiny batch went through the same loss before.
The gradients of the inputs count. What would not fit, judged by the peak of the next smaller size,
is skipped.
"""

from typing import Any

import torch
from compared_losses import (
    LOSSES,
    PROBE,
    REFERENCE,
    MemoryForecast,
    add_comparison_options,
    compare_sizes,
    draw_views,
    forward_backward,
)
from measurement import (
    create_parser,
    in_own_process,
    parse_arguments,
    peak_memory,
    ratio,
    show,
    summarise,
)


def measure(name: str, samples: int, features: int, threads: int) -> int:
    """Return the peak of one loss at one size in bytes; to be called in a process of its own."""
    torch.set_num_threads(threads)
    criterion = LOSSES[name].create()
    forward_backward(criterion, *draw_views(8, features))()
    return peak_memory(forward_backward(criterion, *draw_views(samples, features)))[0]


def measure_size(samples: int, arguments: Any, forecast: MemoryForecast) -> list[dict[str, Any]]:
    """Measure all losses at one size, in turn, or say why not."""
    peaks: dict[str, list[float]] = {name: [] for name in arguments.losses}
    skipped = {name: forecast.refuse(name, samples) for name in arguments.losses}
    measured = [name for name, reason in skipped.items() if reason is None]
    for _ in range(arguments.rounds):
        for name in measured:
            own = in_own_process(measure, name, samples, arguments.features, arguments.threads)
            peaks[name].append(own)
    rows: list[dict[str, Any]] = []
    for name in arguments.losses:
        row = dict.fromkeys(("bytes", "ratio_to_lightly"))
        if name in measured:
            forecast.record(name, samples, max(peaks[name]))
            row["bytes"] = summarise(peaks[name])
            if REFERENCE in measured:
                row["ratio_to_lightly"] = ratio(peaks[name], peaks[REFERENCE])
        rows.append({"samples": samples, "loss": name, **row, "skipped": skipped[name]})
    return rows


def show_cell(row: dict[str, Any]) -> str:
    """Write the peak of a loss and its ratio to the reference."""
    cell = show(row["bytes"], 2**-20)
    if row["loss"] == REFERENCE or row["ratio_to_lightly"] is None:
        return cell
    return f"{cell}, x {row['ratio_to_lightly'].median:.3g}"


def main() -> None:
    """Run the benchmark."""
    parser = create_parser(__doc__)
    add_comparison_options(parser, [256, 1024, 4096, 8192, 16384, 32768])
    parser.add_argument("--rounds", type=int, default=3, help="processes per loss and size")
    arguments = parse_arguments(parser, {"sizes": [PROBE], "rounds": 1, "threads": 1})
    title = (
        f"Forward and backward, D = {arguments.features}, float32: peak memory above the inputs "
        "in MiB, median (quartiles), and its ratio to lightly's."
    )
    compare_sizes(arguments, measure_size, show_cell, title)


if __name__ == "__main__":
    main()
