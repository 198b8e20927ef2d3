"""Embeddings as unit vectors."""

from typing import Any

import torch
from torch import Tensor

from weince_lightning.functional.tracing import is_transformed

MIN_NORM = 1e-6
"""A row whose norm is below this counts as the zero vector, dimensionless."""


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
    if is_transformed():  # torch.func takes no function with a backward of its own
        return _scale(embeddings)[0]
    unit: Tensor = _UnitVectors.apply(embeddings)
    return unit


def _scale(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit vectors and one over the length of each row, 0 where that counts as zero."""
    # In double precision the squares of single precision neither overflow nor vanish. MPS lacks it.
    dtype = embeddings.dtype if embeddings.device.type == "mps" else torch.float64
    length = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True, dtype=dtype)
    inverse = torch.threshold(length, MIN_NORM, torch.inf).reciprocal().to(embeddings.dtype)
    return embeddings * inverse, inverse


class _UnitVectors(torch.autograd.Function):
    """With its own backward, of fewer operations: they are what a small batch costs."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        unit, inverse = _scale(embeddings)
        ctx.save_for_backward(embeddings, unit, inverse)
        return unit

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        embeddings, unit, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative both depend on the embeddings
            unit, inverse = _scale(embeddings)
        along = (unit * gradient).sum(dim=-1, keepdim=True)
        across = torch.addcmul(gradient, unit, along, value=-1)
        return torch.mul(across, inverse)
