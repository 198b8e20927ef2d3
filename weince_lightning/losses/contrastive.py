"""InfoNCE and WEINCE: from two views to a mean over anchors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from weince_lightning.distributed import gather, rank, shared_counts, world_size
from weince_lightning.functional.candidates import (
    Candidates,
    Layout,
    Scores,
    build_bank_candidates,
    build_candidates,
    check_batch,
    unit_vectors,
    working_dtype,
)
from weince_lightning.functional.contrastive import (
    Objective,
    Whole,
    cross_entropy,
    mixed_losses,
    negated_similarities,
    weince,
)
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.gates import reference_hardness
from weince_lightning.functional.links import SHORTFALL_FLOOR, shortfall
from weince_lightning.functional.shapes import batch_shape
from weince_lightning.functional.tails import (
    TailFit,
    fit_pooled,
    fit_tail,
    pooled_tail,
    smallest,
    tail_size,
)
from weince_lightning.functional.tiled import Tiled
from weince_lightning.losses.checks import (
    check_choice,
    check_flag,
    check_integer,
    check_number,
    check_temperature,
)
from weince_lightning.losses.links import Link, SoftmaxLink, WeibitLink, check_link
from weince_lightning.losses.parts import TailGate, TailShape, TopMTerm
from weince_lightning.losses.queue import create_queue
from weince_lightning.losses.results import ContrastiveTerms, TailEvidence

Mix = Literal["logits", "losses"]


class _ContrastiveLoss(nn.Module, ABC):
    """What InfoNCE and WEINCE have in common."""

    def __init__(
        self,
        temperature: float | Tensor,
        layout: Layout,
        gather_distributed: bool,
        queue_size: int,
        memory_bank_size: int | Sequence[int],
        block_size: int | None,
        top_m_terms: Sequence[TopMTerm],
    ) -> None:
        super().__init__()
        self.temperature = check_temperature(temperature)
        self.layout: Layout = check_choice("layout", layout, get_args(Layout))
        self.gather_distributed = check_flag("gather_distributed", gather_distributed)
        self.queue_size = queue_size
        self.memory_bank_size = memory_bank_size
        self.queue = create_queue(queue_size, memory_bank_size)
        self.block_size = (
            None if block_size is None else check_integer("block_size", block_size, at_least=1)
        )
        if not isinstance(top_m_terms, Iterable):
            raise TypeError(f"top_m_terms must be a sequence of TopMTerm, got {top_m_terms!r}.")
        terms = list(top_m_terms)
        for term in terms:
            if not isinstance(term, TopMTerm):
                raise TypeError(f"top_m_terms must hold TopMTerm objects, got {term!r}.")
        self.top_m_terms = nn.ModuleList(terms)

    def _read_tail(self, scores: Whole | Tiled, sizes: list[int]) -> TailEvidence | None:
        """Collect the evidence of all anchors; ``sizes`` are the samples of every rank."""
        return None

    @abstractmethod
    def _per_anchor(
        self, scores: Scores, tail: TailEvidence | None, temperature: float | Tensor
    ) -> Tensor:
        """Compute the losses of some anchors, without the top-M terms, from their evidence."""

    def _blend(self, groups: list[Candidates], tail: TailEvidence | None) -> Blend | None:
        """Return the logits whose cross-entropy the losses are, None where they are not."""
        return None

    def forward(
        self, z0: Tensor, z1: Tensor, ids: Tensor | None = None, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute the loss, a scalar; see :meth:`terms`."""
        return self.terms(z0, z1, ids, negatives).loss

    def terms(
        self, z0: Tensor, z1: Tensor, ids: Tensor | None = None, negatives: Tensor | None = None
    ) -> ContrastiveTerms:
        """Compute the loss and what it is made of.

        Args:
            z0: Raw projections of the first view, shape ``(samples, features)``, any float type.
            z1: Raw projections of the second view, same shape; row i shows the same sample.
            ids: What each sample shows, shape ``(samples,)``, integers: samples with equal ids are
                never negatives of each other.
            negatives: Explicit hard negatives of the anchors of ``z0``, with gradient: shape
                ``(samples, own, features)``, each anchor's own, or ``(shared, features)``.

        Returns:
            The loss, in float32 (float64 if the inputs are), and its parts.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If shapes do not fit, or no anchor can have a negative.
            RuntimeError: If the processes do not have as many keys of earlier batches each.
        """
        check_batch(z0, z1, ids, negatives)
        ids = None if ids is None else ids.to(torch.int64)
        keys = None if self.queue is None else self.queue.read(z1)
        sizes, rows = [len(z0)], slice(None)
        if self.gather_distributed and world_size() > 1:
            sizes = self._exchange_sizes(len(z0), z0.device)
            rows = slice(sum(sizes[: rank()]), sum(sizes[: rank() + 1]))
            dtype = torch.promote_types(z0.dtype, z1.dtype)
            views = torch.stack([z0.to(dtype), z1.to(dtype)], dim=1)
            z0, z1 = gather(views, sizes).unbind(dim=1)
            ids = None if ids is None else gather(ids, sizes)
            if negatives is not None and negatives.ndim == 2:
                negatives = gather(negatives)
        # Half precision can not hold the shortfalls: the endpoint's 1 - 1e-6 rounds to 1.
        with _without_autocast(z0.device.type):
            if keys is not None and self._has_memory_bank:
                groups = build_bank_candidates(z0, z1, keys, ids, negatives, rows)
            else:
                groups = build_candidates(z0, z1, self.layout, ids, negatives, rows, keys)
            groups = [group.counted() for group in groups]
            scores = self._compare(groups)
            counts = [group.count_negatives() for group in groups]
            num_negatives = counts[0] if len(counts) == 1 else torch.cat(counts)
            is_step = self.training and torch.is_grad_enabled()
            if is_step and self._pooled_links():
                self._move_running_shapes(scores, groups, num_negatives, sizes)
            tail = self._read_tail(scores, sizes)
            # So that the mean over the ranks, of losses and gradients, is that over all anchors.
            weight = len(sizes) / (self._anchors_per_sample * sum(sizes))
            objective = self._objective(groups, tail)
            loss, per_anchor = scores.losses(objective, self.temperature, weight)
            if is_step and self.queue is not None:
                self.queue.push(unit_vectors(z1.detach().to(working_dtype(z0, z1))), ids)
            return ContrastiveTerms(loss, per_anchor, num_negatives, tail)

    def _compare(self, groups: Sequence[Candidates]) -> Whole | Tiled:
        """Compute similarities block by block; :class:`Whole` is what that is tested against."""
        return Tiled(groups, self.block_size)

    def _objective(self, groups: list[Candidates], tail: TailEvidence | None) -> Objective:
        """Compose what the anchors lose."""

        def evaluate(part: Scores, rows: slice, temperature: float | Tensor) -> Tensor:
            losses = self._per_anchor(part, tail and tail.select(rows), temperature)
            for term in self.top_m_terms:
                losses = losses + term(part, temperature)
            return losses

        return Objective(evaluate, None if len(self.top_m_terms) else self._blend(groups, tail))

    @property
    def _anchors_per_sample(self) -> int:
        return 1 if self.layout == "queries" or self._has_memory_bank else 2

    @property
    def _has_memory_bank(self) -> bool:
        return self.queue is not None and self.queue.argument == "memory_bank_size"

    def _exchange_sizes(self, samples: int, device: torch.device) -> list[int]:
        """Tell every process how many samples each has; all must have as many earlier keys."""
        filled = 0 if self.queue is None else self.queue.filled
        counts = shared_counts([samples, filled], device)
        if len({number for _, number in counts}) > 1:
            raise RuntimeError(
                "The keys of earlier batches must be the same in all processes, got "
                f"{[number for _, number in counts]} of them. Load the checkpoint in each process."
            )
        return [size for size, _ in counts]

    def _pooled_links(self) -> set[WeibitLink]:
        """Collect the links whose shape follows the batches; terms may share one."""
        links = [term.link for term in self.top_m_terms]
        return {link for link in links if isinstance(link, WeibitLink) and link.beta == "pooled"}

    @torch.no_grad()
    def _move_running_shapes(
        self,
        scores: Whole | Tiled,
        groups: list[Candidates],
        num_negatives: Tensor,
        sizes: list[int],
    ) -> None:
        """Let every pooled Weibit link follow the tail of this batch."""
        # Groups have as many anchors each.
        anchors = self._anchors_per_sample * sum(sizes) // len(groups)
        max_negatives = anchors * sum(group.max_negatives for group in groups)
        if max_negatives == 0:  # an empty memory bank
            return
        parts = (shortfall(-negated_similarities(part)) for part in scores)
        smallest = pooled_tail(parts, max_negatives)
        total = num_negatives.sum()
        if len(sizes) > 1:
            smallest = gather(smallest, [len(smallest)] * len(sizes))
            total = gather(total[None], [1] * len(sizes)).sum()
        beta, r_squared = fit_pooled(smallest, total)
        for link in self._pooled_links():
            link.follow(beta, r_squared)

    def extra_repr(self) -> str:
        """Show the settings that are plain values."""
        return f"temperature={self.temperature}, layout={self.layout!r}"


def _without_autocast(device: str) -> AbstractContextManager[None]:
    """Switch autocast off; where it is off, entering its context is not free either."""
    exists = torch.amp.is_autocast_available(device)
    is_on = exists and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else nullcontext()


class InfoNCELoss(_ContrastiveLoss):
    r"""InfoNCE: cross-entropy of each anchor's positive among its candidates.

    .. math:: L = -\frac{1}{A} \sum_i \log
              \frac{e^{s_{i+}/\tau}}{e^{s_{i+}/\tau} + \sum_j e^{s_{ij}/\tau}}

    Args:
        temperature: Temperature :math:`\tau > 0`, dimensionless; a number, or a 0-dim tensor that
            then gets a gradient.
        link: How similarities become logits; None is :class:`SoftmaxLink`.
        layout: "views" (NT-Xent: all other embeddings are candidates), "pairs" (CLIP: the other
            side, symmetrised) or "queries" (one way: ``z0`` against ``z1``).
        gather_distributed: Use the candidates of all processes, where there are several. It
            expects gradients to be averaged over the processes, as DistributedDataParallel does.
        queue_size: How many keys of earlier batches are negatives too, of the anchors of ``z0``
            alone; at least 0. Each training step adds its ``z1`` with their ``ids`` (those of all
            processes if ``gather_distributed``) after its loss; the newest stay. A key without id
            matches no anchor. The queue starts empty and is saved with the loss.
        memory_bank_size: lightly's argument, a number or ``(size, features)``: as ``queue_size``,
            but the keys are the only negatives beside explicit ones, and the anchors are those of
            ``z0`` whatever the ``layout``. While the bank is empty, the loss is 0. Excludes
            ``queue_size``.
        block_size: Anchors compared at once, at least 1. Memory grows with ``block_size`` times the
            number of candidates; None chooses from the sizes.
        top_m_terms: Terms added to the loss.

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

    def _pooled_links(self) -> set[WeibitLink]:
        found = super()._pooled_links()
        if isinstance(self.link, WeibitLink) and self.link.beta == "pooled":
            found.add(self.link)
        return found

    def _blend(self, groups: list[Candidates], tail: TailEvidence | None) -> Blend | None:
        anchors = sum(len(group.anchors) for group in groups)
        if isinstance(self.link, SoftmaxLink):
            return Blend(groups[0].anchors.new_ones(anchors))
        return None


class WEINCELoss(_ContrastiveLoss):
    r"""WEINCE: InfoNCE whose logits move to the Weibull coordinate where the tail asks for it.

    .. math:: \ell_{ij} = (1 - \lambda_i)\, s_{ij} / \tau - \lambda_i \beta_i \log(1 - s_{ij})

    The gate :math:`\lambda_i` and the shape :math:`\beta_i` come from the hard negatives of anchor
    i in this batch and are not differentiated.

    Args:
        temperature: Temperature :math:`\tau > 0`, dimensionless; a number, or a 0-dim tensor that
            then gets a gradient.
        gate: :math:`\lambda`: None is ``TailGate()``; a number in ``[0, 1]`` holds for every
            anchor, and 0 gives InfoNCE exactly.
        shape: :math:`\beta`: None is ``TailShape()``, the paper's estimate per anchor; a positive
            number holds for every anchor (the authors' released code uses 1).
        mix: "logits", or "losses": an ablation that blends the cross-entropies of the softmax and
            of a Weibit over the 16 hardest negatives.
        layout: "views" (NT-Xent: all other embeddings are candidates), "pairs" (CLIP: the other
            side, symmetrised) or "queries" (one way: ``z0`` against ``z1``).
        gather_distributed: Use the candidates of all processes, where there are several. It
            expects gradients to be averaged over the processes, as DistributedDataParallel does.
        queue_size: How many keys of earlier batches are negatives too, of the anchors of ``z0``
            alone; at least 0. Each training step adds its ``z1`` with their ``ids`` (those of all
            processes if ``gather_distributed``) after its loss; the newest stay. A key without id
            matches no anchor. The queue starts empty and is saved with the loss.
        memory_bank_size: lightly's argument, a number or ``(size, features)``: as ``queue_size``,
            but the keys are the only negatives beside explicit ones, and the anchors are those of
            ``z0`` whatever the ``layout``. While the bank is empty, the loss is 0. Excludes
            ``queue_size``.
        block_size: Anchors compared at once, at least 1. Memory grows with ``block_size`` times the
            number of candidates; None chooses from the sizes.
        top_m_terms: Terms added to the loss.

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
    def _read_tail(self, scores: Whole | Tiled, sizes: list[int]) -> TailEvidence:
        settings = self.gate if isinstance(self.gate, TailGate) else TailGate()
        fraction, least = settings.tail_fraction, settings.min_tail_points

        def read(part: Scores, spare: Tensor) -> TailFit:
            width = max(1, tail_size(part.max_negatives, fraction, least))
            hardest = smallest(negated_similarities(part, spare), width)
            return fit_tail(
                # In place: fresh tensors among results that stay would fragment the memory.
                hardest.add_(1).clamp_min_(SHORTFALL_FLOOR),
                part.num_negatives,
                part.max_negatives,
                fraction,
                least,
            )

        fits = scores.map(read)
        fit = fits[0]
        if len(fits) > 1:
            fit = TailFit(*(torch.cat(column) for column in zip(*fits, strict=True)))
        rho, beta_hat, r_squared = fit.rho, fit.beta_hat, fit.r_squared
        if len(sizes) > 1:
            own = torch.stack([rho, beta_hat, r_squared], dim=1)
            everyone = gather(own, [self._anchors_per_sample * size for size in sizes])
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
