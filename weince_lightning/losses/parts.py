"""Parts that a loss is composed of: the gate, the shape and the top-M terms."""

from dataclasses import dataclass
from typing import get_args

from torch import Tensor, nn

from weince_lightning.checks import check_choice, check_flag, check_integer, check_number
from weince_lightning.functional.candidates import Scores
from weince_lightning.functional.contrastive import top_m_cross_entropy
from weince_lightning.functional.gates import Signals, tail_gate
from weince_lightning.functional.shapes import tail_shape
from weince_lightning.functional.tails import TailFit
from weince_lightning.losses.links import Link, WeibitLink, check_link


@dataclass(frozen=True)
class TailGate:
    r"""The gate of WEINCE: which anchors leave the softmax, and how far.

    See :func:`~weince_lightning.functional.gates.tail_gate` for the formula.

    Args:
        rho_quantile: Quantile of the hardness over all anchors that gives the reference
            :math:`\rho_0`, in ``[0, 1]``.
        kappa_rho: Steepness :math:`\kappa_\rho` in the log hardness, positive.
        kappa_aic: Steepness :math:`\kappa_{AIC}` in :math:`\Delta` AIC, positive.
        aic_margin: Margin ``m`` that :math:`\Delta` AIC must exceed.
        tail_fraction: Part of an anchor's negatives that is its tail, in ``(0, 1]``.
        min_tail_points: Fewest negatives of a tail, at least 1 (10 are always taken).
        signals: Which factors count: "both", "rho" (hardness) or "aic" (shape of the tail).
        hard: A 0/1 decision in place of the sigmoids.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range or ``signals`` is unknown.
    """

    rho_quantile: float = 0.2
    kappa_rho: float = 10.0
    kappa_aic: float = 1.0
    aic_margin: float = 2.0
    tail_fraction: float = 0.1
    min_tail_points: int = 32
    signals: Signals = "both"
    hard: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        check_number("rho_quantile", self.rho_quantile, at_least=0.0, at_most=1.0)
        check_number("kappa_rho", self.kappa_rho, above=0.0)
        check_number("kappa_aic", self.kappa_aic, above=0.0)
        check_number("aic_margin", self.aic_margin)
        check_number("tail_fraction", self.tail_fraction, above=0.0, at_most=1.0)
        check_integer("min_tail_points", self.min_tail_points, at_least=1)
        check_choice("signals", self.signals, get_args(Signals))
        check_flag("hard", self.hard)

    def __call__(self, fit: TailFit, rho0: Tensor) -> Tensor:
        """Weigh the evidence; returns the gate, shape ``(anchors,)``."""
        return tail_gate(
            fit, rho0, self.kappa_rho, self.kappa_aic, self.aic_margin, self.signals, self.hard
        )


@dataclass(frozen=True)
class TailShape:
    r"""The Weibull shape of WEINCE: each anchor's estimate, shrunk towards the batch's.

    See :func:`~weince_lightning.functional.shapes.tail_shape` for the formula.

    Args:
        shrinkage: Points ``c`` at which the anchor and the batch count the same, at least 0.
        r2_min: Fit below which the anchor's estimate does not count, in ``[0, 1]``.
        minimum: Smallest shape, positive.
        maximum: Largest shape, at least ``minimum``.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If a number is out of its range.
    """

    shrinkage: float = 100.0
    r2_min: float = 0.2
    minimum: float = 0.5
    maximum: float = 16.0

    def __post_init__(self) -> None:
        """Check the settings."""
        check_number("shrinkage", self.shrinkage, at_least=0.0)
        check_number("r2_min", self.r2_min, at_least=0.0, at_most=1.0)
        check_number("minimum", self.minimum, above=0.0)
        check_number("maximum", self.maximum, at_least=self.minimum)

    def __call__(self, fit: TailFit, target: float | Tensor) -> Tensor:
        """Shrink the estimates towards ``target``; returns the shape, ``(anchors,)``."""
        return tail_shape(fit, target, self.shrinkage, self.r2_min, self.minimum, self.maximum)


class TopMTerm(nn.Module):
    """A term added to a loss: cross-entropy among the positive and the hardest negatives.

    Args:
        link: How similarities become logits; None is ``WeibitLink("pooled")``.
        top_m: How many of the hardest negatives count, at least 1.
        weight: Factor of the term, at least 0.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range.
    """

    def __init__(self, link: Link | None = None, top_m: int = 50, weight: float = 0.5) -> None:
        super().__init__()
        self.link = WeibitLink("pooled") if link is None else check_link(link)
        self.top_m = check_integer("top_m", top_m, at_least=1)
        self.weight = check_number("weight", weight, at_least=0.0)

    def forward(self, scores: Scores, temperature: float | Tensor) -> Tensor:
        """Compute the weighted term of each anchor, shape ``(anchors,)``."""
        term = top_m_cross_entropy(scores, lambda s: self.link(s, temperature), self.top_m)
        return self.weight * term

    def extra_repr(self) -> str:
        """Show the numbers."""
        return f"top_m={self.top_m}, weight={self.weight}"
