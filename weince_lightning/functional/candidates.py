"""What anchors are compared with, and which of it are negatives: the only file that knows masks."""

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
    others: Tensor
    """Columns that are no negatives of an anchor, shape ``(anchors, 0, 1 or 2)``, int64: that of
    its only positive, and that of the anchor itself where it is a candidate."""
    own: Tensor | None = None
    """What is seen by one anchor alone, shape ``(anchors, own, features)``; the last columns."""
    anchor_ids: Tensor | None = None
    """What image or sentence each anchor shows, shape ``(anchors,)``, int64."""
    candidate_ids: Tensor | None = None
    """The same for the first candidates; the others, past its end, match no anchor."""
    num_negatives: Tensor | None = None
    """What :meth:`count_negatives` returns, where that is known already."""
    is_labelled: bool = False
    """Whether candidates with the id of an anchor are its positives, none or several; ``others``
    then names no positive."""

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
            self.is_labelled,
        )


class Scores(NamedTuple):
    """Cosine similarities of a group's anchors to all it is compared with."""

    similarity: Tensor
    """In ``[-1, 1]`` up to rounding, shape ``(anchors, candidates)``, own negatives last."""
    others: Tensor
    """Columns that are no negatives of an anchor, shape ``(anchors, 0, 1 or 2)``, int64: first that
    of its only positive."""
    max_negatives: int
    """An upper bound of ``num_negatives`` that is known without reading the device."""
    num_negatives: Tensor | None = None
    """Negatives of each anchor, shape ``(anchors,)``; None where all have ``max_negatives``."""
    left_out: Tensor | None = None
    """True where one of the first columns is no negative for another reason, such as an equal id;
    shape ``(anchors, some of the columns)``."""
    is_labelled: bool = False
    """Whether ``left_out`` marks the positives, none or several, and the anchor itself."""

    @property
    def positive(self) -> Tensor:
        """The column of each anchor's only positive, shape ``(anchors, 1)``, int64."""
        return self.others[:, :1]

    @property
    def positives(self) -> Tensor:
        """True for the positives of labelled anchors, shape ``(anchors, candidates)``."""
        if self.left_out is None:
            raise RuntimeError("left_out must be known to tell the positives, got None.")
        return self.left_out.scatter(1, self.others, False)

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
    return Scores(
        similarity, group.others, group.max_negatives, num_negatives, left_out, group.is_labelled
    )
