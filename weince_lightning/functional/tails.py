"""Tail evidence: how Weibull-like the hard negatives of a batch are.

It is data for the gate and the shape, and is never differentiated.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weince_lightning.functional.kept import kept
from weince_lightning.functional.tracing import is_traced

_FLOOR = 1e-12
"""Smallest sum of squares: a perfect line and a constant tail stay finite."""
_WRONG_SIGN = 1e6
"""Added to the residual of a line whose slope has the wrong sign: it cannot be the tail."""


class TailFit(NamedTuple):
    """Tail evidence of each anchor; all of shape ``(anchors,)``."""

    beta_hat: Tensor
    r"""Slope :math:`\hat\beta \ge 0` of the Weibull line; 0 if there are too few points."""
    r_squared: Tensor
    """Fit of the Weibull line, in ``[0, 1]``; 0 if there are too few points."""
    delta_aic: Tensor
    r""":math:`\Delta`\ AIC, positive where the Weibull line fits better; 0 if there are too
    few points.

    A heuristic, not a model comparison: the two lines have different responses, and any smooth
    tail gives large values.
    """
    rho: Tensor
    r"""Hardness :math:`\rho`: shortfall of the hardest negative, in ``[1e-6, 2]``."""
    num_points: Tensor
    """Points the lines were fitted to; below 2 there are too few."""


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
    smallest: Tensor,
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
        smallest: The smallest shortfalls of each anchor, ascending, as many as its tail has at
            most (:func:`tail_size` of ``max_negatives``; a column of ``inf`` if that is 0); ``inf``
            where it has fewer negatives.
        num_negatives: Negatives of each anchor, shape ``(anchors,)``; None where all have
            ``max_negatives``.
        max_negatives: An upper bound of ``num_negatives``, known to the host.
        tail_fraction: Part of the negatives that is the tail, in ``(0, 1]``.
        min_tail_points: Fewest points of a tail.

    Returns:
        The evidence; zeros for an anchor with fewer than 2 points. An anchor without negatives has
        :math:`\rho = 2`.

    References:
        Erol et al., ICML 2026, arXiv:2606.00262.

    Example:
        >>> import torch
        >>> quantiles = (torch.arange(1, 101) / 101.0) ** 0.25  # a Weibull tail, shape 4
        >>> fit_tail(quantiles[None, :32], None, 100, tail_fraction=0.1).num_points
        tensor([31.])
        >>> fit_tail(quantiles[None], None, 100, tail_fraction=1.0).beta_hat
        tensor([4.0000])
    """
    # Not a view: it would keep all the tails.
    hardest = smallest[:, 0].clone()
    if num_negatives is None:
        size = tail_size(max_negatives, tail_fraction, min_tail_points)
        lines = _lines_of_all(size, smallest.shape[1], smallest.dtype, smallest.device)
    else:
        sizes = _tail_sizes(max_negatives, tail_fraction, min_tail_points)
        lines = _lines_of_each(sizes, num_negatives, smallest)
    num_points = lines.num_points.expand_as(hardest)
    if lines.used is None:
        return TailFit(*lines.fit(smallest), hardest, num_points)
    too_few = num_points < 2
    beta_hat, r_squared, delta_aic = (
        column.masked_fill(too_few, 0.0) for column in lines.fit(smallest)
    )
    rho = hardest.masked_fill(hardest.isinf(), 2.0)
    return TailFit(beta_hat, r_squared, delta_aic, rho, num_points)


def has_numbers(tensor: Tensor) -> bool:
    """Whether NumPy may read a tensor without waiting for a device."""
    return tensor.is_cpu and not is_traced()


def smallest(values: Tensor, width: int) -> Tensor:
    """Select the smallest values of each row, ascending.

    Args:
        values: Shape ``(rows, columns)``; they may be reordered in place.
        width: How many, from 1 to the number of columns.

    Returns:
        Shape ``(rows, width)``.
    """
    if not has_numbers(values):
        return values.topk(width, largest=False, sorted=True).values
    # NumPy sorts and selects with vector instructions, several times as fast as topk. Short rows
    # are sorted faster than selected from.
    rows = values.numpy()
    if rows.shape[1] > LONGEST_SORTED:
        rows.partition(width - 1, axis=1)
        rows = rows[:, :width]
    rows.sort(axis=1)
    return torch.from_numpy(rows[:, :width])


LONGEST_SORTED = 512
"""Columns up to which NumPy sorts a row faster than it selects a tenth of it."""


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
    kept: Tensor | None = None
    for part in shortfalls:
        flat = part.flatten()
        found = flat if kept is None else torch.cat([kept, flat])
        kept = smallest(found[None], min(width, len(found)))[0]
    if kept is None:
        raise ValueError("shortfalls must hold at least one group, got none.")
    return torch.nn.functional.pad(kept, (0, width - len(kept)), value=torch.inf)


def fit_pooled(hardest: Tensor, num_negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Fit one Weibull line to the hardest negatives of the whole batch.

    Args:
        hardest: The smallest shortfalls in any order, see :func:`pooled_tail`.
        num_negatives: Negatives of all anchors together, a scalar.

    Returns:
        Slope and fit, two scalars, from the smallest 5 % of the shortfalls, at least 1024.
    """
    size = (num_negatives // 20).clamp_min(1024).minimum(num_negatives)
    ascending = hardest.sort().values[None]
    beta_hat, r_squared, _ = _Lines.of(size[None], len(hardest), hardest.dtype).fit(ascending)
    return beta_hat[0], r_squared[0]


@kept
def _tail_sizes(
    max_negatives: int, tail_fraction: float, min_tail_points: int
) -> NDArray[np.int64]:
    """What :func:`tail_size` returns for each number of negatives up to the largest."""
    numbers = np.arange(max_negatives + 1)
    wanted = np.rint(tail_fraction * numbers).astype(np.int64)  # half to even, as round does
    sizes: NDArray[np.int64] = np.minimum(numbers, np.maximum(wanted, max(10, min_tail_points)))
    return sizes


class _Lines(NamedTuple):
    """The responses of both lines, which depend on the ranks of the points alone."""

    points: slice
    """The columns of the tail that are read."""
    used: Tensor | None
    """Points that count, shape ``(rows, points)``; None if all do."""
    num_points: Tensor
    """Number of points that count, shape ``(1 or rows,)``."""
    responses: Tensor
    r"""Centered :math:`\log F` and :math:`-\log(-\log F)`, both increasing; 0 where unused.

    Shape ``(2, 1 or rows, points)``.
    """
    total: Tensor
    """Sum of squares of the first, shape ``(1 or rows,)``."""

    @classmethod
    def of(cls, size: Tensor, points: int, dtype: torch.dtype) -> "_Lines":
        """Lines through the first ``size`` of the points, without a twentieth, at least one."""
        size = size[:, None]
        rank = torch.arange(1, points + 1, device=size.device)
        used = (rank > (size // 20).clamp_min(1)) & (rank <= size)
        num_points = used.sum(dim=1, dtype=dtype)
        log_position = (rank / (size + 1).to(dtype)).log()
        gumbel = -(-log_position.where(used, -1.0)).log()
        responses = _center(torch.stack([log_position, gumbel]), used, num_points)
        total = responses[0].square().sum(dim=1).clamp_min(_FLOOR)
        return cls(slice(points), used, num_points, responses, total)

    def fit(self, smallest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Fit the lines to ascending shortfalls, shape ``(rows, points)``.

        Returns:
            Slope and fit of the Weibull line and the difference of AIC.
        """
        x = smallest[:, self.points].log()
        # Relative to one of its points a constant tail is exactly 0. Centered alone it would be
        # rounding noise, whose sign would pass for the sign of a slope.
        if self.used is None:
            x = x - x[:, -1:]
            x -= x.mean(dim=1, keepdim=True)
        else:
            place = torch.arange(x.shape[1], device=x.device)
            last = (self.used * place).amax(dim=1, keepdim=True).expand(len(x), 1)
            x = _center(x - x.gather(1, last), self.used, self.num_points)
        sxx = torch.linalg.vecdot(x, x).clamp_min_(_FLOOR)
        if self.responses.shape[1] == 1:  # one row of responses serves all: a matrix product
            products = self.responses[:, 0] @ x.T
        else:
            products = (x * self.responses).sum(dim=2)
        slope = products / sxx
        residual = torch.addcmul(self.responses, slope[:, :, None], x, value=-1)
        sse = torch.linalg.vecdot(residual, residual).clamp_min_(_FLOOR)
        r_squared = (1 - sse[0] / self.total).clamp_min_(0)
        log_sse = sse.add_(slope <= 0, alpha=_WRONG_SIGN).log_()
        return slope[0].clamp_min(0), r_squared, self.num_points * (log_sse[1] - log_sse[0])


def _center(values: Tensor, used: Tensor, num_points: Tensor) -> Tensor:
    """Subtract the mean of the points that count; 0 where they do not."""
    values = values.where(used, 0.0)
    mean = values.sum(dim=-1, keepdim=True) / num_points[:, None].clamp_min(1)
    return (values - mean).where(used, 0.0)


def _lines_of_each(sizes: NDArray[np.int64], num_negatives: Tensor, smallest: Tensor) -> _Lines:
    """Lines of anchors whose tail sizes follow their numbers of negatives."""
    points, dtype, device = smallest.shape[1], smallest.dtype, smallest.device
    if num_negatives.is_cpu and len(num_negatives) > 0 and not is_traced():
        # Reading them costs no host sync, and mostly all are equal.
        each = sizes[num_negatives.numpy()]
        if each.min() == each.max():
            return _lines_of_all(int(each[0]), points, dtype, device)
    return _Lines.of(torch.from_numpy(sizes).to(device)[num_negatives], points, dtype)


@kept
def _lines_of_all(size: int, points: int, dtype: torch.dtype, device: torch.device) -> _Lines:
    """Lines of anchors that all have the same tail size; cached for the next steps."""
    lines = _Lines.of(torch.full((1,), size, device=device), points, dtype)
    used = slice(max(1, size // 20), size)
    if size < used.start + 2:
        return lines
    responses = lines.responses[:, :, used].contiguous()
    # Without the points that do not count, no mask is needed.
    return lines._replace(points=used, used=None, responses=responses)
