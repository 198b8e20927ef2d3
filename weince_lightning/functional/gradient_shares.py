"""Which negatives the gradient falls on: the share of the hardest."""

from collections.abc import Sequence

import torch
from torch import Tensor

from weince_lightning.functional.candidates import Scores
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.links import SHORTFALL_FLOOR, shortfall


def gradient_shares(
    scores: Scores,
    blend: Blend,
    temperature: float | Tensor,
    hardest: Sequence[float] | Tensor = (0.01, 0.05, 0.1),
) -> Tensor:
    r"""Compute which part of an anchor's gradient its hardest negatives get.

    With :math:`L_i` the cross-entropy of the blended logits
    :math:`\ell_{ij} = a_i s_{ij} / \tau - b_i \log \delta_{ij}` and the negatives sorted from the
    most similar one,

    .. math:: \frac{\sum_{j \le m} |\partial L_i / \partial s_{ij}|}
                   {\sum_j |\partial L_i / \partial s_{ij}|}, \qquad
              \left|\frac{\partial L_i}{\partial s_{ij}}\right| \propto
              e^{\ell_{ij}} \left(\frac{a_i}{\tau} + \frac{b_i}{\delta_{ij}}\right)

    The positive changes all gradients of an anchor by one factor, and so none of the shares. The
    second addend is 0 where the floor of the shortfall holds.

    Args:
        scores: Similarities of a group.
        blend: The logits: :math:`a = 1` without :math:`b` is the softmax, :math:`a = 0` and
            :math:`b = \beta` the Weibit, :math:`1 - \lambda` and :math:`\lambda \beta` WEINCE.
        temperature: Positive, dimensionless.
        hardest: How many negatives count as the hardest, for each share that is wanted: a float in
            ``(0, 1]`` is a fraction of the anchor's negatives (rounded half to even, at least one),
            an int a number of them, at least 1. Or numbers of each anchor's own: integers of shape
            ``(anchors, shares)``, at least 1, which is not checked.

    Returns:
        Shape ``(anchors, shares)``, in ``[0, 1]``; 0 where no negative has a gradient, as for an
        anchor without negatives.

    Raises:
        TypeError: If ``hardest`` holds anything but numbers, or a tensor that is not of integers.
        ValueError: If a number is out of its range, or there is not one row for each anchor.

    Example:
        >>> scores = Scores(torch.tensor([[0.9, 0.75, 0.5, 0.0]]), torch.tensor([[0]]), 3)
        >>> weibit = Blend(torch.zeros(1), torch.ones(1))
        >>> gradient_shares(scores, weibit, 0.5, hardest=(1, 2, 1.0))  # of 16, 4 and 1
        tensor([[0.7619, 0.9524, 1.0000]])
    """
    counts = _counts(scores, hardest)
    similarity = scores.similarity.detach().clone()
    similarity = scores.fill_excluded_(similarity, -torch.inf).sort(dim=1, descending=True).values
    is_absent = similarity.isneginf()
    gradient = _log_gradient(similarity.masked_fill_(is_absent, 0.0), blend, temperature)
    gradient.masked_fill_(is_absent, -torch.inf)
    # Relative to the largest one: a Weibit's logits span more than the type's smallest number.
    largest = gradient.amax(dim=1, keepdim=True).clamp_min_(torch.finfo(gradient.dtype).min)
    accumulated = gradient.sub_(largest).exp_().cumsum(dim=1)
    total = accumulated[:, -1:]
    found = accumulated.gather(1, counts.clamp(1, accumulated.shape[1]) - 1)
    return found / total.clamp_min(torch.finfo(total.dtype).tiny)


def _log_gradient(similarity: Tensor, blend: Blend, temperature: float | Tensor) -> Tensor:
    """Logarithm of the absolute derivatives, up to a number of each anchor's own."""
    slope = (blend.softmax / temperature)[:, None].detach()
    if blend.weibull is None:
        return slope * similarity + slope.log()
    power, delta = blend.weibull[:, None], shortfall(similarity)
    rate = (power / delta).masked_fill_(delta <= SHORTFALL_FLOOR, 0.0).add_(slope)
    return slope * similarity - power * delta.log() + rate.log_()


def _counts(scores: Scores, hardest: Sequence[float] | Tensor) -> Tensor:
    """Number of the hardest negatives for each anchor and share, shape ``(anchors, shares)``."""
    anchors, device = len(scores.similarity), scores.similarity.device
    if isinstance(hardest, Tensor):
        if hardest.is_floating_point() or hardest.is_complex() or hardest.dtype == torch.bool:
            raise TypeError(f"hardest must hold integers if it is a tensor, got {hardest.dtype}.")
        if hardest.ndim != 2 or len(hardest) != anchors:
            raise ValueError(
                f"hardest must have shape ({anchors}, shares) if it is a tensor, a row for each "
                f"anchor, got {tuple(hardest.shape)}."
            )
        return hardest.to(device, torch.int64)
    columns = [_count(scores, part).expand(anchors) for part in hardest]
    if not columns:
        return torch.empty(anchors, 0, dtype=torch.int64, device=device)
    return torch.stack(columns, dim=1)


def _count(scores: Scores, part: float) -> Tensor:
    """How many negatives a fraction or a number is, for each anchor or once for all."""
    if isinstance(part, bool) or not isinstance(part, (int, float)):
        raise TypeError(f"hardest must hold numbers, got {part!r}.")
    device = scores.similarity.device
    if isinstance(part, int):
        if part < 1:
            raise ValueError(f"hardest must hold ints of at least 1, got {part}.")
        return torch.tensor(part, device=device)
    if not 0 < part <= 1:
        raise ValueError(f"hardest must hold floats in (0, 1], got {part}.")
    # On the CPU: not every device has float64, and float32 would round some halves otherwise.
    numbers = torch.arange(scores.max_negatives + 1, dtype=torch.float64)
    counts = (part * numbers).round_().clamp_min_(1).to(torch.int64).to(device)
    return counts[-1] if scores.num_negatives is None else counts[scores.num_negatives]
