"""From embeddings to what each anchor is compared with: unit vectors, positives, exclusions.

This is the only file that knows layouts and masks.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from weince_lightning.functional.vectors import unit_vectors

Layout = Literal["views", "pairs", "queries"]


class Keys(NamedTuple):
    """Embeddings of earlier batches, to be negatives of later ones."""

    vectors: Tensor
    """Unit vectors, shape ``(keys, features)``, in float32 at least."""
    ids: Tensor
    """What image or sentence each key shows, shape ``(keys,)``, int64."""
    has_id: Tensor
    """False where a key came without id, shape ``(keys,)``: it matches no anchor."""


class Candidates(NamedTuple):
    """A group of anchors that share one list of candidates."""

    anchors: Tensor
    """Unit vectors, shape ``(anchors, features)``."""
    candidates: Tensor
    """Unit vectors, shape ``(candidates, features)``: the positives and the shared negatives."""
    others: Tensor
    """Columns that are no negatives of an anchor, shape ``(anchors, 1 or 2)``, int64: that of its
    positive, and that of the anchor itself where it is a candidate."""
    own: Tensor | None = None
    """What is seen by one anchor alone, shape ``(anchors, own, features)``; the last columns."""
    anchor_ids: Tensor | None = None
    """What image or sentence each anchor shows, shape ``(anchors,)``, int64."""
    candidate_ids: Tensor | None = None
    """The same for the first candidates; the others, past its end, match no anchor."""
    num_negatives: Tensor | None = None
    """What :meth:`count_negatives` returns, where that is known already."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What has a gradient: anchors, candidates, own negatives."""
        return self.anchors, self.candidates, self.own

    def with_tensors(self, tensors: Sequence[Any]) -> "Candidates":
        """Replace what has a gradient."""
        anchors, candidates, own = tensors
        return self._replace(anchors=anchors, candidates=candidates, own=own)

    @property
    def num_anchors(self) -> int:
        """Anchors of the group."""
        return self.anchors.shape[0]

    @property
    def num_columns(self) -> int:
        """What each anchor is compared with, its own negatives included."""
        # The length of a tensor costs a small batch ten times what its shape does.
        return self.candidates.shape[0] + (0 if self.own is None else self.own.shape[1])

    @property
    def max_negatives(self) -> int:
        """The most negatives that an anchor can have, known without reading the device."""
        return self.num_columns - self.others.shape[1]

    def count_negatives(self) -> Tensor:
        """Count the negatives :math:`K` of each anchor; shape ``(anchors,)``, int64."""
        if self.num_negatives is not None:
            return self.num_negatives
        most = self.others.new_full(self.others.shape[:1], self.max_negatives)
        if self.anchor_ids is None or self.candidate_ids is None:
            return most
        ids = self.candidate_ids.sort().values
        equal = torch.searchsorted(ids, self.anchor_ids, right=True)
        equal -= torch.searchsorted(ids, self.anchor_ids)
        # Its positive and the anchor itself are no negatives anyway. Where they have an id, it is
        # the anchor's.
        return most - equal + (self.others < len(ids)).sum(dim=1)

    def counted(self) -> "Candidates":
        """Count the negatives once for all blocks: it sorts all ids."""
        return self._replace(num_negatives=self.count_negatives())

    def select(self, rows: slice) -> "Candidates":
        """Keep some of the anchors, with views of all that belongs to them."""
        return Candidates(
            self.anchors[rows],
            self.candidates,
            self.others[rows],
            None if self.own is None else self.own[rows],
            None if self.anchor_ids is None else self.anchor_ids[rows],
            self.candidate_ids,
            None if self.num_negatives is None else self.num_negatives[rows],
        )


class Scores(NamedTuple):
    """Cosine similarities of a group's anchors to all it is compared with."""

    similarity: Tensor
    """In ``[-1, 1]`` up to rounding, shape ``(anchors, candidates)``, own negatives last."""
    others: Tensor
    """Columns that are no negatives of an anchor, shape ``(anchors, 1 or 2)``, int64: first that of
    its positive."""
    max_negatives: int
    """An upper bound of ``num_negatives`` that is known without reading the device."""
    num_negatives: Tensor | None = None
    """Negatives of each anchor, shape ``(anchors,)``; None where all have ``max_negatives``."""
    left_out: Tensor | None = None
    """True where one of the first columns is no negative for another reason, such as an equal id;
    shape ``(anchors, some of the columns)``."""

    @property
    def positive(self) -> Tensor:
        """The column of each anchor's positive, shape ``(anchors, 1)``, int64."""
        return self.others[:, :1]

    def fill_others_(self, values: Tensor, number: float) -> Tensor:
        """Write a number wherever a column is no negative of the anchor, in place.

        Args:
            values: One for each similarity, shape ``(anchors, candidates)``.
            number: What to write.

        Returns:
            ``values``.
        """
        if self.left_out is not None:
            values[:, : self.left_out.shape[1]].masked_fill_(self.left_out, number)
        return values.scatter_(1, self.others, number)


def build_candidates(
    z0: Tensor,
    z1: Tensor,
    layout: Layout,
    ids: Tensor | None = None,
    negatives: Tensor | None = None,
    rows: slice = slice(None),
    queue: Keys | None = None,
) -> list[Candidates]:
    """Say who is compared with whom.

    ==========  =======================  ============================  =========
    layout      anchors                  candidates                    negatives
    ==========  =======================  ============================  =========
    "views"     both views (2n)          all other embeddings          2n - 2
    "pairs"     both sides (2n)          the other side                n - 1
    "queries"   ``z0`` (n)               ``z1``                        n - 1
    ==========  =======================  ============================  =========

    Explicit ``negatives`` and the keys of a ``queue`` are added to those of the anchors of ``z0``.

    Args:
        z0: Embeddings of the first view, shape ``(samples, features)``.
        z1: Embeddings of the second view, same shape.
        layout: "views" (NT-Xent), "pairs" (CLIP, symmetrised) or "queries" (one way).
        ids: Samples with equal ids are never negatives of each other, shape ``(samples,)``.
        negatives: Shape ``(shared, features)``, or ``(rows, own, features)`` for the anchors of
            ``rows``.
        rows: The samples that are anchors; all are candidates.
        queue: Keys of earlier batches, on the device of ``z0``; those with an anchor's id are no
            negatives of it.

    Returns:
        One group, or two where the anchors of ``z0`` and of ``z1`` see different candidates; the
        anchors in the order ``[z0; z1]``, in float32 at least.

    Raises:
        ValueError: If no anchor can have a negative.
    """
    samples = z0.shape[0]
    num_added = 0 if negatives is None else negatives.shape[-2]
    num_added += 0 if queue is None else len(queue.vectors)
    if samples == 0 or (samples == 1 and num_added == 0):
        raise ValueError(
            f'z0 must hold at least 2 samples in layout "{layout}", got {samples}: one sample has '
            "no negative. Use a larger batch, drop the last incomplete one, or give negatives."
        )
    dtype = working_dtype(z0, z1)
    # Both views at once: half the operations.
    both = unit_vectors(torch.cat([z0, z1]).to(dtype))
    others = _places(samples, z0.device)[:, rows]
    if layout == "views" and not num_added:
        # Both halves see the same candidates: one matrix product.
        others = others.reshape(-1, 2)
        whole = others.shape[0] == 2 * samples
        itself = others[:, 1]
        anchors = both if whole else both[itself]
        both_ids = None if ids is None else torch.cat([ids, ids])
        anchor_ids = both_ids if whole or both_ids is None else both_ids[itself]
        return [Candidates(anchors, both, others, None, anchor_ids, both_ids)]

    u0, u1 = both.view(2, samples, -1).unbind()
    added, own = _added_negatives(queue, negatives, dtype)
    ids, key_ids = _comparable_ids(ids, queue)
    anchor_ids = None if ids is None else ids[rows]

    def first_group(batch: Tensor, batch_ids: Tensor | None, others: Tensor) -> Candidates:
        candidates = torch.cat([batch, *added]) if added else batch
        if batch_ids is not None and key_ids is not None:
            batch_ids = torch.cat([batch_ids, key_ids])
        return Candidates(u0[rows], candidates, others, own, anchor_ids, batch_ids)

    if layout == "views":
        both_ids = None if ids is None else torch.cat([ids, ids])
        second = Candidates(u1[rows], both, others[1], None, anchor_ids, both_ids)
        return [first_group(both, both_ids, others[0]), second]
    index = others[1, :, :1]  # of z0
    first = first_group(u1, ids, index)
    second = Candidates(u1[rows], u0, index, None, anchor_ids, ids)
    return [first] if layout == "queries" else [first, second]


@lru_cache(maxsize=8)
def _places(samples: int, device: torch.device) -> Tensor:
    """Where the other view of each sample and the sample itself stand among both views.

    Kept, because steps are alike.

    Returns:
        Shape ``(2, samples, 2)``: the anchors of ``z0``, then those of ``z1``.
    """
    with torch.inference_mode(False):  # what is made there could not serve a gradient later
        places = torch.arange(2 * samples, device=device).view(2, samples)
        return torch.stack([places.flip(0), places], dim=2)


def build_bank_candidates(
    z0: Tensor,
    z1: Tensor,
    bank: Keys,
    ids: Tensor | None = None,
    negatives: Tensor | None = None,
    rows: slice = slice(None),
) -> list[Candidates]:
    """Compare the anchors of ``z0`` with their positives in ``z1`` and the keys of a memory bank.

    No other sample of the batch is a negative. An empty bank, without explicit ``negatives``,
    leaves the anchors without any.

    Args:
        z0: Embeddings of the first view, shape ``(samples, features)``.
        z1: Embeddings of the second view, same shape.
        bank: Keys of earlier batches, on the device of ``z0``; those with an anchor's id are no
            negatives of it.
        ids: What each sample shows, shape ``(samples,)``.
        negatives: As for :func:`build_candidates`.
        rows: The samples that are anchors.

    Returns:
        One group, in float32 at least.

    Raises:
        ValueError: If there is no sample.
    """
    if len(z0) == 0:
        raise ValueError("z0 must hold at least 1 sample, got 0.")
    dtype = working_dtype(z0, z1)
    u0, u1 = unit_vectors(z0[rows].to(dtype)), unit_vectors(z1[rows].to(dtype))
    added, own = _added_negatives(bank, negatives, dtype)
    ids, key_ids = _comparable_ids(ids, bank)
    # The positive is seen by its anchor alone.
    own = u1[:, None] if own is None else torch.cat([u1[:, None], own], dim=1)
    keys = torch.cat(added)
    return [
        Candidates(
            u0,
            keys,
            torch.full((len(u0), 1), len(keys), device=z0.device),
            own,
            None if ids is None else ids[rows],
            key_ids,
        )
    ]


def working_dtype(z0: Tensor, z1: Tensor) -> torch.dtype:
    """Return the type that similarities of two views are computed in, float32 at least."""
    return torch.promote_types(torch.promote_types(z0.dtype, z1.dtype), torch.float32)


def _added_negatives(
    keys: Keys | None, negatives: Tensor | None, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor | None]:
    """Return what all anchors see beside the batch, and what each sees alone; unit vectors."""
    added = [] if keys is None else [keys.vectors.to(dtype)]
    if negatives is None:
        return added, None
    unit = unit_vectors(negatives.to(dtype))
    return ([*added, unit], None) if unit.ndim == 2 else (added, unit)


def _comparable_ids(ids: Tensor | None, keys: Keys | None) -> tuple[Tensor | None, Tensor | None]:
    """Give new ids to a batch and to keys, so that one of them, -1, can mean a key without id."""
    if ids is None or keys is None:
        return ids, None
    ascending = ids.sort().values
    place = torch.searchsorted(ascending, keys.ids).clamp_max(len(ids) - 1)
    is_there = keys.has_id & (ascending[place] == keys.ids)
    return torch.searchsorted(ascending, ids), place.where(is_there, -1)


def compare(group: Candidates, out: Tensor | None = None) -> Tensor:
    """Compute the cosine similarities of every anchor of a group to all its candidates.

    Args:
        group: Anchors and candidates as unit vectors.
        out: Where to put them, without gradient; None is a new tensor, with gradient if enabled.

    Returns:
        In ``[-1, 1]`` up to rounding, shape ``(anchors, candidates)``, own negatives last.
    """
    anchors, candidates, own = group.tensors
    if out is None:
        similarity = anchors @ candidates.T
        if own is None:
            return similarity
        return torch.cat([similarity, torch.einsum("af,anf->an", anchors, own)], dim=1)
    if own is None:
        return torch.mm(anchors, candidates.T, out=out)
    shared = candidates.shape[0]
    torch.mm(anchors, candidates.T, out=out[:, :shared])
    out[:, shared:] = torch.einsum("af,anf->an", anchors, own)
    return out


def score(group: Candidates, similarity: Tensor) -> Scores:
    """Say what in a matrix of similarities is a negative.

    Args:
        group: Anchors and candidates.
        similarity: From :func:`compare`.

    Returns:
        Both together.
    """
    left_out = num_negatives = None
    if group.anchor_ids is not None and group.candidate_ids is not None:
        left_out = group.anchor_ids[:, None] == group.candidate_ids
        num_negatives = group.count_negatives()
    return Scores(similarity, group.others, group.max_negatives, num_negatives, left_out)
