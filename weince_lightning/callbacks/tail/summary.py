"""Numbers of the tail figure, from one batch of all processes."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weince_lightning.callbacks.tail.figure import AnchorTail, TailPicture
from weince_lightning.distributed import gather, rank, row_counts, world_size
from weince_lightning.functional.candidates import Candidates, compare, score
from weince_lightning.functional.contrastive import negated_similarities
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.gradient_shares import gradient_shares
from weince_lightning.functional.links import shortfall
from weince_lightning.functional.tails import fit_tail, smallest, tail_size

HARDEST = (0.01, 0.05, 0.1)
"""Fractions of the negatives whose part of the gradient is shown."""
SHOWN = {"hard": 0.05, "median": 0.5, "easy": 0.95}
r"""Which anchors' tails are shown, by the quantile of their hardness :math:`\rho`: the very hardest
and easiest ones say little about the others."""
_BLOCK = 2**22
"""Similarities at once."""


def is_readable(loss: object) -> bool:
    """Whether a loss returns its candidates and has a gate, as :class:`WEINCELoss`."""
    return all(hasattr(loss, name) for name in ("candidates", "temperature", "gate"))


@torch.no_grad()
def read_picture(z0: Tensor, z1: Tensor, terms: Any, loss: Any) -> TailPicture | None:
    r"""Read the evidence of all processes' anchors; each process must call it, with a sample.

    Without ``gather_distributed`` each process has a :math:`\rho_0` of its own; it shows its own.

    Args:
        z0: Projections of the first view, shape ``(samples, features)``.
        z1: Projections of the second view, same shape.
        terms: What the loss returned for them alone.
        loss: The loss, see :func:`is_readable`.

    Returns:
        What to draw; None on all processes if no anchor has negatives and finite numbers, or if the
        loss saw other anchors or negatives than the projections give.
    """
    tail = terms.tail
    groups = loss.candidates(z0, z1).groups
    counts = torch.cat([group.count_negatives() for group in groups])
    if len(counts) != len(tail.rho):
        return None
    sizes = row_counts(len(counts), counts.device)
    columns = [tail.rho, tail.gate, tail.beta_hat, tail.delta_aic, counts, terms.num_negatives]
    own = torch.stack([column.to(tail.rho) for column in columns], dim=1)
    everyone = gather(torch.cat([own, _shares(groups, tail, loss)], dim=1), sizes).cpu()
    rho, gate, beta_hat, _, num_negatives, expected = everyone[:, :6].T
    usable = (num_negatives > 0) & everyone.isfinite().all(dim=1)
    if not usable.any() or not torch.equal(num_negatives, expected):
        return None
    shown = [_at_quantile(rho, beta_hat, usable, part) for part in SHOWN.values()]
    most = max(row_counts(max(group.max_negatives for group in groups), counts.device))
    # A gate that is a number goes with the tails of the default gate.
    size = getattr(loss.gate, "tail_fraction", 0.1), getattr(loss.gate, "min_tail_points", 32)
    own_places = [place - sum(sizes[: rank()]) for place in shown]
    tails = _tails(groups, own_places, tail_size(most, *size))
    fit = fit_tail(tails, num_negatives[shown].long(), most, *size)
    shortfalls = [
        row[: tail_size(int(number), *size)].numpy()
        for row, number in zip(tails, num_negatives[shown], strict=True)
    ]
    fields = [SHOWN, shortfalls, fit.num_points.int().tolist(), *everyone[shown, :4].T.tolist()]
    anchors = [AnchorTail(*values) for values in zip(*fields, strict=True)]
    # Under softmax, then under WEINCE.
    shares = everyone[usable, 6:].mean(dim=0).view(2, len(HARDEST)).numpy()
    return TailPicture(
        rho[usable].numpy(), gate[usable].numpy(), float(tail.rho0), anchors, HARDEST, *shares
    )


def _at_quantile(rho: Tensor, beta_hat: Tensor, usable: Tensor, quantile: float) -> int:
    """The place of the usable anchor at a quantile of the hardness."""
    ascending = rho[usable].sort().values
    distance = (rho - ascending[round(quantile * (len(ascending) - 1))]).abs()
    # Two anchors that are each other's hardest negative have one hardness, up to rounding. Which of
    # them is shown must not depend on the order of the anchors, so not on the processes either.
    is_there = usable & (distance <= 4 * torch.finfo(rho.dtype).eps)
    return int(beta_hat.where(is_there, torch.inf).argmin())


def _shares(groups: list[Candidates], tail: Any, loss: Any) -> Tensor:
    """Shares of the gradient under softmax and under WEINCE, shape ``(anchors, 2 * parts)``."""
    found, first = [], 0
    for group in groups:
        for block in _blocks(group):
            rows = slice(first, first := first + len(block.anchors))
            scores = score(block, compare(block))
            gate, shape = tail.gate[rows], tail.shape[rows]
            blends = (Blend(torch.ones_like(gate)), Blend(1 - gate, gate * shape))
            shares = [gradient_shares(scores, blend, loss.temperature, HARDEST) for blend in blends]
            found.append(torch.cat(shares, dim=1))
    return torch.cat(found).to(tail.rho)


def _blocks(group: Candidates) -> Iterator[Candidates]:
    """Cut a group so that its similarities do not take too much memory."""
    anchors = max(1, _BLOCK // group.num_columns)
    for start in range(0, len(group.anchors), anchors):
        yield group.select(slice(start, start + anchors))


def _tails(groups: list[Candidates], places: list[int], width: int) -> Tensor:
    """Smallest shortfalls of some anchors, on the CPU, ``inf`` beyond an anchor's negatives.

    Args:
        groups: This process's anchors.
        places: Which, counted from this process's first one; others are another process's.
        width: How many shortfalls, the same on all processes.

    Returns:
        Shape ``(places, width)``, the same on all processes.
    """
    tails = groups[0].anchors.new_full((len(places), width), torch.inf)
    first = 0
    for group in groups:
        for tail, place in zip(tails, places, strict=True):
            if first <= place < first + len(group.anchors):
                anchor = group.select(slice(place - first, place - first + 1))
                scores = score(anchor, compare(anchor))
                found = smallest(negated_similarities(scores), min(width, group.max_negatives))
                tail[: found.shape[1]] = shortfall(-found[0])
        first += len(group.anchors)
    return gather(tails[None], [1] * world_size()).amin(dim=0).cpu()
