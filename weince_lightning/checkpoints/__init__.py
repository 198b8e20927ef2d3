"""Checkpoint files: read safely, whoever wrote them, and written so that no kill can tear them."""

from weince_lightning.checkpoints.encoders import EncoderWeights, load_encoder, read_encoder
from weince_lightning.checkpoints.files import CheckpointError, check_checkpoint, read_checkpoint
from weince_lightning.checkpoints.record import Checkpoint, open_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "EncoderWeights",
    "check_checkpoint",
    "load_encoder",
    "open_checkpoint",
    "read_checkpoint",
    "read_encoder",
]
