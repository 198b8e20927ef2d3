"""Nearest neighbours by cosine similarity: weighted vote and recall, without training anything."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

UNKNOWN_LABEL = -1
"""The label of a sample without one; it is left out of the bank and of the queries."""

_QUERY_CHUNK = 512
"""Rows compared at once: with ``_BANK_CHUNK`` a block of similarities takes 32 MiB in float32."""
_BANK_CHUNK = 16384
"""Bank rows compared at once, and moved to the device of the queries at once."""


class Neighbours(NamedTuple):
    """The nearest bank items of each query, nearest first."""

    similarity: Tensor
    """Cosine similarity, in ``[-1, 1]``, shape ``(queries, neighbours)``."""
    indices: Tensor
    """Row of the bank, shape ``(queries, neighbours)``, int64."""


class NeighbourScores(NamedTuple):
    """How well neighbours tell the label, as a part of the labelled queries, in ``[0, 1]``."""

    accuracy: Tensor
    """Queries whose label wins the vote, one value for each ``k``, float32."""
    recall: Tensor
    """Queries with their label among the ``r`` nearest, one value for each ``r``, float32."""


def nearest_neighbours(queries: Tensor, bank: Tensor, k: int) -> Neighbours:
    r"""Find the bank items with the largest cosine similarity to each query.

    Of equally similar bank items the earlier one is the nearer. A zero row has similarity 0 to
    everything. Memory is that of one block of similarities, whatever the size of the bank.

    Args:
        queries: Features, shape ``(queries, features)``; their device does the work.
        bank: Features, shape ``(bank, features)``, on any device: moved in blocks.
        k: Neighbours wanted, at least 1; a smaller bank gives all of its items.

    Returns:
        The neighbours, on the device of ``queries``, compared in float32 (float64 if an argument
        is).

    Raises:
        ValueError: If shapes do not fit together, the bank is empty or ``k`` is below 1.

    Example:
        >>> bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
        >>> nearest_neighbours(torch.tensor([[3.0, 0.0]]), bank, k=2).indices
        tensor([[0, 2]])
    """
    if queries.ndim != 2:
        raise ValueError(
            f"queries must have shape (queries, features), got {tuple(queries.shape)}."
        )
    if bank.ndim != 2 or len(bank) == 0 or bank.shape[1] != queries.shape[1]:
        raise ValueError(
            f"bank must have shape (at least 1, {queries.shape[1]}), got {tuple(bank.shape)}."
        )
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    dtype = torch.promote_types(torch.promote_types(queries.dtype, bank.dtype), torch.float32)
    queries = normalize(queries.to(dtype), dim=1)
    similarity = queries.new_empty(len(queries), 0)
    index = torch.empty_like(similarity, dtype=torch.int64)
    for start in range(0, len(bank), _BANK_CHUNK):
        part = normalize(bank[start : start + _BANK_CHUNK].to(queries.device, dtype), dim=1)
        nearest = [_largest(rows @ part.T, k) for rows in torch.split(queries, _QUERY_CHUNK)]
        # What was found before stands first and comes from earlier rows: a stable sort keeps the
        # rule for equal similarities.
        similarity = torch.cat([similarity, torch.cat([value for value, _ in nearest])], dim=1)
        index = torch.cat([index, torch.cat([column for _, column in nearest]) + start], dim=1)
        similarity, order = similarity.sort(dim=1, descending=True, stable=True)
        similarity, index = similarity[:, :k], index.gather(1, order[:, :k])
    return Neighbours(similarity, index)


def weighted_vote(
    similarity: Tensor, labels: Tensor, k: Sequence[int], temperature: float
) -> Tensor:
    r"""Let the k nearest neighbours vote, each with weight :math:`\exp(s / \tau)`.

    Equal votes go to the smaller label.

    Args:
        similarity: Cosine similarities :math:`s`, nearest first, shape ``(queries, neighbours)``.
        labels: The neighbours' labels, any integers, same shape.
        k: How many neighbours vote, each at least 1; more than there are means all.
        temperature: Temperature :math:`\tau > 0`, dimensionless.

    Returns:
        The winning label, shape ``(len(k), queries)``, on the CPU.

    References:
        Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination",
        CVPR 2018, section 3.4.

    Example:
        >>> similarity, labels = torch.tensor([[0.9, 0.8, 0.8]]), torch.tensor([[7, 3, 3]])
        >>> weighted_vote(similarity, labels, k=(1, 3), temperature=1.0)
        tensor([[7],
                [3]])
    """
    # On the CPU: there votes are added in one order, on a GPU in any, and near ties would flip.
    similarity, labels = similarity.cpu().double(), labels.cpu()
    classes, column = torch.unique(labels, return_inverse=True)
    winners = []
    for rows, columns in zip(
        torch.split(similarity, _QUERY_CHUNK), torch.split(column, _QUERY_CHUNK), strict=True
    ):
        # Relative to the nearest: the same winner, and exp does not overflow.
        weight = ((rows - rows[:, :1]) / temperature).exp()
        none = weight.new_zeros(len(rows), len(classes))
        votes = [none.scatter_add(1, columns[:, :size], weight[:, :size]) for size in k]
        winners.append(torch.stack(votes).argmax(dim=2))
    winner: Tensor = classes[torch.cat(winners, dim=1)]
    return winner


def neighbour_scores(
    queries: Tensor,
    query_labels: Tensor,
    bank: Tensor,
    bank_labels: Tensor,
    k: Sequence[int] = (1, 5, 20, 50),
    recall_at: Sequence[int] = (1, 2, 5, 10, 20, 50),
    temperature: float = 0.1,
) -> NeighbourScores:
    """Score features by what their neighbours' labels tell: weighted vote and recall.

    See :func:`nearest_neighbours` and :func:`weighted_vote`, also for ties. Labels are any
    integers, in the bank or not; samples with label -1 are left out.

    Args:
        queries: Features to be told, shape ``(queries, features)``.
        query_labels: Their labels, shape ``(queries,)``.
        bank: Features that tell, shape ``(bank, features)``, on any device.
        bank_labels: Their labels, shape ``(bank,)``.
        k: How many neighbours vote, each at least 1.
        recall_at: How many neighbours are searched for the query's label, each at least 1.
        temperature: Temperature of the votes, positive, dimensionless.

    Returns:
        A value for each ``k`` and each ``recall_at``, on the CPU.

    Raises:
        ValueError: If shapes do not fit together, no query or no bank item has a label, or a
            number is out of its range.

    Example:
        >>> bank, bank_labels = torch.eye(2), torch.tensor([0, 1])
        >>> queries = torch.tensor([[2.0, 1.0], [3.0, 1.0]])
        >>> neighbour_scores(queries, torch.tensor([0, 1]), bank, bank_labels, (1,), (1, 2))
        NeighbourScores(accuracy=tensor([0.5000]), recall=tensor([0.5000, 1.0000]))
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
    for name, numbers in (("k", k), ("recall_at", recall_at)):
        if not numbers or min(numbers) < 1:
            raise ValueError(f"{name} must hold numbers of at least 1, got {tuple(numbers)}.")
    queries, query_labels = _labelled("query", queries, query_labels)
    bank, bank_labels = _labelled("bank", bank, bank_labels)
    nearest = nearest_neighbours(queries, bank, max(*k, *recall_at))
    labels = bank_labels.cpu()[nearest.indices.cpu()]
    wanted = query_labels.cpu()
    accuracy = (weighted_vote(nearest.similarity, labels, k, temperature) == wanted).float()
    hit = labels == wanted[:, None]
    recall = torch.stack([hit[:, :size].any(dim=1) for size in recall_at]).float()
    return NeighbourScores(accuracy.mean(dim=1), recall.mean(dim=1))


def _labelled(name: str, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the samples that have a label."""
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"{name}_labels must hold one label per row of features ({len(features)}), "
            f"got shape {tuple(labels.shape)}."
        )
    known = labels != UNKNOWN_LABEL
    if not known.any():
        raise ValueError(f"{name}_labels must hold a label other than -1, got {len(labels)} of -1.")
    return features[known.to(features.device)], labels[known]


def _largest(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and their columns, equal ones in the order of the columns."""
    width = similarity.shape[1]
    k = min(k, width)
    value, column = similarity.topk(min(k + 1, width), dim=1)
    if k < width:
        # topk chooses freely among the values equal to the k-th: where it had a choice, again.
        tied = (value[:, k] == value[:, k - 1]).nonzero()[:, 0]
        row, last = similarity[tied], value[tied, k : k + 1]
        early = torch.arange(width, 0, -1, dtype=torch.int32, device=row.device)
        priority = early.where(row == last, 0).where(row <= last, early + width)
        column = column[:, :k].index_copy(0, tied, priority.topk(k, dim=1).indices)
    column = column.sort(dim=1).values
    value, order = similarity.gather(1, column).sort(dim=1, descending=True, stable=True)
    return value, column.gather(1, order)
