"""Anchors, candidates and the mask of negatives; no other file knows the masks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Candidates(NamedTuple):
    """A group of anchors that share one list of candidates."""

    anchors: Tensor
    """Unit vectors, shape ``(anchors, features)``."""
    candidates: Tensor
    """Unit vectors, shape ``(candidates, features)``: the positives and the shared negatives."""
    excluded_columns: Tensor
    """Columns that are not negatives of an anchor, shape ``(anchors, 0, 1 or 2)``, int64: that of
    its only positive, and that of the anchor itself if it is a candidate."""
    per_anchor_negatives: Tensor | None = None
    """Unit vectors compared with one anchor only, shape ``(anchors, extra, features)``. They are
    the last columns. With a memory bank the first of them is the anchor's positive."""
    anchor_ids: Tensor | None = None
    """Image or sentence of each anchor, shape ``(anchors,)``, int64."""
    candidate_ids: Tensor | None = None
    """The same for the first candidates; candidates past its end match no anchor."""
    num_negatives: Tensor | None = None
    """Result of :meth:`count_negatives`, if it is known already."""
    is_labelled: bool = False
    """Whether candidates with the id of an anchor are its positives, none or several;
    ``excluded_columns`` then holds no positive."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The tensors with a gradient: anchors, candidates, per-anchor negatives."""
        return self.anchors, self.candidates, self.per_anchor_negatives

    def with_tensors(self, tensors: Sequence[Any]) -> "Candidates":
        """Replace the tensors with a gradient."""
        anchors, candidates, extra = tensors
        return self._replace(anchors=anchors, candidates=candidates, per_anchor_negatives=extra)

    @property
    def num_anchors(self) -> int:
        """Number of anchors."""
        return self.anchors.shape[0]

    @property
    def num_columns(self) -> int:
        """Candidates of each anchor, per-anchor negatives included."""
        # The length of a tensor costs a small batch ten times what its shape does.
        return self.candidates.shape[0] + (
            0 if self.per_anchor_negatives is None else self.per_anchor_negatives.shape[1]
        )

    @property
    def max_negatives(self) -> int:
        """Upper bound of the negatives of an anchor, known without a host sync."""
        return self.num_columns - self.excluded_columns.shape[1]

    def count_negatives(self) -> Tensor:
        """Count the negatives :math:`K` of each anchor; shape ``(anchors,)``, int64."""
        if self.num_negatives is not None:
            return self.num_negatives
        most = self.excluded_columns.new_full(self.excluded_columns.shape[:1], self.max_negatives)
        if self.anchor_ids is None or self.candidate_ids is None:
            return most
        ids = self.candidate_ids.sort().values
        equal = torch.searchsorted(ids, self.anchor_ids, right=True)
        equal -= torch.searchsorted(ids, self.anchor_ids)
        # The positive and the anchor itself are excluded already. If they have an id, it is the
        # anchor's.
        return most - equal + (self.excluded_columns < len(ids)).sum(dim=1)

    def counted(self) -> "Candidates":
        """Count the negatives once for all blocks: it sorts all ids."""
        return self._replace(num_negatives=self.count_negatives())

    def select(self, rows: slice) -> "Candidates":
        """Keep some of the anchors; the result holds views."""
        return Candidates(
            self.anchors[rows],
            self.candidates,
            self.excluded_columns[rows],
            None if self.per_anchor_negatives is None else self.per_anchor_negatives[rows],
            None if self.anchor_ids is None else self.anchor_ids[rows],
            self.candidate_ids,
            None if self.num_negatives is None else self.num_negatives[rows],
            self.is_labelled,
        )


class Scores(NamedTuple):
    """Cosine similarities of a group's anchors to their candidates."""

    similarity: Tensor
    """In ``[-1, 1]`` up to rounding, shape ``(anchors, candidates)``, per-anchor negatives
    last."""
    excluded_columns: Tensor
    """Columns that are not negatives of an anchor, shape ``(anchors, 0, 1 or 2)``, int64; the first
    is that of its only positive."""
    max_negatives: int
    """Upper bound of ``num_negatives``, known without a host sync."""
    num_negatives: Tensor | None = None
    """Negatives of each anchor, shape ``(anchors,)``; None if all have ``max_negatives``."""
    excluded_mask: Tensor | None = None
    """True where a column is not a negative for another reason, such as an equal id. Shape
    ``(anchors, first columns)``: it may be narrower than ``similarity``."""
    is_labelled: bool = False
    """Whether ``excluded_mask`` marks the positives, none or several, and the anchor itself."""

    @property
    def positive(self) -> Tensor:
        """The column of each anchor's only positive, shape ``(anchors, 1)``, int64."""
        return self.excluded_columns[:, :1]

    @property
    def positives(self) -> Tensor:
        """True for the positives of labelled anchors, shape ``(anchors, candidates)``."""
        if self.excluded_mask is None:
            raise RuntimeError("excluded_mask must be known to tell the positives, got None.")
        return self.excluded_mask.scatter(1, self.excluded_columns, False)

    def fill_excluded_(self, values: Tensor, number: float) -> Tensor:
        """Write a number into every column that is not a negative of the anchor, in place.

        Args:
            values: One for each similarity, shape ``(anchors, candidates)``.
            number: What to write.

        Returns:
            ``values``.
        """
        if self.excluded_mask is not None:
            values[:, : self.excluded_mask.shape[1]].masked_fill_(self.excluded_mask, number)
        return values.scatter_(1, self.excluded_columns, number)


def compare(group: Candidates, out: Tensor | None = None) -> Tensor:
    """Compute the cosine similarities of every anchor of a group to all its candidates.

    Args:
        group: Anchors and candidates as unit vectors.
        out: Tensor for the result, without gradient; None is a new one, with gradient if enabled.

    Returns:
        In ``[-1, 1]`` up to rounding, shape ``(anchors, candidates)``, per-anchor negatives
        last.
    """
    anchors, candidates, extra = group.tensors
    if out is None:
        similarity = anchors @ candidates.T
        if extra is None:
            return similarity
        return torch.cat([similarity, torch.einsum("af,anf->an", anchors, extra)], dim=1)
    if extra is None:
        return torch.mm(anchors, candidates.T, out=out)
    shared = candidates.shape[0]
    torch.mm(anchors, candidates.T, out=out[:, :shared])
    out[:, shared:] = torch.einsum("af,anf->an", anchors, extra)
    return out


def score(group: Candidates, similarity: Tensor) -> Scores:
    """Combine similarities with the mask of negatives.

    Args:
        group: Anchors and candidates.
        similarity: From :func:`compare`.

    Returns:
        The similarities and the columns that are not negatives.
    """
    excluded_mask = num_negatives = None
    if group.anchor_ids is not None and group.candidate_ids is not None:
        excluded_mask = group.anchor_ids[:, None] == group.candidate_ids
        num_negatives = group.count_negatives()
    return Scores(
        similarity,
        group.excluded_columns,
        group.max_negatives,
        num_negatives,
        excluded_mask,
        group.is_labelled,
    )
