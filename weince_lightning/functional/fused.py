"""Cross-entropy of blended logits and its derivatives in one pass, without autograd.

The definitions are those of ``contrastive.py``; here they take the fewest passes over the
similarities.

Shapes, for the A anchors of a block and their C candidates (per-anchor negatives included)::

    similarity, logits, exp_logits, delta     (A, C)   delta is the shortfall
    softmax_rate, weibull_power               (A, 1)   a / temperature, and b
    log_odds, probability, total              (A, 1)   of all negatives together
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
        scores: Similarities of a group; overwritten.
        blend: The logits.
        temperature: Positive, dimensionless.
        scratch: The thread's memory.
        with_similarity: Whether to compute the derivatives.
        with_temperature: Whether to compute that of the temperature too.

    Returns:
        The same as :func:`~weince_lightning.functional.contrastive.cross_entropy` of the logits.
    """
    logits, softmax_rate, weibull_power, delta = _blended(
        scores, blend, temperature, scratch, with_temperature
    )
    if scores.is_labelled:
        losses, of_logits = _several_positives(scores, logits, scratch, with_similarity)
        if of_logits is None:
            return Derivatives(losses)
        of_temperature = None
        if with_temperature:
            expected = (of_logits * scores.similarity).sum(dim=1, keepdim=True)
            of_temperature = -(softmax_rate / temperature * expected).sum()
        rate = softmax_rate
        if delta is not None and weibull_power is not None:
            rate = torch.div(weibull_power, _drop_clamped_gradient(delta), out=delta).add_(
                softmax_rate
            )
        return Derivatives(losses, of_logits.mul_(rate), of_temperature)

    similarity, positive = scores.similarity, scores.positive
    positive_logit = logits.gather(1, positive)
    scores.fill_excluded_(logits, torch.finfo(logits.dtype).min / 2)
    largest = logits.amax(dim=1, keepdim=True)
    exp_logits = logits.sub_(largest).exp_()
    total = exp_logits.sum(dim=1, keepdim=True)
    # Log odds of all negatives together against the positive.
    log_odds = total.log().sub_(positive_logit.sub_(largest))
    # Above the threshold softplus is its argument, to the last bit.
    losses = softplus(log_odds, threshold=50).squeeze(1)
    if not with_similarity:
        return Derivatives(losses)

    # The probability of all negatives together, and that of one negative per unit of exp_logits.
    probability = log_odds.sigmoid()
    probability_per_exp = probability / total
    of_temperature = None
    if with_temperature:
        negatives = probability_per_exp * (exp_logits * similarity).sum(dim=1, keepdim=True)
        expected = negatives - probability * similarity.gather(1, positive)
        of_temperature = -(softmax_rate / temperature * expected).sum()
    rate, positive_rate = softmax_rate * probability_per_exp, softmax_rate
    if delta is not None and weibull_power is not None:
        _drop_clamped_gradient(delta)
        positive_rate = torch.addcdiv(softmax_rate, weibull_power, delta.gather(1, positive))
        rate = torch.div(weibull_power * probability_per_exp, delta, out=delta).add_(rate)
    of_positive = (probability * positive_rate).neg_()
    of_similarity = exp_logits.mul_(rate).scatter_(1, positive, of_positive)
    return Derivatives(losses, of_similarity, of_temperature)


def _blended(
    scores: Scores,
    blend: Blend,
    temperature: float | Tensor,
    scratch: Scratch,
    keep_similarity: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    r"""Compute logits, in the memory of the similarities unless those must be kept.

    Returns:
        The logits, the columns :math:`a / \tau` and :math:`b`, and the shortfalls; the last two
        are None without :math:`b`.
    """
    similarity = scores.similarity
    softmax_rate = (blend.softmax / temperature)[:, None]
    weibull_power = delta = None
    if blend.weibull is not None:
        weibull_power = blend.weibull[:, None]
        delta = scratch.take("spare", similarity.shape, similarity)
        torch.sub(similarity.new_ones(()), similarity, out=delta).clamp_min_(SHORTFALL_FLOOR)
    logits = similarity.clone() if keep_similarity else similarity
    logits *= softmax_rate
    if delta is not None and weibull_power is not None:
        logs = torch.log(delta, out=scratch.take("logs", similarity.shape, similarity))
        logits.addcmul_(logs, weibull_power, value=-1)
    return logits, softmax_rate, weibull_power, delta


def _drop_clamped_gradient(delta: Tensor) -> Tensor:
    """Set clamped shortfalls to infinity, in place: ``weibull_power / delta`` is 0 there."""
    return torch.threshold_(delta, SHORTFALL_FLOOR, torch.inf)


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
    target = scratch.take("logs", logits.shape, logits).copy_(scores.positives)
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
