"""InfoNCE and WEINCE as modules, and the parts they are composed of.

They check arguments, hold state and call the functional core; importing them needs torch alone.
"""

from weince_lightning.losses.contrastive import InfoNCELoss, WEINCELoss
from weince_lightning.losses.links import ArctanhLink, PowerLink, SoftmaxLink, WeibitLink
from weince_lightning.losses.parts import TailGate, TailShape, TopMTerm
from weince_lightning.losses.results import BatchCandidates, ContrastiveTerms, TailEvidence

__all__ = [
    "ArctanhLink",
    "BatchCandidates",
    "ContrastiveTerms",
    "InfoNCELoss",
    "PowerLink",
    "SoftmaxLink",
    "TailEvidence",
    "TailGate",
    "TailShape",
    "TopMTerm",
    "WEINCELoss",
    "WeibitLink",
]
