"""Tail diagnostics of a training run: what is logged, and the figure."""

from weince_lightning.callbacks.tail.monitor import TailMonitor

__all__ = ["TailMonitor"]
