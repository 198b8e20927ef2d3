"""Losses and gradients block by block, in memory of block x candidates.

The similarities of a block are computed when they are needed and then dropped. The gradient with
respect to anchors and candidates is computed in the same pass as the loss and kept for the
backward, as in fused cross-entropy. On a CPU the threads share the blocks.

Shapes, for each group of anchors with the same candidates (A anchors, B of them in a block,
C shared candidates, X per-anchor negatives, D features)::

    anchors                (A, D)       a block: (B, D)
    candidates             (C, D)       shared by all blocks of the group
    per_anchor_negatives   (A, X, D)    a block: (B, X, D)
    similarity, gradient   (B, C + X)   per-anchor negatives last
    of_candidates          (D, C)       transposed, one for each thread
    per_anchor             (sum of A,)  groups in order
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weince_lightning.functional.candidates import Candidates, Scores, compare, score
from weince_lightning.functional.contrastive import Objective, Whole, read_tail
from weince_lightning.functional.fused import Derivatives, differentiate
from weince_lightning.functional.tails import TailFit
from weince_lightning.functional.threads import Scratch, count_threads, share

LARGEST_BLOCK = 2**20
"""Similarities of a block on a CPU, 4 MiB in float32: more do not stay in the cache."""
LARGEST_BLOCK_ELSEWHERE = 2**24
"""The same on other devices, 64 MiB: there kernel-launch overhead dominates."""
LARGEST_KEPT = 2**22
"""Most similarities of all blocks that are cached between the tails and the losses."""
LEAST_SHARED = 2**19
"""Similarities of a block from which on several threads are faster than one."""


class _Block(NamedTuple):
    """Anchors of a group whose similarities are computed at once."""

    group_index: int
    """Which group they belong to."""
    group: Candidates
    """The anchors of the block and their candidates."""
    rows: slice
    """Their rows in the group."""
    places: slice
    """Their places among the anchors of all groups."""


class Tiled:
    """The scores of all anchors, computed block by block.

    The results are those of :class:`~weince_lightning.functional.contrastive.Whole`.

    Args:
        groups: Anchors and candidates.
        block_size: Most anchors of a block; None chooses.
    """

    def __init__(self, groups: Sequence[Candidates], block_size: int | None = None) -> None:
        self.groups = groups
        self.blocks: list[_Block] = []
        first = 0
        for index, group in enumerate(groups):
            size = group.num_anchors
            most = block_size or choose_block_size(group)
            for start in range(0, max(1, size), most):
                stop = min(start + most, size)
                places = slice(first + start, first + stop)
                rows = slice(start, stop)
                # A single block needs no views, whose cost is noticeable on a small batch.
                part = group if stop - start == size else group.select(rows)
                self.blocks.append(_Block(index, part, rows, places))
            first += size
        sizes = [b.group.num_anchors * b.group.num_columns for b in self.blocks]
        shared = max(sizes) >= LEAST_SHARED
        self.threads = count_threads(groups[0].anchors.device) if shared else 1
        # An explicit `block_size` means memory is tight: do not cache.
        self._caches = block_size is None and sum(sizes) <= LARGEST_KEPT
        self._cache: dict[tuple[int, int], Tensor] = {}

    @torch.no_grad()
    def __iter__(self) -> Iterator[Scores]:
        """Walk over the blocks' scores; they have no gradient."""
        scratch = Scratch()
        for block in self.blocks:
            yield self.score(block, scratch)

    def fit_tails(self, tail_fraction: float, min_tail_points: int) -> TailFit:
        """Fit the tail of each anchor, see :func:`read_tail`; the groups in order."""

        def work(blocks: Sequence[_Block], scratch: Scratch) -> list[Tensor]:
            fits = _Columns(blocks)
            for block in blocks:
                scores = self.score(block, scratch)
                spare = scratch.take("spare", scores.similarity.shape, scores.similarity)
                fits.add(*read_tail(scores, spare, tail_fraction, min_tail_points))
            return fits.columns

        return TailFit(*_join(share(work, self.blocks, self.threads)))

    def score(self, block: _Block, scratch: Scratch) -> Scores:
        """Compute the scores of a block; the next block of a thread may overwrite them."""
        key = block.group_index, block.rows.start
        similarity = self._cache.get(key)
        if similarity is None:
            if self._caches:
                similarity = self._cache[key] = compare(block.group)
            else:
                like = block.group.anchors
                shape = block.group.num_anchors, block.group.num_columns
                similarity = compare(block.group, scratch.take("similarity", shape, like))
        return score(block.group, similarity)

    def losses(
        self, objective: Objective, temperature: float | Tensor, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the anchors' losses, with gradient, and the loss of each.

        The gradient is computed here, if it will be needed.
        """
        tensors = [t for group in self.groups for t in group.tensors]
        apply = _apply_uncompiled() if torch.compiler.is_compiling() else _TiledLosses.apply
        total, per_anchor = apply(
            self, objective, weight, torch.is_grad_enabled(), temperature, *tensors
        )
        self._cache.clear()
        return total, per_anchor


def choose_block_size(group: Candidates) -> int:
    """Choose how many anchors of a group are compared at once.

    Args:
        group: Anchors and candidates.

    Returns:
        A size that keeps the similarities of a block in the cache and all threads busy.
    """
    size, columns = group.num_anchors, max(1, group.num_columns)
    device = group.anchors.device
    largest = LARGEST_BLOCK if device.type == "cpu" else LARGEST_BLOCK_ELSEWHERE
    blocks = math.ceil(size / max(16, largest // columns))
    threads = count_threads(device)
    if blocks >= threads:
        blocks = threads * math.ceil(blocks / threads)
    return math.ceil(size / max(1, blocks)) or 1


class _Columns:
    """Results for each anchor of some blocks, in memory that is taken once.

    A small tensor that stays lies among the large ones of its block, and keeps the memory that they
    leave from being whole again: with thousands of blocks that is more than all else.
    """

    def __init__(self, blocks: Sequence[_Block]) -> None:
        self.columns: list[Tensor] = []
        self._rows = [block.group.num_anchors for block in blocks]
        self._first = 0

    def add(self, *results: Tensor) -> None:
        """Keep what was computed for the next block, one value for each of its anchors."""
        if len(self._rows) == 1:  # nothing follows, and a small batch notices a copy
            self.columns = list(results)
            return
        if not self.columns:
            self.columns = [each.new_empty(sum(self._rows)) for each in results]
        last = self._first + len(results[0])
        for column, each in zip(self.columns, results, strict=True):
            column[self._first : last] = each
        self._first = last


def _join(parts: Sequence[list[Tensor]]) -> list[Tensor]:
    """Join the columns of all threads."""
    if len(parts) == 1:
        return parts[0]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


class _Gradients:
    """Gradients with respect to the unit vectors of all groups, block by block."""

    def __init__(self, groups: Sequence[Candidates]) -> None:
        self._groups = groups
        self._of_anchors = [torch.empty_like(group.anchors) for group in groups]
        extras = [group.per_anchor_negatives for group in groups]
        self._of_extra = [None if extra is None else torch.empty_like(extra) for extra in extras]

    def add(self, block: _Block, gradient: Tensor, of_candidates: dict[int, Tensor]) -> None:
        """Add the gradient of a block's similarities to those of its vectors.

        Args:
            block: The block.
            gradient: Shape ``(anchors, candidates)``, per-anchor negatives last.
            of_candidates: A thread's gradients of the candidates, by group, shape
                ``(features, candidates)``; updated.
        """
        anchors, candidates, extra = block.group.tensors
        shared = gradient if extra is None else gradient[:, : len(candidates)]
        out = self._of_anchors[block.group_index][block.rows]
        of_anchors = torch.mm(shared, candidates, out=out)
        # Transposed, as (features, candidates): that product is a sixth faster on a CPU.
        so_far = of_candidates.get(block.group_index)
        if so_far is not None:
            so_far.addmm_(anchors.T, shared)
        elif candidates.requires_grad:  # keys of a memory bank need none
            of_candidates[block.group_index] = anchors.T @ shared
        of_extra = self._of_extra[block.group_index]
        if extra is not None and of_extra is not None:
            alone = gradient[:, len(candidates) :]
            of_anchors += torch.einsum("an,anf->af", alone, extra)
            torch.mul(alone[:, :, None], anchors[:, None, :], out=of_extra[block.rows])

    def total(self, parts: Sequence[dict[int, Tensor]]) -> list[Tensor | None]:
        """Return the gradients of each group's tensors, summed over the threads."""
        found: list[Tensor | None] = []
        for index, group in enumerate(self._groups):
            of_anchors = self._of_anchors[index]
            collected = [part[index].T for part in parts if index in part]
            # Not in place: torch.compile refuses that.
            if group.anchors is group.candidates:
                found += [sum(collected, of_anchors), None, self._of_extra[index]]
            else:
                of_candidates = sum(collected[1:], collected[0]) if collected else None
                found += [of_anchors, of_candidates, self._of_extra[index]]
        return found


class _Found(NamedTuple):
    """Losses and gradients of the blocks of one thread."""

    columns: list[Tensor]
    """The losses alone."""
    of_temperature: Tensor | None
    of_candidates: dict[int, Tensor]


class _TiledLosses(torch.autograd.Function):
    """The weighted sum of the losses; its gradient is computed in the forward and kept."""

    @staticmethod
    def forward(
        ctx: Any,
        tiled: Tiled,
        objective: Objective,
        weight: float | Tensor,
        with_gradient: bool,
        temperature: float | Tensor,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        with_gradient = with_gradient and any(ctx.needs_input_grad)
        with_temperature = with_gradient and ctx.needs_input_grad[4]
        gradients = _Gradients(tiled.groups) if with_gradient else None

        def work(blocks: Sequence[_Block], scratch: Scratch) -> _Found:
            losses, of_temperature = _Columns(blocks), None
            of_candidates: dict[int, Tensor] = {}
            for block in blocks:
                result = _differentiate(
                    tiled.score(block, scratch),
                    objective,
                    block.places,
                    temperature,
                    scratch,
                    with_gradient,
                    with_temperature,
                )
                losses.add(result.losses)
                if of_temperature is None:
                    of_temperature = result.of_temperature
                elif result.of_temperature is not None:
                    of_temperature += result.of_temperature
                if gradients is not None and result.of_similarity is not None:
                    gradients.add(block, result.of_similarity, of_candidates)
            return _Found(losses.columns, of_temperature, of_candidates)

        parts = share(work, tiled.blocks, tiled.threads)
        (per_anchor,) = _join([part.columns for part in parts])
        ctx.mark_non_differentiable(per_anchor)
        ctx.set_materialize_grads(False)  # zeros for it would be for nothing
        if gradients is not None:
            of_temperature = [p.of_temperature for p in parts if p.of_temperature is not None]
            # Needed only for a second derivative.
            ctx.groups, ctx.objective, ctx.temperature = tiled.groups, objective, temperature
            ctx.weight = weight
            ctx.save_for_backward(
                temperature if with_temperature else None,
                *tensors,
                torch.stack(of_temperature).sum() if of_temperature else None,
                *gradients.total([part.of_candidates for part in parts]),
            )
        return per_anchor.sum() * weight, per_anchor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        if gradient is None:  # as gradcheck asks; one of the other arguments has no gradient ever
            return (None,) * (4 + len(saved) // 2)
        inputs, kept = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        if torch.is_grad_enabled():
            # With create_graph: the kept gradients would count as constants.
            kept = _plain_gradients(ctx.groups, ctx.objective, ctx.temperature, inputs)
        gradient = gradient * ctx.weight
        return None, None, None, None, *(k if k is None else k * gradient for k in kept)


_uncompiled: Any = None


def _apply_uncompiled() -> Any:
    """Return the function hidden from torch.compile, whose version 2.10 fails in it.

    Created on first use: importing the compiler takes longer than importing all of the losses.
    """
    global _uncompiled
    if _uncompiled is None:
        _uncompiled = torch.compiler.disable(_TiledLosses.apply)  # type: ignore[no-untyped-call]
    return _uncompiled


def _differentiate(
    scores: Scores,
    objective: Objective,
    places: slice,
    temperature: float | Tensor,
    scratch: Scratch,
    with_gradient: bool,
    with_temperature: bool,
) -> Derivatives:
    """Compute the losses of a block and their derivatives, in closed form or by autograd."""
    if objective.blend is not None:
        blend = objective.blend
        if blend.softmax.shape[0] > scores.similarity.shape[0]:
            blend = blend.select(places)
        return differentiate(scores, blend, temperature, scratch, with_gradient, with_temperature)
    if not with_gradient:
        return Derivatives(objective.evaluate(scores, places, temperature))
    # Detached: the scratch memory itself must not require a gradient.
    scores = scores._replace(similarity=scores.similarity.detach().requires_grad_())
    leaves = [scores.similarity]
    if isinstance(temperature, Tensor):
        temperature = temperature.detach().requires_grad_()
        leaves.append(temperature)
    with torch.enable_grad():
        losses = objective.evaluate(scores, places, temperature)
        total = losses.sum()
    # A loss may not depend on the temperature.
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return Derivatives(losses.detach(), found[0], found[1] if with_temperature else None)


def _plain_gradients(
    groups: Sequence[Candidates],
    objective: Objective,
    temperature: float | Tensor,
    inputs: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of the sum of the losses that can be differentiated again; whole matrix."""
    # A tensor may be an input twice, as anchors and as candidates; its views are different.
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
    seen = [group.with_tensors(views[3 * i + 1 : 3 * i + 4]) for i, group in enumerate(groups)]
    wanted = [view for view in views if view is not None and view.requires_grad]
    with torch.autocast(groups[0].anchors.device.type, enabled=False):
        total, _ = Whole(seen).losses(objective, temperature if views[0] is None else views[0], 1.0)
        found = iter(torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True))
    return [None if view is None or not view.requires_grad else next(found) for view in views]
