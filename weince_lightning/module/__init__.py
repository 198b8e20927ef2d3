"""The Lightning module, and how it fits a large batch into a small memory."""

from weince_lightning.module.contrastive import ContrastiveModule
from weince_lightning.module.micro_batches import encode_in_micro_batches

__all__ = ["ContrastiveModule", "encode_in_micro_batches"]
