"""The neighbours against scikit-learn and against plain loops."""

import math
from collections import defaultdict

import pytest
import torch
from cases import few
from sklearn.neighbors import KNeighborsClassifier

from weince_lightning.functional import neighbours
from weince_lightning.functional.neighbours import (
    nearest_neighbours,
    neighbour_scores,
    weighted_vote,
)


@pytest.fixture
def features(generator):
    """Noisy clusters: 60 queries, a bank of 150, 7 labels with gaps."""
    labels = torch.tensor([3, 8, 20, 21, 40, 77, 1000])
    centres = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    query_kind = torch.randint(7, (60,), generator=generator)
    bank_kind = torch.randint(7, (150,), generator=generator)
    noise = torch.randn(210, 6, generator=generator, dtype=torch.float64)
    queries = centres[query_kind] + noise[:60]
    bank = centres[bank_kind] + noise[60:]
    return queries, labels[query_kind], bank, labels[bank_kind]


def loop_scores(queries, query_labels, bank, bank_labels, k, recall_at, temperature):
    """Vote and recall, one query at a time."""
    right = dict.fromkeys(k, 0)
    found = dict.fromkeys(recall_at, 0)
    for query, label in zip(queries, query_labels.tolist(), strict=True):
        similarity = [
            (query @ item / (query.norm() * item.norm()).clamp_min(1e-12)).item() for item in bank
        ]
        order = sorted(range(len(bank)), key=lambda row: (-similarity[row], row))
        ranked = [(similarity[row], bank_labels[row].item()) for row in order]
        for size in k:
            votes = defaultdict(float)
            for value, neighbour_label in ranked[:size]:
                votes[neighbour_label] += math.exp(value / temperature)
            right[size] += label == min(votes, key=lambda name: (-votes[name], name))
        for size in recall_at:
            found[size] += label in [name for _, name in ranked[:size]]
    num_queries = len(queries)
    return (
        torch.tensor([right[size] / num_queries for size in k]),
        torch.tensor([found[size] / num_queries for size in recall_at]),
    )


@pytest.mark.parametrize("temperature", few([0.1, 0.5]))
def test_scores_agree_with_a_plain_loop(features, temperature):
    k, recall_at = (1, 5, 20, 50), (1, 2, 5, 10)
    scores = neighbour_scores(*features, k, recall_at, temperature)
    accuracy, recall = loop_scores(*features, k, recall_at, temperature)
    torch.testing.assert_close(scores.accuracy, accuracy)
    torch.testing.assert_close(scores.recall, recall)


@pytest.mark.parametrize("k", [1, 5, 20, 150])
def test_vote_agrees_with_scikit_learn(features, k):
    queries, _, bank, bank_labels = features
    classifier = KNeighborsClassifier(
        n_neighbors=k,
        metric="cosine",
        algorithm="brute",
        weights=lambda distance: torch.exp((1 - torch.from_numpy(distance)) / 0.1).numpy(),
    )
    wanted = classifier.fit(bank.numpy(), bank_labels.numpy()).predict(queries.numpy())
    nearest = nearest_neighbours(queries, bank, k)
    winners = weighted_vote(nearest.similarity, bank_labels[nearest.indices], (k,), 0.1)
    assert winners[0].tolist() == wanted.tolist()


def test_blocks_do_not_change_the_neighbours(features, monkeypatch):
    queries, _, bank, _ = features
    whole = nearest_neighbours(queries, bank, 20)
    monkeypatch.setattr(neighbours, "_QUERY_CHUNK", 7)
    monkeypatch.setattr(neighbours, "_BANK_CHUNK", 11)
    blocks = nearest_neighbours(queries, bank, 20)
    assert torch.equal(blocks.indices, whole.indices)
    torch.testing.assert_close(blocks.similarity, whole.similarity)


@pytest.mark.parametrize("bank_chunk", [1, 3, 100])
@pytest.mark.parametrize("k", [1, 4, 9, 12])
def test_of_equal_similarities_the_earlier_bank_item_is_nearer(k, bank_chunk, monkeypatch):
    monkeypatch.setattr(neighbours, "_BANK_CHUNK", bank_chunk)
    directions = torch.eye(3)[[2, 0, 1, 1, 0, 0, 1, 2, 0, 1, 1, 0]]
    wanted = [1, 4, 5, 8, 11, 2, 3, 6, 9, 10, 0, 7]
    nearest = nearest_neighbours(torch.tensor([[1.0, 0.5, 0.0]]), directions, k)
    assert nearest.indices[0].tolist() == wanted[:k]


@pytest.mark.parametrize("threads", few([1, 2], 1))
@pytest.mark.parametrize(("query_chunk", "bank_chunk", "group"), [(7, 40, 4), (64, 333, 32)])
@pytest.mark.parametrize("order", ["any", "nearest last", "nearest first"])
def test_many_ties_are_broken_as_a_stable_sort_does(
    order, query_chunk, bank_chunk, group, threads, generator, monkeypatch
):
    # Signs in 4 of 16 places have length 2: their similarities, multiples of 1/4, are exact.
    def draw(size):
        places = torch.rand(size, 16, generator=generator).argsort(dim=1) < 4
        signs = torch.randint(2, (size, 16), generator=generator) * 2.0 - 1.0
        return places * signs

    queries, bank = draw(20), draw(1000)
    if order != "any":
        by_first = (bank @ queries[0]).argsort(descending=order == "nearest first")
        bank = bank[by_first]
    similarity = queries @ bank.T / 4
    wanted = similarity.sort(dim=1, descending=True, stable=True)
    monkeypatch.setattr(neighbours, "_QUERY_CHUNK", query_chunk)
    monkeypatch.setattr(neighbours, "_BANK_CHUNK", bank_chunk)
    monkeypatch.setattr(neighbours, "_GROUP", group)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for k in (1, 3, 50, 400):
            nearest = nearest_neighbours(queries, bank, k)
            assert torch.equal(nearest.indices, wanted.indices[:, :k])
            assert torch.equal(nearest.similarity, wanted.values[:, :k])
    finally:
        torch.set_num_threads(before)


def test_neighbours_can_be_searched_in_inference_mode(features, monkeypatch):
    queries, _, bank, _ = features
    wanted = nearest_neighbours(queries, bank, 20)
    monkeypatch.setattr(neighbours, "_QUERY_CHUNK", 7)
    monkeypatch.setattr(neighbours, "_BANK_CHUNK", 11)
    with torch.inference_mode():
        found = nearest_neighbours(queries.clone(), bank.clone(), 20)
    assert torch.equal(found.indices, wanted.indices)


def test_no_query_has_no_neighbours():
    assert nearest_neighbours(torch.ones(0, 3), torch.ones(5, 3), 2).indices.shape == (0, 2)


def test_of_an_all_identical_bank_the_first_items_are_nearest():
    nearest = nearest_neighbours(torch.ones(5, 4), torch.ones(300, 4), 7)
    assert nearest.indices.tolist() == [list(range(7))] * 5


def test_equal_votes_go_to_the_smaller_label():
    similarity = torch.tensor([[0.9, 0.9, 0.5, 0.5]])
    winners = weighted_vote(similarity, torch.tensor([[4, 2, 2, 4]]), (2, 4), 0.1)
    assert winners.tolist() == [[2], [2]]


def test_weights_decide_against_the_majority():
    similarity, labels = torch.tensor([[0.9, 0.1, 0.1]]), torch.tensor([[5, 6, 6]])
    assert weighted_vote(similarity, labels, (3,), 0.1).item() == 5
    assert weighted_vote(similarity, labels, (3,), 10.0).item() == 6


def test_k_larger_than_the_bank_means_the_whole_bank(features):
    queries, query_labels, bank, bank_labels = features
    scores = neighbour_scores(queries, query_labels, bank, bank_labels, (150, 999), (150, 999))
    assert scores.accuracy[0] == scores.accuracy[1]
    assert scores.recall.tolist() == [1.0, 1.0]


def test_samples_without_label_are_left_out_of_bank_and_queries(features):
    queries, query_labels, bank, bank_labels = features
    wanted = neighbour_scores(queries[20:], query_labels[20:], bank[50:], bank_labels[50:])
    query_labels, bank_labels = query_labels.clone(), bank_labels.clone()
    query_labels[:20], bank_labels[:50] = -1, -1
    scores = neighbour_scores(queries, query_labels, bank, bank_labels)
    assert torch.equal(scores.accuracy, wanted.accuracy)
    assert torch.equal(scores.recall, wanted.recall)


def test_classes_absent_from_the_bank_are_never_told():
    bank, queries = torch.eye(3), torch.eye(3)
    scores = neighbour_scores(
        queries, torch.tensor([0, 9, 2]), bank, torch.tensor([0, 1, 2]), (1,), (1, 3)
    )
    torch.testing.assert_close(scores.accuracy, torch.tensor([2 / 3]))
    torch.testing.assert_close(scores.recall, torch.tensor([2 / 3, 2 / 3]))


def test_zero_rows_have_similarity_zero_to_everything():
    nearest = nearest_neighbours(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 2)
    assert nearest.similarity.tolist() == [[0.0, 0.0]]
    assert nearest.indices.tolist() == [[0, 1]]


def test_scores_of_zero_rows_are_finite():
    labels = torch.tensor([0, 1])
    scores = neighbour_scores(torch.zeros(2, 3), labels, torch.zeros(2, 3), labels)
    assert scores.accuracy.isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_features_that_are_not_finite_tell_nothing_and_are_told_wrong(features, value):
    queries, query_labels, bank, bank_labels = features
    wanted = neighbour_scores(queries[10:], query_labels[10:], bank[5:], bank_labels[5:])
    queries, bank = queries.clone(), bank.clone()
    queries[:10, 2], bank[:5, 3] = value, value
    scores = neighbour_scores(queries, query_labels, bank, bank_labels)
    torch.testing.assert_close(scores.accuracy, wanted.accuracy * 50 / 60)
    torch.testing.assert_close(scores.recall, wanted.recall * 50 / 60)


@pytest.mark.parametrize("broken", ["queries", "bank"])
def test_of_nothing_but_nan_every_score_is_zero(broken, features):
    queries, query_labels, bank, bank_labels = features
    queries = queries * torch.nan if broken == "queries" else queries
    bank = bank * torch.nan if broken == "bank" else bank
    scores = neighbour_scores(queries, query_labels, bank, bank_labels, k=(1, 5))
    assert scores.accuracy.tolist() == [0.0, 0.0]
    assert not scores.recall.any()


def test_every_bank_item_may_be_a_class_of_its_own(features):
    queries, _, bank, _ = features
    own = torch.arange(150) * 10**12 - 5 * 10**13
    nearest = nearest_neighbours(queries, bank, 20)
    winners = weighted_vote(nearest.similarity, own[nearest.indices], (1, 20), 0.1)
    assert torch.equal(winners, own[nearest.indices[:, :1]].T.expand(2, -1))


def test_a_small_temperature_leaves_the_vote_to_the_nearest(features):
    scores = neighbour_scores(*features, k=(1, 50), temperature=1e-6)
    assert scores.accuracy[0] == scores.accuracy[1]


def test_half_precision_is_compared_in_float32(features):
    queries, _, bank, _ = features
    nearest = nearest_neighbours(queries.half(), bank.half(), 5)
    wanted = nearest_neighbours(queries.half().float(), bank.half().float(), 5)
    assert nearest.similarity.dtype == torch.float32
    assert torch.equal(nearest.indices, wanted.indices)


def test_autocast_does_not_change_the_neighbours(features):
    queries, _, bank, _ = (tensor.float() for tensor in features)
    wanted = nearest_neighbours(queries, bank, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        nearest = nearest_neighbours(queries, bank, 5)
    assert torch.equal(nearest.similarity, wanted.similarity)


def test_length_of_the_features_does_not_matter(features):
    queries, _, bank, _ = features
    wanted = nearest_neighbours(queries, bank, 10).indices
    lengths = torch.linspace(1e-3, 1e3, len(bank), dtype=bank.dtype)[:, None]
    assert torch.equal(nearest_neighbours(queries * 1e-3, bank * lengths, 10).indices, wanted)


def test_arguments_are_left_alone(features):
    copies = [tensor.clone() for tensor in features]
    neighbour_scores(*features)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(features, copies, strict=True))


@pytest.mark.parametrize(
    ("queries", "bank", "k", "message"),
    [
        (torch.ones(3), torch.ones(2, 3), 1, r"queries must have shape \(queries, features\)"),
        (torch.ones(1, 3), torch.ones(2, 4), 1, r"bank must have shape \(at least 1, 3\)"),
        (torch.ones(1, 3), torch.ones(0, 3), 1, r"bank must have shape \(at least 1, 3\)"),
        (torch.ones(1, 3), torch.ones(2, 3), 0, "k must be at least 1, got 0"),
        (torch.full((1, 3), torch.nan), torch.ones(2, 3), 1, "queries must be finite.* 1 of 1"),
        (torch.ones(1, 3), torch.full((2, 3), torch.inf), 1, "bank must be finite.* 2 of 2"),
    ],
)
def test_wrong_features_are_refused(queries, bank, k, message):
    with pytest.raises(ValueError, match=message):
        nearest_neighbours(queries, bank, k)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": ()}, r"k must hold numbers of at least 1, got \(\)"),
        ({"recall_at": (0,)}, r"recall_at must hold numbers of at least 1, got \(0,\)"),
        ({"temperature": 0.0}, "temperature must be positive, got 0.0"),
        ({"query_labels": torch.zeros(3)}, r"query_labels must hold one label per row .*\(2\)"),
        ({"queries": torch.ones(2)}, r"queries must have shape \(samples, features\)"),
        ({"bank_labels": torch.tensor([-1, -1])}, "bank_labels must hold a label other than -1"),
    ],
)
def test_wrong_scores_are_refused(changes, message):
    arguments = {
        "queries": torch.eye(2),
        "query_labels": torch.tensor([0, 1]),
        "bank": torch.eye(2),
        "bank_labels": torch.tensor([0, 1]),
    }
    with pytest.raises(ValueError, match=message):
        neighbour_scores(**{**arguments, **changes})
