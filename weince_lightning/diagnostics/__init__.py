"""Diagnosis of embeddings: is WEINCE worth trying? An answer, numbers, figures and words."""

from weince_lightning.diagnostics.checkpoint import diagnose_checkpoint, diagnose_encoder
from weince_lightning.diagnostics.diagnosis import Diagnosis, diagnose
from weince_lightning.diagnostics.embeddings import Embeddings
from weince_lightning.diagnostics.figures import Picture, draw
from weince_lightning.diagnostics.report import write_report
from weince_lightning.diagnostics.verdict import Verdict, pronounce

__all__ = [
    "Diagnosis",
    "Embeddings",
    "Picture",
    "Verdict",
    "diagnose",
    "diagnose_checkpoint",
    "diagnose_encoder",
    "draw",
    "pronounce",
    "write_report",
]
