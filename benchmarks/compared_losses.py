"""The losses that are compared, ours and those of other libraries, on the same two views."""

import argparse
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from measurement import available_memory, print_table, progress, write_report
from torch import Tensor

TEMPERATURE = 0.5
REFERENCE = "lightly"
"""The loss to which all ratios are taken."""
PROBE = 256
"""Samples of a batch that no machine refuses, from which the memory of larger ones is foretold.

A smaller one can find all its memory among what was freed before, and then says nothing.
"""

Criterion = Callable[[Tensor, Tensor], Tensor]


class Compared(NamedTuple):
    """A loss of the comparison."""

    create: Callable[[], Criterion]
    """Imports its library, so that a process loads only what it measures."""
    power: int
    """Its memory grows at most with this power of the batch."""
    package: str
    """Where it comes from, as Python imports it."""


def _infonce() -> Criterion:
    from weince_lightning import InfoNCELoss

    return InfoNCELoss(TEMPERATURE)


def _weince() -> Criterion:
    from weince_lightning import WEINCELoss

    return WEINCELoss(TEMPERATURE)


def _lightly() -> Criterion:
    from lightly.loss.ntx_ent_loss import NTXentLoss

    return NTXentLoss(TEMPERATURE)


def _pytorch_metric_learning() -> Criterion:
    from pytorch_metric_learning.losses import NTXentLoss

    criterion = NTXentLoss(TEMPERATURE)

    def loss(z0: Tensor, z1: Tensor) -> Tensor:
        labels = torch.arange(len(z0)).repeat(2)
        return criterion(torch.cat([z0, z1]), labels)

    return loss


LOSSES = {
    "lightly": Compared(_lightly, 2, "lightly"),
    "InfoNCELoss": Compared(_infonce, 2, "weince_lightning"),
    "WEINCELoss": Compared(_weince, 2, "weince_lightning"),
    # It compares every positive pair with the list of all negative pairs.
    "pytorch-metric-learning": Compared(_pytorch_metric_learning, 3, "pytorch_metric_learning"),
}
"""By the name in the tables; "lightly" and "pytorch-metric-learning" are their NTXentLoss."""


def draw_views(samples: int, features: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return embeddings of two views of which row i shows the same sample, as leaves."""
    generator = torch.Generator().manual_seed(seed)
    z0 = torch.randn(samples, features, generator=generator)
    z1 = z0 + torch.randn(samples, features, generator=generator)
    return z0.requires_grad_(), z1.requires_grad_()


def forward_backward(criterion: Criterion, z0: Tensor, z1: Tensor) -> Callable[[], float]:
    """Return a call that computes the loss and its gradient, and returns the loss."""

    def call() -> float:
        z0.grad = z1.grad = None
        loss = criterion(z0, z1)
        loss.backward()
        return loss.item()

    return call


class MemoryForecast:
    """Peaks of smaller batches, and what they say about a larger one.

    Args:
        limit: GiB that a batch may take; None is 60 % of what the machine has available when it is
            asked.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self.peaks: dict[str, tuple[int, float]] = {}

    def record(self, name: str, samples: int, peak: float) -> None:
        """Keep the peak of a loss, in bytes, to extrapolate from it."""
        self.peaks[name] = samples, peak

    def refuse(self, name: str, samples: int) -> str | None:
        """Say why a loss cannot run at a size, or None if it can or was not seen before."""
        if find_spec(LOSSES[name].package) is None:
            return f"{LOSSES[name].package} is not installed"
        known, peak = self.peaks.get(name, (samples, 0))
        expected = peak * (samples / known) ** LOSSES[name].power / 2**30
        limit = 0.6 * available_memory() / 2**30 if self.limit is None else self.limit
        if expected <= limit:
            return None
        return f"it may need {expected:.3g} GiB and may take {limit:.3g} GiB"


def add_comparison_options(parser: argparse.ArgumentParser, sizes: Sequence[int]) -> None:
    """Add the options of a comparison over several sizes."""
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help="samples N")
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-limit", type=float, help="GiB; None is 60 %% of the available")


def compare_sizes(
    arguments: argparse.Namespace,
    measure: Callable[[int, argparse.Namespace, MemoryForecast], list[dict[str, Any]]],
    show_cell: Callable[[dict[str, Any]], str],
    title: str,
) -> None:
    """Measure from the smallest size on, write after each, and print the table.

    Args:
        arguments: The command line, with the options of :func:`add_comparison_options`.
        measure: Measures all losses at one size.
        show_cell: See :func:`print_comparison`.
        title: What stands above the table.
    """
    forecast = MemoryForecast(arguments.memory_limit)
    rows: list[dict[str, Any]] = []
    probes = {PROBE} if max(arguments.sizes) > PROBE else set()
    for samples in sorted(probes.union(arguments.sizes)):
        progress(f"N = {samples}")
        found = measure(samples, arguments, forecast)
        rows += found if samples in arguments.sizes else []
        path = write_report(arguments, rows)
    print(f"{title}\n")
    print_comparison(rows, show_cell)
    progress(f"Written to {path}")


def print_comparison(
    rows: Sequence[dict[str, Any]], show_cell: Callable[[dict[str, Any]], str]
) -> None:
    """Print a table with a line for each size and a column for each loss, and what was skipped.

    Args:
        rows: With "samples", "loss" and "skipped", a reason or None; the same losses at all sizes.
        show_cell: Writes a row that was not skipped.
    """
    names = list(dict.fromkeys(row["loss"] for row in rows))
    cells = ["-" if row["skipped"] else show_cell(row) for row in rows]
    lines = []
    for start in range(0, len(rows), len(names)):
        samples = rows[start]["samples"]
        lines.append((f"{samples} ({2 * samples})", *cells[start : start + len(names)]))
    print_table(("N (2N)", *names), lines)
    for row in rows:
        if row["skipped"]:
            print(f"\nSkipped: {row['loss']} at N = {row['samples']}, {row['skipped']}.")
