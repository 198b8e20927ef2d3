"""Cross-entropy of blended logits and its derivatives in one pass, without autograd.

The definitions are those of ``contrastive.py``; here they take the fewest passes over the
similarities.

Shapes, for the A anchors of a block and their C candidates (per-anchor negatives included)::

    similarity, logits, shares, delta         (A, C)   delta is the shortfall
    softmax_rate, weibull_power               (A, 1)   a / temperature, and b
    log_odds, probability                     (A, 1)   of all negatives together
    losses                                    (A,)
    of_similarity                             (A, C)   derivatives of the sum of the losses
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from weince_lightning.functional.candidates import Scores
from weince_lightning.functional.links import SHORTFALL_FLOOR
from weince_lightning.functional.threads import Scratch


class Blend(NamedTuple):
    r"""Logits :math:`a_i s_{ij} / \tau - b_i \log \delta_{ij}` of some anchors."""

    softmax: Tensor
    """:math:`a`, shape ``(anchors,)``; not negative."""
    weibull: Tensor | None = None
    """:math:`b`, same shape; not negative. None is 0."""

    def select(self, rows: slice) -> "Blend":
        """Keep some of the anchors."""
        return Blend(self.softmax[rows], None if self.weibull is None else self.weibull[rows])


class Derivatives(NamedTuple):
    """Losses of some anchors and the derivatives of their sum."""

    losses: Tensor
    """In nats, shape ``(anchors,)``."""
    of_similarity: Tensor | None = None
    """Shape ``(anchors, candidates)``; None if not requested."""
    of_temperature: Tensor | None = None
    """A scalar; None if not requested."""


def differentiate(
    scores: Scores,
    blend: Blend,
    temperature: float | Tensor,
    scratch: Scratch,
    with_similarity: bool,
    with_temperature: bool,
) -> Derivatives:
    """Compute the cross-entropies of blended logits, and their derivatives on request.

    Args:
        scores: Similarities of a group.
        blend: The logits.
        temperature: Positive, dimensionless.
        scratch: The thread's memory.
        with_similarity: Whether to compute the derivatives.
        with_temperature: Whether to compute that of the temperature too.

    Returns:
        The same as :func:`~weince_lightning.functional.contrastive.cross_entropy` of the logits.
    """
    logits, softmax_rate, weibull_power, delta = _blended(scores, blend, temperature, scratch)
    similarity, positive = scores.similarity, scores.positive
    if scores.is_labelled:
        losses, of_logits = _several_positives(scores, logits, scratch, with_similarity)
        if of_logits is None:
            return Derivatives(losses)
        of_temperature = None
        if with_temperature:
            expected = (of_logits * similarity).sum(dim=1, keepdim=True)
            of_temperature = -(softmax_rate / temperature * expected).sum()
        rate = _rate(softmax_rate, weibull_power, delta)
        return Derivatives(losses, of_logits.mul_(rate), of_temperature)

    positive_logit = logits.gather(1, positive)
    scores.fill_excluded_(logits, torch.finfo(logits.dtype).min / 2)
    largest = logits.amax(dim=1, keepdim=True)
    # Of a negative among the negatives; the largest is one over the sum of exp(logit - largest).
    shares = torch.softmax(logits, dim=1, out=scratch.take("shares", logits.shape, logits))
    # Log odds of all negatives together against the positive.
    log_odds = (largest - positive_logit).sub_(shares.amax(dim=1, keepdim=True).log_())
    # Above the threshold softplus is its argument, to the last bit.
    losses = softplus(log_odds, threshold=50).squeeze(1)
    if not with_similarity:
        return Derivatives(losses)

    probability = log_odds.sigmoid_()  # of all negatives together
    of_temperature = None
    if with_temperature:
        mean = torch.linalg.vecdot(shares, similarity)[:, None]
        expected = probability * (mean - similarity.gather(1, positive))
        of_temperature = -(softmax_rate / temperature * expected).sum()
    softmax_rate *= probability
    if weibull_power is not None:
        weibull_power = weibull_power * probability
    # The positive's share of the derivative is all of it, with the other sign.
    of_similarity = shares.scatter_(1, positive, -1.0)
    of_similarity *= _rate(softmax_rate, weibull_power, delta)
    return Derivatives(losses, of_similarity, of_temperature)


def _blended(
    scores: Scores, blend: Blend, temperature: float | Tensor, scratch: Scratch
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    r"""Compute logits in memory of their own.

    Returns:
        The logits, the columns :math:`a / \tau` and :math:`b`, and the shortfalls; the last two
        are None without :math:`b`.
    """
    similarity = scores.similarity
    softmax_rate = (blend.softmax / temperature)[:, None]
    logits = scratch.take("logits", similarity.shape, similarity)
    if blend.weibull is None:
        return torch.mul(similarity, softmax_rate, out=logits), softmax_rate, None, None
    weibull_power = blend.weibull[:, None]
    delta = scratch.take("spare", similarity.shape, similarity)
    torch.sub(similarity.new_ones(()), similarity, out=delta).clamp_min_(SHORTFALL_FLOOR)
    if delta.is_cpu:  # there one operation for both takes three times as long
        torch.log(delta, out=logits).mul_(-weibull_power)
    else:
        torch.xlogy(-weibull_power, delta, out=logits)
    logits.addcmul_(similarity, softmax_rate)
    return logits, softmax_rate, weibull_power, delta


def _rate(softmax_rate: Tensor, weibull_power: Tensor | None, delta: Tensor | None) -> Tensor:
    """Derivative of the logits by the similarities, in the memory of the shortfalls."""
    if delta is None or weibull_power is None:
        return softmax_rate
    torch.threshold_(delta, SHORTFALL_FLOOR, torch.inf)  # a clamped shortfall has no derivative
    if delta.is_cpu:  # there one operation for both takes four times as long
        return torch.div(weibull_power, delta, out=delta).add_(softmax_rate)
    return torch.addcdiv(softmax_rate, weibull_power, delta, out=delta)


def _several_positives(
    scores: Scores, logits: Tensor, scratch: Scratch, with_derivatives: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the losses of labelled anchors, and the derivatives of their sum by the logits.

    See :func:`~weince_lightning.functional.contrastive.supervised_cross_entropy`.

    Args:
        scores: Similarities of a group of labelled anchors.
        logits: Of the group; overwritten.
        scratch: The thread's memory.
        with_derivatives: Whether to compute them.
    """
    target = scratch.take("shares", logits.shape, logits).copy_(scores.positives)
    count = target.sum(dim=1, keepdim=True)
    target /= count.clamp_min(1)
    logits.scatter_(1, scores.excluded_columns, torch.finfo(logits.dtype).min / 2)
    mean = torch.linalg.vecdot(logits, target)
    largest = logits.amax(dim=1, keepdim=True)
    exp_logits = logits.sub_(largest).exp_()
    total = exp_logits.sum(dim=1, keepdim=True)
    has_positive = count > 0
    losses = (total.log() + largest - mean[:, None]).where(has_positive, 0.0).squeeze(1)
    if not with_derivatives:
        return losses, None
    return losses, exp_logits.mul_(has_positive / total).sub_(target)
