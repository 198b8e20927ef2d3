"""Cross-entropy where its sum over all candidates would cancel or overflow."""

import math

import pytest
import torch

from weince_lightning.functional.candidates import Scores
from weince_lightning.functional.contrastive import cross_entropy, hardest_negatives


def one_anchor(similarity: list[float], dtype: torch.dtype = torch.float32) -> Scores:
    """The positive is the first column."""
    row = torch.tensor([similarity], dtype=dtype)
    return Scores(row, torch.tensor([[0]]), row.shape[1] - 1)


@pytest.mark.parametrize("margin", [-1e4, -50.0, -1.0, 0.0, 1.0, 12.0, 30.0, 80.0])
def test_the_loss_keeps_its_relative_accuracy(margin):
    scores = one_anchor([margin, 0.0])
    logits = scores.similarity.requires_grad_()
    loss = cross_entropy(scores, logits)
    loss.backward()
    expected = math.log1p(math.exp(-margin)) if margin > -700 else -margin
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    probability = 1 / (1 + math.exp(margin)) if margin > -700 else 1.0
    assert logits.grad[0].tolist() == pytest.approx([-probability, probability], rel=1e-6)


def test_no_negatives_give_no_loss_and_no_gradient():
    scores = one_anchor([0.3, 0.4])
    masked = scores._replace(excluded_mask=torch.ones(1, 2, dtype=torch.bool))
    logits = scores.similarity.requires_grad_()
    loss = cross_entropy(masked, logits)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert logits.grad.tolist() == [[0.0, 0.0]]


def test_the_hardest_negatives_are_the_most_similar_ones():
    kept = hardest_negatives(one_anchor([0.0, 0.1, 0.9, -0.5, 0.4]), 2)
    assert kept.similarity[0].tolist() == pytest.approx([0.0, 0.9, 0.4])
    assert kept.fill_excluded_(torch.ones(1, 3), 0.0).tolist() == [[0.0, 1.0, 1.0]]
