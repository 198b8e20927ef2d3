"""From embeddings to what each anchor is compared with: unit vectors, positives, exclusions.

This is the only file that knows layouts and masks.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

Layout = Literal["views", "pairs", "queries"]

MIN_NORM = 1e-6
"""A row whose norm is below this counts as the zero vector, dimensionless."""


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
    """Unit vectors, shape ``(anchors, features)``; a memory bank adds a feature."""
    candidates: Tensor
    """Unit vectors, shape ``(candidates, features)``: the positives and the shared negatives."""
    positive: Tensor
    """The candidate that is each anchor's positive, shape ``(anchors,)``, int64."""
    itself: Tensor | None = None
    """The candidate that is the anchor itself, shape ``(anchors,)``; None if it is not there."""
    own: Tensor | None = None
    """Negatives seen by one anchor alone, shape ``(anchors, own, features)``."""
    anchor_ids: Tensor | None = None
    """What image or sentence each anchor shows, shape ``(anchors,)``, int64."""
    candidate_ids: Tensor | None = None
    """The same for the first candidates; the others, past its end, match no anchor."""
    num_negatives: Tensor | None = None
    """What :meth:`count_negatives` returns, where that is known already."""

    @property
    def max_negatives(self) -> int:
        """The most negatives that an anchor can have, known without reading the device."""
        own = 0 if self.own is None else self.own.shape[1]
        return len(self.candidates) - (1 if self.itself is None else 2) + own

    def count_negatives(self) -> Tensor:
        """Count the negatives :math:`K` of each anchor; shape ``(anchors,)``, int64."""
        if self.num_negatives is not None:
            return self.num_negatives
        most = torch.full_like(self.positive, self.max_negatives)
        if self.anchor_ids is None or self.candidate_ids is None:
            return most
        ids = self.candidate_ids.sort().values
        equal = torch.searchsorted(ids, self.anchor_ids, right=True)
        equal -= torch.searchsorted(ids, self.anchor_ids)
        # The anchor itself and its positive are no negatives anyway. Where they have an id, it is
        # the anchor's.
        for index in (self.positive, self.itself):
            if index is not None:
                equal = equal - (index < len(ids)).to(equal)
        return most - equal

    def counted(self) -> "Candidates":
        """Count the negatives once for all blocks: it sorts all ids."""
        return self._replace(num_negatives=self.count_negatives())

    def select(self, rows: slice) -> "Candidates":
        """Keep some of the anchors, with views of all that belongs to them."""
        return Candidates(
            self.anchors[rows],
            self.candidates,
            self.positive[rows],
            None if self.itself is None else self.itself[rows],
            None if self.own is None else self.own[rows],
            None if self.anchor_ids is None else self.anchor_ids[rows],
            self.candidate_ids,
            None if self.num_negatives is None else self.num_negatives[rows],
        )


class Scores(NamedTuple):
    """Cosine similarities of a group's anchors to all it is compared with."""

    similarity: Tensor
    """In ``[-1, 1]``, shape ``(anchors, candidates)``, own negatives last."""
    positive: Tensor
    """The column of each anchor's positive, shape ``(anchors,)``, int64."""
    not_negative: Tensor
    """True where a column is no negative of the anchor: its positive, itself, an equal id."""
    num_negatives: Tensor | None
    """Negatives of each anchor, shape ``(anchors,)``; None where all have ``max_negatives``."""
    max_negatives: int
    """An upper bound of ``num_negatives`` that is known without reading the device."""


def unit_vectors(embeddings: Tensor) -> Tensor:
    """Scale each row to unit length; rows shorter than ``1e-6`` become zero, with zero gradient.

    Args:
        embeddings: Shape ``(..., features)``, float32 or float64.

    Returns:
        Rows of length 1 or 0, same shape and dtype.

    Example:
        >>> import torch
        >>> unit_vectors(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    # Squares of entries relative to the largest neither overflow nor vanish.
    largest = embeddings.detach().abs().amax(dim=-1, keepdim=True)
    relative = embeddings / largest.clamp_min(torch.finfo(embeddings.dtype).tiny)
    squares = relative.square().sum(dim=-1, keepdim=True)
    is_zero = squares.detach().sqrt() * largest < MIN_NORM
    # Before the root too: its derivative at 0 is infinite.
    return relative * squares.masked_fill(is_zero, 1.0).rsqrt().masked_fill(is_zero, 0.0)


def check_batch(
    z0: Tensor, z1: Tensor, ids: Tensor | None = None, negatives: Tensor | None = None
) -> None:
    """Refuse a batch of the wrong kind or shape; costs no device synchronisation.

    Under ``torch.autograd.detect_anomaly`` it also refuses NaN and infinity, which does.

    Args:
        z0: Embeddings of the first view, shape ``(samples, features)``.
        z1: Embeddings of the second view, same shape.
        ids: What each sample shows, shape ``(samples,)``, an integer type.
        negatives: Explicit negatives of the anchors of ``z0``: shape ``(samples, own, features)``
            for each anchor's own, or ``(shared, features)``.

    Raises:
        TypeError: If an argument is not a tensor or has the wrong kind of numbers.
        ValueError: If shapes or devices do not fit together.
    """
    embeddings = {"z0": z0, "z1": z1}
    if negatives is not None:
        embeddings["negatives"] = negatives
    _check_kinds(embeddings)
    if z0.ndim != 2 or z0.shape[1] == 0:
        raise ValueError(f"z0 must have shape (samples, features), got {tuple(z0.shape)}.")
    if z1.shape != z0.shape:
        raise ValueError(
            f"z1 must have the shape of z0, {tuple(z0.shape)}, got {tuple(z1.shape)}. "
            "Row i of both must show the same sample."
        )
    if ids is not None:
        _check_ids(ids, len(z0))
    if negatives is not None:
        _check_negatives(negatives, *z0.shape)
    _check_devices(embeddings if ids is None else {**embeddings, "ids": ids})
    if not torch.compiler.is_compiling() and torch.is_anomaly_enabled():
        _check_finite(embeddings)


def _check_kinds(embeddings: dict[str, Tensor]) -> None:
    """Refuse what is no tensor of floating-point numbers."""
    for name, value in embeddings.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}.")
        if not value.is_floating_point():
            raise TypeError(f"{name} must hold floating-point numbers, got {value.dtype}.")


def _check_devices(tensors: dict[str, Tensor]) -> None:
    """Refuse tensors that are not where ``z0`` is."""
    device = tensors["z0"].device
    for name, value in tensors.items():
        if value.device != device:
            raise ValueError(f"{name} must be on the device of z0, {device}, got {value.device}.")


def _check_finite(embeddings: dict[str, Tensor]) -> None:
    """Refuse NaN and infinity by name; reads the device."""
    for name, value in embeddings.items():
        bad = int((~value.isfinite()).sum())
        if bad:
            raise ValueError(f"{name} must be finite, got {bad} values that are NaN or inf.")


def _check_ids(ids: Tensor, samples: int) -> None:
    """Refuse ids that are not one integer per sample."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids must be a tensor, got {type(ids).__name__}.")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"ids must hold integers, got {ids.dtype}.")
    if ids.shape != (samples,):
        raise ValueError(
            f"ids must hold one id per sample ({samples}), got shape {tuple(ids.shape)}."
        )


def _check_negatives(negatives: Tensor, samples: int, features: int) -> None:
    """Refuse explicit negatives that fit neither of the two shapes."""
    shape = tuple(negatives.shape)
    if shape[-1:] != (features,) or not (len(shape) == 2 or shape[:-2] == (samples,)):
        raise ValueError(
            f"negatives must have shape ({samples}, own, {features}) or (shared, {features}), "
            f"got {shape}."
        )


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
    samples = len(z0)
    num_added = 0 if negatives is None else negatives.shape[-2]
    num_added += 0 if queue is None else len(queue.vectors)
    if samples == 0 or (samples == 1 and num_added == 0):
        raise ValueError(
            f'z0 must hold at least 2 samples in layout "{layout}", got {samples}: one sample has '
            "no negative. Use a larger batch, drop the last incomplete one, or give negatives."
        )
    dtype = working_dtype(z0, z1)
    u0, u1 = unit_vectors(z0.to(dtype)), unit_vectors(z1.to(dtype))
    added, own = _added_negatives(queue, negatives, dtype)
    index = torch.arange(samples, device=z0.device)[rows]
    ids, key_ids = _comparable_ids(ids, queue)
    anchor_ids = None if ids is None else ids[rows]

    def with_added(batch: Tensor) -> Tensor:
        return torch.cat([batch, *added]) if added else batch

    def with_key_ids(batch_ids: Tensor | None) -> Tensor | None:
        if batch_ids is None or key_ids is None:
            return batch_ids
        return torch.cat([batch_ids, key_ids])

    if layout != "views":
        first = Candidates(
            u0[rows], with_added(u1), index, None, own, anchor_ids, with_key_ids(ids)
        )
        second = Candidates(u1[rows], u0, index, None, None, anchor_ids, ids)
        return [first] if layout == "queries" else [first, second]
    both = torch.cat([u0, u1])
    both_ids = None if ids is None else torch.cat([ids, ids])
    other = index + samples
    if num_added:
        return [
            Candidates(
                u0[rows], with_added(both), other, index, own, anchor_ids, with_key_ids(both_ids)
            ),
            Candidates(u1[rows], both, index, other, None, anchor_ids, both_ids),
        ]
    # Without added negatives both halves see the same candidates: one matrix product.
    itself = torch.cat([index, other])
    return [
        Candidates(
            both if len(index) == samples else both[itself],
            both,
            torch.cat([other, index]),
            itself,
            None,
            None if both_ids is None else both_ids[itself],
            both_ids,
        )
    ]


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
    # The positive is one more feature: the similarity itself at the anchor, 1 at a last candidate
    # and 0 at the others. So no anchor meets the positives of the others.
    positive = (u0 * u1).sum(dim=1, keepdim=True)
    candidates = pad(torch.cat(added), (0, 1, 0, 1))
    candidates[-1, -1] = 1.0
    return [
        Candidates(
            torch.cat([u0, positive], dim=1),
            candidates,
            torch.full((len(u0),), len(candidates) - 1, device=z0.device),
            None,
            None if own is None else pad(own, (0, 1)),
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
    ids = ids.to(torch.int64)
    ascending = ids.sort().values
    place = torch.searchsorted(ascending, keys.ids).clamp_max(len(ids) - 1)
    is_there = keys.has_id & (ascending[place] == keys.ids)
    return torch.searchsorted(ascending, ids), place.where(is_there, -1)


def score(group: Candidates) -> Scores:
    """Compare every anchor of a group with all its candidates.

    Args:
        group: Anchors and candidates as unit vectors.

    Returns:
        The whole matrix of cosine similarities and what in it is a negative.
    """
    similarity = group.anchors @ group.candidates.T
    not_negative = torch.zeros_like(similarity, dtype=torch.bool)
    num_negatives = None
    if group.anchor_ids is not None and group.candidate_ids is not None:
        same = group.anchor_ids[:, None] == group.candidate_ids
        not_negative[:, : same.shape[1]] = same
        num_negatives = group.count_negatives()
    not_negative.scatter_(1, group.positive[:, None], True)
    if group.itself is not None:
        not_negative.scatter_(1, group.itself[:, None], True)
    if group.own is not None:
        own = torch.einsum("af,anf->an", group.anchors, group.own)
        similarity = torch.cat([similarity, own], dim=1)
        not_negative = torch.cat([not_negative, torch.zeros_like(own, dtype=torch.bool)], dim=1)
    return Scores(similarity, group.positive, not_negative, num_negatives, group.max_negatives)
