"""What the losses of several processes tell each other before they compare anything."""

import torch
from torch import Tensor

from weince_lightning.distributed import gather, rank, shared_counts
from weince_lightning.functional.layouts import Labelled


def gather_views(
    z0: Tensor, z1: Tensor, ids: Tensor | None, negatives: Tensor | None, filled: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, list[int]]:
    """Collect the samples of all processes; ``negatives`` only where all anchors share them.

    Args:
        z0: This rank's embeddings of the first view, shape ``(samples, features)``.
        z1: Those of the second view, same shape.
        ids: What each sample shows, shape ``(samples,)``.
        negatives: Explicit negatives.
        filled: How many keys of earlier batches this rank holds.

    Returns:
        The first four of all ranks, in their order, and the samples of each.

    Raises:
        RuntimeError: If the processes disagree in more than the number of samples.
    """
    alike = {
        "The features of z0": z0.shape[1],
        "The presence of ids (0 or 1)": int(ids is not None),
        "The dimensions of negatives (0 without)": 0 if negatives is None else negatives.ndim,
        "The keys of earlier batches, which each process loads from the checkpoint,": filled,
    }
    (sizes,) = _exchange([z0.shape[0]], alike, z0.device)
    dtype = torch.promote_types(z0.dtype, z1.dtype)
    views = torch.stack([z0.to(dtype), z1.to(dtype)], dim=1)
    z0, z1 = gather(views, sizes).unbind(dim=1)
    ids = None if ids is None else gather(ids, sizes)
    if negatives is not None and negatives.ndim == 2:
        negatives = gather(negatives)
    return z0, z1, ids, negatives, sizes


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
    """Tell every process the sizes of each; in all else they must agree."""
    counts = shared_counts([*sizes, *alike.values()], device)
    columns = [list(column) for column in zip(*counts, strict=True)]
    for name, values in zip(alike, columns[len(sizes) :], strict=True):
        if len(set(values)) > 1:
            raise RuntimeError(f"{name} must be the same in all processes, got {values}.")
    return columns[: len(sizes)]
