"""Figures of batches: the evidence of their anchors, the gate, the gradient and the link."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

from weince_lightning.diagnostics.anchors import HARDEST, LINKS
from weince_lightning.diagnostics.diagnosis import SHARES, Diagnosis
from weince_lightning.diagnostics.figures.picture import Picture, few_ticks, name_below
from weince_lightning.extremes.pareto import Floats
from weince_lightning.figures import Colors

_MOST_POINTS = 2000
"""Anchors in the scatter: more would only lie upon each other."""
_LINK_NAMES = {"softmax": "softmax", "weibit": "Weibit", "weince": "WEINCE"}


def _finite(column: Tensor) -> Floats:
    values: Floats = column[column.isfinite()].double().numpy()
    return values


def draw_evidence(diagnosis: Diagnosis) -> Picture:
    """Draw what is measured for each anchor."""
    anchors = diagnosis.anchors
    gate = _finite(anchors.gate)
    columns = {
        "gate λ (0: softmax, 1: Weibit)": gate,
        "Weibull slope $\\hat\\beta$ (no unit)": _finite(anchors.beta_hat),
        "hardness ρ: 1 − largest similarity": _finite(anchors.rho),
        "Δ AIC, no evidence (marks: known tails)": _finite(anchors.delta_aic),
    }
    names = ("gate λ", "Weibull slope β", "hardness ρ", "Δ AIC")
    listed = "; ".join(
        f"{name}: median {middle:.3g}, middle half {low:.3g} to {high:.3g}"
        for name, (low, middle, high) in zip(
            names, (np.quantile(each, (0.25, 0.5, 0.75)) for each in columns.values()), strict=True
        )
    )
    known = ", ".join(f"{value:.3g} for {law}" for law, value in diagnosis.known_tails.items())

    def plot(figure: Figure, colors: Colors) -> None:
        panels = figure.subplots(len(columns), 1)
        for axes, (label, values) in zip(panels, columns.items(), strict=True):
            part = np.full(len(values), 100 / len(values))
            within = (0, 1) if values is gate else None
            axes.hist(values, bins=30, range=within, weights=part, color=colors.data)
            axes.set_xlabel(label)
            few_ticks(axes)
            axes.locator_params(axis="y", nbins=3)
        figure.supylabel("anchors in %")
        # One above the other: most of them are nearly equal.
        top = panels[-1].get_ylim()[1]
        looks = zip((colors.other, colors.fit, colors.third, colors.fourth), "^osD", strict=True)
        laws = diagnosis.known_tails.items()
        for row, ((law, value), (colour, marker)) in enumerate(zip(laws, looks, strict=True)):
            panels[-1].plot(
                value, top * (1.1 + 0.16 * row), color=colour, marker=marker, linestyle="",
                label=f"{law}: {value:.0f}",
            )  # fmt: skip
        panels[-1].set_ylim(0, 1.7 * top)
        name_below(figure, panels[-1])

    return Picture(
        title="Evidence of each anchor",
        question="What does WEINCE measure in a batch?",
        caption=(
            "From above: how far the gate opens, the slope of the tail's Weibull line, how far the "
            "hardest negative is from similarity 1, and Δ AIC. The marks are the median Δ AIC of "
            "independent scores with a known tail. It is no evidence: it is as large for any "
            "smooth tail."
        ),
        alt=(
            f"Four histograms over {len(anchors.gate):,} anchors. {listed}. Marks of the Δ AIC "
            f"that known tails give: {known}."
        ),
        plot=plot,
        height=8.2,
    )


def draw_gate(diagnosis: Diagnosis) -> Picture:
    """Draw the gate against the hardness."""
    anchors = diagnosis.anchors
    gate, rho = anchors.gate.double().numpy(), anchors.rho.double().numpy()
    every = -(-len(gate) // _MOST_POINTS)
    is_open = gate > 0.5
    alt = f"Gate λ against hardness ρ of {len(gate[::every]):,} anchors, ρ from {rho.min():.3g} to "
    alt += f"{rho.max():.3g}. λ is above 1/2 for {100 * is_open.mean():.0f} % of all"
    if 0 < is_open.sum() < len(gate):
        alt += (
            f", with a median ρ of {np.median(rho[is_open]):.3g}; of the others it is "
            f"{np.median(rho[~is_open]):.3g}"
        )
    alt += f". λ lies between {gate.min():.2f} and {gate.max():.2f}."

    def plot(figure: Figure, colors: Colors) -> None:
        axes = figure.subplots()
        # As pixels: thousands of marks would be most of an SVG file.
        axes.scatter(
            rho[::every], gate[::every], s=12, color=colors.fit, alpha=0.5, linewidths=0,
            rasterized=True,
        )  # fmt: skip
        axes.axhline(0.5, color=colors.ink, linestyle=":", linewidth=1)
        _scale_hardness(axes, rho)
        axes.set_ylim(-0.04, 1.04)
        axes.set_xlabel("hardness ρ: 1 − largest similarity")
        axes.set_ylabel("gate λ (0: softmax, 1: Weibit)")

    return Picture(
        title="Gate and hardness",
        question="Which anchors leave the softmax?",
        caption=(
            "Each point is an anchor; those at the left have the most similar negatives. The gate "
            "compares anchors of a batch with each other: it opens (above the dotted line) for "
            "about the hardest fifth, whatever the tail."
        ),
        alt=alt,
        plot=plot,
    )


def _scale_hardness(axes: Axes, rho: Floats) -> None:
    """Make the axis logarithmic where hardness spans more than a decade."""
    if rho.min() > 0 and rho.max() > 10 * rho.min():
        axes.set_xscale("log")
        # Little more than a decade would leave one number.
        parts = (1, 2, 5) if rho.max() < 100 * rho.min() else (1,)
        axes.xaxis.set_major_locator(LogLocator(subs=parts, numticks=6))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        few_ticks(axes)


def draw_gradient_shares(diagnosis: Diagnosis) -> Picture:
    """Draw which part of the gradient the hardest negatives get."""
    shares = 100 * diagnosis.anchors.shares.double().mean(dim=0).numpy()
    parts = [f"{100 * part:g} %" for part in HARDEST]
    listed = "; ".join(
        f"{_LINK_NAMES[link]} {', '.join(f'{value:.1f} %' for value in row)}"
        for link, row in zip(LINKS, shares, strict=True)
    )

    def plot(figure: Figure, colors: Colors) -> None:
        axes = figure.subplots()
        place = np.arange(len(parts))
        looks = (colors.data, colors.fit, colors.other)
        for side, link, row, colour in zip((-1, 0, 1), LINKS, shares, looks, strict=True):
            name = _LINK_NAMES[link]
            bars = axes.bar(place + 0.28 * side, row, 0.26, color=colour, label=name)
            axes.bar_label(bars, fmt="%.0f", padding=1, fontsize="small")
        axes.set_xticks(place, parts)
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.12)
        axes.locator_params(axis="y", nbins=5)
        axes.set_xlabel("hardest part of the negatives")
        axes.set_ylabel("share of the gradient in %")
        name_below(figure, axes, 3)

    return Picture(
        title="Shares of the gradient",
        question="How much of the gradient do the hardest negatives get?",
        caption=(
            "Each group of bars: the share of an anchor's gradient on its most similar negatives, "
            f"by the softmax at τ = {diagnosis.temperature:g}, by the Weibit (the pure Weibull "
            "link) and by WEINCE, which blends them by the gate."
        ),
        alt=(
            f"Bars of the mean share of the gradient on the hardest {', '.join(parts)} of the "
            f"negatives: {listed}."
        ),
        plot=plot,
    )


def draw_link(diagnosis: Diagnosis) -> Picture | None:
    """Draw how well each link explains which candidate is the positive."""
    link, profile = diagnosis.link, diagnosis.profile
    if link is None or profile is None or link.lambda_hat is None or link.lambda_interval is None:
        return None
    best, (low, high) = link.lambda_hat, link.lambda_interval

    def plot(figure: Figure, colors: Colors) -> None:
        axes = figure.subplots()
        axes.axvspan(low, high, color=colors.fit, alpha=0.2, linewidth=0, label="95 % interval")
        axes.plot(SHARES, profile, color=colors.fit, linewidth=2, label="profile log-likelihood")
        axes.axhline(-1.92, color=colors.other, linestyle="--", label="cut at −1.92")
        axes.axvline(best, color=colors.ink, linestyle=":", label=f"best, λ = {best:.2f}")
        axes.set_ylim(1.08 * max(float(profile.min()), -12.0) - 0.3, 0.3)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("share λ of the Weibit (0: softmax)")
        axes.set_ylabel("log-likelihood − best, in nats")
        few_ticks(axes)
        name_below(figure, axes, 2)

    return Picture(
        title="Link of the positives",
        question="Which link explains where the positives rank among their negatives?",
        caption=(
            "The higher the curve, the better a link explains the positives: the softmax is at the "
            "left end, the Weibit at the right. Links where the curve lies above the dashed line "
            "agree with the data; a curve that stays above it everywhere tells nothing."
        ),
        alt=(
            f"Profile log-likelihood over the share λ of the Weibit, from {link.num_winners:,} "
            f"positives. It is best at λ = {best:.2f}; λ from {low:.2f} to {high:.2f} lies within "
            f"1.92 of that. The softmax, λ = 0, is {abs(profile[0]):.2f} nats below the best, the "
            f"Weibit, λ = 1, {abs(profile[-1]):.2f}."
        ),
        plot=plot,
        height=3.6,
    )
