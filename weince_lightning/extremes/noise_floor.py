"""What a wrong link costs: the softmax errs on a Weibull tail, and more data do not mend it.

Winners are drawn by an endpoint-shortfall law over four scores. Both links are fitted to them, and
asked for the log-odds of the top score against the first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from weince_lightning.checks import check_integer
from weince_lightning.extremes.pareto import Floats

SCORES = (0.15, 0.45, 0.70, 0.90)
"""Similarities of the candidates."""
BETA = 0.8
r"""Shape :math:`\beta` of the law: chances are proportional to :math:`(1 - s)^{-\beta}`."""
SIZES = (100, 300, 1000, 3000, 10_000)


class NoiseFloor(NamedTuple):
    """Mean squared errors of the estimated log-odds, and what theory says of them."""

    sizes: Floats
    """Numbers :math:`n` of winners."""
    weibit_errors: Floats
    """Mean squared error of the Weibit's estimate for each size."""
    softmax_errors: Floats
    """Mean squared error of the softmax's estimate for each size."""
    log_odds: float
    r"""What is estimated: :math:`\beta \log(0.85 / 0.10) = 1.7121`."""
    weibit_floor: float
    """The Weibit's error times the number of winners, in the limit: the Cramer-Rao bound."""
    softmax_floor: float
    """The softmax's error in the limit: its squared bias."""


def noise_floor(
    generator: np.random.Generator, sizes: Sequence[int] = SIZES, num_repetitions: int = 20_000
) -> NoiseFloor:
    r"""Measure both errors by simulation.

    Both links have one number, the Weibit :math:`\beta`, the softmax :math:`1 / \tau`, fitted by
    maximum likelihood: both likelihoods are concave, and depend on the counts alone.

    Args:
        generator: Where winners come from.
        sizes: Numbers of winners, each at least 100.
        num_repetitions: How many estimates each error is the mean of.

    Returns:
        Errors and floors.

    References:
        Erol et al., "WEINCE: When Softmax Fails at the Top", ICML 2026, arXiv:2606.00262.

    Example:
        >>> found = noise_floor(np.random.default_rng(0), [1000], 100)
        >>> round(found.log_odds, 4), round(found.weibit_floor, 3), round(found.softmax_floor, 5)
        (1.7121, 7.136, 0.04515)
    """
    check_integer("sizes", min(sizes), at_least=100)
    scores = np.array(SCORES)
    weibit, softmax = -np.log(1 - scores), scores
    chances = special.softmax(BETA * weibit)
    log_odds = BETA * _span(weibit)
    # The law's own fit: infinitely many winners.
    limit = float(_estimate(softmax, chances[None])[0]) * _span(softmax)
    information = float(chances @ weibit**2 - (chances @ weibit) ** 2)
    errors = np.empty((2, len(sizes)))
    for column, size in enumerate(sizes):
        shares = generator.multinomial(size, chances, num_repetitions) / size
        for row, logits in enumerate((weibit, softmax)):
            estimates = _estimate(logits, shares) * _span(logits)
            errors[row, column] = np.mean((estimates - log_odds) ** 2)
    return NoiseFloor(
        sizes=np.array(sizes, dtype=np.float64),
        weibit_errors=errors[0],
        softmax_errors=errors[1],
        log_odds=log_odds,
        weibit_floor=_span(weibit) ** 2 / information,
        softmax_floor=(limit - log_odds) ** 2,
    )


def _span(logits: Floats) -> float:
    return float(logits[-1] - logits[0])


def _estimate(logits: Floats, shares: Floats) -> Floats:
    """Fit the scale of the logits to shares of winners, row by row, by Newton's method."""
    observed = shares @ logits
    scale = np.zeros(len(shares))
    for _ in range(50):
        chances = special.softmax(scale[:, None] * logits, axis=1)
        mean = chances @ logits
        step = (observed - mean) / (chances @ logits**2 - mean**2)
        scale += step
        if np.abs(step).max() < 1e-12:
            break
    return scale
