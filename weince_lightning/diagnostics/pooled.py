"""Choice of the embeddings whose similarities are pooled as negatives."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weince_lightning.diagnostics.embeddings import Census, Embeddings, directions
from weince_lightning.extremes.similarities import Side, pool_similarities
from weince_lightning.extremes.threshold import Tail
from weince_lightning.functional.geometry import effective_rank
from weince_lightning.functional.vectors import unit_vectors

MAX_ANCHORS = 1000
"""Rows that are compared with all others; of more, a random part is."""
MAX_CANDIDATES = 50_000
"""Rows that those are compared with."""
MAX_RANKED = 2000
"""Rows of which the effective rank is taken."""


class Pooled(NamedTuple):
    """Similarities of negatives, and of how many samples."""

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
    effective_rank: float
    """How many dimensions the directions of the first array fill; those of at most 2000 rows."""


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
    chosen = order[: MAX_CANDIDATES // rows_each]
    num_anchors = min(len(order), MAX_ANCHORS // rows_each)
    sides = [unit_vectors(directions(side, chosen)).numpy() for side in embeddings.sides]
    samples = np.arange(len(chosen))
    if both_sides:
        columns = Side(np.concatenate(sides), np.tile(samples, 2))
        anchors = np.concatenate([side[:num_anchors] for side in sides])
        rows = Side(anchors, np.tile(samples[:num_anchors], 2))
    else:
        # One array with itself, or with its positives.
        columns = Side(sides[-1], samples)
        rows = Side(sides[0][:num_anchors], samples[:num_anchors])
    found = pool_similarities(
        rows,
        columns,
        census.labels[chosen].numpy(),
        num_anchors,
        is_symmetric=both_sides or embeddings.second is None,
    )
    if found is None:
        return None
    rank = float(effective_rank(torch.from_numpy(sides[0][:MAX_RANKED])))
    return Pooled(*found, num_anchors, len(chosen), rank)
