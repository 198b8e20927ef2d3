"""The Weibull shape of each anchor's logits."""

import torch
from torch import Tensor

from weince_lightning.functional.tails import TailFit


def batch_shape(beta_hat: Tensor, r_squared: Tensor) -> Tensor:
    r"""Average :math:`\hat\beta` over all anchors, weighted by :math:`R^2`.

    Args:
        beta_hat: Slopes of all anchors, shape ``(anchors,)``.
        r_squared: Fits of their lines, same shape.

    Returns:
        :math:`\beta_0`, a scalar; 0 if no anchor has evidence.
    """
    least = torch.finfo(r_squared.dtype).tiny
    return r_squared.dot(beta_hat) / r_squared.sum().clamp_min(least)


def tail_shape(
    fit: TailFit,
    target: float | Tensor,
    shrinkage: float = 100.0,
    r2_min: float = 0.2,
    minimum: float = 0.5,
    maximum: float = 16.0,
) -> Tensor:
    r"""Shrink each anchor's estimate towards a target, the more the worse its line fits.

    .. math:: \beta_i = \mathrm{clamp}(w_i \hat\beta_i + (1 - w_i) \beta_0), \quad
              w_i = \frac{n_i R^2_i}{n_i R^2_i + c}

    Args:
        fit: Tail evidence of the anchors.
        target: :math:`\beta_0`, a number or scalar.
        shrinkage: :math:`c`, in points: at ``n R^2 = c`` both count the same.
        r2_min: Below this :math:`R^2` an estimate does not count.
        minimum: Smallest shape.
        maximum: Largest shape.

    Returns:
        :math:`\beta`, shape ``(anchors,)``, in ``[minimum, maximum]``.

    Example:
        >>> import torch
        >>> fit = TailFit(*torch.tensor([[2.0], [1.0], [0.0], [0.1], [100.0]]))
        >>> tail_shape(fit, target=4.0)
        tensor([3.])
    """
    evidence = fit.num_points * fit.r_squared
    # Without shrinkage no evidence would have the weight 0 / 0.
    weight = evidence / (evidence + max(shrinkage, torch.finfo(evidence.dtype).tiny))
    weight.masked_fill_((fit.r_squared < r2_min).logical_or_(fit.beta_hat <= 0), 0.0)
    return torch.lerp(torch.as_tensor(target).to(fit.beta_hat), fit.beta_hat, weight).clamp(
        minimum, maximum
    )


def running_shape(running: Tensor, beta: Tensor, r_squared: Tensor) -> Tensor:
    r"""Move the pooled :math:`\beta` a tenth of the way, where the batch's line fits well.

    Args:
        running: The value so far, a scalar.
        beta: The batch's pooled slope, a scalar.
        r_squared: The fit of its line, a scalar; below 0.85 nothing moves.

    Returns:
        ``0.9 * running + 0.1 * clamp(beta, 0.5, 16)`` or ``running``, a scalar.

    Example:
        >>> import torch
        >>> running_shape(torch.tensor(4.0), torch.tensor(6.0), torch.tensor(0.9))
        tensor(4.2000)
    """
    moved = 0.9 * running + 0.1 * beta.to(running).clamp(0.5, 16.0)
    return moved.where(r_squared.to(running) >= 0.85, running)
