"""The Lightning module."""

from weince_lightning.module.contrastive import ContrastiveModule

__all__ = ["ContrastiveModule"]
