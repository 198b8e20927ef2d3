"""How Weibull-like the hard negatives' tail is: evidence from one batch.

Everything here is data for the gate and the shape, never differentiated.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FLOOR = 1e-12
"""Smallest sum of squares: a perfect line and a constant tail stay finite."""
_WRONG_SIGN = 1e6
"""Added to the residual of a line whose slope has the wrong sign: it can not be the tail."""


class TailFit(NamedTuple):
    """Tail evidence of each anchor; all of shape ``(anchors,)``."""

    beta_hat: Tensor
    r"""Slope :math:`\hat\beta \ge 0` of the Weibull line; 0 where the evidence is absent."""
    r_squared: Tensor
    """Fit of the Weibull line, in ``[0, 1]``; 0 where the evidence is absent."""
    delta_aic: Tensor
    r""":math:`\Delta`\ AIC, positive where the Weibull line fits better; 0 where absent.

    A heuristic, not a model comparison: the two lines have different responses, and any smooth
    tail gives large values.
    """
    rho: Tensor
    r"""Hardness :math:`\rho`: shortfall of the hardest negative, in ``[1e-6, 2]``."""
    num_points: Tensor
    """Points the lines were fitted to; below 2 the evidence is absent."""


def tail_size(num_negatives: int, tail_fraction: float, min_tail_points: int) -> int:
    """Count the hardest negatives that form an anchor's tail.

    Args:
        num_negatives: Negatives of the anchor.
        tail_fraction: Part of them wanted, in ``(0, 1]``.
        min_tail_points: Fewest wanted.

    Returns:
        ``max(min_tail_points, round(tail_fraction * num_negatives))``, at least 10, at most all.

    Example:
        >>> tail_size(510, 0.1, 32), tail_size(505, 0.1, 32), tail_size(62, 0.1, 32)
        (51, 50, 32)
    """
    return min(num_negatives, max(10, min_tail_points, round(tail_fraction * num_negatives)))


def fit_tail(
    shortfalls: Tensor,
    num_negatives: Tensor | None,
    max_negatives: int,
    tail_fraction: float = 0.1,
    min_tail_points: int = 32,
) -> TailFit:
    r"""Fit the Weibull and the Gumbel line to each anchor's hardest negatives.

    With the k smallest shortfalls ascending, :math:`x_r = \log \delta_{(r)}` and
    :math:`F_r = r / (k + 1)`: ordinary least squares of :math:`\log F_r` (Weibull) and of
    :math:`\log(-\log F_r)` (Gumbel) on :math:`x_r`, without the first ``max(1, k // 20)`` points.

    Args:
        shortfalls: Shape ``(anchors, candidates)``; ``inf`` where there is no negative.
        num_negatives: Negatives of each anchor, shape ``(anchors,)``; None where all have
            ``max_negatives``.
        max_negatives: An upper bound of ``num_negatives``, known to the host.
        tail_fraction: Part of the negatives that is the tail, in ``(0, 1]``.
        min_tail_points: Fewest points of a tail.

    Returns:
        The evidence; where fewer than 2 points remain it is absent (zeros), and an anchor without
        negatives has :math:`\rho = 2`.

    References:
        Erol et al., ICML 2026, arXiv:2606.00262.

    Example:
        >>> import torch
        >>> quantiles = (torch.arange(1, 101) / 101.0) ** 0.25  # a Weibull tail, shape 4
        >>> fit_tail(quantiles[None], None, 100).beta_hat
        tensor([4.0000])
    """
    width = tail_size(max_negatives, tail_fraction, min_tail_points)
    # Without any negative there is still the positive's column, inf.
    smallest = _smallest(shortfalls, max(1, width))
    if num_negatives is None:
        size = torch.full((1,), width, device=shortfalls.device)
    else:
        sizes = _tail_sizes(max_negatives, tail_fraction, min_tail_points)
        size = torch.from_numpy(sizes).to(num_negatives.device)[num_negatives]
    beta_hat, r_squared, delta_aic, num_points = _fit_lines(smallest, size)
    hardest = smallest[:, 0]
    rho = hardest.masked_fill(hardest.isinf(), 2.0)
    return TailFit(beta_hat, r_squared, delta_aic, rho, num_points.expand_as(rho))


def pooled_tail(shortfalls: Iterable[Tensor], max_negatives: int) -> Tensor:
    """Pick the hardest negatives of a part of the batch, for the pooled line.

    Args:
        shortfalls: Block by block, ``inf`` where there is no negative.
        max_negatives: An upper bound of the negatives of all anchors of the whole batch together,
            known to the host.

    Returns:
        As many of the smallest as the line of the whole batch can need, ``inf`` where there are
        fewer: 5 % of ``max_negatives``, at least 1024, at most all.
    """
    width = min(max_negatives, max(1024, max_negatives // 20))
    smallest: Tensor | None = None
    for part in shortfalls:
        flat = part.flatten()
        found = flat if smallest is None else torch.cat([smallest, flat])
        smallest = _smallest(found[None], min(width, len(found)))[0]
    if smallest is None:
        raise ValueError("shortfalls must hold at least one group, got none.")
    return torch.nn.functional.pad(smallest, (0, width - len(smallest)), value=torch.inf)


def fit_pooled(smallest: Tensor, num_negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Fit one Weibull line to the hardest negatives of the whole batch.

    Args:
        smallest: The smallest shortfalls in any order, see :func:`pooled_tail`.
        num_negatives: Negatives of all anchors together, a scalar.

    Returns:
        Slope and fit, two scalars, from the smallest 5 % of the shortfalls, at least 1024.
    """
    size = (num_negatives // 20).clamp_min(1024).minimum(num_negatives)
    beta_hat, r_squared, _, _ = _fit_lines(smallest.sort().values[None], size[None])
    return beta_hat[0], r_squared[0]


def _smallest(values: Tensor, width: int) -> Tensor:
    """The smallest values of each row, ascending."""
    if not values.is_cpu or torch.compiler.is_compiling():
        return values.topk(width, largest=False, sorted=True).values
    # NumPy selects with vector instructions: a tenth of 2048 x 2048 in a fifth of topk's time.
    found = np.partition(values.numpy(), width - 1, axis=1)[:, :width]
    return torch.from_numpy(np.sort(found, axis=1))


@lru_cache(maxsize=8)
def _tail_sizes(
    max_negatives: int, tail_fraction: float, min_tail_points: int
) -> NDArray[np.int64]:
    """Tail size for each number of negatives up to the largest: exact, without float64."""
    numbers = range(max_negatives + 1)
    return np.array([tail_size(k, tail_fraction, min_tail_points) for k in numbers])


def _fit_lines(smallest: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both lines, from ascending shortfalls (rows, width), of which the first ``size`` count."""
    size = size[:, None]
    rank = torch.arange(1, smallest.shape[1] + 1, device=smallest.device)
    used = (rank > (size // 20).clamp_min(1)) & (rank <= size)
    num_points = used.sum(dim=1)

    def centred(values: Tensor) -> Tensor:
        values = values.where(used, 0.0)
        mean = values.sum(dim=1, keepdim=True) / num_points[:, None].clamp_min(1)
        return (values - mean).where(used, 0.0)

    # The responses depend on ranks alone: one row serves all anchors that have the same tail size.
    log_position = (rank / (size + 1).to(smallest.dtype)).log()
    # Relative to one of its points a constant tail is exactly 0. Centred alone it would be rounding
    # noise, whose sign would pass for the sign of a slope.
    x = smallest.log()
    last = (size - 1).clamp_min(0).expand(len(x), 1)
    x = centred(x - x.gather(1, last))
    weibull = centred(log_position)
    gumbel = centred((-log_position.where(used, -1.0)).log())
    sxx = x.square().sum(dim=1).clamp_min(_FLOOR)

    def line(y: Tensor) -> tuple[Tensor, Tensor]:
        slope = (x * y).sum(dim=1) / sxx
        residual = (y - slope[:, None] * x).square().sum(dim=1)
        return slope, residual.clamp_min(_FLOOR)

    slope_weibull, sse_weibull = line(weibull)
    slope_gumbel, sse_gumbel = line(gumbel)
    total = weibull.square().sum(dim=1).clamp_min(_FLOOR)
    r_squared = (1 - sse_weibull / total).clamp(0, 1)
    sse_weibull = sse_weibull + _WRONG_SIGN * (slope_weibull <= 0)
    sse_gumbel = sse_gumbel + _WRONG_SIGN * (slope_gumbel >= 0)
    delta_aic = num_points * (sse_gumbel.log() - sse_weibull.log())
    absent = num_points < 2
    return (
        slope_weibull.clamp_min(0).masked_fill(absent, 0.0),
        r_squared.masked_fill(absent, 0.0),
        delta_aic.masked_fill(absent, 0.0),
        num_points,
    )
