"""The Lightning modules, and how it fits a large batch into a small memory."""

from weince_lightning.module.contrastive import ContrastiveModule
from weince_lightning.module.micro_batches import encode_in_micro_batches
from weince_lightning.module.sentence import SentenceModule

__all__ = ["ContrastiveModule", "SentenceModule", "encode_in_micro_batches"]
