"""The shape's limits; its values are compared with the loop in test_losses."""

import pytest
import torch

from weince_lightning.functional.shapes import batch_shape, running_shape, tail_shape
from weince_lightning.functional.tails import TailFit


def evidence(beta_hat: float, r_squared: float, num_points: float = 100.0) -> TailFit:
    values = (beta_hat, r_squared, 0.0, 0.1, num_points)
    return TailFit(*(torch.tensor([value]) for value in values))


@pytest.mark.parametrize(
    ("fit", "expected"),
    [
        (evidence(2.0, 1.0), 3.0),
        (evidence(2.0, 0.19), 4.0),
        (evidence(0.0, 1.0), 4.0),
        (evidence(2.0, 0.5, 300.0), 0.6 * 2 + 0.4 * 4),
        (evidence(1e3, 1.0), 16.0),
        (evidence(0.0, 0.0, 0.0), 4.0),
    ],
)
def test_the_worse_the_fit_the_nearer_the_target(fit, expected):
    assert float(tail_shape(fit, target=4.0)) == pytest.approx(expected)


def test_no_shrinkage_leaves_the_estimate_and_is_finite_without_evidence():
    assert float(tail_shape(evidence(2.0, 0.9), target=4.0, shrinkage=0.0)) == pytest.approx(2.0)
    absent = tail_shape(evidence(0.1, 0.0), target=4.0, shrinkage=0.0, r2_min=0.0)
    assert float(absent) == pytest.approx(4.0)


def test_the_batch_shape_is_weighted_by_the_fit():
    found = batch_shape(torch.tensor([2.0, 6.0]), torch.tensor([0.25, 0.75]))
    assert float(found) == pytest.approx(5.0)


def test_the_batch_shape_without_evidence_is_zero_and_clamped_by_the_rule():
    fit = evidence(0.0, 0.0, 0.0)
    batch = batch_shape(fit.beta_hat, fit.r_squared)
    assert float(batch) == 0.0
    assert float(tail_shape(fit, batch)) == 0.5


@pytest.mark.parametrize(("beta", "r_squared", "expected"), [
    (6.0, 0.85, 4.2), (6.0, 0.84, 4.0), (100.0, 1.0, 5.2), (0.1, 1.0, 3.65),
])  # fmt: skip
def test_the_running_shape_moves_a_tenth_where_the_line_fits(beta, r_squared, expected):
    found = running_shape(torch.tensor(4.0), torch.tensor(beta), torch.tensor(r_squared))
    assert float(found) == pytest.approx(expected)
