"""A picture: a figure that can be rendered on light and on dark, and what it shows in words."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH = 4.2
"""Inches: a telephone's screen shrinks no text below 9 pixels."""


class Colours(NamedTuple):
    """What is drawn in which colour; all but the greys are from the palette of Okabe and Ito."""

    background: str
    ink: str
    faint: str
    """Grids and what stands behind."""
    data: str
    """What was observed."""
    fit: str
    """The generalised Pareto or Weibull fit."""
    other: str
    """What it is compared with."""
    third: str
    fourth: str


LIGHT = Colours(
    "#FFFFFF", "#1B1E23", "#D5D9DF", "#6B7280", "#0072B2", "#D55E00", "#008060", "#AA4A86"
)
DARK = Colours(
    "#14171C", "#E8EAED", "#3A4049", "#9AA3AF", "#56B4E9", "#E69F00", "#2DBE93", "#E08FBF"
)


@dataclass(frozen=True)
class Picture:
    """A figure of a diagnosis.

    Args:
        title: What it shows; stands above it.
        question: What it answers, in plain words.
        caption: What one sees and how to read it, in a sentence or two.
        alt: The figure in words with its numbers, for those who do not see it.
        plot: Draws into an empty figure.
        height: Height in inches; the width is 4.2.
    """

    title: str
    question: str
    caption: str
    alt: str
    plot: Callable[[Figure, Colours], None]
    height: float = 3.2

    def figure(self, dark: bool = False) -> Figure:
        """Draw it.

        Args:
            dark: Whether the background is dark.

        Returns:
            The figure, not known to ``pyplot``: nothing has to be closed.
        """
        colours = DARK if dark else LIGHT
        with style.context(["default", _settings(colours)]):
            figure = Figure(figsize=(WIDTH, self.height), dpi=150, layout="constrained")
            figure.suptitle(self.title, fontweight="bold", parse_math=False)
            self.plot(figure, colours)
        return figure

    def render(self, kind: Literal["png", "svg"], dark: bool = False) -> bytes:
        """Turn it into the bytes of a file, the same ones each time.

        Args:
            kind: Of file.
            dark: Whether the background is dark.

        Returns:
            The bytes.

        Raises:
            ValueError: If ``kind`` is none of the two.
        """
        if kind not in ("png", "svg"):
            raise ValueError(f'kind must be "png" or "svg", got {kind!r}.')
        figure, file = self.figure(dark), io.BytesIO()
        with style.context(["default", _settings(DARK if dark else LIGHT)]):
            # No date and no version: equal numbers are to give equal files.
            without = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[kind]
            figure.savefig(file, format=kind, metadata=without)
        return file.getvalue()

    def _repr_png_(self) -> bytes:
        """Show it in a notebook."""
        return self.render("png")


def _settings(colours: Colours) -> dict[str, object]:
    """Return matplotlib's settings, so that those of the user have no say."""
    inks = dict.fromkeys(
        ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"],
        colours.ink,
    )
    return {
        **inks,
        "figure.facecolor": colours.background,
        "axes.facecolor": colours.background,
        "grid.color": colours.faint,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 10,
        "axes.labelsize": 10,
        "figure.titlesize": 11,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "legend.handlelength": 2.2,
        "axes.unicode_minus": True,
        "svg.hashsalt": "weince",
        "svg.fonttype": "path",
    }


def name_below(figure: Figure, axes: Axes, columns: int = 1) -> None:
    """Put the legend below the figure, where it hides nothing."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns)


def few_ticks(axes: Axes, most: int = 5) -> None:
    """Leave room between the numbers of linear axes."""
    axes.locator_params(nbins=most)
