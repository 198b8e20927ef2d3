"""Whether sentences, or anything that comes in pairs, find their partners."""

import torch
from torch import Tensor

from weince_lightning.functional.vectors import unit_vectors


def paired_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Compute the cosine similarity of each pair.

    Args:
        first: Shape ``(pairs, features)``.
        second: Same shape.

    Returns:
        Shape ``(pairs,)``, in ``[-1, 1]``, in float32 at least; 0 where a row is the zero vector.

    Example:
        >>> paired_similarity(torch.eye(2), torch.tensor([[2.0, 0.0], [3.0, 4.0]]))
        tensor([1.0000, 0.8000])
    """
    rows = [unit_vectors(side.to(torch.promote_types(side.dtype, torch.float32)))
            for side in (first, second)]  # fmt: skip
    return (rows[0] * rows[1]).sum(dim=1)


def top1_among(queries: Tensor, partners: Tensor, num_candidates: int) -> Tensor:
    """Count how often a query's partner is nearest to it, among the partners of a block of pairs.

    The pairs are cut into blocks of ``num_candidates`` in their order; what is left over is passed
    over, unless there is no whole block. A partner as near as another one is not found.

    Args:
        queries: Shape ``(pairs, features)``.
        partners: Same shape; row i belongs to query i.
        num_candidates: Pairs of a block, at least 1.

    Returns:
        Part of the queries that find their partner by cosine similarity, a scalar in ``[0, 1]``.

    Raises:
        ValueError: If there is no pair.

    Example:
        >>> top1_among(torch.eye(3), torch.eye(3)[[0, 2, 1]], num_candidates=3)
        tensor(0.3333)
    """
    if not len(queries):
        raise ValueError("queries must hold at least one row, got none.")
    size = min(num_candidates, len(queries))
    whole = len(queries) // size * size
    found = []
    for first in range(0, whole, size):
        block = slice(first, first + size)
        rows = [
            unit_vectors(side[block].to(torch.promote_types(side.dtype, torch.float32)))
            for side in (queries, partners)
        ]
        similarity = rows[0] @ rows[1].T
        own = similarity.diagonal().clone()
        found.append(own > similarity.fill_diagonal_(-torch.inf).amax(dim=1))
    return torch.cat(found).float().mean()
