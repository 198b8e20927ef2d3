"""How sharply any contrastive loss looks at the hardest negative, as the temperature of InfoNCE."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weince_lightning.checks import check_number
from weince_lightning.functional.vectors import unit_vectors

Loss = Callable[[Tensor, Tensor], Tensor]

_RIDGE = 1e-9
"""Added to the similarities' matrix so that it has full rank; far below any shortfall that counts,
and far above the rounding of float64."""
_TEMPERATURES = 1e-3, 1e2
"""Between them the effective temperature is looked for."""


class Sharpness(NamedTuple):
    """How the pull on the embeddings is shared among the negatives of an anchor, on average."""

    effective_temperature: float
    """Temperature at which InfoNCE gives the hardest negative the same share, dimensionless."""
    hardest: float
    """Share of the hardest negative, in ``[0, 1]``."""
    shares: list[float]
    """Shares of the hardest parts of the negatives that were asked for, in ``[0, 1]``."""


def sharpness(
    loss: Loss, z0: Tensor, z1: Tensor, parts: Sequence[float] = (0.01, 0.05, 0.1)
) -> Sharpness:
    r"""Measure how much of the gradient goes to the hardest negatives, whatever the loss is.

    The gradient of a loss :math:`L` that depends on the cosine similarities alone moves the
    embedding :math:`u_i` by :math:`-\sum_j h_{ij} u_j`, where :math:`h_{ij} = h_{ji}` is the
    derivative of :math:`L` by the similarity of the pair. The share of the hardest negative is
    its part of :math:`\sum_j h_{ij}` over the negatives of :math:`i`, averaged over all ``i``;
    the **effective temperature** is that of the InfoNCE loss which gives it the same share on the
    same embeddings. A loss that differs from another one by this number alone is a temperature in
    disguise.

    Args:
        loss: Maps projections ``(z0, z1)`` of two views to a scalar: ours, lightly's or any other
            that reads nothing but cosine similarities, with all other embeddings as negatives.
        z0: Projections of the first view, shape ``(samples, features)``, at least 2 samples.
        z1: Projections of the second view, same shape.
        parts: Fractions of the negatives, from the hardest, in ``(0, 1]``.

    Returns:
        Plain numbers, computed in float64. Shares, and with them the comparison of two losses, are
        of one number of negatives: compare losses on batches of one size. Where even the smallest
        or largest temperature would not do (the hardest negative takes all, or all are alike), the
        effective temperature is 0 or infinite. Below about 0.02 it is not exact: most of the
        gradient vanishes there.

    Raises:
        ValueError: If embeddings are not finite or have no direction, a part is out of its range,
            or the loss does not push negatives apart.

    Example:
        >>> from lightly.loss import NTXentLoss
        >>> _ = torch.manual_seed(0)
        >>> z0, z1 = torch.randn(2, 32, 8)
        >>> round(sharpness(NTXentLoss(temperature=0.2), z0, z1).effective_temperature, 6)
        0.2
    """
    for part in parts:
        check_number("parts", part, above=0.0, at_most=1.0, condition="lie in (0, 1]")
    similarity, gradient = pair_gradients(loss, z0, z1)
    samples = len(z0)
    both = torch.arange(2 * samples, device=z0.device)
    is_negative = torch.ones_like(similarity, dtype=torch.bool)
    is_negative[both, both] = False
    is_negative[both, both.roll(samples)] = False
    order = similarity.masked_fill(~is_negative, -torch.inf).argsort(dim=1, descending=True)
    order = order[:, : 2 * samples - 2]

    def found(pull: Tensor) -> Tensor:
        """Mean share of the hardest 1, 2, ... negatives."""
        ascending = pull.clamp_min(0.0).gather(1, order).cumsum(dim=1)
        return (ascending / ascending[:, -1:].clamp_min(torch.finfo(pull.dtype).tiny)).mean(dim=0)

    def of_softmax(temperature: float) -> Tensor:
        logits = (similarity / temperature).fill_diagonal_(-torch.inf)
        weights = logits.softmax(dim=1)
        return found(weights + weights.T)

    pull = gradient.where(is_negative, 0.0)
    # The rounding of what a loss of the positives alone leaves is far below this.
    if pull.sum() <= 1e-6 * gradient.where(~is_negative, 0.0).fill_diagonal_(0.0).abs().sum():
        raise ValueError(
            "loss must push negatives apart, got one whose gradient by their similarities is not "
            "positive in sum."
        )
    shares = found(gradient)
    counts = [max(1, round(part * len(shares))) for part in parts]
    return Sharpness(
        _solve(lambda temperature: float(of_softmax(temperature)[0]), float(shares[0])),
        float(shares[0]),
        [float(shares[count - 1]) for count in counts],
    )


def pair_gradients(loss: Loss, z0: Tensor, z1: Tensor) -> tuple[Tensor, Tensor]:
    r"""Differentiate a loss by the cosine similarity of each pair, without looking into it.

    In a space of as many dimensions as there are embeddings, the same similarities are those of
    linearly independent vectors :math:`v_i` (the rows of a Cholesky factor), and the derivative by
    :math:`v_i`, which autograd gives, is one combination of the others alone:
    :math:`\partial L / \partial v_i = \sum_{j \ne i} h_{ij} v_j - (\ldots) v_i`.

    Args:
        loss: See :func:`sharpness`.
        z0: Projections of the first view, shape ``(samples, features)``.
        z1: Projections of the second view, same shape.

    Returns:
        Cosine similarities of all embeddings in the order ``[z0; z1]``, and the derivatives by
        them: both symmetric, shape ``(2 * samples, 2 * samples)``, float64. Diagonals mean nothing.

    Example:
        >>> _, gradient = pair_gradients(lambda z0, z1: 3 * (z0 * z1).sum(), *torch.eye(6).chunk(2))
        >>> gradient[:3, 3:].round().abs()
        tensor([[3., 0., 0.],
                [0., 3., 0.],
                [0., 0., 3.]], dtype=torch.float64)
    """
    both = torch.cat([z0, z1]).detach().to(torch.float64)
    if not both.isfinite().all():
        raise ValueError("z0 and z1 must be finite, got NaN or infinity.")
    unit = unit_vectors(both)
    if (unit == 0).all(dim=1).any():
        raise ValueError("z0 and z1 must have a direction in each row, got a row of zeros.")
    similarity = unit @ unit.T
    ridge = _RIDGE * torch.eye(len(unit), dtype=unit.dtype, device=unit.device)
    vectors = torch.linalg.cholesky(similarity + ridge)
    with torch.enable_grad():
        leaf = vectors.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf[: len(z0)], leaf[len(z0) :]), leaf)
    pairs = torch.linalg.solve_triangular(vectors, gradient, upper=False, left=False)
    return similarity, pairs


def _solve(share: Callable[[float], float], wanted: float) -> float:
    """Find the temperature of a share by bisection of its logarithm: the share falls with it."""
    low, high = map(math.log, _TEMPERATURES)
    if share(math.exp(low)) <= wanted * (1 + 1e-9):
        return 0.0
    if share(math.exp(high)) >= wanted * (1 - 1e-9):
        return math.inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if share(math.exp(middle)) > wanted else (low, middle)
    return math.exp((low + high) / 2)
