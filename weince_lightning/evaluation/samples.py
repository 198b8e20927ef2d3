"""Labelled features, and how often something tells their labels."""

from typing import NamedTuple

import torch
from torch import Tensor

from weince_lightning.functional.splits import stratified_split

_ROWS_AT_ONCE = 8192


class Samples(NamedTuple):
    """Features with their classes."""

    features: Tensor
    """Shape ``(samples, features)``; their device does the work."""
    classes: Tensor
    """Numbers from 0, the largest for what no training sample is; int64, on the CPU."""

    def take(self, rows: Tensor) -> "Samples":
        """Return some of the samples, by place."""
        return Samples(self.features[rows.to(self.features.device)], self.classes[rows])

    def split(self, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
        """Return the places of the samples that stay and of those kept for validation.

        Raises:
            ValueError: If one of the parts would be empty.
        """
        rest, val = stratified_split(self.classes.numpy(), fraction, seed)
        if not len(rest) or not len(val):
            raise ValueError(
                f"val_fraction must leave samples on both sides, got {fraction} of "
                f"{len(self.classes)} training samples with a label."
            )
        return torch.from_numpy(rest), torch.from_numpy(val)


def accuracy(samples: Samples, weight: Tensor, bias: Tensor) -> float:
    """Return the share of the samples whose class a linear layer gives the largest logit."""
    right = 0
    blocks = (torch.split(part, _ROWS_AT_ONCE) for part in samples)
    for features, classes in zip(*blocks, strict=True):
        logits = torch.addmm(bias, features.to(weight.dtype), weight.T)
        right += int((logits.argmax(1).cpu() == classes).sum())
    return right / len(samples.classes)
