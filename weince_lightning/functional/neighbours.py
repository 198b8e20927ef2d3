"""Nearest neighbours by cosine similarity: weighted vote and recall, without training anything."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from weince_lightning.checks import check_integer, check_number
from weince_lightning.functional.threads import Scratch, count_threads, share

UNKNOWN_LABEL = -1
"""The label of a sample without one; it is left out of the bank and of the queries."""

_QUERY_CHUNK = 512
"""Rows compared at once: with ``_BANK_CHUNK`` a block of similarities takes 16 MiB in float32."""
_BANK_CHUNK = 8192
"""Bank rows compared at once, and moved to the device of the queries at once."""
_GROUP = 32
"""Similarities of which the largest decides whether the others are looked at."""


class NoLabelError(ValueError):
    """Every sample of the bank, or every query, has label -1."""


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
    everything. Memory is that of some blocks of similarities for each thread, whatever the size of
    the bank.

    Args:
        queries: Features, shape ``(queries, features)``; their device does the work.
        bank: Features, shape ``(bank, features)``, on any device: moved in blocks.
        k: Neighbours wanted, at least 1; a smaller bank gives all of its items.

    Returns:
        The neighbours, on the device of ``queries``, compared in float32 (float64 if an argument
        is).

    Raises:
        ValueError: If shapes do not fit together, the bank is empty, ``k`` is below 1 or a feature
            is NaN or infinite.

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
    check_integer("k", k, at_least=1)
    for name, features in (("queries", queries), ("bank", bank)):
        if not (finite := _is_finite(features)).all():
            raise ValueError(
                f"{name} must be finite, got NaN or infinity in {int((~finite).sum())} of "
                f"{len(features)} rows."
            )
    dtype = torch.promote_types(torch.promote_types(queries.dtype, bank.dtype), torch.float32)
    blocks = [
        _Block.of(rows, min(k, len(bank)))
        for rows in torch.split(_unit(queries.to(dtype)), _QUERY_CHUNK)
    ]
    threads = count_threads(queries.device)
    with torch.autocast(queries.device.type, enabled=False):
        for start in range(0, len(bank), _BANK_CHUNK):
            rows = bank[start : start + _BANK_CHUNK].to(queries.device, dtype)
            chunk = _BankChunk.of(_unit(rows), start)
            blocks = list(chain.from_iterable(share(partial(_search, chunk), blocks, threads)))
    return Neighbours(
        torch.cat([block.similarity for block in blocks]),
        torch.cat([block.indices for block in blocks]),
    )


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
    # The classes of a query's own neighbours, ascending: few, however many there are in all.
    ascending, order = labels.sort(dim=1)
    is_new = pad(ascending[:, 1:] != ascending[:, :-1], (1, 0))
    column = torch.empty_like(order).scatter_(1, order, is_new.cumsum(1))
    # Relative to the nearest: the same winner, and exp does not overflow.
    weight = ((similarity - similarity[:, :1]) / temperature).exp()
    none = torch.zeros_like(weight)
    votes = [none.scatter_add(1, column[:, :size], weight[:, :size]) for size in k]
    winner = torch.stack(votes).argmax(dim=2)
    # A winner's label: that of any neighbour in its column.
    label = torch.empty_like(labels).scatter_(1, column, labels)
    return torch.stack([label.gather(1, each[:, None])[:, 0] for each in winner])


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

    See :func:`nearest_neighbours` and :func:`weighted_vote`, also for ties. Labels are integers of
    at least 0, in the bank or not; samples with label -1 are left out. Features that are NaN or
    infinite tell nothing and are told wrong: such a bank item is nobody's neighbour, such a query
    counts as one without its label among the neighbours.

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
        NoLabelError: If no query or no bank item has a label.
        ValueError: If shapes do not fit together or a number is out of its range.

    Example:
        >>> bank, bank_labels = torch.eye(2), torch.tensor([0, 1])
        >>> queries = torch.tensor([[2.0, 1.0], [3.0, 1.0]])
        >>> neighbour_scores(queries, torch.tensor([0, 1]), bank, bank_labels, (1,), (1, 2))
        NeighbourScores(accuracy=tensor([0.5000]), recall=tensor([0.5000, 1.0000]))
    """
    check_number("temperature", temperature, above=0.0, condition="be positive")
    for name, numbers in (("k", k), ("recall_at", recall_at)):
        if not numbers or min(numbers) < 1:
            raise ValueError(f"{name} must hold numbers of at least 1, got {tuple(numbers)}.")
    query_labels, bank_labels = query_labels.cpu(), bank_labels.cpu()
    is_query = known_labels("queries", queries, "query_labels", query_labels)
    is_bank = known_labels("bank", bank, "bank_labels", bank_labels)
    num_queries = int(is_query.sum())
    queries, wanted = _usable(is_query, queries, query_labels)
    bank, bank_labels = _usable(is_bank, bank, bank_labels)
    if not len(queries) or not len(bank):
        return NeighbourScores(torch.zeros(len(k)), torch.zeros(len(recall_at)))
    nearest = nearest_neighbours(queries, bank, max(*k, *recall_at))
    labels = bank_labels[nearest.indices.cpu()]
    right = weighted_vote(nearest.similarity, labels, k, temperature) == wanted
    hit = labels == wanted[:, None]
    found = torch.stack([hit[:, :size].any(dim=1) for size in recall_at])
    return NeighbourScores(
        right.sum(dim=1).float() / num_queries, found.sum(dim=1).float() / num_queries
    )


def known_labels(features_name: str, features: Tensor, labels_name: str, labels: Tensor) -> Tensor:
    """Tell which samples have a label, and check the shapes.

    Args:
        features_name: What the caller calls the features, for errors.
        features: Shape ``(samples, features)``.
        labels_name: What the caller calls the labels.
        labels: Shape ``(samples,)``; -1 is unknown.

    Returns:
        Shape ``(samples,)``, on the device of the labels.

    Raises:
        NoLabelError: If none has a label.
        ValueError: If shapes do not fit together, or a label is below -1.
    """
    if features.ndim != 2:
        raise ValueError(
            f"{features_name} must have shape (samples, features), got {tuple(features.shape)}."
        )
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"{labels_name} must hold one label per row of {features_name} ({len(features)}), got "
            f"shape {tuple(labels.shape)}."
        )
    smallest = int(labels.min()) if len(labels) else UNKNOWN_LABEL
    if smallest < UNKNOWN_LABEL:
        raise ValueError(
            f"{labels_name} must be at least 0, or {UNKNOWN_LABEL} where unknown, got {smallest}. "
            f"Replace it by {UNKNOWN_LABEL} if it marks unknown ones."
        )
    has_label = labels != UNKNOWN_LABEL
    if not has_label.any():
        raise NoLabelError(
            f"{labels_name} must hold a label other than -1, got {len(labels)} of -1."
        )
    return has_label


def _usable(has_label: Tensor, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the samples with label and finite features."""
    kept = has_label & _is_finite(features).cpu()
    if not kept.all():  # otherwise it would be a copy
        features, labels = features[kept.to(features.device)], labels[kept]
    return features, labels


def _length(rows: Tensor) -> Tensor:
    """The Euclidean length of each row, in float32 at least."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=dtype)
    return length


def _is_finite(rows: Tensor) -> Tensor:
    """Whether each row has a length."""
    return _length(rows)[:, 0].isfinite()


def _unit(rows: Tensor) -> Tensor:
    """Scale rows to unit length, but for zeros."""
    return rows / _length(rows).clamp_min(1e-12)


class _Block(NamedTuple):
    """Some queries, and what was found for them, nearest first."""

    queries: Tensor
    similarity: Tensor
    """``-inf`` where not enough was looked at."""
    indices: Tensor

    @classmethod
    def of(cls, queries: Tensor, k: int) -> "_Block":
        """Begin with nothing found."""
        similarity = queries.new_full((len(queries), k), -torch.inf)
        return cls(queries, similarity, torch.zeros_like(similarity, dtype=torch.int64))


class _BankChunk(NamedTuple):
    """Some rows of the bank, dealt to groups like cards.

    Banks are often sorted by class: groups of neighbouring rows would be all near or all far.
    """

    rows: Tensor
    """Shape ``(groups * _GROUP, features)``."""
    order: Tensor
    """The row of the bank that each is."""
    is_filling: Tensor | None
    """Which rows only fill the last groups, if any."""

    @classmethod
    def of(cls, rows: Tensor, start: int) -> "_BankChunk":
        """Deal the rows that begin at ``start`` of the bank."""
        groups = -(-len(rows) // _GROUP)
        missing = groups * _GROUP - len(rows)
        order = torch.arange(start, start + groups * _GROUP, device=rows.device)
        order = order.view(_GROUP, groups).T.flatten()
        is_filling = order >= start + len(rows) if missing else None
        rows = pad(rows, (0, 0, 0, missing)) if missing else rows
        rows = rows.view(_GROUP, groups, rows.shape[1]).transpose(0, 1).flatten(0, 1)
        return cls(rows, order, is_filling)


def _search(chunk: _BankChunk, blocks: Sequence[_Block], scratch: Scratch) -> list[_Block]:
    """Look for nearer neighbours in a chunk of the bank."""
    answer = []
    for block in blocks:
        similarity = scratch.take("similarity", (len(block.queries), len(chunk.rows)), chunk.rows)
        torch.mm(block.queries, chunk.rows.T, out=similarity)
        if chunk.is_filling is not None:
            similarity.masked_fill_(chunk.is_filling, -torch.inf)
        answer.append(_merge(block, similarity, chunk.order))
    return answer


def _merge(block: _Block, similarity: Tensor, order: Tensor) -> _Block:
    """Put among the neighbours found so far what is nearer.

    Args:
        block: Neighbours among earlier bank rows.
        similarity: Shape ``(queries, groups * _GROUP)``.
        order: The bank row of each column.
    """
    num_queries, k = block.similarity.shape
    groups = similarity.view(num_queries, similarity.shape[1] // _GROUP, _GROUP)
    largest = groups.amax(2)
    # What only equals the k-th found so far comes later, and is farther.
    last = block.similarity[:, -1:]
    is_taken = largest > last
    bound = torch.full_like(last, -torch.inf)
    if largest.shape[1] > k:
        # What is below the largest of k groups is not among the k nearest.
        bound = largest.topk(k, sorted=False).values.amin(1, keepdim=True)
        is_taken &= largest >= bound
    query, group = is_taken.nonzero(as_tuple=True)
    members = groups.flatten(0, 1).index_select(0, query * groups.shape[1] + group)
    is_near = (members > last[query]) & (members >= bound[query])
    taken, member = is_near.nonzero(as_tuple=True)
    if not len(taken):
        return block
    query, row = query[taken], order[group[taken] * _GROUP + member]
    # By query, then by bank row: a stable sort by similarity then keeps the earlier first.
    by_row = (query * (int(order[-1]) + 1) + row).argsort()
    query, row, value = query[by_row], row[by_row], members[taken, member][by_row]
    count = query.bincount(minlength=num_queries)
    place = torch.arange(k, k + len(query), device=query.device) - (count.cumsum(0) - count)[query]
    wide = pad(block.similarity, (0, int(count.max())), value=-torch.inf)
    indices = pad(block.indices, (0, int(count.max())))
    wide[query, place], indices[query, place] = value, row
    wide, by_similarity = wide.sort(dim=1, descending=True, stable=True)
    return _Block(block.queries, wide[:, :k].clone(), indices.gather(1, by_similarity[:, :k]))
