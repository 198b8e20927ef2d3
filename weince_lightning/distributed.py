"""Exchange with other processes: the only user of ``torch.distributed``."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def world_size() -> int:
    """Count the processes of the default group; 1 if there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the place of this process in the default group; 0 if there is none."""
    return dist.get_rank() if world_size() > 1 else 0


def shared_counts(counts: Sequence[int], device: torch.device) -> list[list[int]]:
    """Tell every process the counts of each, in the order of the ranks.

    Args:
        counts: Counts of this process, as many as the others have.
        device: Where the processes exchange; the answer is read by the host.
    """
    if world_size() == 1:
        return [list(counts)]
    own = torch.tensor(counts, device=device)
    found = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(found, own)
    answer: list[list[int]] = torch.stack(found).tolist()
    return answer


def row_counts(rows: int, device: torch.device) -> list[int]:
    """Tell every process how many rows each has; see :func:`shared_counts`."""
    return [count for (count,) in shared_counts([rows], device)]


def gather(tensor: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    """Concatenate a tensor over all processes in the order of their ranks, with gradient.

    The backward is the *sum* over the ranks of the gradients that arrive for a row: right where the
    gradients of the parameters are then averaged over the ranks, as ``DistributedDataParallel``
    does, and each rank's loss is its share of the sum times the number of ranks. All ranks must
    call it, with equal shapes but for the first dimension.

    Args:
        tensor: This rank's rows, shape ``(rows, ...)``.
        sizes: Rows of each rank where they are known, see :func:`row_counts`; spares an exchange.

    Returns:
        All rows, shape ``(sum of the ranks' rows, ...)``; the tensor itself for one process.
    """
    if world_size() == 1:
        return tensor
    if sizes is None:
        sizes = row_counts(len(tensor), tensor.device)
    gathered: Tensor = _Gather.apply(tensor, sizes)
    return gathered


class _Gather(torch.autograd.Function):
    """Gather of unequal sizes: pads to the largest, so that every backend can do it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        ctx.sizes = sizes
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        start = sum(ctx.sizes[: rank()])
        return total[start : start + ctx.sizes[rank()]], None
