"""Base of the losses: candidates, losses per anchor and their mean, from two views."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import get_args

import torch
from torch import Tensor, nn

from weince_lightning.checks import check_choice, check_flag, check_integer
from weince_lightning.distributed import gather, world_size
from weince_lightning.functional.candidates import Candidates, Scores
from weince_lightning.functional.contrastive import (
    Objective,
    Whole,
    negated_similarities,
)
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.inputs import (
    check_batch,
    check_temperature,
    check_temperature_tensor,
)
from weince_lightning.functional.layouts import (
    Layout,
    build_bank_candidates,
    build_candidates,
    working_dtype,
)
from weince_lightning.functional.links import shortfall
from weince_lightning.functional.tails import (
    fit_pooled,
    pooled_tail,
)
from weince_lightning.functional.tiled import Tiled
from weince_lightning.functional.tracing import is_transformed
from weince_lightning.functional.vectors import unit_vectors
from weince_lightning.losses.exchange import Views, gather_views
from weince_lightning.losses.links import WeibitLink
from weince_lightning.losses.parts import TopMTerm
from weince_lightning.losses.queue import create_queue
from weince_lightning.losses.results import BatchCandidates, ContrastiveTerms, TailEvidence


class ContrastiveLoss(nn.Module, ABC):
    r"""A contrastive loss of two views: a mean over anchors, each among its candidates.

    All losses take these arguments, which ``weince fit --help`` shows from here.

    Args:
        temperature: Temperature :math:`\tau > 0`, dimensionless; a number, or a 0-dim tensor that
            then gets a gradient.
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
    """

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

    def _read_tail(self, scores: Whole | Tiled, anchor_counts: list[int]) -> TailEvidence | None:
        """Collect the evidence of all anchors; ``anchor_counts`` has one number per rank."""
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
        self,
        z0: Tensor,
        z1: Tensor,
        ids: Tensor | None = None,
        negatives: Tensor | None = None,
        *,
        temperature: Tensor | None = None,
    ) -> ContrastiveTerms:
        """Compute the loss and what it is made of.

        Args:
            z0: Raw projections of the first view, shape ``(samples, features)``, any float type.
            z1: Raw projections of the second view, same shape; row i shows the same sample.
            ids: What each sample shows, shape ``(samples,)``, integers: samples with equal ids are
                never negatives of each other.
            negatives: Explicit hard negatives of the anchors of ``z0``, with gradient: shape
                ``(samples, own, features)``, each anchor's own, or ``(shared, features)``.
            temperature: Takes the place of the loss's own in this call: a positive 0-dim tensor,
                with gradient, as computed anew from a parameter at each step. Its value is not
                checked, which would wait for the device: see that it stays positive.

        Returns:
            The loss, in float32 (float64 if the inputs are), and its parts.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If shapes do not fit, or no anchor can have a negative.
            RuntimeError: If several processes disagree in more than the number of samples.
        """
        views = self._gather(z0, z1, ids, negatives)
        # Half precision cannot hold the shortfalls: the endpoint's 1 - 1e-6 rounds to 1.
        with without_autocast(z0.device.type):
            groups, counts = self._build(views)
            tau = self.temperature if temperature is None else check_temperature_tensor(temperature)
            terms = self._evaluate(groups, counts, len(counts) / sum(counts), tau)
            if self._is_step and self.queue is not None:
                keys = views.z1.detach().to(working_dtype(views.z0, views.z1))
                self.queue.push(unit_vectors(keys), views.ids)
            return terms

    def candidates(
        self, z0: Tensor, z1: Tensor, ids: Tensor | None = None, negatives: Tensor | None = None
    ) -> BatchCandidates:
        """Return the anchors and candidates that :meth:`terms` compares for these arguments.

        Nothing changes: a queue keeps its keys, also in training. With ``gather_distributed`` all
        processes must call it together.

        Args:
            z0: Raw projections of the first view, shape ``(samples, features)``, any float type.
            z1: Raw projections of the second view, same shape.
            ids: As for :meth:`terms`.
            negatives: As for :meth:`terms`.

        Returns:
            Unit vectors in float32 at least, with gradient if enabled, by groups of anchors that
            share candidates. The shapes of a group are
            ``anchors (anchors, features)``, ``candidates (candidates, features)``,
            ``per_anchor_negatives (anchors, extra, features)`` or None, and
            ``excluded_columns (anchors, 1 or 2)``, whose first column is that of the positive.

        Raises:
            TypeError: If an argument is of the wrong kind.
            ValueError: If shapes do not fit, or no anchor can have a negative.
            RuntimeError: If several processes disagree in more than the number of samples.

        Example:
            >>> import torch
            >>> from weince_lightning import WEINCELoss
            >>> from weince_lightning.functional.candidates import compare, score
            >>> z0, z1 = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
            >>> (group,) = WEINCELoss().candidates(z0, z1).groups  # layout "views"
            >>> group.anchors.shape, group.candidates.shape, group.max_negatives
            (torch.Size([8, 8]), torch.Size([8, 8]), 6)
            >>> scores = score(group, compare(group))
            >>> scores.similarity.shape, scores.positive[:, 0].tolist()
            (torch.Size([8, 8]), [4, 5, 6, 7, 0, 1, 2, 3])
        """
        views = self._gather(z0, z1, ids, negatives)
        with without_autocast(z0.device.type):
            return self._build(views)

    def _gather(
        self, z0: Tensor, z1: Tensor, ids: Tensor | None, negatives: Tensor | None
    ) -> Views:
        """Check the arguments of a call and collect those of all processes."""
        check_batch(z0, z1, ids, negatives)
        ids = None if ids is None else ids.to(torch.int64)
        views = Views(z0, z1, ids, negatives, [len(z0)], slice(None))
        if not self.gather_distributed or world_size() == 1:
            return views
        return gather_views(views, 0 if self.queue is None else self.queue.filled)

    def _build(self, views: Views) -> BatchCandidates:
        """Build the groups of this process's anchors."""
        z0, z1, ids, negatives, sizes, rows = views
        keys = None if self.queue is None else self.queue.read(z1)
        if keys is not None and self._has_memory_bank:
            groups = build_bank_candidates(z0, z1, keys, ids, negatives, rows)
        else:
            groups = build_candidates(z0, z1, self.layout, ids, negatives, rows, keys)
        return BatchCandidates(groups, [self._anchors_per_sample * size for size in sizes])

    def _evaluate(
        self,
        groups: list[Candidates],
        anchor_counts: list[int],
        weight: float | Tensor,
        temperature: float | Tensor,
    ) -> ContrastiveTerms:
        """Compute the losses of this rank's anchors; ``anchor_counts`` has one number per rank.

        The weight is such that the mean over the ranks, of losses and gradients, is that over all
        anchors.
        """
        groups = [group.counted() for group in groups]
        scores = self._compare(groups)
        counts = [group.count_negatives() for group in groups]
        num_negatives = counts[0] if len(counts) == 1 else torch.cat(counts)
        pooled = {k for k in self._links() if isinstance(k, WeibitLink) and k.beta == "pooled"}
        if self._is_step and pooled:
            self._move_running_shapes(pooled, scores, groups, num_negatives, anchor_counts)
        tail = self._read_tail(scores, anchor_counts)
        loss, per_anchor = scores.losses(self._objective(groups, tail), temperature, weight)
        return ContrastiveTerms(loss, per_anchor, num_negatives, tail)

    @property
    def _is_step(self) -> bool:
        """Whether state may move: not under ``torch.func``, whose functions have no effects."""
        return self.training and torch.is_grad_enabled() and not is_transformed()

    def _compare(self, groups: Sequence[Candidates]) -> Whole | Tiled:
        """Compute similarities block by block, but under ``torch.func``, which differentiates.

        There it is :class:`Whole`, against which the blocks are tested.
        """
        if is_transformed():
            return Whole(groups)
        return Tiled(groups, self.block_size)

    def _objective(self, groups: list[Candidates], tail: TailEvidence | None) -> Objective:
        """Compose what the anchors lose."""

        def evaluate(part: Scores, rows: slice, temperature: float | Tensor) -> Tensor:
            losses = self._per_anchor(part, tail and tail.select(rows), temperature)
            for term in self.top_m_terms:
                losses = losses + term(part, temperature)
            return losses

        has_blend = len(self.top_m_terms) == 0
        return Objective(evaluate, self._blend(groups, tail) if has_blend else None)

    @property
    def _anchors_per_sample(self) -> int:
        return 1 if self.layout == "queries" or self._has_memory_bank else 2

    @property
    def _has_memory_bank(self) -> bool:
        return self.queue is not None and self.queue.argument == "memory_bank_size"

    def _links(self) -> list[object]:
        """List the links; terms may share one."""
        return [term.link for term in self.top_m_terms]

    @torch.no_grad()
    def _move_running_shapes(
        self,
        links: Iterable[WeibitLink],
        scores: Whole | Tiled,
        groups: list[Candidates],
        num_negatives: Tensor,
        anchor_counts: list[int],
    ) -> None:
        """Let the pooled Weibit links follow the tail of this batch."""
        # Groups have as many anchors each.
        each = sum(anchor_counts) // len(groups)
        max_negatives = each * sum(group.max_negatives for group in groups)
        if max_negatives == 0:  # an empty memory bank
            return
        parts = (shortfall(-negated_similarities(part)) for part in scores)
        smallest = pooled_tail(parts, max_negatives)
        total = num_negatives.sum()
        if len(anchor_counts) > 1:
            smallest = gather(smallest, [len(smallest)] * len(anchor_counts))
            total = gather(total[None], [1] * len(anchor_counts)).sum()
        beta, r_squared = fit_pooled(smallest, total)
        for link in links:
            link.follow(beta, r_squared)

    def extra_repr(self) -> str:
        """Show the settings that are plain values."""
        return f"temperature={self.temperature}, layout={self.layout!r}"


def without_autocast(device: str) -> AbstractContextManager[None]:
    """Switch autocast off; where it is off, entering its context is not free either."""
    exists = torch.amp.is_autocast_available(device)
    is_on = exists and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else nullcontext()
