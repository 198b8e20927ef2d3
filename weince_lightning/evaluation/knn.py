"""The vote of the nearest neighbours, for the split of each seed."""

from collections.abc import MutableMapping
from typing import Any

import torch

from weince_lightning.evaluation.features import RECALL_AT
from weince_lightning.evaluation.samples import Samples, score_seeds
from weince_lightning.evaluation.settings import KNNSettings
from weince_lightning.functional.neighbours import neighbour_scores


def score_neighbours(
    train: Samples, test: Samples, settings: KNNSettings, kept: MutableMapping[str, Any]
) -> list[dict[str, float]]:
    """Score validation and test samples by the other training samples.

    See :func:`~weince_lightning.functional.neighbours.neighbour_scores`, also for ties.

    Args:
        train: Training samples, of which each seed keeps a part as validation queries.
        test: Test samples.
        settings: Settings.
        kept: Where the numbers of each seed go, and come from.

    Returns:
        ``val_top1_k{k}``, ``test_top1_k{k}``, ``val_recall_at_{r}`` and ``test_recall_at_{r}`` of
        each seed.
    """
    names = [f"top1_k{settings.k}", *(f"recall_at_{r}" for r in RECALL_AT)]

    def score(bank: Samples, val: Samples) -> dict[str, float]:
        scores = {}
        for split, queries in (("val", val), ("test", test)):
            found = neighbour_scores(
                *queries, *bank, (settings.k,), RECALL_AT, settings.temperature
            )
            numbers = torch.cat([found.accuracy, found.recall]).double()
            # From float32 back to so many right of all.
            numbers = (numbers * len(queries.classes)).round() / len(queries.classes)
            for name, number in zip(names, numbers.tolist(), strict=True):
                scores[f"{split}_{name}"] = number
        return scores

    return score_seeds("nearest neighbours", train, settings, kept, score)
