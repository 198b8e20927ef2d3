"""Labelled features, and how often something tells their labels."""

from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weince_lightning.evaluation.progress import progress_bar
from weince_lightning.evaluation.settings import KNNSettings, LinearSettings
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


def score_seeds(
    title: str,
    train: Samples,
    settings: LinearSettings | KNNSettings,
    kept: MutableMapping[str, Any],
    score: Callable[[Samples, Samples], dict[str, float]],
) -> list[dict[str, float]]:
    """Score each seed's split of the training samples, but those that are known already.

    Args:
        title: What the progress bar says.
        train: Training samples, from which each seed keeps a part for validation.
        settings: Settings, with the seeds.
        kept: Where the numbers of each seed go, and come from.
        score: Gives the numbers, by name, for the samples that stay and those of the validation.

    Returns:
        The numbers of each seed.
    """
    results = []
    with progress_bar(title, len(settings.seeds)) as bar:
        for seed in settings.seeds:
            place = str(replace(settings, seeds=(seed,)))
            if place not in kept:
                rest, val = train.split(settings.val_fraction, seed)
                kept[place] = score(train.take(rest), train.take(val))
            results.append(kept[place])
            bar.update()
    return results


def accuracy(samples: Samples, weight: Tensor, bias: Tensor) -> float:
    """Return the share of the samples whose class a linear layer gives the largest logit."""
    right = 0
    blocks = (torch.split(part, _ROWS_AT_ONCE) for part in samples)
    for features, classes in zip(*blocks, strict=True):
        logits = torch.addmm(bias, features.to(weight.dtype), weight.T)
        right += int((logits.argmax(1).cpu() == classes).sum())
    return right / len(samples.classes)
