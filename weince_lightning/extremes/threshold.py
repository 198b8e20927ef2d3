"""Peaks over threshold: what the largest of many scores say about the end of their distribution."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from weince_lightning.extremes.pareto import (
    IRREGULAR_XI,
    MIN_EXCEEDANCES,
    Floats,
    Significance,
    anderson_darling,
    exponential_test,
    fit_pareto,
    fit_rows,
    xi_interval,
)

STABILITY_QUANTILES = (0.98, 0.9825, 0.985, 0.9875, 0.99, 0.9925, 0.995)
"""Thresholds over which a shape should stay the same if the tail is what it is taken for."""
MOST_TESTED = 1000
"""Exceedances that goodness of fit is tested with; among more, every departure is found."""


class Pairs(NamedTuple):
    """Which two things each kept similarity belongs to, such as images: what is drawn anew."""

    first: NDArray[np.int64]
    """Number of the one, an anchor's, in ``[0, num_anchors)``, shape ``(kept,)``."""
    second: NDArray[np.int64]
    """Number of the other, in ``[0, num_things)``, shape ``(kept,)``."""
    num_anchors: int
    """Things of which a sample was compared with all others."""
    num_things: int
    """All things, those of the anchors first."""


class Tail(NamedTuple):
    """The largest of many scores."""

    scores: Floats
    """All scores above some level, ascending, shape ``(kept,)``."""
    num_scores: int
    """How many scores there were, the lower ones included."""
    pairs: Pairs | None = None
    """The samples of each score, where scores are similarities; None for independent scores."""

    @classmethod
    def of(cls, scores: Sequence[float] | Floats) -> "Tail":
        """Keep all of some independent scores.

        Raises:
            ValueError: If there is none, or one is NaN or infinite.
        """
        values = np.sort(np.asarray(scores, dtype=np.float64).ravel())
        if not len(values) or not np.isfinite(values).all():
            raise ValueError(
                f"scores must hold finite numbers, at least one, got {len(values)} of which "
                f"{int((~np.isfinite(values)).sum())} are not finite."
            )
        return cls(values, len(values))

    def threshold(self, quantile: float) -> float:
        """Find the quantile of all scores, between two of them as ``numpy.quantile`` does.

        Raises:
            ValueError: If the scores that were kept begin above it.
        """
        position = quantile * (self.num_scores - 1) - (self.num_scores - len(self.scores))
        below = math.floor(position)
        if not 0 <= below < len(self.scores):
            raise ValueError(
                f"quantile must lie in [{1 - len(self.scores) / self.num_scores:.4g}, 1] with the "
                f"{len(self.scores)} scores that were kept of {self.num_scores}, got {quantile}."
            )
        above = min(below + 1, len(self.scores) - 1)
        low, high = float(self.scores[below]), float(self.scores[above])
        return low + (position - below) * (high - low)

    def exceedances(self, threshold: float) -> Floats:
        """Say how far the scores above a threshold lie above it, ascending."""
        return self.scores[np.searchsorted(self.scores, threshold, side="right") :] - threshold


class ThresholdFit(NamedTuple):
    """A generalised Pareto distribution fitted to the exceedances over one threshold."""

    quantile: float
    """Part of the scores below the threshold."""
    threshold: float
    """The threshold, in the unit of the scores."""
    num_exceedances: int
    """Scores above it."""
    xi: float | None = None
    r"""Shape :math:`\hat\xi`; None where the likelihood has no maximum above -1."""
    sigma: float | None = None
    r"""Scale :math:`\hat\sigma`, in the unit of the scores."""
    endpoint: float | None = None
    r"""Where the fitted tail ends, :math:`u + \hat\sigma / |\hat\xi|`; None where it does not."""
    xi_interval: tuple[float, float] | None = None
    r"""95 % interval of the shape; None where there is none, see ``note``."""
    p_exponential: float | None = None
    r"""p-value of the likelihood-ratio test of :math:`\xi = 0`, as for independent exceedances."""
    note: str = ""
    """Why something is None; empty where nothing needs to be said."""


def fit_threshold(
    tail: Tail,
    generator: np.random.Generator,
    quantile: float = 0.99,
    num_resamples: int = 400,
) -> ThresholdFit:
    """Fit a generalised Pareto distribution to the scores above a quantile.

    The interval of the shape is that of the profile likelihood where scores are independent. The
    similarities of one sample are not, nor those of samples of one thing: there, things are drawn
    anew with replacement, and a similarity counts as often as both of its things were drawn
    together. The interval spans 95 % of the shapes of ``num_resamples`` such draws, at the same
    threshold, with the fit in the place of their median; it is wider than need be where
    similarities hardly depend on each other (Owen, 2007).

    Args:
        tail: The largest scores.
        generator: Where the draws come from; not used for independent scores.
        quantile: Part of all scores below the threshold, in ``(0, 1)``.
        num_resamples: How many draws.

    Returns:
        The fit.

    Raises:
        ValueError: If ``tail`` does not reach down to the quantile.

    References:
        Davison and Smith, "Models for exceedances over high thresholds", JRSS B 52 (1990);
        Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1 (2007).

    Example:
        >>> scores = stats.beta(1, 4).ppf(np.arange(0.5, 20000) / 20000)  # ends at 1, xi = -1/4
        >>> fit = fit_threshold(Tail.of(scores), np.random.default_rng(0))
        >>> round(fit.xi, 1), round(fit.endpoint, 1), fit.num_exceedances
        (-0.3, 1.0, 200)
    """
    threshold = tail.threshold(quantile)
    exceedances = tail.exceedances(threshold)
    fit = fit_pareto(exceedances)
    if fit is None:
        if not len(exceedances):
            note = "the largest scores are equal, so that none lies above the threshold"
        elif len(exceedances) < MIN_EXCEEDANCES:
            note = f"too few exceedances, {len(exceedances)} where {MIN_EXCEEDANCES} are needed"
        else:
            note = "the likelihood has no maximum with xi above -1"
        return ThresholdFit(quantile, threshold, len(exceedances), note=note)
    interval, note = None, ""
    if fit.xi <= IRREGULAR_XI:
        note = "no interval: likelihood theory does not hold for xi of -0.5 and less"
    elif tail.pairs is None:
        interval = xi_interval(exceedances, fit)
    else:
        shapes = _shapes_of_draws(exceedances, tail.pairs, num_resamples, generator)
        if len(shapes) < num_resamples / 2:
            note = "no interval: most draws of samples have no fit"
        else:
            low, middle, high = np.quantile(shapes, (0.025, 0.5, 0.975))
            # A draw has ties that the samples have not, which shifts all its shapes alike.
            interval = float(fit.xi + low - middle), float(fit.xi + high - middle)
    return ThresholdFit(
        quantile=quantile,
        threshold=threshold,
        num_exceedances=len(exceedances),
        xi=fit.xi,
        sigma=fit.sigma,
        endpoint=threshold - fit.sigma / fit.xi if fit.xi < 0 else None,
        xi_interval=interval,
        p_exponential=exponential_test(exceedances, fit).p_value,
        note=note,
    )


def fit_stability(
    tail: Tail,
    generator: np.random.Generator,
    quantiles: Sequence[float] = STABILITY_QUANTILES,
    num_resamples: int = 200,
) -> list[ThresholdFit]:
    """Fit over several thresholds: above the one from which the model holds, shapes agree.

    Args:
        tail: The largest scores.
        generator: Where draws of samples come from, see :func:`fit_threshold`.
        quantiles: Parts of all scores below the thresholds.
        num_resamples: How many draws for each.

    Returns:
        A fit for each quantile.
    """
    return [fit_threshold(tail, generator, quantile, num_resamples) for quantile in quantiles]


def goodness_of_fit(
    tail: Tail, fit: ThresholdFit, generator: np.random.Generator
) -> Significance | None:
    """Test whether the exceedances of a threshold are generalised Pareto at all.

    The test is that of Anderson and Darling with at most 1000 exceedances, drawn at random: few of
    one sample are among them, so that they are nearly independent.

    Args:
        tail: What was fitted.
        fit: The fit whose threshold is meant.
        generator: Where draws come from.

    Returns:
        Statistic and bootstrap p-value; None where there is no fit.
    """
    exceedances = tail.exceedances(fit.threshold)
    if len(exceedances) > MOST_TESTED:
        exceedances = generator.choice(exceedances, MOST_TESTED, replace=False)
    fitted = fit_pareto(exceedances)
    return None if fitted is None else anderson_darling(exceedances, fitted, generator)


class MeanExcess(NamedTuple):
    """How far scores lie above a threshold on average, for several thresholds."""

    thresholds: Floats
    """The thresholds, ascending."""
    means: Floats
    """Mean of the scores above each, less the threshold."""
    errors: Floats
    """Standard errors of the means, as if scores were independent."""


def mean_excess(tail: Tail, num_thresholds: int = 100) -> MeanExcess:
    r"""Compute the mean excess: a line of slope :math:`\xi / (1 - \xi)` where the model holds.

    Args:
        tail: The largest scores, all of which serve.
        num_thresholds: How many thresholds, evenly spaced in their rank up to the tenth largest.

    Returns:
        Thresholds, means and standard errors.

    References:
        Davison and Smith, "Models for exceedances over high thresholds", JRSS B 52 (1990).
    """
    last = max(len(tail.scores) - MIN_EXCEEDANCES - 1, 0)
    at = np.unique(np.linspace(0, last, num_thresholds).astype(np.int64))
    # Sums from the top, from the largest score so that squares keep their digits.
    depth = (tail.scores[-1] - tail.scores)[::-1]
    above = len(depth) - 1 - at
    above = above[above > 0]
    at = at[: len(above)]
    sums, squares = np.cumsum(depth), np.cumsum(depth**2)
    mean = sums[above - 1] / above
    variance = squares[above - 1] / above - mean**2
    thresholds = tail.scores[at]
    errors = np.sqrt(variance.clip(0) / above)
    return MeanExcess(thresholds, tail.scores[-1] - mean - thresholds, errors)


def qq_points(tail: Tail, fit: ThresholdFit, num_points: int = 200) -> tuple[Floats, Floats]:
    """Pair quantiles of a fit with those of its exceedances.

    Args:
        tail: What was fitted.
        fit: The fit, with a shape.
        num_points: At most so many points, dense towards the top.

    Returns:
        Scores by the fit and scores as they are, ascending.

    Raises:
        ValueError: If there is no fit.
    """
    if fit.xi is None or fit.sigma is None:
        raise ValueError(f"fit must have a shape, got none ({fit.note}).")
    exceeding = tail.scores[tail.scores > fit.threshold]
    n = len(exceeding)
    from_top = np.unique(np.geomspace(1, n, num_points).astype(np.int64))
    expected = stats.genpareto.isf((from_top - 0.5) / n, fit.xi, fit.threshold, fit.sigma)
    return expected[::-1], exceeding[n - from_top][::-1]


def _shapes_of_draws(
    exceedances: Floats,
    pairs: Pairs,
    num_resamples: int,
    generator: np.random.Generator,
) -> Floats:
    """Fit the exceedances of samples drawn with replacement, see `fit_threshold`."""
    one, other = (each[-len(exceedances) :] for each in (pairs.first, pairs.second))
    starts = _bin_starts(len(exceedances))
    sizes = np.diff(starts, append=len(exceedances))
    values = np.add.reduceat(exceedances, starts) / sizes
    others = pairs.num_things - pairs.num_anchors
    counts = np.empty((num_resamples, len(values)))
    for row in counts:
        # Anchors and the rest apart: otherwise the number of comparisons would vary.
        drawn = np.concatenate(
            [
                generator.multinomial(size, np.full(size, 1 / size))
                for size in (pairs.num_anchors, others)
                if size
            ]
        )
        row[:] = np.add.reduceat(drawn[one] * drawn[other], starts)
    counts = counts[counts.sum(1) >= MIN_EXCEEDANCES]
    if not len(counts):
        return np.empty(0)
    shapes = fit_rows(values[None], counts)[0]
    return shapes[~np.isnan(shapes)]


def _bin_starts(size: int) -> NDArray[np.int64]:
    """Divide ascending values into bins: one for each of the largest, 1 % of those above below.

    Within a bin values differ by a hundredth of the scale, which moves no shape, and a draw is
    fitted at the cost of some hundred values.
    """
    sizes, left = [], size
    while left > 0:
        above = size - left
        sizes.append(min(left, max(1, above // 100)))
        left -= sizes[-1]
    return np.cumsum([0, *sizes[::-1][:-1]])
