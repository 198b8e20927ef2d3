"""Shares of the gradient against autograd through the plain definition of the loss."""

import math

import pytest
import torch

from weince_lightning.functional.candidates import Scores, compare, score
from weince_lightning.functional.contrastive import weince
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.gradient_shares import gradient_shares
from weince_lightning.functional.layouts import build_candidates

TEMPERATURE = 0.2
LINKS = {
    "softmax": lambda gate, shape: torch.zeros_like(gate),
    "weibit": lambda gate, shape: torch.ones_like(gate),
    "weince": lambda gate, shape: gate,
}


def batch_scores(generator, ids=None, layout="views", samples=9, negatives=None) -> Scores:
    views = torch.randn(2, samples, 5, generator=generator, dtype=torch.float64)
    group = build_candidates(*views, layout, ids, negatives)[0]
    return score(group, compare(group))


def gate_and_shape(generator, anchors):
    numbers = torch.rand(2, anchors, generator=generator, dtype=torch.float64)
    return numbers[0], 0.5 + 8 * numbers[1]


def blend_of(gate, shape):
    return Blend(1 - gate, gate * shape)


def shares_by_autograd(scores, gate, shape, counts):
    """Walk over anchors and negatives; ``counts(K)`` says how many of K are the hardest."""
    similarity = scores.similarity.clone().requires_grad_()
    weince(scores._replace(similarity=similarity), gate, shape, TEMPERATURE).sum().backward()
    is_negative = scores.fill_excluded_(torch.ones_like(scores.similarity), 0.0).bool()
    found = []
    for row, gradient, negative in zip(
        scores.similarity, similarity.grad, is_negative, strict=True
    ):
        hard_first = row[negative].argsort(descending=True)
        sizes = gradient[negative].abs()[hard_first].tolist()
        found.append(
            [math.fsum(sizes[:count]) / (math.fsum(sizes) or 1.0) for count in counts(len(sizes))]
        )
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("case", ["views", "queries", "ids", "own negatives", "left out"])
def test_shares_are_those_of_autograd(link, case, generator):
    ids = torch.tensor([0, 1, 2, 0, 1, 0, 5, 6, 7]) if case in ("ids", "left out") else None
    own = torch.randn(9, 4, 5, generator=generator, dtype=torch.float64)
    scores = batch_scores(
        generator,
        ids,
        layout="views" if case in ("views", "left out") else "queries",
        negatives=own if case == "own negatives" else None,
    )
    gate, shape = gate_and_shape(generator, len(scores.similarity))
    gate = LINKS[link](gate, shape)
    found = gradient_shares(scores, blend_of(gate, shape), TEMPERATURE, (0.1, 0.3, 3, 1.0))
    expected = shares_by_autograd(
        scores,
        gate,
        shape,
        lambda k: (max(1, round(0.1 * k)), max(1, round(0.3 * k)), 3, k),
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_softmax_without_weibull_part_is_that_of_gate_0(generator):
    scores = batch_scores(generator)
    ones = torch.ones(len(scores.similarity), dtype=torch.float64)
    found = gradient_shares(scores, Blend(ones), TEMPERATURE)
    torch.testing.assert_close(found, gradient_shares(scores, Blend(ones, 0 * ones), TEMPERATURE))


def test_a_hand_worked_softmax():
    # Temperature 1 / ln 2: the weights of the negatives are 2^1, 2^0 and 2^-1, those of 7 halves.
    scores = Scores(torch.tensor([[0.3, 0.0, 1.0, -1.0]]), torch.tensor([[0]]), 3)
    shares = gradient_shares(scores, Blend(torch.ones(1)), 1 / math.log(2), (1, 2, 3))
    assert shares[0].tolist() == pytest.approx([4 / 7, 6 / 7, 1.0])


def test_a_hand_worked_weibit():
    # Weights delta^-2 and rates 2 / delta: delta^-3 of 1/4, 1/2 and 1 are 64, 8 and 1 of 73.
    scores = Scores(torch.tensor([[0.5, 0.75, 0.0, 0.9]]), torch.tensor([[3]]), 3)
    blend = Blend(torch.zeros(1), torch.full((1,), 2.0))
    shares = gradient_shares(scores, blend, 0.5, (1, 2, 3))
    assert shares[0].tolist() == pytest.approx([64 / 73, 72 / 73, 1.0])


@pytest.mark.parametrize(("fraction", "count"), [(0.01, 1), (0.25, 2), (0.375, 4), (1.0, 10)])
def test_a_fraction_is_rounded_half_to_even_and_at_least_one(fraction, count):
    # 2.5 and 3.75 of 10.
    scores = Scores(torch.zeros(1, 11), torch.tensor([[0]]), 10)
    share = gradient_shares(scores, Blend(torch.ones(1)), 0.5, (fraction,))
    assert share.item() == pytest.approx(count / 10)


def test_each_anchor_may_have_numbers_of_its_own():
    scores = Scores(torch.zeros(2, 11), torch.tensor([[0], [4]]), 10)
    counts = torch.tensor([[1, 5], [10, 50]], dtype=torch.int32)
    shares = gradient_shares(scores, Blend(torch.ones(2)), 0.5, counts)
    torch.testing.assert_close(shares, torch.tensor([[0.1, 0.5], [1.0, 1.0]]))


@pytest.mark.parametrize("link", LINKS)
def test_an_anchor_without_negatives_has_no_share(link, generator):
    # Samples of one id: only the own negatives of the second anchor are left to it.
    left_out = torch.tensor([[True, True, True], [True, True, False]])
    scores = Scores(
        torch.tensor([[0.4, 0.2, 0.9], [0.4, 0.2, 0.9]]),
        torch.tensor([[0], [0]]),
        2,
        torch.tensor([0, 1]),
        left_out,
    )
    gate = LINKS[link](torch.tensor([0.5, 0.5]), None)
    shares = gradient_shares(scores, blend_of(gate, torch.ones(2)), TEMPERATURE, (0.5, 1, 1.0))
    assert shares.tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]


def test_a_steep_weibit_neither_overflows_nor_vanishes_in_float32():
    # The hardest negative stands at the endpoint, where the floor leaves it no gradient; its weight
    # is 1e96 times that of the next.
    scores = Scores(torch.tensor([[0.5, 1.0, 0.0, -0.5]]), torch.tensor([[0]]), 3)
    blend = Blend(torch.zeros(1), torch.full((1,), 16.0))
    shares = gradient_shares(scores, blend, 0.5, (1, 2, 3))
    expected = 1 / (1 + 1.5**-17)
    assert shares[0].tolist() == pytest.approx([0.0, expected, 1.0])


def test_the_scores_are_left_as_they_were(generator):
    scores = batch_scores(generator, ids=torch.arange(9) // 2)
    before = scores.similarity.clone()
    gradient_shares(scores, Blend(torch.ones(18, dtype=torch.float64)), TEMPERATURE)
    assert torch.equal(scores.similarity, before)


def test_no_shares_asked_for_give_none():
    scores = Scores(torch.zeros(2, 3), torch.tensor([[0], [0]]), 2)
    assert gradient_shares(scores, Blend(torch.ones(2)), 0.5, ()).shape == (2, 0)


@pytest.mark.parametrize(
    ("hardest", "kind", "message"),
    [
        ((0.0,), ValueError, r"hardest must hold floats in \(0, 1\], got 0.0"),
        ((1.5,), ValueError, r"hardest must hold floats in \(0, 1\], got 1.5"),
        ((math.nan,), ValueError, r"hardest must hold floats in \(0, 1\], got nan"),
        ((0,), ValueError, "hardest must hold ints of at least 1, got 0"),
        ((True,), TypeError, "hardest must hold numbers, got True"),
        (("1",), TypeError, "hardest must hold numbers, got '1'"),
        (torch.ones(2, 1), TypeError, "hardest must hold integers if it is a tensor, got torch.fl"),
        (torch.ones(3, 1, dtype=torch.int64), ValueError, r"hardest must have shape \(2, shares\)"),
    ],
)
def test_what_is_no_number_of_negatives_is_refused(hardest, kind, message):
    scores = Scores(torch.zeros(2, 3), torch.tensor([[0], [0]]), 2)
    with pytest.raises(kind, match=message):
        gradient_shares(scores, Blend(torch.ones(2)), 0.5, hardest)
