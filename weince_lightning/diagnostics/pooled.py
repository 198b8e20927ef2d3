"""The pooled similarities of negatives: the largest of them, and what all are like."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weince_lightning.diagnostics.embeddings import Census, Embeddings, take
from weince_lightning.extremes.threshold import Pairs, Tail
from weince_lightning.functional.vectors import unit_vectors

MAX_ANCHORS = 1000
"""Rows that are compared with all others; of more, a random part is."""
MAX_CANDIDATES = 50_000
"""Rows that those are compared with."""
KEPT = 0.025
"""Part of the similarities that is kept: more than lies above any threshold."""
_ROWS = 128


class Pooled(NamedTuple):
    """Similarities of negatives, of all anchors together."""

    tail: Tail
    """The largest of them."""
    mean: float
    """Mean of all."""
    standard_deviation: float
    """Standard deviation of all."""
    num_anchors: int
    """Samples whose similarities to the others these are."""
    num_candidates: int
    """Samples that they were compared with, themselves included."""


def pool(embeddings: Embeddings, census: Census, order: Tensor) -> Pooled | None:
    """Compare a part of the samples with many others, each pair of them once.

    Args:
        embeddings: What is compared.
        census: Which samples are no negatives of each other.
        order: The samples in a random order. The first are the anchors.

    Returns:
        The similarities; None if no two samples are negatives.
    """
    both_sides = embeddings.layout == "views" and embeddings.second is not None
    rows_each = 2 if both_sides else 1
    candidates = order[: MAX_CANDIDATES // rows_each]
    num_anchors = min(len(order), MAX_ANCHORS // rows_each)
    others = [unit_vectors(take(side, candidates)) for side in embeddings.sides]
    labels = census.labels[candidates]
    if both_sides:
        rows, columns = (
            torch.cat([others[0][:num_anchors], others[1][:num_anchors]]),
            torch.cat(others),
        )
    else:
        # One array with itself, or with its positives.
        rows, columns = others[0][:num_anchors], others[-1]
    row_samples = torch.arange(num_anchors).repeat(rows_each)
    column_samples = torch.arange(len(candidates)).repeat(rows_each)
    # A similarity that is the same in both directions counts once.
    is_symmetric = both_sides or embeddings.second is None
    similarity = torch.empty(len(rows), len(columns), dtype=rows.dtype)
    total = squares = 0.0
    num_scores = 0
    for start in range(0, len(rows), _ROWS):
        here = slice(start, start + _ROWS)
        block = torch.mm(rows[here], columns.T, out=similarity[here]).clamp_(-1, 1)
        mine = row_samples[here, None]
        is_left_out = labels[mine] == labels[column_samples]
        if is_symmetric:
            is_left_out |= mine > column_samples
        negatives = block[~is_left_out].double()
        num_scores += len(negatives)
        total += float(negatives.sum())
        squares += float(negatives.square().sum())
        block.masked_fill_(is_left_out, -torch.inf)
    if not num_scores:
        return None
    places = _largest(similarity.numpy().ravel(), min(num_scores, int(KEPT * num_scores) + 2))
    scores = similarity.numpy().ravel()[places].astype(np.float64)
    ascending = np.argsort(scores, kind="stable")
    row, column = np.divmod(places[ascending], len(columns))
    pairs = Pairs(
        row_samples.numpy()[row], column_samples.numpy()[column], num_anchors, len(candidates)
    )
    mean = total / num_scores
    return Pooled(
        Tail(scores[ascending], num_scores, pairs),
        mean,
        max(squares / num_scores - mean**2, 0.0) ** 0.5,
        num_anchors,
        len(candidates),
    )


def _largest(values: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Find where the largest values are, as many as wanted and their equals."""
    least = np.partition(values, len(values) - count)[len(values) - count]
    return np.flatnonzero(values >= least)
