"""A figure that can be rendered on light and on dark, with its description in words."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from weince_lightning.figures import DARK, LIGHT, Colors, Kind, create_figure, encode, figure_style

WIDTH = 4.2
"""Inches: a telephone's screen shrinks no text below 9 pixels."""


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
    plot: Callable[[Figure, Colors], None]
    height: float = 3.2

    def figure(self, dark: bool = False) -> Figure:
        """Draw it.

        Args:
            dark: Whether the background is dark.

        Returns:
            The figure, not known to ``pyplot``: nothing has to be closed.
        """
        colors = DARK if dark else LIGHT
        with figure_style(colors, size=9):
            figure = create_figure(WIDTH, self.height)
            figure.suptitle(self.title, fontweight="bold", parse_math=False)
            self.plot(figure, colors)
        return figure

    def render(self, kind: Kind, dark: bool = False) -> bytes:
        """Turn it into the bytes of a file, the same ones each time.

        Args:
            kind: Of file.
            dark: Whether the background is dark.

        Returns:
            The bytes.

        Raises:
            ValueError: If ``kind`` is none of the two.
        """
        return encode(self.figure(dark), kind, DARK if dark else LIGHT)

    def _repr_png_(self) -> bytes:
        """Show it in a notebook."""
        return self.render("png")


def name_below(figure: Figure, axes: Axes, columns: int = 1) -> None:
    """Put the legend below the figure, where it hides nothing."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns)


def few_ticks(axes: Axes, most: int = 5) -> None:
    """Leave room between the numbers of linear axes."""
    axes.locator_params(nbins=most)
