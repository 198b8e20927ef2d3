"""What Gaussian scores and uniform directions give at the same quantile, to compare with.

A shape below 0 is no evidence of a Weibull tail by itself. At a quantile of 0.99 Gaussian scores
give about -0.1, although their tail has no end.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from weince_lightning.checks import check_integer, check_number
from weince_lightning.extremes.pareto import MIN_EXCEEDANCES, Floats, fit_rows

NUM_REPLICATES = 200
"""Samples that are simulated of each."""


class Null(NamedTuple):
    """Fits to simulated scores of a known distribution, at the quantile of some others."""

    xi: float
    """Median shape."""
    xi_range: tuple[float, float]
    """What holds 95 % of the shapes."""
    endpoint: float | None
    """Median of the fitted ends; None where most fits have no end."""
    endpoint_range: tuple[float, float] | None
    """What holds 95 % of the fitted ends; None where some have none."""


def gaussian_null(
    mean: float,
    standard_deviation: float,
    num_exceedances: int,
    quantile: float,
    generator: np.random.Generator,
) -> Null | None:
    """Simulate independent Gaussian scores.

    Args:
        mean: Their mean.
        standard_deviation: Their standard deviation, greater than 0.
        num_exceedances: Scores above the threshold, at least 10.
        quantile: Part of the scores below the threshold.
        generator: Where they come from.

    Returns:
        What is fitted to them; None where there are too few for a fit.

    Example:
        >>> null = gaussian_null(0.0, 1.0, 2000, 0.99, np.random.default_rng(0))
        >>> round(null.xi, 1), null.xi_range[1] < 0
        (-0.1, True)
    """
    check_number(
        "standard_deviation", standard_deviation, above=0.0, condition="be a number above 0"
    )
    law = stats.norm(mean, standard_deviation)
    return _simulate(law.isf, num_exceedances, quantile, generator)


def sphere_null(
    dimension: int, num_exceedances: int, quantile: float, generator: np.random.Generator
) -> Null | None:
    r"""Simulate cosine similarities of independent directions, uniform on the sphere.

    They are :math:`2 B - 1` with :math:`B` of Beta((d - 1)/2, (d - 1)/2), and independent by pairs.
    The tail ends at 1 with :math:`\xi = -2 / (d - 1)` in the limit, which is far away for many
    dimensions.

    Args:
        dimension: Dimension :math:`d` of the space, at least 2.
        num_exceedances: Similarities above the threshold, at least 10.
        quantile: Part of the similarities below the threshold.
        generator: Where they come from.

    Returns:
        What is fitted to them; None in 3 dimensions and less, whose shape of -1 and less has no
        fit, and where there are too few.
    """
    check_integer("dimension", dimension, at_least=2)
    half = (dimension - 1) / 2
    law = stats.beta(half, half, loc=-1, scale=2)
    return _simulate(law.isf, num_exceedances, quantile, generator)


def _simulate(
    upper_quantile: Callable[[Floats], Floats],
    num_exceedances: int,
    quantile: float,
    generator: np.random.Generator,
) -> Null | None:
    """Draw exceedances of a known law, as counts in bins that are fine towards the end."""
    check_integer("num_exceedances", num_exceedances, at_least=MIN_EXCEEDANCES)
    # Each bin holds 1 % less than all that lies above it, down to a hundredth of a score.
    levels = np.geomspace(1, 1e-2 / num_exceedances, 100 * int(np.log(100.0 * num_exceedances)))
    edges = np.append(levels, 0.0)
    threshold = float(upper_quantile(np.array([1 - quantile]))[0])
    middles = np.append((edges[:-2] + edges[1:-1]) / 2, edges[-2] / 2)
    values = upper_quantile(middles * (1 - quantile)) - threshold
    chances = -np.diff(edges)
    counts = generator.multinomial(num_exceedances, chances, NUM_REPLICATES).astype(np.float64)
    xi, sigma, _ = fit_rows(values[None], counts)
    fitted = ~np.isnan(xi)
    if fitted.sum() < NUM_REPLICATES / 2:
        return None
    xi, sigma = xi[fitted], sigma[fitted]
    ends = np.where(xi < 0, threshold - sigma / np.where(xi < 0, xi, -1.0), np.inf)
    low, high, end, end_low, end_high = (
        float(np.quantile(each, level, method="inverted_cdf"))
        for each, level in [(xi, 0.025), (xi, 0.975), (ends, 0.5), (ends, 0.025), (ends, 0.975)]
    )
    return Null(
        xi=float(np.median(xi)),
        xi_range=(low, high),
        endpoint=end if np.isfinite(end) else None,
        endpoint_range=(end_low, end_high) if np.isfinite(end_high) else None,
    )
