"""Features of images, and the labels that their neighbors predict: one number everywhere.

A monitor during training and an evaluation of the checkpoint afterwards call the same function.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from weince_lightning.distributed import gather, rank, shared_counts, world_size
from weince_lightning.functional.neighbours import NeighbourScores, neighbour_scores
from weince_lightning.networks.encoders import evaluation_mode

RECALL_AT = (1, 2, 5, 10, 20, 50)
"""Numbers of neighbours of the recall, as in the paper's tables."""

_ROWS_EXCHANGED = 8192
"""Rows of a process that are on the device at once while processes exchange features."""


def extract_features(
    model: nn.Module, batches: Iterable[Any], is_shared: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the features of a data set in evaluation mode, without gradient and autocast.

    Modes, BatchNorm statistics and gradients of the model are left as they were. Every sample
    counts once: of a ``DataLoader`` that shuffles, drops the last batch or has a sampler for
    several processes, only the batch size matters, and its data set is read in order. What else
    decides about the batches is followed, and must give the same each time.

    Args:
        model: Maps images to features, shape ``(B, features)``.
        batches: ``(images, labels)``, anything after them is ignored.
        is_shared: Whether all processes of the default group call this with the same batches and
            share the work. Each gets the features of all, to the last bit those of one process,
            with the buffers (such as the statistics of BatchNorm) of the first.

    Returns:
        Features, shape ``(samples, features)``, float32 or float64, and labels, shape
        ``(samples,)``, int64, on the CPU in the order of the batches.

    Raises:
        TypeError: If a batch has views in place of images.
        ValueError: If the features have another shape, or there is no batch.

    Example:
        >>> batches = [(torch.ones(2, 1, 2, 2), torch.tensor([3, 4]))]
        >>> extract_features(nn.Flatten(), batches)
        (tensor([[1., 1., 1., 1.],
                [1., 1., 1., 1.]]), tensor([3, 4]))
    """
    is_shared = is_shared and world_size() > 1
    share = (
        numbered_batches(batches, rank(), world_size()) if is_shared else numbered_batches(batches)
    )
    device, dtype = _placement(model)
    features: list[Tensor] = []
    labels: list[Tensor] = []
    numbers: list[Tensor] = []
    plainly = torch.autocast(device.type, enabled=False)
    with evaluation_mode(model), plainly, _buffers_of_first(model, is_shared):
        for number, (images, batch_labels, *_) in share:
            refuse_views(images)
            if images.is_floating_point():
                images = images.to(dtype)
            found = model(images.to(device))
            if found.ndim != 2:
                raise ValueError(
                    "model must give features of shape (batch, features), got "
                    f"{tuple(found.shape)}."
                )
            features.append(found.to("cpu", torch.promote_types(found.dtype, torch.float32)))
            labels.append(batch_labels.to("cpu", torch.int64))
            numbers.append(torch.full_like(labels[-1], number))
    if is_shared:
        return _exchange(features, labels, numbers, device)
    if not features:
        raise _no_batch()
    return torch.cat(features), torch.cat(labels)


def knn_scores(
    model: nn.Module,
    bank: Iterable[Any],
    queries: Iterable[Any],
    k: Sequence[int],
    temperature: float,
    is_shared: bool = False,
) -> NeighbourScores:
    """Score a model by what the nearest bank items tell about the queries.

    See :func:`extract_features` for the batches and
    :func:`~weince_lightning.functional.neighbours.neighbour_scores` for the score. The same
    weights, bank and queries give the same score, to the last digit.

    Args:
        model: Maps images to features, shape ``(B, features)``; its device does the work.
        bank: Batches ``(images, labels)`` whose labels vote.
        queries: Batches ``(images, labels)`` whose labels are asked for.
        k: Numbers of neighbours that vote, each at least 1.
        temperature: Temperature of the votes, positive, dimensionless.
        is_shared: Whether all processes of the default group share the work; each gets the score.

    Returns:
        Accuracy for each ``k``, and recall at each of ``RECALL_AT``.

    Raises:
        NoLabelError: If no query or no bank item has a label.
        ValueError: If there is no batch, or a number is out of its range.
    """
    bank_features, bank_labels = extract_features(model, bank, is_shared)
    features, labels = extract_features(model, queries, is_shared)
    return neighbour_scores(
        features.to(_placement(model)[0]), labels, bank_features, bank_labels,
        k, RECALL_AT, temperature,
    )  # fmt: skip


def _placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where and in which precision the model computes."""
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32


@contextmanager
def _buffers_of_first(model: nn.Module, is_shared: bool) -> Iterator[None]:
    """Lend the first process's buffers to the others: its checkpoint holds them.

    BatchNorm that is not synchronised has statistics of its own on each process.
    """
    if not is_shared:
        yield
        return
    sizes = [1] + [0] * (world_size() - 1)
    own = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        for buffer, _ in own:
            mine = buffer[None] if rank() == 0 else buffer.new_empty(0, *buffer.shape)
            buffer.copy_(gather(mine, sizes)[0])
        yield
    finally:
        for buffer, value in own:
            buffer.copy_(value)


def numbered_batches(
    batches: Iterable[Any], first: int = 0, step: int = 1
) -> Iterator[tuple[int, Any]]:
    """Give every ``step``-th batch with its number; a loader of torch reads those alone.

    Args:
        batches: See :func:`extract_features`.
        first: The number of the first batch that is given.
        step: How many numbers further the next one is.
    """
    numbers = range(first, 2**63, step)
    if (
        type(batches) is not DataLoader
        or isinstance(batches.dataset, IterableDataset)
        or batches.batch_sampler is None  # the data set itself makes batches
    ):
        return zip(numbers, islice(batches, first, None, step), strict=False)
    indices: Iterable[Any] = batches.batch_sampler
    if is_read_in_order(batches):
        places = SequentialSampler(batches.dataset)  # type: ignore[arg-type]
        indices = BatchSampler(places, batches.batch_size, drop_last=False)  # type: ignore[arg-type]
    loader = DataLoader(
        batches.dataset,
        batch_sampler=list(indices)[first::step],
        num_workers=batches.num_workers,
        collate_fn=batches.collate_fn,
        pin_memory=batches.pin_memory,
        timeout=batches.timeout,
        worker_init_fn=batches.worker_init_fn,
        multiprocessing_context=batches.multiprocessing_context,
        # Every iteration draws a seed; without an own generator, from the global one.
        generator=torch.Generator(),
        prefetch_factor=batches.prefetch_factor,
    )
    return zip(numbers, loader, strict=False)


def is_read_in_order(batches: Iterable[Any]) -> bool:
    """Whether features are computed sample by sample of a loader's data set.

    So they are if its sampler only puts the whole data set in an order, or deals it to processes.
    """
    if type(batches) is not DataLoader or isinstance(batches.dataset, IterableDataset):
        return False
    sampler = batches.sampler
    if batches.batch_size is None or getattr(sampler, "replacement", False):
        return False
    is_order = isinstance(sampler, SequentialSampler | RandomSampler)
    is_of_all = is_order and len(sampler) == len(batches.dataset)  # type: ignore[arg-type]
    return is_of_all or isinstance(sampler, DistributedSampler)


def _exchange(
    features: list[Tensor],
    labels: list[Tensor],
    numbers: list[Tensor],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Put the batches of all processes in order; a process may have none."""
    rows = sum(map(len, features))
    width = features[0].shape[1] if features else 0
    is_double = bool(features) and features[0].dtype == torch.float64
    counts = shared_counts([rows, width, is_double], device)
    sizes = [count[0] for count in counts]
    if not sum(sizes):
        raise _no_batch()
    dtype = torch.float64 if any(count[2] for count in counts) else torch.float32
    width = max(count[1] for count in counts)
    own = torch.cat([torch.empty(0, width, dtype=dtype), *features])
    features.clear()
    none = torch.empty(0, dtype=torch.int64)
    about = torch.stack([torch.cat([none, *labels]), torch.cat([none, *numbers])], dim=1)
    all_labels, all_numbers = gather(about.to(device), sizes).cpu().unbind(1)
    order = all_numbers.argsort(stable=True)
    place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    places = torch.split(place, sizes)
    answer = own.new_empty(len(order), width)
    for start in range(0, max(sizes), _ROWS_EXCHANGED):
        part = slice(start, start + _ROWS_EXCHANGED)
        found = gather(own[part].to(device), [len(each[part]) for each in places])
        answer[torch.cat([each[part] for each in places])] = found.cpu()
    return answer, all_labels[order]


def refuse_views(images: Any) -> None:
    """Refuse what stands in a batch in place of the images.

    Raises:
        TypeError: If it is not a tensor.
    """
    if not isinstance(images, Tensor):
        raise TypeError(
            "batches must hold (images, labels) with one tensor of images, got a "
            f"{type(images).__name__}. Views are for training: give a loader without them."
        )


def _no_batch() -> ValueError:
    return ValueError("batches must hold at least one batch, got none.")
