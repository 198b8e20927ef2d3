"""Results of a loss beside its value."""

from typing import NamedTuple

from torch import Tensor

from weince_lightning.functional.candidates import Candidates


class BatchCandidates(NamedTuple):
    """The anchors of this process and their candidates, as a loss compares them.

    Layouts, ids, explicit negatives, earlier keys and other processes are all resolved. For the
    similarities and the mask of negatives of a group, call
    :func:`~weince_lightning.functional.candidates.compare` and
    :func:`~weince_lightning.functional.candidates.score`.
    """

    groups: list[Candidates]
    """Anchors that share candidates: one group, or two if those of ``z0`` and ``z1`` do not. The
    anchors of all groups, in order, are those of :meth:`ContrastiveLoss.terms`."""
    anchor_counts: list[int]
    """Anchors of each process whose batch is among the candidates, in rank order."""


class TailEvidence(NamedTuple):
    """What WEINCE saw in a batch and did about it; detached, one value per anchor."""

    gate: Tensor
    r"""Blend weight :math:`\lambda`, in ``[0, 1]``."""
    shape: Tensor
    r"""Weibull shape :math:`\beta` used in the logits."""
    beta_hat: Tensor
    r"""Estimate :math:`\hat\beta` from the anchor's own tail; 0 where there is no evidence."""
    rho: Tensor
    r"""Hardness :math:`\rho`: shortfall of the hardest negative."""
    rho0: Tensor
    r"""Reference hardness :math:`\rho_0`, a scalar."""
    delta_aic: Tensor
    r""":math:`\Delta` AIC, positive where the Weibull line fits better than the Gumbel proxy."""
    r_squared: Tensor
    """Fit of the Weibull line, in ``[0, 1]``."""

    def select(self, rows: slice) -> "TailEvidence":
        """Keep some of the anchors."""
        rho0 = self.rho0
        return TailEvidence(*(rho0 if column is rho0 else column[rows] for column in self))


class ContrastiveTerms(NamedTuple):
    """A loss and what it is made of. Anchors are in the order ``[z0; z1]``; some have ``z0`` alone.

    With several processes each has its own anchors, against the candidates of all.
    """

    loss: Tensor
    """Mean over the anchors, in nats, with gradient.

    With several processes the mean over the ranks is that over all anchors.
    """
    per_anchor: Tensor
    """The loss of each anchor, weighted top-M terms included; detached."""
    num_negatives: Tensor
    """Negatives of each anchor, int64."""
    tail: TailEvidence | None
    """Tail evidence, gate and shape; None for InfoNCE."""
