"""Cross-entropy of blended logits and its derivatives in one sweep, without autograd.

What the functions of ``contrastive.py`` say, in the fewest passes over the similarities.
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
    """Shape ``(anchors, candidates)``; None where not asked for."""
    of_temperature: Tensor | None = None
    """A scalar; None where not asked for."""


def differentiate(
    scores: Scores,
    blend: Blend,
    temperature: float | Tensor,
    scratch: Scratch,
    with_similarity: bool,
    with_temperature: bool,
) -> Derivatives:
    """Compute the cross-entropies of blended logits, and their derivatives where asked for.

    Args:
        scores: Similarities of a group; overwritten.
        blend: The logits.
        temperature: Positive, dimensionless.
        scratch: The thread's memory.
        with_similarity: Whether the derivatives are wanted.
        with_temperature: Whether that of the temperature is wanted too.

    Returns:
        The same as :func:`~weince_lightning.functional.contrastive.cross_entropy` of the logits.
    """
    logits, slope, power, delta = _blended(scores, blend, temperature, scratch, with_temperature)
    if scores.is_labelled:
        losses, of_logits = _several_positives(scores, logits, scratch, with_similarity)
        if of_logits is None:
            return Derivatives(losses)
        of_temperature = None
        if with_temperature:
            expected = (of_logits * scores.similarity).sum(dim=1, keepdim=True)
            of_temperature = -(slope / temperature * expected).sum()
        rate = slope
        if delta is not None and power is not None:
            rate = torch.div(power, _where_not_constant(delta), out=delta).add_(slope)
        return Derivatives(losses, of_logits.mul_(rate), of_temperature)

    similarity, positive = scores.similarity, scores.positive
    positive_logit = logits.gather(1, positive)
    scores.fill_others_(logits, torch.finfo(logits.dtype).min / 2)
    largest = logits.amax(dim=1, keepdim=True)
    weights = logits.sub_(largest).exp_()
    total = weights.sum(dim=1, keepdim=True)
    # Log odds of all negatives together against the positive.
    odds = total.log().sub_(positive_logit.sub_(largest))
    # Above the threshold softplus is its argument, to the last bit.
    losses = softplus(odds, threshold=50).squeeze(1)
    if not with_similarity:
        return Derivatives(losses)

    # The probability of all negatives together, and of one as a part of its weight.
    probability = odds.sigmoid()
    scale = probability / total
    of_temperature = None
    if with_temperature:
        negatives = scale * (weights * similarity).sum(dim=1, keepdim=True)
        expected = negatives - probability * similarity.gather(1, positive)
        of_temperature = -(slope / temperature * expected).sum()
    rate, positive_rate = slope * scale, slope
    if delta is not None and power is not None:
        _where_not_constant(delta)
        positive_rate = torch.addcdiv(slope, power, delta.gather(1, positive))
        rate = torch.div(power * scale, delta, out=delta).add_(rate)
    of_positive = (probability * positive_rate).neg_()
    of_similarity = weights.mul_(rate).scatter_(1, positive, of_positive)
    return Derivatives(losses, of_similarity, of_temperature)


def _blended(
    scores: Scores,
    blend: Blend,
    temperature: float | Tensor,
    scratch: Scratch,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    r"""Compute logits; in place of the similarities where those need not be kept.

    Returns:
        The logits, :math:`a / \tau` and :math:`b`, each a column, and the shortfalls; None where
        there is no :math:`b`.
    """
    similarity = scores.similarity
    slope = (blend.softmax / temperature)[:, None]
    power = delta = None
    if blend.weibull is not None:
        power = blend.weibull[:, None]
        delta = scratch.take("spare", similarity.shape, similarity)
        torch.sub(similarity.new_ones(()), similarity, out=delta).clamp_min_(SHORTFALL_FLOOR)
    logits = similarity.clone() if keep else similarity
    logits *= slope
    if delta is not None and power is not None:
        logs = torch.log(delta, out=scratch.take("logs", similarity.shape, similarity))
        logits.addcmul_(logs, power, value=-1)
    return logits, slope, power, delta


def _where_not_constant(delta: Tensor) -> Tensor:
    """Make the shortfall infinite where its floor holds: there it is a constant; in place."""
    return torch.threshold_(delta, SHORTFALL_FLOOR, torch.inf)


def _several_positives(
    scores: Scores, logits: Tensor, scratch: Scratch, with_derivatives: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the losses of labelled anchors, and the derivatives of their sum by the logits.

    See :func:`~weince_lightning.functional.contrastive.supervised_cross_entropy`.

    Args:
        scores: Which columns are positives.
        logits: Of the group; overwritten.
        scratch: The thread's memory.
        with_derivatives: Whether these are wanted.
    """
    target = scratch.take("logs", logits.shape, logits).copy_(scores.positives)
    count = target.sum(dim=1, keepdim=True)
    target /= count.clamp_min(1)
    logits.scatter_(1, scores.others, torch.finfo(logits.dtype).min / 2)
    mean = torch.linalg.vecdot(logits, target)
    largest = logits.amax(dim=1, keepdim=True)
    weights = logits.sub_(largest).exp_()
    total = weights.sum(dim=1, keepdim=True)
    has_positive = count > 0
    losses = (total.log() + largest - mean[:, None]).where(has_positive, 0.0).squeeze(1)
    if not with_derivatives:
        return losses, None
    return losses, weights.mul_(has_positive / total).sub_(target)
