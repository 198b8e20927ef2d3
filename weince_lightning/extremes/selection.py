"""Which link explains the winners: how much of it is Weibit, by maximum likelihood."""

from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from weince_lightning.checks import check_number
from weince_lightning.extremes.pareto import Floats

SMALLEST_SHORTFALL = 1e-6
"""Bounds the Weibit logit at a similarity of 1, as in the loss."""
ABSENT = -1e9
"""Logit of a candidate that is not there."""


class LinkFit(NamedTuple):
    """A blend of softmax and Weibit, fitted to observed winners."""

    lambda_hat: float | None
    r"""Share :math:`\hat\lambda` of the Weibit, in [0, 1]; None where it is not identified."""
    theta: float | None
    r"""Scale :math:`\hat\theta > 0` of the logit; None where ``lambda_hat`` is."""
    lambda_interval: tuple[float, float] | None
    r"""95 % interval of :math:`\lambda` by its profile likelihood, within [0, 1]."""
    p_value: float | None
    r"""p-value of the likelihood-ratio test of :math:`\lambda = 0`, the softmax alone."""
    log_likelihood: float | None
    """In nats."""
    temperature: float
    r"""Temperature :math:`\tau` by which the two are put on one scale, as given."""
    num_winners: int
    """Winners that were fitted."""
    note: str
    """Why there are no numbers; empty where there are."""


def fit_link(positive: Floats, negatives: Floats, temperature: float = 0.5) -> LinkFit:
    r"""Fit the link by which a positive wins among its candidates.

    .. math:: P(\text{winner} = j) \propto \exp \theta
              \bigl[(1 - \lambda)\, s_j / \tau - \lambda \log \delta_j\bigr]

    with similarity :math:`s` and shortfall :math:`\delta = \max(1 - s, 10^{-6})`. The likelihood is
    concave in :math:`\theta (1 - \lambda) / \tau` and :math:`\theta \lambda`, the only two numbers
    that winners tell of: another :math:`\tau` is another :math:`\lambda` for the same link. Under
    :math:`\lambda = 0` the test's statistic is 0 half of the time, as :math:`\lambda` cannot be
    less, and chi-square with one degree of freedom otherwise. Winners are taken as independent.

    Args:
        positive: Similarity of each winner, shape ``(winners,)``, in [-1, 1].
        negatives: Similarities of those that it won over, shape ``(winners, negatives)``; ``-inf``
            where there are fewer.
        temperature: Temperature :math:`\tau > 0`.

    Raises:
        ValueError: If shapes do not fit together, a similarity is out of its range, or the
            temperature is not above 0.

    Returns:
        The fit, without numbers where the winners are always, or no more than by chance, the most
        similar.

    References:
        Self and Liang, "Asymptotic properties of maximum likelihood estimators and likelihood
        ratio tests under nonstandard conditions", JASA 82 (1987): the test at a boundary.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> scores = generator.uniform(-0.5, 0.95, (5000, 8))
        >>> logits = -2.0 * np.log(1 - scores) + generator.gumbel(size=scores.shape)  # Weibit
        >>> won = logits.argmax(1)[:, None]
        >>> others = np.where(np.arange(8) == won, -np.inf, scores)
        >>> fit = fit_link(np.take_along_axis(scores, won, 1)[:, 0], others)
        >>> fit.lambda_interval[0] > 0.8, fit.p_value < 1e-6
        (True, True)
    """
    choice = _Choice(positive, negatives, temperature)
    num_winners = len(choice.softmax)
    if note := choice.why_unidentified():
        return LinkFit(None, None, None, None, None, temperature, num_winners, note)
    at_softmax, at_weibit = choice.maximise(0.0), choice.maximise(1.0)
    if at_softmax.slope <= 0:
        best, share = at_softmax, 0.0
    elif at_weibit.slope >= 0:
        best, share = at_weibit, 1.0
    else:
        share = float(optimize.brentq(lambda x: choice.maximise(x).slope, 0.0, 1.0, xtol=1e-9))
        best = choice.maximise(share)
    drop = float(stats.chi2.ppf(0.95, 1)) / 2

    def surplus(x: float) -> float:
        return choice.maximise(x).log_likelihood - best.log_likelihood + drop

    low, high = (
        edge
        if share == edge or surplus(edge) >= 0
        else float(optimize.brentq(surplus, edge, share))
        for edge in (0.0, 1.0)
    )
    statistic = 2 * (best.log_likelihood - at_softmax.log_likelihood)
    return LinkFit(
        lambda_hat=share,
        theta=best.theta,
        lambda_interval=(low, high),
        p_value=float(stats.chi2.sf(statistic, 1)) / 2 if statistic > 0 else 1.0,
        log_likelihood=best.log_likelihood,
        temperature=temperature,
        num_winners=num_winners,
        note="",
    )


def link_profile(
    positive: Floats, negatives: Floats, shares: Floats, temperature: float = 0.5
) -> Floats:
    r"""Maximise the likelihood over :math:`\theta` at given shares of the Weibit.

    Args:
        positive: See :func:`fit_link`.
        negatives: See :func:`fit_link`.
        shares: Shares :math:`\lambda`, in [0, 1].
        temperature: See :func:`fit_link`.

    Returns:
        Log-likelihoods in nats, one for each share.
    """
    choice = _Choice(positive, negatives, temperature)
    return np.array([choice.maximise(float(share)).log_likelihood for share in shares])


class _Maximum(NamedTuple):
    theta: float
    log_likelihood: float
    slope: float
    """Derivative of the profile by the share of the Weibit."""


class _Choice:
    """Winners among candidates, and the likelihood of a link."""

    def __init__(self, positive: Floats, negatives: Floats, temperature: float) -> None:
        positive, negatives = np.asarray(positive), np.asarray(negatives)
        if negatives.ndim != 2 or positive.shape != negatives.shape[:1]:
            raise ValueError(
                "negatives must have a row for each winner in positive, shape (winners, "
                f"negatives), got {negatives.shape} for {positive.shape}."
            )
        check_number("temperature", temperature, above=0.0, condition="be a number above 0")
        similarity = np.column_stack([positive, negatives]).astype(np.float64)
        is_valid = np.abs(similarity) <= 1 + 1e-6
        is_valid[:, 1:] |= similarity[:, 1:] == -np.inf
        if not is_valid.all():
            raise ValueError("positive and negatives must lie in [-1, 1], got others.")
        # Both logits order candidates alike, so that the hardest, as zero, bounds every blend.
        hardest = similarity.max(1, keepdims=True)
        self.is_hardest = similarity[:, 0] == hardest[:, 0]
        self.softmax = np.maximum((similarity - hardest) / temperature, ABSENT)
        weibit = _weibit(np.maximum(similarity, -1.0)) - _weibit(hardest)
        self.weibit = np.where(similarity == -np.inf, ABSENT, weibit)
        self._theta = 1.0

    def why_unidentified(self) -> str:
        """Name what keeps the likelihood from having a maximum, if anything does."""
        if not len(self.softmax):
            return "no winners"
        if self.is_hardest.all():
            return "every winner is the most similar of its candidates: no scale is large enough"
        for logits in (self.softmax, self.weibit):
            if self._derivatives(logits, 0.0)[1] <= 0:
                return "winners are no more similar than candidates drawn at random"
        return ""

    def maximise(self, share: float) -> _Maximum:
        """Find the best scale at a share, by Newton's method on a concave function."""
        logits = (1 - share) * self.softmax + share * self.weibit
        low, high, theta = 0.0, np.inf, self._theta
        for _ in range(100):
            value, first, second, chances = self._derivatives(logits, theta)
            low, high = (theta, high) if first > 0 else (low, theta)
            step = theta - first / second
            new = step if low < step < high else (2 * low if high == np.inf else (low + high) / 2)
            if abs(new - theta) <= 1e-12 * theta:
                break
            theta = new
        # The next share's scale is near.
        self._theta = theta
        gap = self.weibit - self.softmax
        return _Maximum(theta, value, theta * float(gap[:, 0].sum() - np.vdot(chances, gap)))

    def _derivatives(self, logits: Floats, theta: float) -> tuple[float, float, float, Floats]:
        """Evaluate the log-likelihood, both derivatives by the scale, and each one's chance."""
        chances = np.exp(theta * logits)
        total = chances.sum(1)
        chances /= total[:, None]
        mean = np.einsum("wc,wc->w", chances, logits)
        square = np.einsum("wc,wc,wc->w", chances, logits, logits)
        won = logits[:, 0]
        return (
            float((theta * won - np.log(total)).sum()),
            float((won - mean).sum()),
            float((mean**2 - square).sum()),
            chances,
        )


def _weibit(similarity: Floats) -> Floats:
    return -np.log(np.maximum(1 - similarity, SMALLEST_SHORTFALL))
