"""Figure of a comparison: every seed, every mean, every interval."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from weince_lightning.figures import LIGHT, create_figure, figure_style
from weince_lightning.reporting.comparison import ComparedArm, Comparison
from weince_lightning.reporting.main_table import baseline_label
from weince_lightning.reporting.wording import (
    counted,
    headline_metrics,
    metric_label,
    without_number,
)

_ROW = 0.34
"""Height of an arm in inches."""


def draw(comparison: Comparison) -> Figure:
    """Draw the chosen configurations' test accuracies, one panel for each headline metric.

    Each arm is a row: its encoder seeds as rings, their mean as a dot, the 95 % t-interval as a
    bar. The dashed line is the mean of the baseline.

    Args:
        comparison: What to draw.

    Returns:
        A figure on white, not known to ``pyplot``: nothing has to be closed.
    """
    arms, metrics = comparison.arms, headline_metrics(comparison)
    height = 1.35 + _ROW * max(2, len(arms))
    with figure_style():
        figure = create_figure(9, height)
        figure.suptitle(_title(comparison), parse_math=False)
        panels = figure.subplots(1, max(1, len(metrics)), sharey=True, squeeze=False)[0]
        for axes, metric in zip(panels, metrics, strict=False):
            _draw_panel(axes, comparison, metric)
        panels[0].set_ylim(len(arms) - 0.5, -0.5)
        panels[0].set_yticks(range(len(arms)), [_label(arm) for arm in arms], parse_math=False)
    return figure


def _title(comparison: Comparison) -> str:
    seeds = counted(len(comparison.seeds), "encoder seed")
    if comparison.is_incomplete:
        seeds += f" of {len(comparison.results.plan.seeds)} planned"
    title = f"Mean and 95 % t-interval over {seeds} (rings)"
    baseline = _shortened(baseline_label(comparison))
    return f"{title}; dashed: {baseline}" if baseline else title


def _shortened(label: str) -> str:
    return textwrap.shorten(label, 60, placeholder="...")


def _label(arm: ComparedArm) -> str:
    label = _shortened(arm.label)
    if arm.chosen is None:
        label += f" ({without_number(arm)})"
    return textwrap.fill(label, 30)


def _draw_panel(axes: Axes, comparison: Comparison, metric: str) -> None:
    """Draw the arms under each other."""
    for row, arm in enumerate(comparison.arms):
        is_baseline = arm.name == comparison.results.plan.baseline
        summary = arm.summaries.get(metric)
        if arm.chosen is None or summary is None:
            continue
        color = LIGHT.ink if is_baseline else LIGHT.fit
        if is_baseline:
            axes.axvline(100 * summary.mean, color=color, linestyle="--", linewidth=0.8, zorder=1)
        values = list(arm.chosen.values(metric, comparison.seeds).values())
        # Beside each other from above to below, or equal seeds would hide each other.
        places = row + 0.22 * np.linspace(-1, 1, len(values)) if len(values) > 1 else [row]
        axes.scatter(
            [100 * value for value in values], places, s=16, facecolors="none",
            edgecolors=LIGHT.data, linewidths=0.8, zorder=2,
        )  # fmt: skip
        axes.errorbar(
            100 * summary.mean, row, xerr=100 * (summary.half_width or 0.0), color=color,
            marker="o", markersize=5, elinewidth=1.6, capsize=0, zorder=3,
        )  # fmt: skip
    axes.set_xlabel(f"{metric_label(metric)} accuracy in %")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
