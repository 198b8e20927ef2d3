"""InfoNCE and WEINCE."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from weince_lightning.checks import check_choice, check_number
from weince_lightning.distributed import gather
from weince_lightning.functional.candidates import Candidates, Scores
from weince_lightning.functional.contrastive import (
    Whole,
    cross_entropy,
    mixed_losses,
    weince,
)
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.gates import reference_hardness
from weince_lightning.functional.layouts import Layout
from weince_lightning.functional.shapes import batch_shape
from weince_lightning.functional.tiled import Tiled
from weince_lightning.losses.links import Link, SoftmaxLink, WeibitLink, check_link
from weince_lightning.losses.parts import TailGate, TailShape, TopMTerm
from weince_lightning.losses.results import TailEvidence
from weince_lightning.losses.supervised import SupervisedLoss

Mix = Literal["logits", "losses"]


class InfoNCELoss(SupervisedLoss):
    r"""InfoNCE: cross-entropy of each anchor's positive among its candidates.

    .. math:: L = -\frac{1}{A} \sum_i \log
              \frac{e^{s_{i+}/\tau}}{e^{s_{i+}/\tau} + \sum_j e^{s_{ij}/\tau}}

    The other arguments are those of all losses, see
    :class:`~weince_lightning.losses.base.ContrastiveLoss`.

    Args:
        link: How similarities become logits; None is :class:`SoftmaxLink`.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range or a name is unknown.

    References:
        Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations",
        ICML 2020, arXiv:2002.05709 (NT-Xent, equation 1).

    Example:
        >>> import torch
        >>> loss = InfoNCELoss(temperature=0.2)
        >>> z0 = torch.eye(4)
        >>> float(loss(z0, z0)) < float(loss(z0, z0.roll(1, 0)))
        True
    """

    def __init__(
        self,
        temperature: float | Tensor = 0.5,
        link: Link | None = None,
        layout: Layout = "views",
        gather_distributed: bool = True,
        queue_size: int = 0,
        memory_bank_size: int | Sequence[int] = 0,
        block_size: int | None = None,
        top_m_terms: Sequence[TopMTerm] = (),
    ) -> None:
        super().__init__(
            temperature,
            layout,
            gather_distributed,
            queue_size,
            memory_bank_size,
            block_size,
            top_m_terms,
        )
        self.link = SoftmaxLink() if link is None else check_link(link)

    def _per_anchor(
        self, scores: Scores, tail: TailEvidence | None, temperature: float | Tensor
    ) -> Tensor:
        return cross_entropy(scores, self.link(scores.similarity, temperature))

    def _links(self) -> list[object]:
        return [self.link, *super()._links()]

    def _blend(self, groups: list[Candidates], tail: TailEvidence | None) -> Blend | None:
        if not isinstance(self.link, SoftmaxLink):
            return None
        anchors = sum(group.num_anchors for group in groups)
        return Blend(groups[0].anchors.new_ones(anchors))


class WEINCELoss(SupervisedLoss):
    r"""WEINCE: InfoNCE whose logits move to the Weibull coordinate where the tail asks for it.

    .. math:: \ell_{ij} = (1 - \lambda_i)\, s_{ij} / \tau - \lambda_i \beta_i \log(1 - s_{ij})

    The gate :math:`\lambda_i` and the shape :math:`\beta_i` come from the hard negatives of anchor
    i in this batch and are not differentiated.

    The other arguments are those of all losses, see
    :class:`~weince_lightning.losses.base.ContrastiveLoss`.

    Args:
        gate: :math:`\lambda`: None is ``TailGate()``; a number in ``[0, 1]`` holds for every
            anchor, and 0 gives InfoNCE exactly.
        shape: :math:`\beta`: None is ``TailShape()``, the paper's estimate per anchor; a positive
            number holds for every anchor (the authors' released code uses 1).
        mix: "logits", or "losses": an ablation that blends the cross-entropies of the softmax and
            of a Weibit over the 16 hardest negatives.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If a number is out of its range or a name is unknown.

    References:
        Erol et al., "When Softmax Fails at the Top: Extreme-Value Corrections for InfoNCE",
        ICML 2026, arXiv:2606.00262.

    Example:
        >>> import torch
        >>> z0, z1 = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0))
        >>> terms = WEINCELoss().terms(z0, z1)
        >>> terms.tail.gate.shape
        torch.Size([32])
        >>> torch.equal(WEINCELoss(gate=0.0)(z0, z1), InfoNCELoss()(z0, z1))
        True
    """

    def __init__(
        self,
        temperature: float | Tensor = 0.5,
        gate: TailGate | float | None = None,
        shape: TailShape | float | None = None,
        mix: Mix = "logits",
        layout: Layout = "views",
        gather_distributed: bool = True,
        queue_size: int = 0,
        memory_bank_size: int | Sequence[int] = 0,
        block_size: int | None = None,
        top_m_terms: Sequence[TopMTerm] = (),
    ) -> None:
        super().__init__(
            temperature,
            layout,
            gather_distributed,
            queue_size,
            memory_bank_size,
            block_size,
            top_m_terms,
        )
        if gate is None:
            gate = TailGate()
        elif not isinstance(gate, TailGate):
            check_number("gate", gate, at_least=0.0, at_most=1.0, instead="a TailGate object")
        if shape is None:
            shape = TailShape()
        elif not isinstance(shape, TailShape):
            check_number("shape", shape, above=0.0, instead="a TailShape object")
        self.gate = gate
        self.shape = shape
        self.mix: Mix = check_choice("mix", mix, get_args(Mix))

    @classmethod
    def released(
        cls,
        temperature: float | Tensor = 0.5,
        gate: TailGate | float | None = None,
        **rest: Any,
    ) -> "WEINCELoss":
        """Build the recipe of the authors' published script.

        It is not the paper's form: the shape is 1, and two top-50 terms are added, a Weibit one
        with the pooled running shape and a softmax one, each with weight 0.5.

        Args:
            temperature: As for the class.
            gate: As for the class.
            **rest: ``mix``, ``layout``, ``gather_distributed``, ``queue_size``,
                ``memory_bank_size`` and ``block_size`` as for the class.

        Returns:
            A loss, ready to use.

        Example:
            >>> [type(term.link).__name__ for term in WEINCELoss.released().top_m_terms]
            ['WeibitLink', 'SoftmaxLink']
        """
        terms = (TopMTerm(WeibitLink("pooled")), TopMTerm(SoftmaxLink()))
        return cls(temperature, gate, shape=1.0, top_m_terms=terms, **rest)

    def _per_anchor(
        self, scores: Scores, tail: TailEvidence | None, temperature: float | Tensor
    ) -> Tensor:
        if tail is None:
            raise RuntimeError("tail must be read before the losses are computed, got None.")
        per_anchor = weince if self.mix == "logits" else mixed_losses
        return per_anchor(scores, tail.gate, tail.shape, temperature)

    def _blend(self, groups: list[Candidates], tail: TailEvidence | None) -> Blend | None:
        if tail is None or self.mix != "logits":
            return None
        return Blend(1 - tail.gate, tail.gate * tail.shape)

    @torch.no_grad()
    def _read_tail(self, scores: Whole | Tiled, anchor_counts: list[int]) -> TailEvidence:
        settings = self.gate if isinstance(self.gate, TailGate) else TailGate()
        fit = scores.fit_tails(settings.tail_fraction, settings.min_tail_points)
        rho, beta_hat, r_squared = fit.rho, fit.beta_hat, fit.r_squared
        if len(anchor_counts) > 1:
            everyone = gather(torch.stack([rho, beta_hat, r_squared], dim=1), anchor_counts)
            rho, beta_hat, r_squared = everyone.unbind(dim=1)
        rho0 = reference_hardness(rho, settings.rho_quantile)
        if isinstance(self.gate, TailGate):
            gate = self.gate(fit, rho0)
        else:
            gate = torch.full_like(fit.rho, self.gate)
        if isinstance(self.shape, TailShape):
            # Blended losses shrink towards the start value of the running shape, as published.
            batch = batch_shape(beta_hat, r_squared)
            shape = self.shape(fit, batch if self.mix == "logits" else 4.0)
        else:
            shape = torch.full_like(fit.rho, self.shape)
        return TailEvidence(gate, shape, fit.beta_hat, fit.rho, rho0, fit.delta_aic, fit.r_squared)

    def extra_repr(self) -> str:
        """Show the settings that are plain values."""
        return f"{super().extra_repr()}, gate={self.gate}, shape={self.shape}, mix={self.mix!r}"
