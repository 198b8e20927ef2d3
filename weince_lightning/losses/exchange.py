"""Exchange of samples between the processes of a loss."""

from typing import NamedTuple

import torch
from torch import Tensor

from weince_lightning.distributed import gather, rank, shared_counts
from weince_lightning.functional.layouts import Labelled


class Views(NamedTuple):
    """Two views of the samples of one process or of all."""

    z0: Tensor
    """Embeddings of the first view, shape ``(samples, features)``."""
    z1: Tensor
    """Embeddings of the second view, same shape."""
    ids: Tensor | None
    """Image or sentence of each sample, shape ``(samples,)``, int64."""
    negatives: Tensor | None
    """Explicit negatives, shape ``(shared, features)``, or ``(rows, extra, features)`` for the
    samples of ``rows``."""
    sizes: list[int]
    """Samples of each process, in rank order."""
    rows: slice
    """The samples of this process."""


def gather_views(views: Views, filled: int) -> Views:
    """Collect the samples of all processes; per-anchor negatives stay with their anchors.

    Args:
        views: The samples of this process.
        filled: Number of keys of earlier batches that this process holds.

    Returns:
        The samples of all processes, in rank order.

    Raises:
        RuntimeError: If the processes disagree in more than the number of samples.
    """
    z0, z1, ids, negatives, *_ = views
    alike = {
        "The features of z0": z0.shape[1],
        "The presence of ids (0 or 1)": int(ids is not None),
        "The dimensions of negatives (0 without)": 0 if negatives is None else negatives.ndim,
        "The keys of earlier batches, which each process loads from the checkpoint,": filled,
    }
    (sizes,) = _exchange([z0.shape[0]], alike, z0.device)
    dtype = torch.promote_types(z0.dtype, z1.dtype)
    both = torch.stack([z0.to(dtype), z1.to(dtype)], dim=1)
    z0, z1 = gather(both, sizes).unbind(dim=1)
    ids = None if ids is None else gather(ids, sizes)
    if negatives is not None and negatives.ndim == 2:
        negatives = gather(negatives)
    first = sum(sizes[: rank()])
    return Views(z0, z1, ids, negatives, sizes, slice(first, first + sizes[rank()]))


def gather_labelled(batch: Labelled) -> tuple[Labelled, list[int]]:
    """Collect the candidates of all processes; the anchors stay this rank's.

    Returns:
        The batch and the anchors of each rank.

    Raises:
        RuntimeError: If the processes disagree in more than the number of samples.
    """
    embeddings, labels, references, reference_labels, _ = batch
    alike = {
        "The features of embeddings": embeddings.shape[1],
        "The presence of references (0 or 1)": int(references is not None),
    }
    if references is None or reference_labels is None:
        (sizes,) = _exchange([len(embeddings)], alike, embeddings.device)
        candidate_sizes, references, reference_labels = sizes, embeddings, labels
    else:
        counts = [len(embeddings), len(references)]
        sizes, candidate_sizes = _exchange(counts, alike, embeddings.device)
    everyone = gather(references, candidate_sizes), gather(reference_labels, candidate_sizes)
    first = None if batch.references is not None else sum(sizes[: rank()])
    return Labelled(embeddings, labels, *everyone, first), sizes


def _exchange(sizes: list[int], alike: dict[str, int], device: torch.device) -> list[list[int]]:
    """Exchange the sizes of all processes; everything else must agree."""
    counts = shared_counts([*sizes, *alike.values()], device)
    columns = [list(column) for column in zip(*counts, strict=True)]
    for name, values in zip(alike, columns[len(sizes) :], strict=True):
        if len(set(values)) > 1:
            raise RuntimeError(f"{name} must be the same in all processes, got {values}.")
    return columns[: len(sizes)]
