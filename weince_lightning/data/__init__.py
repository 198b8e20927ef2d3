"""Image data: one data module over a table of data sets."""

from weince_lightning.data.vision import VisionData

__all__ = ["VisionData"]
