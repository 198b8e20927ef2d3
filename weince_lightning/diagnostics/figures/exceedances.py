"""The figure of the similarities above the threshold, and what of them other figures need."""

from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from scipy import stats

from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.diagnostics.figures.picture import Picture, few_ticks, name_below
from weince_lightning.diagnostics.tables import possible_end
from weince_lightning.extremes.pareto import MIN_EXCEEDANCES, Floats
from weince_lightning.extremes.threshold import ThresholdFit
from weince_lightning.figures import Colors

Look: TypeAlias = dict[str, Any]
"""Color, line and label, as matplotlib takes them."""

SIMILARITY = "similarity of negatives (cosine)"


def above_threshold(diagnosis: Diagnosis) -> Floats | None:
    """Return the exceedances, ascending; None where they are too few or all the same."""
    exceedances = diagnosis.pooled.tail.exceedances(diagnosis.threshold.threshold)
    if len(exceedances) < MIN_EXCEEDANCES or exceedances[0] == exceedances[-1]:
        return None
    return exceedances


def part_above(fit: ThresholdFit) -> float:
    """Part of the scores above the threshold, in per cent."""
    return 100 * (1 - fit.quantile)


def draw_exceedances(diagnosis: Diagnosis) -> Picture | None:
    """Draw how the similarities above the threshold fall off, and two fits."""
    exceedances, fit = above_threshold(diagnosis), diagnosis.threshold
    if exceedances is None:
        return None
    scale, largest = float(exceedances.mean()), float(exceedances[-1])
    alt = (
        f"Two panels on the {fit.num_exceedances:,} similarities above {fit.threshold:.3f}, the "
        f"largest {fit.threshold + largest:.3f}. Above: the part of them that is exceeded, "
        "against the exceedance, both logarithmic. Below: their density against similarity. "
        f"An exponential fit has the scale {scale:.4f}; "
    )
    if fit.xi is None or fit.sigma is None:
        alt += f"there is no generalised Pareto fit: {fit.note}."
    else:
        at_largest = [
            float(law.sf(largest)) * len(exceedances)
            for law in (stats.genpareto(fit.xi, 0, fit.sigma), stats.expon(0, scale))
        ]
        alt += (
            f"the generalised Pareto fit has the shape ξ = {fit.xi:.3f} and the scale "
            f"{fit.sigma:.4f} and "
            + (
                "places no end below 1"
                if (end := possible_end(fit)) is None
                else f"ends at {end:.3f}"
            )
            + f". Beyond the largest similarity the generalised Pareto fit expects "
            f"{at_largest[0]:.2g} more, the exponential one {at_largest[1]:.2g}."
        )

    def plot(figure: Figure, colors: Colors) -> None:
        falling, density = figure.subplots(2, 1)
        _plot_fall(falling, exceedances, fit, colors)
        _plot_density(density, exceedances, fit, colors)
        name_below(figure, falling)

    return Picture(
        title="Similarities above the threshold",
        question="How does the tail of the negatives fall off?",
        caption=(
            f"The most similar {part_above(fit):.2g} % of all pairs of negatives. A Weibull tail "
            "(solid, ξ below 0) bends down towards an end; an exponential tail (dashed, the "
            "“Gumbel” case that the softmax stands for) goes on. Look which line the points "
            "follow at the right end; by eye the two differ little where ξ is near 0."
            + ("" if fit.xi is not None else " Here the first has no fit.")
        ),
        alt=alt,
        plot=plot,
        height=6.6,
    )


def _laws(exceedances: Floats, fit: ThresholdFit, colors: Colors) -> list[tuple[Any, Look]]:
    """List the fitted laws of exceedances, each with its look."""
    exponential = {"color": colors.other, "linestyle": "--", "label": "exponential fit (“Gumbel”)"}
    laws: list[tuple[Any, Look]] = [(stats.expon(0, exceedances.mean()), exponential)]
    if fit.xi is not None:
        look = {"color": colors.fit, "label": "generalised Pareto fit (“Weibull” if ξ < 0)"}
        laws.append((stats.genpareto(fit.xi, 0, fit.sigma), look))
    return laws


def _ends(fit: ThresholdFit, colors: Colors) -> list[tuple[float, Look]]:
    """List where the tail may end, each with its look."""
    cap = {"color": colors.ink, "linestyle": ":", "label": "similarity 1, the cap"}
    ends: list[tuple[float, Look]] = [(1.0, cap)]
    if (end := possible_end(fit)) is not None:
        label = f"fitted end, {end:.3f}"
        ends.append((end, {"color": colors.third, "linestyle": "-.", "label": label}))
    return ends


def _plot_fall(axes: Axes, exceedances: Floats, fit: ThresholdFit, colors: Colors) -> None:
    """Survival against exceedance, both logarithmic."""
    n, largest = len(exceedances), float(exceedances[-1])
    from_top = np.unique(np.geomspace(1, n, 120).astype(np.int64))
    axes.plot(
        exceedances[n - from_top], (from_top - 0.5) / n, "o", color=colors.data, markersize=3,
        label="observed",
    )  # fmt: skip
    right = 1.3 * largest
    for end, look in _ends(fit, colors):
        if end - fit.threshold <= 10 * largest:
            axes.axvline(end - fit.threshold, **look)
            right = max(right, 1.3 * (end - fit.threshold))
        else:
            axes.plot([], [], **{**look, "label": f"{look['label']} (out of sight)"})
    along = np.geomspace(largest / 50, right, 400)
    for law, look in _laws(exceedances, fit, colors):
        axes.plot(along, law.sf(along), **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(largest / 50, right)
    axes.set_ylim(0.2 / n, 1.6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=5))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"exceedance: similarity − {fit.threshold:.4g}")
    axes.set_ylabel("part that is exceeded")


def _plot_density(axes: Axes, exceedances: Floats, fit: ThresholdFit, colors: Colors) -> None:
    """Density against similarity, both linear."""
    largest, right = float(exceedances[-1]), float(exceedances[-1])
    axes.hist(exceedances + fit.threshold, bins=30, density=True, color=colors.data, alpha=0.6)
    for end, look in _ends(fit, colors):
        if end - fit.threshold <= 2 * largest:
            axes.axvline(end, **look)
            right = max(right, end - fit.threshold)
    along = np.linspace(0, 1.05 * right, 400)
    for law, look in _laws(exceedances, fit, colors):
        axes.plot(along + fit.threshold, law.pdf(along), **look)
    axes.set_xlim(fit.threshold, fit.threshold + 1.05 * right)
    axes.set_xlabel(SIMILARITY)
    axes.set_ylabel("density")
    few_ticks(axes)
