"""Figure of the tail monitor, drawn from numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from weince_lightning.figures import LIGHT, create_figure, figure_style

Numbers = NDArray[np.floating[Any]]


class AnchorTail(NamedTuple):
    """The hardest negatives of an anchor and what was made of them."""

    name: str
    """What to call the anchor."""
    shortfalls: Numbers
    """Ascending, positive, shape ``(k,)``."""
    num_points: int
    """How many of the last ones the lines were fitted to; below 2 there are no lines."""
    rho: float
    r"""Hardness :math:`\rho`."""
    gate: float
    r"""Blend weight :math:`\lambda`."""
    beta_hat: float
    r"""Slope :math:`\hat\beta` of the Weibull line."""
    delta_aic: float
    r""":math:`\Delta` AIC, positive where the Weibull line fits better."""


class TailPicture(NamedTuple):
    """What the figure shows of a batch; all finite."""

    rho: Numbers
    r"""Hardness :math:`\rho` of the anchors, shape ``(anchors,)``."""
    gate: Numbers
    r"""Blend weights :math:`\lambda`, same shape."""
    rho0: float
    r"""Reference hardness :math:`\rho_0`."""
    tails: Sequence[AnchorTail]
    """The tails of a few anchors, at most three."""
    hardest: Sequence[float]
    """Fractions of the negatives, in ``(0, 1]``."""
    softmax_shares: Numbers
    """Mean part of the gradient that the hardest get under softmax; as many as ``hardest``."""
    weince_shares: Numbers
    """The same under WEINCE."""


_ANCHOR_STYLES = ((LIGHT.other, "^"), (LIGHT.third, "s"), (LIGHT.fit, "o"))
"""Color and marker of each anchor."""
_SOFTMAX, _WEINCE = "#BBBBBB", "#444444"


def draw_tails(picture: TailPicture, title: str) -> Figure:
    r"""Draw what WEINCE saw in a batch and did about it, in three panels.

    The gate :math:`\lambda` of each anchor against its hardness :math:`\rho`; the tails of a few
    anchors, :math:`\log F_r` against :math:`\log \delta_{(r)}`, with the Weibull line (solid) and
    the Gumbel proxy (dotted), points without part in the fit being hollow; the part of the gradient
    that the hardest negatives get.

    Args:
        picture: What to show.
        title: What stands above it.

    Returns:
        1000 x 360 points of a hundredth of an inch on white, not known to ``pyplot``: nothing has
        to be closed.
    """
    with figure_style():
        figure = create_figure(10, 3.6)
        figure.suptitle(title)
        gates, tails, shares = figure.subplots(1, 3, width_ratios=(1, 1.15, 0.85))
        _draw_gates(gates, picture)
        _draw_tails(tails, picture.tails)
        _draw_shares(shares, picture)
    return figure


def _draw_gates(axes: Axes, picture: TailPicture) -> None:
    """How far each anchor left the softmax, against its hardness."""
    axes.scatter(picture.rho, picture.gate, s=9, color=_WEINCE, alpha=0.35, linewidths=0)
    for tail, (color, marker) in zip(picture.tails, _ANCHOR_STYLES, strict=False):
        axes.scatter(
            tail.rho, tail.gate, s=45, color=color, marker=marker, edgecolors="white", zorder=3
        )
    axes.axvline(picture.rho0, color=LIGHT.ink, linestyle="--", linewidth=0.8)
    axes.annotate(
        r"$\rho_0$", (picture.rho0, 1.02), xycoords=("data", "axes fraction"),
        ha="center",
    )  # fmt: skip
    if picture.rho.max() > 10 * picture.rho.min():
        axes.set_xscale("log")
        # Most batches span little more than a decade, where the default writes every number.
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:.3g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(-0.04, 1.04)
    axes.set_xlabel(r"hardness $\rho$ (hard at the left)")
    axes.set_ylabel(r"gate $\lambda$")


def _draw_tails(axes: Axes, tails: Sequence[AnchorTail]) -> None:
    """The points of each tail and the two lines through them."""
    for tail, (color, marker) in zip(tails, _ANCHOR_STYLES, strict=False):
        x = np.log(tail.shortfalls)
        position = np.arange(1, len(x) + 1) / (len(x) + 1)
        y = np.log(position)
        used = slice(len(x) - tail.num_points, None) if tail.num_points >= 2 else slice(0)
        label = rf"{tail.name}: $\hat\beta$ {tail.beta_hat:.3g}, $\Delta$AIC {tail.delta_aic:.3g}"
        axes.scatter(x, y, s=14, facecolors="white", edgecolors=color, marker=marker)
        axes.scatter(x[used], y[used], s=14, color=color, marker=marker, label=label)
        if x[used].size and np.ptp(x[used]) > 0:
            along = np.linspace(x[used].min(), x[used].max()) - x[used].mean()
            weibull = y[used].mean() + tail.beta_hat * along
            proxy = -np.exp(_fitted_line(x[used] - x[used].mean(), np.log(-y[used]), along))
            for line, style in ((weibull, "-"), (proxy, ":")):
                axes.plot(along + x[used].mean(), line, style, color=color, linewidth=1.2)
    axes.set_xlabel(r"log shortfall $\log\,\delta_{(r)}$")
    axes.set_ylabel(r"$\log F_r$")
    axes.set_title("Weibull line (solid), Gumbel proxy (dotted)")
    if tails:
        # The proxy dives far below the points. Above them there is room for the legend.
        lowest = -np.log(max(len(tail.shortfalls) for tail in tails) + 1)
        axes.set_ylim(1.08 * lowest, -0.5 * lowest)
        axes.set_yticks([tick for tick in axes.get_yticks() if lowest <= tick <= 0])
        axes.legend(loc="upper left", handletextpad=0.2)


def _fitted_line(centred: Numbers, response: Numbers, along: Numbers) -> Numbers:
    """The least-squares line of a response on centred numbers, at other places."""
    slope = centred @ response / (centred @ centred)
    line: Numbers = response.mean() + slope * along
    return line


def _draw_shares(axes: Axes, picture: TailPicture) -> None:
    """Which part of the gradient the hardest negatives get, under softmax and under WEINCE."""
    place = np.arange(len(picture.hardest))
    for side, name, color, values in (
        (-0.2, "softmax", _SOFTMAX, picture.softmax_shares),
        (0.2, "WEINCE", _WEINCE, picture.weince_shares),
    ):
        bars = axes.bar(place + side, 100 * values, 0.38, color=color, label=name)
        axes.bar_label(bars, fmt="%.3g", fontsize=8, padding=1)
    axes.set_xticks(place, [f"{100 * part:g} %" for part in picture.hardest])
    axes.set_xlabel("hardest part of the negatives")
    axes.set_ylabel("share of the gradient in %")
    axes.legend(loc="upper left")
    axes.margins(y=0.15)
    axes.grid(visible=False)
