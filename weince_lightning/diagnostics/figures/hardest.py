"""The figure of the answer: do the hardest negatives stop early, and whose do so as well?"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy import stats

from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.diagnostics.figures.exceedances import above_threshold, part_above
from weince_lightning.diagnostics.figures.picture import Picture, name_below
from weince_lightning.extremes.pareto import Floats
from weince_lightning.figures import Colors

_LEAST_SHARE = 2e-3
"""Where the curves end: further down they rest on single pairs."""


def draw_hardest(diagnosis: Diagnosis) -> Picture | None:
    """Draw how the hardest negatives fall off beside those of others, in multiples of the mean."""
    exceedances = above_threshold(diagnosis)
    if exceedances is None:
        return None
    null = diagnosis.nulls.get("sphere") or diagnosis.nulls.get("gaussian")
    against = None if diagnosis.against is None else above_threshold(diagnosis.against)
    own, other = _fall(exceedances), None if against is None else _fall(against)

    def plot(figure: Figure, colors: Colors) -> None:
        axes = figure.subplots()
        along = np.linspace(0, 1.3 * float(own[0][-1]), 200)
        if null is not None:
            low, middle, high = (
                # Of mean 1, as all curves are.
                stats.genpareto(xi, scale=max(1 - xi, 1e-3)).sf(along)
                for xi in (null.xi_range[0], null.xi, null.xi_range[1])
            )
            axes.fill_between(along, low, high, color=colors.other, alpha=0.25, linewidth=0)
            axes.plot(along, middle, color=colors.other, linestyle="--", label="random directions")
        if other is not None:
            axes.plot(*other, color=colors.third, linestyle="-.", label="second encoder")
        axes.plot(*own, color=colors.data, linewidth=2.5, label="these embeddings")
        axes.set_yscale("log")
        axes.set_ylim(_LEAST_SHARE, 1.2)
        axes.set_xlim(0, float(along[-1]))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        axes.set_xlabel("how much more similar than the rest (1: average)")
        axes.set_ylabel("pairs that are still more so")
        axes.locator_params(axis="x", nbins=6)
        name_below(figure, axes, 2)

    listed = [("these embeddings", own)]
    listed += [] if other is None else [("the second encoder", other)]
    points = "; ".join(
        f"for {name} one in ten is more than {_reached(curve, 0.1):.2f} times the average above, "
        f"one in a hundred more than {_reached(curve, 0.01):.2f} times"
        for name, curve in listed
    )
    beside = ""
    if null is not None:
        law = stats.genpareto(null.xi, scale=max(1 - null.xi, 1e-3))
        beside = (
            f"; for random directions it is {float(law.isf(0.1)):.2f} and "
            f"{float(law.isf(0.01)):.2f} times"
        )
    return Picture(
        title=f"The hardest {part_above(diagnosis.threshold):.2g} % of all pairs of negatives",
        question="Do the hardest negatives stop early?",
        caption=(
            "A curve that drops to the left of the shaded band stops earlier than random "
            "directions would, which WEINCE is made for; one in the band or right of it does not."
        ),
        alt=f"How the most similar pairs of negatives fall off: {points}{beside}.",
        plot=plot,
        height=3.0,
    )


def _fall(exceedances: Floats) -> tuple[Floats, Floats]:
    """Return exceedances in multiples of their mean, ascending, and which share lies above each."""
    n = len(exceedances)
    from_top = np.unique(np.geomspace(max(1, _LEAST_SHARE * n), n, 200).astype(np.int64))[::-1]
    return exceedances[n - from_top] / exceedances.mean(), (from_top - 0.5) / n


def _reached(curve: tuple[Floats, Floats], share: float) -> float:
    """Return where a curve has fallen to a share."""
    return float(np.interp(-share, -curve[1], curve[0]))
