"""From embeddings to the tail of their pooled similarities."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weince_lightning.extremes.pareto import Floats
from weince_lightning.extremes.threshold import Pairs, Tail

KEPT = 0.025
"""Part of the similarities that is kept: more than lies above any threshold."""
_ROWS = 128
"""Rows that are compared at once."""


class Side(NamedTuple):
    """Embeddings that are compared with others."""

    vectors: NDArray[np.floating]
    """Unit vectors, shape ``(rows, features)``."""
    samples: NDArray[np.int64]
    """Number of each row's sample."""


class PooledSimilarities(NamedTuple):
    """Similarities of negatives, of all anchors together."""

    tail: Tail
    """The largest of them."""
    mean: float
    """Mean of all."""
    standard_deviation: float
    """Standard deviation of all."""


def pool_similarities(
    rows: Side,
    columns: Side,
    labels: NDArray[np.int64],
    num_anchors: int,
    is_symmetric: bool,
) -> PooledSimilarities | None:
    """Compare rows with columns, and keep the largest similarities of negatives.

    Args:
        rows: Embeddings of the anchors, the samples 0 to ``num_anchors - 1``.
        columns: Embeddings of all samples.
        labels: What each sample shows, any integers: those with equal labels, and so each sample
            and itself, are no negatives of each other.
        num_anchors: Samples that are anchors.
        is_symmetric: Whether each similarity of two anchors comes twice, as that of the one and the
            other: it counts once then.

    Returns:
        The similarities; None if no two samples are negatives.
    """
    similarity = np.empty((len(rows.vectors), len(columns.vectors)), rows.vectors.dtype)
    total = squares = 0.0
    num_scores = 0
    for start in range(0, len(similarity), _ROWS):
        here = slice(start, start + _ROWS)
        block = np.matmul(rows.vectors[here], columns.vectors.T, out=similarity[here])
        np.clip(block, -1, 1, out=block)
        mine = rows.samples[here, None]
        is_left_out = labels[mine] == labels[columns.samples]
        if is_symmetric:
            is_left_out |= mine > columns.samples
        negatives = block[~is_left_out].astype(np.float64)
        num_scores += len(negatives)
        total += float(negatives.sum())
        squares += float((negatives**2).sum())
        block[is_left_out] = -np.inf
    if not num_scores:
        return None
    values = similarity.ravel()
    count = min(num_scores, int(KEPT * num_scores) + 2)
    least = np.partition(values, len(values) - count)[len(values) - count]
    places = np.flatnonzero(values >= least)
    places = places[np.argsort(values[places], kind="stable")]
    row, column = np.divmod(places, similarity.shape[1])
    # Numbered as they come: those of the anchors first.
    _, first_seen, things = np.unique(labels, return_index=True, return_inverse=True)
    things = np.argsort(np.argsort(first_seen))[things.ravel()]
    pairs = Pairs(
        things[rows.samples[row]],
        things[columns.samples[column]],
        int(things[:num_anchors].max()) + 1,
        int(things.max()) + 1,
    )
    mean = total / num_scores
    return PooledSimilarities(
        Tail(values[places].astype(np.float64), num_scores, pairs),
        mean,
        max(squares / num_scores - mean**2, 0.0) ** 0.5,
    )


def pool_views(first: Floats, second: Floats, *, across: bool) -> PooledSimilarities | None:
    """Compare each sample with all others.

    A sample that comes again, as a distributed sampler repeats some, counts once; the order of the
    samples changes nothing but rounding.

    Args:
        first: Unit vectors of the first view or side, shape ``(samples, features)``.
        second: Those of the second, same shape.
        across: Whether ``first`` is compared with ``second`` alone, as images with captions;
            otherwise both with both.

    Returns:
        The similarities; None if no two samples differ.
    """
    _, kept = np.unique(first, axis=0, return_index=True)
    first, second, samples = first[kept], second[kept], np.arange(len(kept))
    if across:
        rows, columns = Side(first, samples), Side(second, samples)
    else:
        rows = columns = Side(np.concatenate([first, second]), np.tile(samples, 2))
    return pool_similarities(rows, columns, samples, len(kept), is_symmetric=not across)
