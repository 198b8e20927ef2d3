"""Data modules: images of a table of data sets, sentences of text files."""

from weince_lightning.data.text import SentenceData
from weince_lightning.data.vision import VisionData

__all__ = ["SentenceData", "VisionData"]
