"""Evaluation of frozen features by the protocol of the paper."""

from weince_lightning.evaluation.checkpoint import evaluate_checkpoint
from weince_lightning.evaluation.embedding import embed_images
from weince_lightning.evaluation.protocol import evaluate
from weince_lightning.evaluation.settings import KNNSettings, LinearSettings

__all__ = ["KNNSettings", "LinearSettings", "embed_images", "evaluate", "evaluate_checkpoint"]
