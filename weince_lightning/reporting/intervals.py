"""Means over encoder seeds and their intervals."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy import stats

CONFIDENCE = 0.95


class Summary(NamedTuple):
    """A mean over encoder seeds and how far it can be trusted; in the unit of the values."""

    mean: float
    """The arithmetic mean."""
    half_width: float | None
    """Half the width of the 95 % t-interval around the mean; None if there is but one value."""
    num_seeds: int
    """How many values the mean is of."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval, None if there is none."""
        if self.half_width is None:
            return None
        return self.mean - self.half_width, self.mean + self.half_width

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and 0 lies outside of it."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def summarise(values: Sequence[float]) -> Summary:
    r"""Summarise one value per encoder seed.

    .. math:: \bar x \pm t_{0.975,\, n - 1}\; s / \sqrt n

    with the standard deviation :math:`s` of :math:`n - 1` degrees of freedom. The order of the
    values changes nothing, to the last bit.

    Args:
        values: One finite number per seed, at least one.

    Returns:
        Mean and half-width.

    Raises:
        ValueError: If there is no value.

    Example:
        >>> summary = summarise([0.50, 0.52, 0.54])
        >>> f"{summary.mean:.2f} +- {summary.half_width:.4f}"  # 4.3027 x 0.02 / sqrt(3)
        '0.52 +- 0.0497'
        >>> summarise([0.5])
        Summary(mean=0.5, half_width=None, num_seeds=1)
    """
    if not values:
        raise ValueError("values must hold at least one number, got none.")
    mean, n = statistics.mean(values), len(values)
    if n == 1:
        return Summary(mean, None, 1)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    return Summary(mean, quantile * statistics.stdev(values) / n**0.5, n)


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Summary | None:
    """Summarise the differences of the encoder seeds that both have.

    What a seed brings to both, such as its data split or initial weights, cancels.

    Args:
        values: Value by seed.
        baseline: Value by seed of what they are compared with.

    Returns:
        Mean difference, with ``num_seeds`` pairs; None if they share no seed.

    Example:
        >>> paired_difference({7: 0.75, 21: 0.5}, {7: 0.5, 21: 0.25, 63: 0.0})
        Summary(mean=0.25, half_width=0.0, num_seeds=2)
    """
    pairs = [value - baseline[seed] for seed, value in values.items() if seed in baseline]
    return summarise(pairs) if pairs else None
