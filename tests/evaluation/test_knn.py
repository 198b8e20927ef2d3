"""The vote of the neighbours against scikit-learn's."""

import numpy as np
import pytest
import torch
from cases import few
from sklearn.neighbors import KNeighborsClassifier

from weince_lightning.evaluation import KNNSettings, evaluate
from weince_lightning.functional.splits import stratified_split


@pytest.mark.parametrize("temperature", few([0.1, 1.0]))
def test_votes_are_those_of_scikit_learn(digits, temperature):
    features, labels, *test = digits
    settings = KNNSettings(temperature=temperature)
    found = evaluate(*digits, None, settings)["knn"]
    for number, seed in enumerate(settings.seeds):
        rest, val = stratified_split(labels.numpy(), 0.2, seed)
        reference = KNeighborsClassifier(
            50, weights=lambda d: np.exp((1 - d) / temperature), metric="cosine", algorithm="brute"
        )
        reference.fit(features[rest].numpy(), labels[rest].numpy())
        for name, queries in (("val", (features[val], labels[val])), ("test", test)):
            expected = reference.score(queries[0].numpy(), queries[1].numpy())
            assert found[f"{name}_top1_k50"]["values"][number] == np.float32(expected)
            rows = reference.kneighbors(queries[0].numpy(), 10, return_distance=False)
            is_hit = labels[rest].numpy()[rows] == queries[1].numpy()[:, None]
            expected = is_hit.any(axis=1).mean(dtype=np.float32)
            assert found[f"{name}_recall_at_10"]["values"][number] == pytest.approx(expected)


def test_a_small_bank_gives_all_it_has():
    features = torch.eye(3).repeat(4, 1)
    labels = torch.arange(3).repeat(4)
    found = evaluate(features, labels, features, labels, None, KNNSettings(val_fraction=0.5))
    assert found["knn"]["test_top1_k50"]["mean"] == 1.0
    assert found["knn"]["test_recall_at_50"]["mean"] == 1.0


def test_splits_that_are_done_are_not_done_again(digits):
    kept = {}
    first = evaluate(*digits, None, KNNSettings(seeds=(1,)), kept)["knn"]
    (place,) = kept
    kept[place] = dict.fromkeys(kept[place], -1.0)
    both = evaluate(*digits, None, KNNSettings(seeds=(1, 2)), kept)["knn"]
    assert both["test_top1_k50"]["values"][0] == -1.0
    fresh = evaluate(*digits, None, KNNSettings(seeds=(2, 1)))["knn"]
    assert both["test_top1_k50"]["values"][1] == fresh["test_top1_k50"]["values"][0]
    assert first["test_top1_k50"]["values"][0] == fresh["test_top1_k50"]["values"][1]
    other = evaluate(*digits, None, KNNSettings(seeds=(1,), k=5), kept)["knn"]
    assert other["test_top1_k5"]["values"][0] > 0
