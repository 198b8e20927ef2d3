"""What holds for every part of an evaluation."""

import pytest
import torch

from weince_lightning.evaluation import KNNSettings, LinearSettings, evaluate
from weince_lightning.functional.neighbours import NoLabelError

PARTS = (LinearSettings(epochs=2, seeds=(1, 2)), KNNSettings(k=5, seeds=(1, 2)))


@pytest.fixture(scope="module")
def known(digits):
    """What both parts find on the digits."""
    return evaluate(*digits, *PARTS)


def test_a_part_that_is_not_asked_for_is_absent(digits):
    assert set(evaluate(*digits, PARTS[0], None)) == {"linear"}
    assert set(evaluate(*digits, None, PARTS[1])) == {"knn"}


def test_samples_without_label_count_nowhere(digits, known):
    features, labels, test_features, test_labels = digits
    more = (
        torch.cat([features[:50] * -1, features]),
        torch.cat([-torch.ones_like(labels[:50]), labels]),
    )
    more_test = (
        torch.cat([test_features, features]),
        torch.cat([test_labels, -torch.ones_like(labels)]),
    )
    assert evaluate(*more, *more_test, *PARTS) == known


def test_a_label_that_is_neither_a_class_nor_unknown_is_refused(digits):
    features, labels, *test = digits
    marked = torch.cat([labels.new_tensor([-100]), labels[1:]])
    with pytest.raises(ValueError, match=r"train_labels must be at least 0, or -1.* got -100"):
        evaluate(features, marked, *test, *PARTS)
    with pytest.raises(ValueError, match="test_labels must be at least 0"):
        evaluate(features, labels, features, marked, *PARTS)


def test_names_of_labels_do_not_matter(digits, known):
    features, labels, test_features, test_labels = digits
    renamed = evaluate(features, 7 * labels + 3, test_features, 7 * test_labels + 3, *PARTS)
    assert renamed == known


def test_a_label_that_no_training_sample_has_is_told_wrong(digits, known):
    features, labels, test_features, test_labels = digits
    found = evaluate(
        features, labels, test_features.repeat(2, 1), torch.cat([test_labels, test_labels + 100]),
        *PARTS,
    )  # fmt: skip
    for part, name in (("linear", "test_top1"), ("knn", "test_top1_k5")):
        assert found[part][name]["mean"] == pytest.approx(known[part][name]["mean"] / 2, rel=1e-6)
        assert found[part]["val" + name[4:]] == known[part]["val" + name[4:]]


def test_global_random_numbers_stay_untouched(digits):
    before = torch.get_rng_state()
    evaluate(*digits, *PARTS)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_samples_give_the_same_numbers(digits, known):
    assert evaluate(*digits, *PARTS) == known


def test_mean_is_that_of_the_values(known):
    for metric in known["linear"].values():
        assert metric["mean"] == pytest.approx(sum(metric["values"]) / 2)
        assert all(0 <= value <= 1 for value in metric["values"])


@pytest.mark.parametrize("place", [1, 3])
def test_no_label_at_all_is_refused(digits, place):
    samples = [*digits]
    samples[place] = torch.full_like(samples[place], -1)
    with pytest.raises(NoLabelError, match="must hold a label other than -1"):
        evaluate(*samples)


def test_what_does_not_fit_is_refused(digits):
    features, labels, test_features, test_labels = digits
    with pytest.raises(ValueError, match=r"train_features must have shape \(samples, features\)"):
        evaluate(features[0], labels, test_features, test_labels)
    with pytest.raises(ValueError, match="test_labels must hold one label per row"):
        evaluate(features, labels, test_features, test_labels[:5])
    with pytest.raises(ValueError, match="test_features must have as many features"):
        evaluate(features, labels, test_features[:, :5], test_labels)
    features = features.clone()
    features[3] = torch.nan
    with pytest.raises(ValueError, match="train_features must be finite, got NaN or infinity in 1"):
        evaluate(features, labels, test_features, test_labels)
    with pytest.raises(ValueError, match="val_fraction must leave samples on both sides"):
        evaluate(test_features[:2], test_labels[:2], test_features, test_labels)
