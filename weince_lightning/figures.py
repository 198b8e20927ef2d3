"""Figure style: colors, text sizes and files, the same for all pictures of the package."""

import io
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

Kind = Literal["png", "svg"]


class Colors(NamedTuple):
    """Colors by their use; all but the grays are from the palette of Okabe and Ito.

    People with any color vision can tell them apart.
    """

    background: str
    ink: str
    faint: str
    """Grids."""
    data: str
    """Observations."""
    fit: str
    """The fit, or the method under test."""
    other: str
    """What it is compared with."""
    third: str
    fourth: str


LIGHT = Colors(
    "#FFFFFF", "#1B1E23", "#D5D9DF", "#6B7280", "#0072B2", "#D55E00", "#008060", "#AA4A86"
)
DARK = Colors(
    "#14171C", "#E8EAED", "#3A4049", "#9AA3AF", "#56B4E9", "#E69F00", "#2DBE93", "#E08FBF"
)


def figure_style(colors: Colors = LIGHT, size: float = 8) -> AbstractContextManager[None]:
    """Apply the style to figures created in this context, whatever the user's settings are.

    Args:
        colors: ``LIGHT`` or ``DARK``.
        size: Smallest text in points: ticks and legends. Axis labels have one point more.

    Returns:
        A context.
    """
    return style.context(["default", _settings(colors, size)])


def create_figure(width: float, height: float) -> Figure:
    """Create an empty figure, in the style of the context.

    Args:
        width: In inches.
        height: In inches.

    Returns:
        The figure, 150 dots per inch; ``pyplot`` does not know it, so nothing has to be closed.
    """
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def encode(figure: Figure, kind: Kind, colors: Colors = LIGHT) -> bytes:
    """Encode a figure as a file; equal figures give equal bytes.

    Args:
        figure: Drawn in :func:`figure_style`.
        kind: Format of the file.
        colors: Those of the figure.

    Returns:
        The bytes of the file.

    Raises:
        ValueError: If ``kind`` is unknown.
    """
    if kind not in get_args(Kind):
        raise ValueError(f'kind must be "png" or "svg", got {kind!r}.')
    file = io.BytesIO()
    # Without date and version: equal numbers give equal files.
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[kind]
    with figure_style(colors):
        figure.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()


def render_pixels(figure: Figure) -> NDArray[np.uint8]:
    """Render a figure as pixels.

    Args:
        figure: Drawn in :func:`figure_style`.

    Returns:
        Red, green, blue and opacity, shape ``(height, width, 4)``.
    """
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def _settings(colors: Colors, size: float) -> dict[str, object]:
    """Settings of matplotlib."""
    inks = dict.fromkeys(
        ["text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"],
        colors.ink,
    )
    return {
        **inks,
        "figure.facecolor": colors.background,
        "axes.facecolor": colors.background,
        "grid.color": colors.faint,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": size + 1,
        "axes.labelsize": size + 1,
        "axes.titlesize": size,
        "xtick.labelsize": size,
        "ytick.labelsize": size,
        "figure.labelsize": size + 1,
        "figure.titlesize": size + 2,
        "legend.fontsize": size,
        "legend.frameon": False,
        "legend.handlelength": 2.2,
        "svg.hashsalt": "weince",
    }
