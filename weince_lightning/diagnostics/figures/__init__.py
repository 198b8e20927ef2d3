"""The figures of a diagnosis: numbers in, pictures with words out."""

from weince_lightning.diagnostics.figures.drawing import draw
from weince_lightning.diagnostics.figures.picture import Picture

__all__ = ["Picture", "draw"]
