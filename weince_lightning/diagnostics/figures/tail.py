"""Figures of how well the fit of the pooled tail holds, and of what nulls give."""

import numpy as np
from matplotlib.figure import Figure

from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.diagnostics.figures.exceedances import (
    SIMILARITY,
    above_threshold,
    part_above,
)
from weince_lightning.diagnostics.figures.picture import Picture, few_ticks, name_below
from weince_lightning.extremes.threshold import mean_excess, qq_points
from weince_lightning.figures import Colors


def draw_quantiles(diagnosis: Diagnosis) -> Picture | None:
    """Draw the quantiles of the fit against those observed."""
    exceedances, fit = above_threshold(diagnosis), diagnosis.threshold
    if exceedances is None or fit.xi is None:
        return None
    by_fit, observed = qq_points(diagnosis.pooled.tail, fit)
    gap = observed - by_fit
    widest = int(np.abs(gap).argmax())
    goodness = diagnosis.goodness

    def plot(figure: Figure, colors: Colors) -> None:
        axes = figure.subplots()
        ends = [min(by_fit[0], observed[0]), max(by_fit[-1], observed[-1])]
        axes.plot(ends, ends, color=colors.fit, label="if the fit held exactly")
        axes.plot(by_fit, observed, "o", color=colors.data, markersize=3.5, label="observed")
        axes.set_xlabel("similarity by the fit (cosine)")
        axes.set_ylabel("observed similarity (cosine)")
        few_ticks(axes)
        axes.legend(loc="upper left")

    return Picture(
        title="Observed and fitted quantiles",
        question="Does the fit hold?",
        caption=(
            "Each point is one quantile of the similarities above the threshold; the further up, "
            "the more similar. Points on the line mean that the fitted tail and the observed one "
            "agree; points below it at the top mean that the observed tail is shorter."
        ),
        alt=(
            f"Quantile-quantile plot of {len(observed)} points with the diagonal, from "
            f"{observed[0]:.3f} to {observed[-1]:.3f}. They leave it by at most "
            f"{abs(gap[widest]):.4f}, where the fit gives {by_fit[widest]:.3f} and "
            f"{observed[widest]:.3f} was observed; the largest is {observed[-1]:.3f}, by the fit "
            f"{by_fit[-1]:.3f}."
            + ("" if goodness is None else f" Goodness of fit: p = {goodness.p_value:.3f}.")
        ),
        plot=plot,
        height=3.4,
    )


def draw_stability(diagnosis: Diagnosis) -> Picture | None:
    """Draw the shape over several thresholds, with what nulls give."""
    fits = [fit for fit in diagnosis.stability if fit.xi is not None]
    if not fits:
        return None
    main = diagnosis.threshold
    laws = {"gaussian": "Gaussian scores", "sphere": "uniform directions"}
    listed = "; ".join(
        f"above {fit.threshold:.3f} (largest {part_above(fit):.3g} %) {fit.xi:.3f}"
        + ("" if fit.xi_interval is None else " ({:.3f} to {:.3f})".format(*fit.xi_interval))
        for fit in fits
    )
    nulls = "".join(
        f" {laws[name].capitalize()} give {null.xi:.3f}, from {null.xi_range[0]:.3f} to "
        f"{null.xi_range[1]:.3f}."
        for name, null in diagnosis.nulls.items()
    )

    def plot(figure: Figure, colors: Colors) -> None:
        axes = figure.subplots()
        looks = {"gaussian": (colors.other, "--"), "sphere": (colors.third, "-.")}
        for name, null in diagnosis.nulls.items():
            colour, line = looks[name]
            axes.axhspan(*null.xi_range, color=colour, alpha=0.2, linewidth=0)
            axes.axhline(null.xi, color=colour, linestyle=line, label=f"{laws[name]} (95 %)")
        for fit in [*(fit for fit in fits if fit is not main), main]:
            if fit.xi is None:
                continue
            is_main, place = fit is main, part_above(fit)
            if fit.xi_interval is not None:
                # No error bar: the interval of draws need not hold the shape.
                axes.plot([place, place], fit.xi_interval, color=colors.fit, marker="_")
            axes.plot(
                place, fit.xi, color=colors.fit, marker="D" if is_main else "o", linestyle="",
                markersize=8 if is_main else 5, zorder=3,
                markerfacecolor=colors.background if is_main else colors.fit,
                label="the threshold used" if is_main else None,
            )  # fmt: skip
        axes.axhline(0, color=colors.ink, linewidth=1)
        axes.margins(x=0.1)
        axes.invert_xaxis()
        axes.set_xlabel("similarities above the threshold in %")
        axes.set_ylabel("shape ξ (no unit)")
        few_ticks(axes, 6)
        name_below(figure, axes)

    return Picture(
        title="Shape over thresholds",
        question="Does the shape depend on the threshold, and do the nulls have it?",
        caption=(
            "ξ with its 95 % interval, for thresholds that rise to the right: below 0 the tail has "
            "an end. Where the points stay level the threshold does not matter. Only below the "
            "bands, what Gaussian scores and random directions give above the quantile used, is "
            "the tail shorter than theirs."
        ),
        alt=f"The shape ξ with 95 % intervals over {len(fits)} thresholds: {listed}.{nulls}",
        plot=plot,
        height=4.2,
    )


def draw_mean_excess(diagnosis: Diagnosis) -> Picture | None:
    """Draw how far similarities lie above thresholds on average."""
    fit, tail = diagnosis.threshold, diagnosis.pooled.tail
    if above_threshold(diagnosis) is None:
        return None
    excess = mean_excess(tail)
    low, high = excess.means - 1.96 * excess.errors, excess.means + 1.96 * excess.errors
    alt = (
        f"Mean excess over {len(excess.means)} thresholds with a band of 1.96 standard errors: "
        f"{excess.means[0]:.4f} at {excess.thresholds[0]:.3f}, {excess.means[-1]:.4f} at "
        f"{excess.thresholds[-1]:.3f}."
    )
    if fit.xi is not None:
        alt += (
            f" The fit's line starts at the threshold {fit.threshold:.3f} and has the slope "
            f"{fit.xi / (1 - fit.xi):.3f}."
        )

    def plot(figure: Figure, colors: Colors) -> None:
        axes = figure.subplots()
        axes.fill_between(
            excess.thresholds, low, high, color=colors.data, alpha=0.35, linewidth=0,
            label="± 1.96 standard errors",
        )  # fmt: skip
        axes.plot(excess.thresholds, excess.means, color=colors.data, label="observed")
        axes.axvline(fit.threshold, color=colors.ink, linestyle=":", label="the threshold used")
        if fit.xi is not None and fit.sigma is not None:
            along = np.array([fit.threshold, excess.thresholds[-1]])
            line = (fit.sigma + fit.xi * (along - fit.threshold)) / (1 - fit.xi)
            axes.plot(along, line, color=colors.fit, linestyle="--", label="generalised Pareto fit")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"threshold: {SIMILARITY}")
        axes.set_ylabel("mean excess (cosine)")
        few_ticks(axes)
        name_below(figure, axes, 2)

    return Picture(
        title="Mean excess",
        question="Does the tail thin out towards an end?",
        caption=(
            "How far similarities above a threshold lie above it on average. A line that falls "
            "means a tail with an end, a level one an exponential tail, a rising one a heavy tail; "
            "the right end rests on few pairs."
        ),
        alt=alt,
        plot=plot,
        height=3.6,
    )
