"""The same losses block by block: nothing is ever larger than block x candidates.

Similarities of a block are computed where they are needed and forgotten; the gradient with respect
to anchors and candidates is computed in the same sweep as the loss and kept for the backward, as in
fused cross-entropy.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weince_lightning.functional.candidates import Candidates, Scores, score
from weince_lightning.functional.contrastive import Evaluate


class Tiled:
    """The scores of all anchors, computed block by block each time one walks over them.

    See :class:`~weince_lightning.functional.contrastive.Whole`, whose results it gives.

    Args:
        groups: Anchors and candidates.
        block_size: Most anchors of a block.
    """

    def __init__(self, groups: Sequence[Candidates], block_size: int) -> None:
        self._groups = groups
        self._block_size = block_size

    def __iter__(self) -> Iterator[Scores]:
        """Walk over the blocks' scores; they have no gradient."""
        with torch.no_grad():
            for group in self._groups:
                for rows in _blocks(group, self._block_size):
                    yield score(group.select(rows))

    def losses(self, evaluate: Evaluate, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the anchors' losses, with gradient, and the loss of each.

        The gradient is computed here, if it will be needed, and can not be differentiated again.
        """
        tensors = [
            t for group in self._groups for t in (group.anchors, group.candidates, group.own)
        ]
        total, per_anchor = _TiledLosses.apply(
            self._groups, evaluate, self._block_size, torch.is_grad_enabled(), temperature, *tensors
        )
        return total, per_anchor


def choose_block_size(groups: Sequence[Candidates]) -> int | None:
    """Choose how many anchors are compared at once.

    Args:
        groups: Anchors and candidates.

    Returns:
        None, for the whole matrix, where that is small; else what keeps a block in the cache.
    """
    anchors, columns = len(groups[0].anchors), groups[0].max_negatives
    if anchors * columns <= LARGEST_WHOLE:
        return None
    return max(16, LARGEST_BLOCK // columns)


LARGEST_WHOLE = 2**20
"""Similarities up to which the whole matrix is not slower: two views of 512 samples."""
LARGEST_BLOCK = 2**20
"""Similarities of a block: 4 MiB in float32."""


def _blocks(group: Candidates, block_size: int) -> Iterator[slice]:
    """Places of the blocks of a group's anchors; one, empty, where it has none."""
    size = len(group.anchors)
    for start in range(0, max(1, size), block_size):
        yield slice(start, min(start + block_size, size))


class _TiledLosses(torch.autograd.Function):
    """The sum of the losses; its gradient is computed in the forward and kept."""

    @staticmethod
    def forward(
        ctx: Any,
        groups: Sequence[Candidates],
        evaluate: Evaluate,
        block_size: int,
        with_gradient: bool,
        temperature: float | Tensor,
        *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        with_gradient = with_gradient and any(ctx.needs_input_grad)
        gradients: list[Tensor | None] = []
        of_temperature: Tensor | None = None
        losses: list[Tensor] = []
        first = 0
        for group in groups:
            into = _Gradients.zeros(group) if with_gradient else None
            for rows in _blocks(group, block_size):
                places = slice(first + rows.start, first + rows.stop)
                scores = score(group.select(rows))
                if into is None:
                    losses.append(evaluate(scores, places, temperature))
                    continue
                leaves = [scores.similarity.requires_grad_()]
                if isinstance(temperature, Tensor):
                    temperature = temperature.detach().requires_grad_()
                    leaves.append(temperature)
                with torch.enable_grad():
                    values = evaluate(scores, places, temperature)
                    total = values.sum()
                # A loss may have nothing to do with the temperature.
                found = torch.autograd.grad(total, leaves, allow_unused=True)
                losses.append(values.detach())
                into.add(group, rows, found[0])
                if found[-1] is not None and len(found) == 2:
                    of_temperature = (
                        found[1] if of_temperature is None else of_temperature + found[1]
                    )
            gradients += [None] * 3 if into is None else into
            first += len(group.anchors)
        ctx.save_for_backward(of_temperature, *gradients)
        per_anchor = torch.cat(losses)
        ctx.mark_non_differentiable(per_anchor)
        return per_anchor.sum(), per_anchor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # With create_graph. What was kept would pass for a constant, silently.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "A contrastive loss computed block by block can not be differentiated twice: "
                f"smaller batches, up to {LARGEST_WHOLE} similarities with block_size=None, can."
            )
        stored = [None if kept is None else kept * gradient for kept in ctx.saved_tensors]
        return None, None, None, None, *stored


class _Gradients(NamedTuple):
    """Gradients with respect to a group's unit vectors."""

    anchors: Tensor
    candidates: Tensor
    own: Tensor | None

    @classmethod
    def zeros(cls, group: Candidates) -> "_Gradients":
        own = None if group.own is None else torch.zeros_like(group.own)
        return cls(torch.zeros_like(group.anchors), torch.zeros_like(group.candidates), own)

    def add(self, group: Candidates, rows: slice, gradient: Tensor) -> None:
        """Hand on the gradient of a block's similarities."""
        anchors, shared = group.anchors[rows], gradient[:, : len(group.candidates)]
        torch.mm(shared, group.candidates, out=self.anchors[rows])
        self.candidates.addmm_(shared.T, anchors)
        if self.own is not None and group.own is not None:
            own = gradient[:, shared.shape[1] :]
            self.anchors[rows] += torch.einsum("an,anf->af", own, group.own[rows])
            torch.mul(own[:, :, None], anchors[:, None, :], out=self.own[rows])
