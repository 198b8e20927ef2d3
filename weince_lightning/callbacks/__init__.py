"""Callbacks: monitors, which leave training as it is, and checkpoints at Ctrl-C and SIGTERM."""

from weince_lightning.callbacks.geometry_monitor import GeometryMonitor
from weince_lightning.callbacks.interrupt import InterruptCheckpoint
from weince_lightning.callbacks.knn_monitor import KNNMonitor
from weince_lightning.callbacks.online_probe import OnlineLinearProbe
from weince_lightning.callbacks.sentence_similarity import SentenceSimilarityMonitor
from weince_lightning.callbacks.tail import TailMonitor

__all__ = [
    "GeometryMonitor",
    "InterruptCheckpoint",
    "KNNMonitor",
    "OnlineLinearProbe",
    "SentenceSimilarityMonitor",
    "TailMonitor",
]
