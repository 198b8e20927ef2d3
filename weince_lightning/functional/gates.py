"""How far each anchor leaves the softmax: the gate."""

from typing import Literal

import torch
from torch import Tensor

from weince_lightning.functional.tails import TailFit, has_numbers, smallest

Signals = Literal["both", "rho", "aic"]


def reference_hardness(rho: Tensor, quantile: float) -> Tensor:
    r"""Take the hardness that the gate measures others against, a quantile over all anchors.

    Args:
        rho: Hardness :math:`\rho` of all anchors, shape ``(anchors,)``.
        quantile: Which, in ``[0, 1]``; 0.2 opens the gate for the hardest fifth.

    Returns:
        :math:`\rho_0`, a scalar: the sorted value at index ``round(quantile * (anchors - 1))``.

    Example:
        >>> import torch
        >>> reference_hardness(torch.tensor([0.4, 0.1, 0.3, 0.2, 0.5, 0.6]), 0.2)
        tensor(0.2000)
    """
    place = round(quantile * (len(rho) - 1))
    if has_numbers(rho):
        return smallest(rho[None].clone(), place + 1)[0, place]
    return rho.kthvalue(place + 1).values


def tail_gate(
    fit: TailFit,
    rho0: Tensor,
    kappa_rho: float = 10.0,
    kappa_aic: float = 1.0,
    aic_margin: float = 2.0,
    signals: Signals = "both",
    hard: bool = False,
) -> Tensor:
    r"""Open the gate for anchors with hard negatives and a Weibull-like tail.

    .. math:: \lambda_i = \sigma(\kappa_\rho (\log \rho_0 - \log \rho_i))\,
              \sigma(\kappa_{AIC} (\Delta AIC_i - m))

    Args:
        fit: Tail evidence of the anchors.
        rho0: Reference hardness :math:`\rho_0`, a scalar.
        kappa_rho: Steepness in :math:`\log \rho`, dimensionless.
        kappa_aic: Steepness in :math:`\Delta` AIC, dimensionless.
        aic_margin: :math:`\Delta` AIC at which its factor is one half.
        signals: Which factors count: "both", "rho" or "aic".
        hard: Take 1 where :math:`\rho_i \le \rho_0`, up to rounding, and
            :math:`\Delta AIC_i \ge m`, else 0.

    Returns:
        :math:`\lambda`, shape ``(anchors,)``, in ``[0, 1]``; 0 where the evidence is absent.

    References:
        Erol et al., ICML 2026, arXiv:2606.00262.
    """
    if hard:
        # Two anchors that are each other's hardest negative have one hardness, but 1 - s rounds on
        # its own in each row: without the slack, order and process would decide who is in.
        slack = 4 * torch.finfo(rho0.dtype).eps
        by_rho, by_aic = fit.rho <= rho0 + slack, fit.delta_aic >= aic_margin
    else:
        by_rho = (rho0 / fit.rho).log_().mul_(kappa_rho).sigmoid_()
        # kappa * delta - kappa * margin
        scaled = torch.rsub(fit.delta_aic, -kappa_aic * aic_margin, alpha=-kappa_aic)
        by_aic = scaled.sigmoid_()
    gate = {"both": by_rho * by_aic, "rho": by_rho, "aic": by_aic}[signals]
    return gate.to(fit.rho.dtype).masked_fill_(fit.num_points < 2, 0.0)
