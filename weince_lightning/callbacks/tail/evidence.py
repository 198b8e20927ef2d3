"""Tail evidence of the losses in a module, whatever its steps return."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weince_lightning.losses import ContrastiveTerms, WEINCELoss
from weince_lightning.losses.base import ContrastiveLoss


class WatchedLosses:
    """Reads what the losses of this package see, from :meth:`start` to :meth:`stop`.

    The losses compute as without. Forward hooks would miss modules that call ``terms``, so that is
    what is watched. A loss without evidence is asked what WEINCE would see in its candidates.
    """

    def __init__(self) -> None:
        self._losses: list[ContrastiveLoss] = []
        self._columns: list[Tensor] = []

    def start(self, module: nn.Module) -> None:
        """Begin with nothing seen."""
        self._losses = [part for part in module.modules() if isinstance(part, ContrastiveLoss)]
        for loss in self._losses:
            vars(loss)["terms"] = partial(self._terms, loss)

    def stop(self) -> Tensor | None:
        """Leave the losses as they were.

        Returns:
            Gate, beta-hat, rho and delta-AIC of each anchor, shape ``(anchors, 4)``; None if no
            loss was called.
        """
        for loss in self._losses:
            vars(loss).pop("terms", None)
        columns, self._columns, self._losses = self._columns, [], []
        return torch.cat(columns) if columns else None

    def _terms(self, loss: ContrastiveLoss, *inputs: Any, **options: Any) -> ContrastiveTerms:
        # Before the loss: in training a queue moves on after it.
        unlike = None if isinstance(loss, WEINCELoss) else _as_weince_sees(loss, inputs, options)
        terms = type(loss).terms(loss, *inputs, **options)
        tail = terms.tail or unlike
        if tail is not None:
            columns = [tail.gate, tail.beta_hat, tail.rho, tail.delta_aic]
            self._columns.append(torch.stack(columns, dim=1))
        return terms


@torch.no_grad()
def _as_weince_sees(loss: ContrastiveLoss, inputs: Any, options: Any) -> Any:
    """Return the evidence of WEINCE with its default gate; without gradient nothing is kept."""
    weince = WEINCELoss(
        layout=loss.layout, gather_distributed=loss.gather_distributed, block_size=loss.block_size
    )
    weince.temperature = loss.temperature
    weince.queue = loss.queue
    return weince.terms(*inputs, **options).tail
