"""Plain definitions of the losses of each anchor, over the whole similarity matrix."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from weince_lightning.functional.candidates import Candidates, Scores, compare, score
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.links import (
    SHORTFALL_FLOOR,
    blend_logits,
    softmax_logits,
    weibit_logits,
)
from weince_lightning.functional.tails import TailFit, fit_tail, smallest, tail_size
from weince_lightning.functional.tracing import is_traced

Link = Callable[[Tensor], Tensor]
"""Maps similarities to logits, element by element."""


class Objective(NamedTuple):
    """The loss of each anchor, as a function of its scores."""

    evaluate: Callable[[Scores, slice, float | Tensor], Tensor]
    """The losses of some anchors, from their scores, their places among all, the temperature."""
    blend: Blend | None = None
    """The logits whose cross-entropy that is, for all anchors; None where it is something else."""


class Whole:
    """The scores of all anchors at once: the readable definition.

    Args:
        groups: Anchors and candidates.
    """

    def __init__(self, groups: Sequence[Candidates]) -> None:
        self._scores = [score(group, compare(group)) for group in groups]

    def __iter__(self) -> Iterator[Scores]:
        """Walk over the groups' scores."""
        return iter(self._scores)

    def fit_tails(self, tail_fraction: float, min_tail_points: int) -> TailFit:
        """Fit the tail of each anchor, see :func:`read_tail`; the groups in order."""
        fits = [read_tail(scores, None, tail_fraction, min_tail_points) for scores in self._scores]
        return TailFit(*(torch.cat(column) for column in zip(*fits, strict=True)))

    def losses(
        self, objective: Objective, temperature: float | Tensor, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the anchors' losses, with gradient, and the loss of each."""
        found, first = [], 0
        for scores in self._scores:
            last = first + len(scores.similarity)
            found.append(objective.evaluate(scores, slice(first, last), temperature))
            first = last
        per_anchor = torch.cat(found)
        return weight * per_anchor.sum(), per_anchor.detach()


def negated_similarities(scores: Scores, out: Tensor | None = None) -> Tensor:
    """Similarities of the negatives with the other sign, ``inf`` in every other column; detached.

    The hardest negatives come first, as with shortfalls, which one addition makes of them.

    Args:
        scores: Similarities of a group.
        out: Where to put them; None is a new tensor.

    Returns:
        Shape ``(anchors, candidates)``.
    """
    return scores.fill_excluded_(torch.neg(scores.similarity.detach(), out=out), torch.inf)


def smallest_shortfalls(scores: Scores, width: int, spare: Tensor | None = None) -> Tensor:
    r"""Select the shortfalls :math:`1 - s` of each anchor's hardest negatives, ascending.

    Args:
        scores: Similarities of a group.
        width: How many, from 1 to the number of candidates.
        spare: A tensor like the similarities with any content that may be used; None is a new one.

    Returns:
        Shape ``(anchors, width)``; ``inf`` where there are fewer negatives.
    """
    similarity, columns = scores.similarity, scores.excluded_columns
    is_read_only = similarity.requires_grad or is_traced()
    if similarity.is_cpu or is_read_only or scores.excluded_mask is not None:
        # In place: fresh tensors among results that stay would fragment the memory.
        return smallest(negated_similarities(scores, spare), width).add_(1)
    # Elsewhere the selection leaves its argument as it is: no copy, but the columns are put back.
    excluded = similarity.gather(1, columns)
    hardest = similarity.scatter_(1, columns, -torch.inf).topk(width).values
    similarity.scatter_(1, columns, excluded)
    return 1 - hardest


def read_tail(
    scores: Scores,
    spare: Tensor | None = None,
    tail_fraction: float = 0.1,
    min_tail_points: int = 32,
) -> TailFit:
    """Fit each anchor's tail, see :func:`~weince_lightning.functional.tails.fit_tail`.

    Args:
        scores: Similarities of a group.
        spare: A tensor like the similarities with any content that may be used; None is a new one.
        tail_fraction: Part of the negatives that is the tail, in ``(0, 1]``.
        min_tail_points: Fewest points of a tail.

    Returns:
        The evidence of the group's anchors.
    """
    width = max(1, tail_size(scores.max_negatives, tail_fraction, min_tail_points))
    return fit_tail(
        smallest_shortfalls(scores, width, spare).clamp_min_(SHORTFALL_FLOOR),
        scores.num_negatives,
        scores.max_negatives,
        tail_fraction,
        min_tail_points,
    )


def cross_entropy(scores: Scores, logits: Tensor) -> Tensor:
    r"""Cross-entropy with the positive as the target, among the positive and all negatives.

    .. math:: -\log \frac{e^{\ell_+}}{e^{\ell_+} + \sum_- e^{\ell_-}}
              = -\log \sigma(\ell_+ - \log \sum_- e^{\ell_-})

    Args:
        scores: Similarities of a group; of labelled anchors see :func:`supervised_cross_entropy`.
        logits: Their logits, shape ``(anchors, candidates)``.

    Returns:
        In nats, shape ``(anchors,)``; 0 for an anchor without negatives.
    """
    if scores.is_labelled:
        return supervised_cross_entropy(scores, logits, scores.max_negatives)
    # The right-hand side keeps its relative accuracy where the loss is small; the difference of
    # the positive's logit and the sum over all candidates cancels there.
    positive = logits.gather(1, scores.positive).squeeze(1)
    # Not -inf: a row of nothing else, an anchor without negatives, would have the derivative 0/0.
    absent = torch.finfo(logits.dtype).min / 2
    negatives = scores.fill_excluded_(logits.clone(), absent).logsumexp(dim=1)
    return 0.0 - logsigmoid(positive - negatives)


def supervised_cross_entropy(scores: Scores, logits: Tensor, top_m: int) -> Tensor:
    r"""Cross-entropy with several positives: the mean of their log-probabilities.

    .. math:: -\frac{1}{|P|} \sum_{p \in P} \log
              \frac{e^{\ell_p}}{\sum_{q \in P} e^{\ell_q} + \sum_- e^{\ell_-}}

    Args:
        scores: Similarities of a group of labelled anchors.
        logits: Their logits, shape ``(anchors, candidates)``.
        top_m: How many of the hardest negatives count; all of them if there are fewer.

    Returns:
        In nats, shape ``(anchors,)``; 0 for an anchor without positives.

    References:
        Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, arXiv:2004.11362 (the loss
        whose sum over the positives is outside the logarithm, equation 2).
    """
    is_positive = scores.positives
    count = is_positive.sum(dim=1)
    absent = torch.finfo(logits.dtype).min / 2
    if top_m < scores.max_negatives:
        negatives = scores.fill_excluded_(scores.similarity.detach().clone(), -torch.inf)
        hardest = negatives.topk(top_m, dim=1)
        # Of fewer negatives, the rest of the columns are positives or the anchor itself.
        is_there = is_positive.gather(1, hardest.indices) | ~hardest.values.isneginf()
        seen = logits.where(is_positive.scatter(1, hardest.indices, is_there), absent)
    else:
        seen = logits.scatter(1, scores.excluded_columns, absent)
    mean = logits.where(is_positive, 0).sum(dim=1) / count.clamp_min(1)
    return (seen.logsumexp(dim=1) - mean).where(count > 0, 0)


def top_m_cross_entropy(scores: Scores, link: Link, top_m: int) -> Tensor:
    """Cross-entropy among the positive and the ``top_m`` hardest negatives.

    Args:
        scores: Similarities of a group.
        link: Turns similarities into logits.
        top_m: How many negatives count; all of them if there are fewer.

    Returns:
        In nats, shape ``(anchors,)``.
    """
    if scores.is_labelled:
        return supervised_cross_entropy(scores, link(scores.similarity), top_m)
    hard = hardest_negatives(scores, top_m)
    return cross_entropy(hard, link(hard.similarity))


def hardest_negatives(scores: Scores, top_m: int) -> Scores:
    """Keep the positive, as the first column, and the ``top_m`` most similar negatives.

    Args:
        scores: Similarities of a group.
        top_m: How many negatives to keep.

    Returns:
        The smaller group; gradients flow back to ``scores.similarity``.
    """
    negatives = scores.fill_excluded_(scores.similarity.detach().clone(), -torch.inf)
    kept = min(top_m, scores.max_negatives)
    found = negatives.topk(kept, dim=1)
    columns = torch.cat([scores.positive, found.indices], dim=1)
    num_negatives = excluded_mask = None
    if scores.num_negatives is not None:
        # With ids an anchor may have fewer negatives than were asked for.
        num_negatives = scores.num_negatives.clamp_max(kept)
        excluded_mask = torch.nn.functional.pad(found.values.isneginf(), (1, 0))
    return Scores(
        scores.similarity.gather(1, columns),
        torch.zeros_like(scores.positive),
        kept,
        num_negatives,
        excluded_mask,
    )


def weince(scores: Scores, gate: Tensor, shape: Tensor, temperature: float | Tensor) -> Tensor:
    """WEINCE: cross-entropy of the blended logits.

    See :func:`~weince_lightning.functional.links.blend_logits` for the formula.

    Args:
        scores: Similarities of a group.
        gate: Shape ``(anchors,)``, in ``[0, 1]``.
        shape: Shape ``(anchors,)``, positive.
        temperature: Positive, dimensionless.

    Returns:
        In nats, shape ``(anchors,)``.
    """
    return cross_entropy(scores, blend_logits(scores.similarity, gate, shape, temperature))


def mixed_losses(
    scores: Scores, gate: Tensor, shape: Tensor, temperature: float | Tensor, top_m: int = 16
) -> Tensor:
    r"""Blend two losses instead of two logits (an ablation).

    .. math:: (1 - \lambda_i)\, CE_{softmax}(\text{all})
              + \lambda_i\, CE_{Weibit}(\text{16 hardest})

    Args:
        scores: Similarities of a group.
        gate: Shape ``(anchors,)``, in ``[0, 1]``.
        shape: Shape ``(anchors,)``, positive.
        temperature: Positive, dimensionless.
        top_m: Hardest negatives in the Weibit part.

    Returns:
        In nats, shape ``(anchors,)``.
    """
    softmax = cross_entropy(scores, softmax_logits(scores.similarity, temperature))
    weibit = top_m_cross_entropy(scores, lambda s: weibit_logits(s, shape[:, None]), top_m)
    return (1 - gate) * softmax + gate * weibit
