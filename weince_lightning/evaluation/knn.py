"""The vote of the nearest neighbours, for the split of each seed."""

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import torch

from weince_lightning.evaluation.progress import progress_bar
from weince_lightning.evaluation.samples import Samples
from weince_lightning.evaluation.settings import KNNSettings
from weince_lightning.functional.features import RECALL_AT
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
    results = []
    with progress_bar("nearest neighbours", len(settings.seeds)) as bar:
        for seed in settings.seeds:
            place = str(replace(settings, seeds=(seed,)))
            if place not in kept:
                rest, val = train.split(settings.val_fraction, seed)
                bank, scores = train.take(rest), {}
                for name, queries in (("val", train.take(val)), ("test", test)):
                    found = neighbour_scores(
                        *queries, *bank, (settings.k,), RECALL_AT, settings.temperature
                    )
                    names = [f"top1_k{settings.k}", *(f"recall_at_{r}" for r in RECALL_AT)]
                    numbers = torch.cat([found.accuracy, found.recall]).double()
                    # From float32 back to so many right of all.
                    numbers = (numbers * len(queries.classes)).round() / len(queries.classes)
                    for metric, number in zip(names, numbers.tolist(), strict=True):
                        scores[f"{name}_{metric}"] = number
                kept[place] = scores
            results.append(kept[place])
            bar.update()
    return results
