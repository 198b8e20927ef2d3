"""The generalised Pareto distribution: fits, intervals and tests for exceedances over a threshold.

Exceedances over a high threshold follow it in the limit: shape below 0 for tails with an end, 0 for
exponential ones, above 0 for heavy ones.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]

MIN_EXCEEDANCES = 10
"""Fewest exceedances that two parameters are fitted to."""
IRREGULAR_XI = -0.5
"""At this shape and below, likelihood theory gives no interval: the end is found too quickly."""

_LOG_DISTANCES = np.linspace(-30.0, 0.0, 101)
"""Where maxima are looked for between the largest exceedance and infinity, see `_fit_rows`."""


class ParetoFit(NamedTuple):
    """A generalised Pareto distribution, fitted by maximum likelihood."""

    xi: float
    r"""Shape :math:`\xi > -1`; below 0 the tail ends at :math:`\sigma / |\xi|`."""
    sigma: float
    r"""Scale :math:`\sigma > 0`, in the unit of the exceedances."""
    log_likelihood: float
    """In nats."""


class Significance(NamedTuple):
    """Outcome of a test."""

    statistic: float
    """What is large where the null hypothesis fails."""
    p_value: float
    """Probability of a statistic as large under the null hypothesis."""


def fit_pareto(exceedances: Floats) -> ParetoFit | None:
    r"""Fit a generalised Pareto distribution by maximum likelihood.

    .. math:: P(Y > y) = (1 + \xi y / \sigma)^{-1 / \xi}

    The likelihood has no bound below :math:`\xi = -1`. The fit is the best interior maximum with
    :math:`\xi > -1`, found on the profile of :math:`\xi / \sigma` alone (Grimshaw, 1993).

    Args:
        exceedances: How far each score lies above the threshold, greater than 0, shape ``(n,)``.

    Raises:
        ValueError: If one is not greater than 0 and finite.

    Returns:
        The fit; None where the likelihood has no interior maximum, or where fewer than 10
        exceedances or a single value are no ground for one.

    References:
        Grimshaw, "Computing maximum likelihood estimates for the generalized Pareto distribution",
        Technometrics 35 (1993).

    Example:
        >>> levels = np.arange(0.5, 200) / 200
        >>> fit = fit_pareto(1 - (1 - levels) ** 0.25)  # shortfall of Beta(1, 4): shape -1/4
        >>> round(fit.xi, 2)
        -0.26
    """
    values = np.asarray(exceedances, dtype=np.float64)
    if not ((values > 0) & np.isfinite(values)).all():
        raise ValueError("exceedances must be greater than 0 and finite, got some that are not.")
    if len(values) < MIN_EXCEEDANCES or values.max() == values.min():
        return None
    xi, sigma, log_likelihood = fit_rows(values[None])
    if np.isnan(xi[0]):
        return None
    return ParetoFit(float(xi[0]), float(sigma[0]), float(log_likelihood[0]))


def fit_rows(values: Floats, weights: Floats | None = None) -> tuple[Floats, Floats, Floats]:
    r"""Fit a generalised Pareto distribution to every row.

    With :math:`t = \xi / \sigma` the best shape is
    :math:`\xi(t) = \operatorname{mean} \log(1 + t y)`, and the log-likelihood per exceedance
    :math:`-\log(\xi(t) / t) - \xi(t) - 1`.

    Args:
        values: Exceedances, shape ``(rows or 1, n)``.
        weights: How often each counts, shape ``(rows or 1, n)``; None for once.

    Returns:
        Shape, scale and log-likelihood, each ``(rows,)``, NaN where there is no interior maximum.
    """
    if weights is None:
        weights = np.ones_like(values)
    total = weights.sum(1)
    share = weights / total[:, None]
    # What does not count must not bound t.
    largest = np.where(weights > 0, values, 0.0).max(1)
    values = np.minimum(values, largest[:, None])
    mean = (share * values).sum(1)

    def profile(log_distance: Floats) -> Floats:
        """Stack shape, scale and height of the likelihood at ``1 + t * largest``."""
        t = np.expm1(log_distance) / largest
        xi = (share * np.log1p(t[:, None] * values)).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            sigma = np.where(t == 0, mean, xi / t)
        return np.stack([xi, sigma, -np.log(sigma) - xi - 1])

    # Steps of 0.3 in the logarithm, from the pole at the largest exceedance to where the
    # median lies far out on a logarithmic scale: shapes well above 1.
    reach = 10.0 + math.log(float((largest / np.median(values, axis=1)).max()))
    grid = np.concatenate([_LOG_DISTANCES, np.arange(0.3, reach, 0.3)])
    xi, _, height = np.stack([profile(np.full(len(largest), x)) for x in grid], axis=1)
    is_peak = (height[1:-1] >= height[:-2]) & (height[1:-1] > height[2:]) & (xi[2:] > -1)
    peak = np.where(is_peak, height[1:-1], -np.inf).argmax(0) + 1
    found = profile(_climb(lambda x: profile(x)[2], grid[peak - 1], grid[peak + 1]))
    xi, sigma, height = np.where(is_peak.any(0) & (found[0] > -1), found, np.nan)
    return xi, sigma, height * total


def _climb(height: Callable[[Floats], Floats], low: Floats, high: Floats) -> Floats:
    """Maximise between two bounds for every row, by golden sections."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = height(left), height(right)
    for _ in range(40):
        keep_low = at_left > at_right
        low, high = np.where(keep_low, low, left), np.where(keep_low, right, high)
        left, right = (
            np.where(keep_low, high - ratio * (high - low), right),
            np.where(keep_low, left, low + ratio * (high - low)),
        )
        fresh = height(np.where(keep_low, left, right))
        at_left, at_right = (
            np.where(keep_low, fresh, at_right),
            np.where(keep_low, at_left, fresh),
        )
    return (low + high) / 2


def profile_likelihood(exceedances: Floats, xi: float) -> ParetoFit:
    r"""Maximise the likelihood over the scale at a given shape.

    The scale solves :math:`(1 + \xi) \operatorname{mean}\bigl(y / (\sigma + \xi y)\bigr) = 1`,
    of which the left side falls with it.

    Args:
        exceedances: Exceedances, greater than 0, shape ``(n,)``.
        xi: Shape, greater than -1.

    Returns:
        The best fit of that shape.
    """
    values = np.asarray(exceedances, dtype=np.float64)
    largest, mean = float(values.max()), float(values.mean())
    # The scale is measured from where the largest value meets the end: nothing cancels there.
    pole = -min(xi, 0.0) * largest
    room = -xi * (largest - values) if xi < 0 else xi * values

    def surplus(distance: float) -> float:
        return (1 + xi) * float(np.mean(values / (distance + room))) - 1

    # Bounds on both sides: all values taken as the largest, and that one alone.
    high = (1 + xi) * mean
    low = ((1 + xi) / len(values) - max(xi, 0.0)) * largest
    if not 0 < low < high:
        low = high
    while surplus(low) < 0:
        low /= 2
    sigma = pole + (
        high if surplus(high) >= 0 else float(optimize.brentq(surplus, low, high, rtol=1e-13))
    )
    scaled = np.log1p(xi * values / sigma) * (1 + 1 / xi) if xi else values / sigma
    return ParetoFit(xi, sigma, -len(values) * math.log(sigma) - float(scaled.sum()))


def xi_interval(
    exceedances: Floats, fit: ParetoFit, confidence: float = 0.95
) -> tuple[float, float] | None:
    r"""Bound the shape by its profile likelihood.

    All shapes of which the likelihood-ratio test against the best one does not reject:
    :math:`2\,(\ell(\hat\xi) - \ell(\xi)) \le \chi^2_{1,\,0.95}`. Exceedances are taken as
    independent.

    Args:
        exceedances: What was fitted, shape ``(n,)``.
        fit: Its fit.
        confidence: Probability that the interval covers the shape, in ``(0, 1)``.

    Returns:
        Lower and upper end; None for a shape of -1/2 and less, where the theory does not hold.

    References:
        Coles, "An Introduction to Statistical Modeling of Extreme Values", 2001, section 4.3;
        Smith, "Maximum likelihood estimation in a class of nonregular cases", Biometrika 72 (1985).
    """
    if fit.xi <= IRREGULAR_XI:
        return None
    drop = float(stats.chi2.ppf(confidence, 1)) / 2

    def surplus(xi: float) -> float:
        return profile_likelihood(exceedances, xi).log_likelihood - fit.log_likelihood + drop

    step = (1 + abs(fit.xi)) / math.sqrt(len(exceedances))
    high = fit.xi + 2 * step
    while surplus(high) > 0:
        high += 2 * step
    low, lowest = fit.xi, -1 + 1e-6
    while low > lowest and surplus(low) > 0:
        low = max(low - 2 * step, lowest)
    lower = lowest if surplus(low) > 0 else optimize.brentq(surplus, low, fit.xi, xtol=1e-7)
    return float(lower), float(optimize.brentq(surplus, fit.xi, high, xtol=1e-7))


def exponential_test(exceedances: Floats, fit: ParetoFit) -> Significance:
    r"""Test :math:`\xi = 0`, the exponential tail, by the likelihood ratio.

    Args:
        exceedances: What was fitted, shape ``(n,)``.
        fit: Its fit.

    Returns:
        :math:`2\,(\ell(\hat\xi) - \ell(0))` and its probability by chi-square with one degree of
        freedom.
    """
    exponential = profile_likelihood(exceedances, 0.0).log_likelihood
    statistic = max(2 * (fit.log_likelihood - exponential), 0.0)
    return Significance(statistic, float(stats.chi2.sf(statistic, 1)))


def anderson_darling(
    exceedances: Floats, fit: ParetoFit, generator: np.random.Generator, num_resamples: int = 200
) -> Significance:
    r"""Test whether exceedances follow the distribution fitted to them (Anderson and Darling).

    .. math:: A^2 = -n - \frac{1}{n} \sum_i (2i - 1)
              \bigl(\log F(y_{(i)}) + \log(1 - F(y_{(n + 1 - i)}))\bigr)

    The statistic weighs the tails. Its law depends on the fit: the p-value counts samples drawn
    from the fitted distribution, and fitted again, that lie no nearer to theirs.

    Args:
        exceedances: What was fitted, shape ``(n,)``.
        fit: Its fit.
        generator: Where the samples come from.
        num_resamples: How many samples, which limits the p-value to 1 / (samples + 1) and more.

    Returns:
        The statistic and its bootstrap p-value.

    References:
        Choulakian and Stephens, "Goodness-of-fit tests for the generalized Pareto distribution",
        Technometrics 43 (2001).
    """
    values = np.asarray(exceedances, dtype=np.float64)[None]
    statistic = float(_distance(values, np.array([fit.xi]), np.array([fit.sigma]))[0])
    size = (num_resamples, values.shape[1])
    samples = stats.genpareto.rvs(fit.xi, scale=fit.sigma, size=size, random_state=generator)
    xi, sigma, _ = fit_rows(samples)
    fitted = ~np.isnan(xi)
    others = _distance(samples[fitted], xi[fitted], sigma[fitted])
    return Significance(statistic, float((others >= statistic).sum() + 1) / (len(others) + 1))


def _distance(values: Floats, xi: Floats, sigma: Floats) -> Floats:
    """Compute the statistic of Anderson and Darling for every row."""
    n = values.shape[1]
    # The tail's logarithm: 1 - F rounds to 0 where it is small.
    log_tail = stats.genpareto.logsf(np.sort(values, axis=1), xi[:, None], scale=sigma[:, None])
    log_head = np.log(-np.expm1(log_tail))
    weights = (2 * np.arange(1, n + 1) - 1) / n
    statistic: Floats = -n - ((log_head + log_tail[:, ::-1]) * weights).sum(1)
    return statistic
