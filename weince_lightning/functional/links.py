"""From a cosine similarity to a logit: one link for each kind of tail.

A link is increasing in the similarity; the loss is the cross-entropy of its logits.
"""

from torch import Tensor

SHORTFALL_FLOOR = 1e-6
"""Smallest shortfall; it bounds the logits at similarity 1."""


def shortfall(similarity: Tensor) -> Tensor:
    r"""Distance to the endpoint, :math:`\delta = \max(1 - s, \varepsilon)`.

    Args:
        similarity: Cosine similarities :math:`s`, any shape, in ``[-1, 1]``.

    Returns:
        Shortfalls in ``[1e-6, 2]``, same shape and dtype. No gradient flows where the floor holds.

    Example:
        >>> import torch
        >>> shortfall(torch.tensor([0.25, 1.0]))
        tensor([7.5000e-01, 1.0000e-06])
    """
    return (1 - similarity).clamp_min_(SHORTFALL_FLOOR)


def softmax_logits(similarity: Tensor, temperature: float | Tensor) -> Tensor:
    r"""Link of a light, unbounded (Gumbel) tail: :math:`s / \tau`.

    Args:
        similarity: Cosine similarities :math:`s`, any shape, in ``[-1, 1]``.
        temperature: Temperature :math:`\tau > 0`, dimensionless; a 0-dim tensor gets a gradient.

    Returns:
        Logits in nats, same shape.

    Example:
        >>> import torch
        >>> softmax_logits(torch.tensor([0.5, -0.25]), temperature=0.5)
        tensor([ 1.0000, -0.5000])
    """
    return similarity / temperature


def weibit_logits(similarity: Tensor, beta: float | Tensor) -> Tensor:
    r"""Link of a bounded (Weibull) tail: :math:`-\beta \log \delta`.

    Args:
        similarity: Cosine similarities :math:`s`, any shape, in ``[-1, 1]``.
        beta: Shape :math:`\beta > 0`, dimensionless; a number or broadcastable.

    Returns:
        Logits in nats, same shape.

    Example:
        >>> import torch
        >>> weibit_logits(torch.tensor([0.5, 0.75]), beta=1.0)
        tensor([0.6931, 1.3863])
    """
    return -beta * shortfall(similarity).log()


def power_logits(similarity: Tensor, alpha: float) -> Tensor:
    r"""Link of a heavy (Fréchet) tail: :math:`\alpha \log(1 + s)`, with ``1 + s`` at least 1e-6.

    Args:
        similarity: Cosine similarities :math:`s`, any shape, in ``[-1, 1]``.
        alpha: Exponent :math:`\alpha > 0`, dimensionless.

    Returns:
        Logits in nats, same shape.

    Example:
        >>> import torch
        >>> power_logits(torch.tensor([0.0, 1.0]), alpha=2.0)
        tensor([0.0000, 1.3863])
    """
    return alpha * (1 + similarity).clamp_min(SHORTFALL_FLOOR).log()


def arctanh_logits(similarity: Tensor) -> Tensor:
    r"""Link without a temperature: :math:`2\,\mathrm{artanh}\, s = \log(1 + s) - \log(1 - s)`.

    Args:
        similarity: Cosine similarities :math:`s`, any shape, in ``[-1, 1]``; ``1 + s`` and
            ``1 - s`` are floored at 1e-6.

    Returns:
        Logits in nats, same shape.

    References:
        Kim et al., "Temperature-Free Loss Function for Contrastive Learning", arXiv:2501.17683.

    Example:
        >>> import torch
        >>> arctanh_logits(torch.tensor([0.0, 0.6]))
        tensor([0.0000, 1.3863])
    """
    return power_logits(similarity, alpha=1.0) + weibit_logits(similarity, beta=1.0)


def blend_logits(
    similarity: Tensor, gate: Tensor, shape: Tensor, temperature: float | Tensor
) -> Tensor:
    r"""Move each anchor's logits from the softmax towards the Weibull coordinate.

    .. math:: \ell_{ij} = (1 - \lambda_i)\, s_{ij} / \tau - \lambda_i \beta_i \log \delta_{ij}

    Args:
        similarity: Cosine similarities :math:`s`, shape ``(anchors, candidates)``.
        gate: Weights :math:`\lambda`, shape ``(anchors,)``, in ``[0, 1]``; 0 gives InfoNCE exactly.
        shape: Weibull shapes :math:`\beta`, shape ``(anchors,)``, positive, dimensionless.
        temperature: Softmax temperature :math:`\tau > 0`, dimensionless.

    Returns:
        Logits in nats, with the shape of ``similarity``.

    References:
        Erol et al., "When Softmax Fails at the Top: Extreme-Value Corrections for InfoNCE",
        ICML 2026, arXiv:2606.00262.

    Example:
        >>> import torch
        >>> blend_logits(torch.tensor([[0.5, 0.75]]), torch.ones(1), torch.ones(1), 0.5)
        tensor([[0.6931, 1.3863]])
    """
    weight = gate.unsqueeze(1)
    softmax = softmax_logits(similarity, temperature)
    return (1 - weight) * softmax + weight * weibit_logits(similarity, shape.unsqueeze(1))
