"""The only file that talks to other processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def world_size() -> int:
    """Count the processes of the default group; 1 if there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(tensor: Tensor) -> Tensor:
    """Concatenate a tensor over all processes in the order of their ranks, with gradient.

    The backward is the *sum* over the ranks of the gradients that arrive for a row. If every rank
    computes the same loss of the whole batch, averaging the gradients of the parameters over the
    ranks, as ``DistributedDataParallel`` does, then gives the gradient of that loss. All ranks must
    call it, with equal shapes but for the first dimension.

    Args:
        tensor: This rank's rows, shape ``(rows, ...)``.

    Returns:
        All rows, shape ``(sum of the ranks' rows, ...)``; the tensor itself for one process.
    """
    if world_size() == 1:
        return tensor
    gathered: Tensor = _Gather.apply(tensor)
    return gathered


class _Gather(torch.autograd.Function):
    """Gather of unequal sizes: pads to the largest, so that every backend can do it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        own = torch.tensor([len(tensor)], device=tensor.device)
        counts = [torch.empty_like(own) for _ in range(world_size())]
        dist.all_gather(counts, own)
        sizes = torch.cat(counts).tolist()
        ctx.sizes = sizes
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        start: int = sum(ctx.sizes[: dist.get_rank()])
        return total[start : start + ctx.sizes[dist.get_rank()]]
