"""What the loss of a trained encoder does, as plain numbers."""

import json

import pytest
import torch
from lightly.loss import NTXentLoss

from weince_lightning import TailGate, WEINCELoss
from weince_lightning.evaluation.loss_profile import loss_profile


def batches(sizes=(32, 32, 32, 32, 32), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (list(torch.randn(2, size, 8, generator=generator)), torch.zeros(size)) for size in sizes
    ]


def project(images):
    return images + 1.0


@pytest.fixture
def small_batches(monkeypatch):
    """A quarter of the usual size."""
    monkeypatch.setattr("weince_lightning.evaluation.loss_profile.BATCH_SIZE", 64)


def test_means_are_over_the_batches_that_are_read(small_batches):
    single = [loss_profile(NTXentLoss(0.2), project, [batch]) for batch in batches([64] * 4)]
    profile = loss_profile(NTXentLoss(0.2), project, batches([64] * 4), num_batches=3)
    mean = sum(one["hardest"] for one in single[:3]) / 3
    assert profile["hardest"] == pytest.approx(mean)
    assert profile["effective_temperature"] == pytest.approx(0.2, rel=1e-3)
    assert "gate" not in profile


def test_gate_is_the_product_of_its_factors():
    one = batches((32,))
    both, rho, aic = (
        loss_profile(WEINCELoss(gate=TailGate(signals=signals)), project, one)
        for signals in ("both", "rho", "aic")
    )
    assert both["hardness_factor"] == rho["gate"] == rho["hardness_factor"]
    assert both["fit_factor"] == aic["gate"]
    assert both["gate"]["mean"] <= min(rho["gate"]["mean"], aic["gate"]["mean"])
    gate = WEINCELoss().terms(*(project(v).double() for v in one[0][0])).tail.gate
    assert both["gate"]["mean"] == pytest.approx(gate.mean().item())
    assert both["gate"]["q50"] == pytest.approx(gate.median().item(), abs=0.02)


def test_open_anchors_are_told_with_their_part_of_the_gradient():
    [batch] = batches((32,))
    z0, z1 = (project(view).double() for view in batch[0])
    unit = torch.nn.functional.normalize(torch.cat([z0, z1]), dim=1).requires_grad_()
    loss = WEINCELoss(gate=TailGate(signals="rho"))
    terms = loss.terms(*unit.chunk(2))
    pull = torch.autograd.grad(terms.loss, unit)[0].norm(dim=1)
    is_open = terms.tail.gate > 0.5
    profile = loss_profile(loss, project, [batch])
    assert 0 < profile["open_anchors"] < 0.5
    assert profile["open_anchors"] == pytest.approx(is_open.double().mean().item())
    expected = (pull[is_open].sum() / pull.sum()).item()
    assert profile["open_anchors_gradient"] == pytest.approx(expected)
    assert expected > profile["open_anchors"]


def test_a_running_shape_does_not_move_and_the_loss_stays_in_training():
    loss = WEINCELoss.released(0.5)
    before = loss.top_m_terms[0].link.running_beta.clone()
    loss_profile(loss, project, batches())
    assert loss.training
    assert torch.equal(loss.top_m_terms[0].link.running_beta, before)


def test_a_gate_that_is_a_number_has_no_factors():
    profile = loss_profile(WEINCELoss(gate=0.5), project, batches())
    assert profile["gate"]["mean"] == 0.5
    assert "hardness_factor" not in profile


def test_profile_is_plain_numbers():
    profile = loss_profile(WEINCELoss(), project, batches())
    assert json.loads(json.dumps(profile)) == profile


def test_the_size_of_the_batches_does_not_matter(small_batches):
    views = [list(torch.randn(2, 150, 8, generator=torch.Generator().manual_seed(0)))]
    cut = [(list(part), None) for part in zip(*(v.split(37) for v in views[0]), strict=True)]
    whole = loss_profile(WEINCELoss(), project, [(views[0], None)])
    assert loss_profile(WEINCELoss(), project, cut) == whole
    halves = [
        loss_profile(WEINCELoss(), project, [([view[i : i + 64] for view in views[0]], None)])
        for i in (0, 64)  # what is left over, 22 samples, is no batch
    ]
    mean = sum(half["effective_temperature"] for half in halves) / 2
    assert whole["effective_temperature"] == pytest.approx(mean)


def test_fewer_than_two_samples_are_refused():
    with pytest.raises(ValueError, match="at least two samples"):
        loss_profile(WEINCELoss(), project, batches((1,)))
