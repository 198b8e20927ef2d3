"""Candidates of each anchor, built from embeddings; no other file knows the layouts."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from weince_lightning.functional.candidates import Candidates
from weince_lightning.functional.kept import kept
from weince_lightning.functional.vectors import unit_vectors

Layout = Literal["views", "pairs", "queries"]


class Keys(NamedTuple):
    """Embeddings of earlier batches, to be negatives of later ones."""

    vectors: Tensor
    """Unit vectors, shape ``(keys, features)``, in float32 at least."""
    ids: Tensor
    """Image or sentence of each key, shape ``(keys,)``, int64."""
    has_id: Tensor
    """False where a key came without id, shape ``(keys,)``: it matches no anchor."""


class Labelled(NamedTuple):
    """Labelled anchors, and the candidates that they are compared with."""

    embeddings: Tensor
    """The anchors, shape ``(samples, features)``."""
    labels: Tensor
    """Theirs, shape ``(samples,)``, int64."""
    references: Tensor | None
    """The candidates, shape ``(candidates, features)``; None: the anchors."""
    reference_labels: Tensor | None
    """Theirs, shape ``(candidates,)``, int64."""
    first: int | None
    """The place of the first anchor among the candidates, which the others follow; None where
    anchors are no candidates."""


def build_candidates(
    z0: Tensor,
    z1: Tensor,
    layout: Layout,
    ids: Tensor | None = None,
    negatives: Tensor | None = None,
    rows: slice = slice(None),
    queue: Keys | None = None,
) -> list[Candidates]:
    """Build the anchors and candidates of a layout.

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
        negatives: Shape ``(shared, features)``, or ``(rows, extra, features)`` for the anchors of
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
    excluded = _places(samples, z0.device)[:, rows]
    if layout == "views" and not num_added:
        # Both halves see the same candidates: one matrix product.
        excluded = excluded.reshape(-1, 2)
        whole = excluded.shape[0] == 2 * samples
        itself = excluded[:, 1]
        anchors = both if whole else both[itself]
        both_ids = None if ids is None else torch.cat([ids, ids])
        anchor_ids = both_ids if whole or both_ids is None else both_ids[itself]
        return [Candidates(anchors, both, excluded, None, anchor_ids, both_ids)]

    u0, u1 = both.view(2, samples, -1).unbind()
    added, extra = _added_negatives(queue, negatives, dtype)
    ids, key_ids = _comparable_ids(ids, queue)
    anchor_ids = None if ids is None else ids[rows]

    def first_group(batch: Tensor, batch_ids: Tensor | None, excluded: Tensor) -> Candidates:
        candidates = torch.cat([batch, *added]) if added else batch
        if batch_ids is not None and key_ids is not None:
            batch_ids = torch.cat([batch_ids, key_ids])
        return Candidates(u0[rows], candidates, excluded, extra, anchor_ids, batch_ids)

    if layout == "views":
        both_ids = None if ids is None else torch.cat([ids, ids])
        second = Candidates(u1[rows], both, excluded[1], None, anchor_ids, both_ids)
        return [first_group(both, both_ids, excluded[0]), second]
    index = excluded[1, :, :1]  # of z0
    first = first_group(u1, ids, index)
    second = Candidates(u1[rows], u0, index, None, anchor_ids, ids)
    return [first] if layout == "queries" else [first, second]


@kept
def _places(samples: int, device: torch.device) -> Tensor:
    """Columns of the other view of each sample and of the sample itself, among both views.

    Cached, because all steps have the same shapes.

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
    added, extra = _added_negatives(bank, negatives, dtype)
    ids, key_ids = _comparable_ids(ids, bank)
    # The positive is a candidate of its own anchor only.
    extra = u1[:, None] if extra is None else torch.cat([u1[:, None], extra], dim=1)
    keys = torch.cat(added)
    return [
        Candidates(
            u0,
            keys,
            torch.full((len(u0), 1), len(keys), device=z0.device),
            extra,
            None if ids is None else ids[rows],
            key_ids,
        )
    ]


def build_labelled_candidates(batch: Labelled) -> Candidates:
    """Compare labelled anchors with labelled candidates: equal labels are positives.

    Returns:
        Anchors and candidates, in float32 at least.
    """
    embeddings, labels, references, reference_labels, first = batch
    if references is None or reference_labels is None:
        unit = unit_vectors(embeddings.to(working_dtype(embeddings, embeddings)))
        candidates, reference_labels = unit, labels
    else:
        dtype = working_dtype(embeddings, references)
        unit, candidates = (unit_vectors(z.to(dtype)) for z in (embeddings, references))
    places = torch.arange(len(unit), device=unit.device)[:, None]
    excluded = places[:, :0] if first is None else places + first
    return Candidates(unit, candidates, excluded, None, labels, reference_labels, is_labelled=True)


def working_dtype(z0: Tensor, z1: Tensor) -> torch.dtype:
    """Return the type that similarities of two views are computed in, float32 at least."""
    if z0.dtype == z1.dtype == torch.float32:  # the other way takes microseconds
        return torch.float32
    return torch.promote_types(torch.promote_types(z0.dtype, z1.dtype), torch.float32)


def _added_negatives(
    keys: Keys | None, negatives: Tensor | None, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor | None]:
    """Return shared candidates beyond the batch, and per-anchor negatives; unit vectors."""
    added = [] if keys is None else [keys.vectors.to(dtype)]
    if negatives is None:
        return added, None
    unit = unit_vectors(negatives.to(dtype))
    return ([*added, unit], None) if unit.ndim == 2 else (added, unit)


def _comparable_ids(ids: Tensor | None, keys: Keys | None) -> tuple[Tensor | None, Tensor | None]:
    """Renumber the ids of a batch and of keys, so that -1 can mean a key without id."""
    if ids is None or keys is None:
        return ids, None
    ascending = ids.sort().values
    place = torch.searchsorted(ascending, keys.ids).clamp_max(len(ids) - 1)
    is_there = keys.has_id & (ascending[place] == keys.ids)
    return torch.searchsorted(ascending, ids), place.where(is_there, -1)
