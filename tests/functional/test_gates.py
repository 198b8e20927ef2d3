"""The gate's limits; its values are compared with the loop in test_losses."""

import pytest
import torch

from weince_lightning.functional.gates import reference_hardness, tail_gate
from weince_lightning.functional.tails import TailFit


def evidence(rho: list[float], delta_aic: list[float], num_points: int = 31) -> TailFit:
    ones = torch.ones(len(rho), dtype=torch.float64)
    values = (torch.tensor(v, dtype=torch.float64) for v in (delta_aic, rho))
    delta, hardness = values
    return TailFit(2 * ones, ones, delta, hardness, (ones * num_points).long())


@pytest.mark.parametrize(
    ("anchors", "quantile", "index"),
    [(1, 0.2, 0), (6, 0.2, 1), (6, 0.1, 0), (6, 0.5, 2), (8, 0.5, 4), (512, 0.2, 102), (6, 1.0, 5)],
)
def test_the_reference_is_the_sorted_value_at_the_rounded_index(
    anchors, quantile, index, generator
):
    order = torch.randperm(anchors, generator=generator)
    assert int(reference_hardness(order.double(), quantile)) == index


def test_the_gate_is_a_quarter_where_both_factors_are_at_their_middle():
    assert float(tail_gate(evidence([0.3], [2.0]), torch.tensor(0.3))) == pytest.approx(0.25)


def test_harder_anchors_open_further():
    gate = tail_gate(evidence([0.1, 0.2, 0.4], [50.0] * 3), torch.tensor(0.2))
    assert gate.tolist() == sorted(gate.tolist(), reverse=True)
    assert float(gate[0]) > 0.99
    assert float(gate[2]) < 0.01


def test_a_hard_gate_includes_its_bounds():
    fit = evidence([0.2, 0.2, 0.3], [2.0, 1.9, 2.0])
    gate = tail_gate(fit, torch.tensor(0.2, dtype=torch.float64), hard=True)
    assert gate.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("signals", ["both", "rho", "aic"])
@pytest.mark.parametrize("hard", [False, True])
def test_absent_evidence_closes_every_gate(signals, hard):
    fit = evidence([0.1], [5.0], num_points=1)
    assert float(tail_gate(fit, torch.tensor(0.2), signals=signals, hard=hard)) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hard_gate_takes_both_of_a_pair_that_differs_by_rounding(dtype):
    rho0 = torch.tensor(0.2, dtype=dtype)
    rounded = float(rho0) + torch.finfo(dtype).eps
    fit = TailFit(*(column.to(dtype) for column in evidence([rounded, 0.2001], [9.0, 9.0])))
    assert tail_gate(fit, rho0, hard=True).tolist() == [1.0, 0.0]
