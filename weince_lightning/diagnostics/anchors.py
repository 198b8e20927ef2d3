"""Tail evidence of each anchor in batches of the embeddings, as WEINCE would compute it."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weince_lightning.diagnostics.embeddings import Census, Embeddings, directions
from weince_lightning.functional.candidates import Candidates, Scores, compare, score
from weince_lightning.functional.contrastive import read_tail
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.gates import reference_hardness, tail_gate
from weince_lightning.functional.gradient_shares import gradient_shares
from weince_lightning.functional.layouts import build_candidates
from weince_lightning.functional.links import shortfall
from weince_lightning.functional.shapes import batch_shape, tail_shape
from weince_lightning.functional.tails import TailFit, fit_tail, smallest, tail_size
from weince_lightning.functional.vectors import unit_vectors

BATCH_SIZE = 256
"""Samples of a batch, the paper's; 512 where they come without positives: as many negatives."""
MAX_BATCHES = 32
MAX_WINNERS = 2000
"""Positives that links are fitted to."""
HARDEST = (0.01, 0.05, 0.1)
"""Parts of the negatives whose share of the gradient is measured."""
LINKS = ("softmax", "weibit", "weince")


class Anchors(NamedTuple):
    """Evidence of the anchors of several batches, all columns of shape ``(anchors,)``."""

    gate: Tensor
    r"""Gate :math:`\lambda` by the default rule, in [0, 1]."""
    beta_hat: Tensor
    r"""Weibull shape :math:`\hat\beta` of the tail's line."""
    rho: Tensor
    r"""Hardness :math:`\rho`, the shortfall of the hardest negative."""
    delta_aic: Tensor
    r""":math:`\Delta` AIC, a heuristic."""
    shares: Tensor
    """Shares of the gradient on the hardest 1, 5 and 10 %, shape ``(anchors, links, parts)``."""
    positive: Tensor
    """Similarity of each winner, the positive of an anchor of the first side, shape ``(winners,)``;
    empty where no positives are known."""
    negatives: Tensor
    """Of its negatives, shape ``(winners, negatives)``, ``-inf`` where there are fewer."""
    num_batches: int
    batch_size: int
    """Samples of each batch."""
    num_negatives: int
    """Most negatives of an anchor."""

    @property
    def open_share(self) -> float:
        r"""Share of the anchors with :math:`\lambda > 1/2`."""
        return float((self.gate > 0.5).double().mean())


def look_at_batches(
    embeddings: Embeddings, census: Census, order: Tensor, temperature: float
) -> Anchors | None:
    """Gather the evidence that WEINCE would have, by its default gate and shape.

    Args:
        embeddings: What is looked at.
        census: Which samples are no negatives of each other.
        order: The samples in a random order, of which batches are the parts.
        temperature: Softmax temperature.

    Returns:
        Evidence; None if no anchor has a negative.
    """
    wanted = BATCH_SIZE * (1 if embeddings.second is not None else 2)
    size = min(wanted, len(order))
    columns, winners = list[list[Tensor]](), list[tuple[Tensor, Tensor]]()
    starts = range(0, len(order) - size + 1, size)[:MAX_BATCHES]
    most = 0
    for start in starts:
        batch = order[start : start + size]
        groups = [g.counted() for g in _groups(embeddings, batch, census.labels[batch])]
        scores = [score(g, compare(g)) for g in groups]
        most = max(most, *(each.max_negatives for each in scores))
        has_negatives = torch.cat([g.count_negatives() > 0 for g in groups])
        columns.append([*_evidence(scores, temperature), has_negatives])
        if embeddings.second is not None and len(winners) * size < MAX_WINNERS:
            # Each positive once, although it is that of two anchors.
            similarity = scores[0].similarity
            positive = similarity.gather(1, scores[0].positive)[:size, 0]
            negatives = scores[0].fill_excluded_(similarity.clone(), -torch.inf)[:size]
            winners.append((positive, negatives))
    gate, beta_hat, rho, delta_aic, shares, kept = (
        torch.cat(parts) for parts in zip(*columns, strict=True)
    )
    if not kept.any():  # no anchor has a negative
        return None
    positive, negatives = gate.new_empty(0), gate.new_empty(0, 0)
    if winners:
        positive, negatives = (
            torch.cat(parts)[:MAX_WINNERS] for parts in zip(*winners, strict=True)
        )
    return Anchors(
        gate[kept], beta_hat[kept], rho[kept], delta_aic[kept], shares[kept],
        positive, negatives, len(starts), size, most,
    )  # fmt: skip


def _groups(embeddings: Embeddings, batch: Tensor, labels: Tensor) -> list[Candidates]:
    """Say who is compared with whom in a batch."""
    ids = labels if len(np.unique(labels.numpy())) < len(labels) else None
    rows = [directions(side, batch) for side in embeddings.sides]
    if embeddings.second is not None:
        return build_candidates(rows[0], rows[1], embeddings.layout, ids)
    unit = unit_vectors(rows[0])
    itself = torch.arange(len(batch))[:, None]
    return [Candidates(unit, unit, itself, None, ids, ids)]


def _evidence(scores: list[Scores], temperature: float) -> list[Tensor]:
    """Compute the columns of a batch, the gate by all of its anchors."""
    fits = [read_tail(each) for each in scores]
    fit = TailFit(*(torch.cat(parts) for parts in zip(*fits, strict=True)))
    gate = tail_gate(fit, reference_hardness(fit.rho, 0.2))
    shape = tail_shape(fit, batch_shape(fit.beta_hat, fit.r_squared))
    one, zero, first, shares = torch.ones_like(gate), torch.zeros_like(gate), 0, []
    for each in scores:
        rows = slice(first, first := first + len(each.similarity))
        blends = (
            Blend(one[rows]),
            Blend(zero[rows], shape[rows]),
            Blend(1 - gate[rows], gate[rows] * shape[rows]),
        )
        found = [gradient_shares(each, blend, temperature, HARDEST) for blend in blends]
        shares.append(torch.stack(found, dim=1))
    return [gate, fit.beta_hat, fit.rho, fit.delta_aic, torch.cat(shares)]


def known_tails(num_negatives: int, generator: np.random.Generator) -> dict[str, float]:
    r"""Compute the median :math:`\Delta` AIC of independent scores whose tail is known.

    It is large for all of them: :math:`\Delta` AIC tells no Weibull tail from another one.

    Args:
        num_negatives: Negatives of each anchor.
        generator: Where the scores come from.

    Returns:
        By the name of the law.
    """
    size = (300, num_negatives)
    laws = {
        "Gaussian": generator.standard_normal(size),
        "exponential": generator.exponential(size=size),
        "Student t, 3 degrees of freedom": generator.standard_t(3, size),
        "uniform on the sphere, 128 dimensions": 2 * generator.beta(63.5, 63.5, size) - 1,
    }
    width = max(tail_size(num_negatives, 0.1, 32), 1)
    medians = {}
    for name, scores in laws.items():
        # Scores of any unit, brought below 1 as similarities are.
        scaled = torch.from_numpy(0.9 * scores / np.abs(scores).max())
        fit = fit_tail(shortfall(-smallest(-scaled, width)), None, num_negatives)
        medians[name] = float(fit.delta_aic.median())
    return medians
