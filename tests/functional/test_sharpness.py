"""Gradients by similarity, found without looking into a loss, and what temperature they are."""

import pytest
import torch
from lightly.loss import DCLLoss, NTXentLoss
from lightly.loss.macl_loss import MACLLoss

from weince_lightning import (
    ArctanhLink,
    InfoNCELoss,
    SoftmaxLink,
    TopMTerm,
    WeibitLink,
    WEINCELoss,
)
from weince_lightning.functional.sharpness import pair_gradients, sharpness

LOSSES = {
    "infonce": InfoNCELoss(0.2),
    "weince": WEINCELoss(0.5),
    "released": WEINCELoss.released(0.5).eval(),
    "weibit": InfoNCELoss(link=WeibitLink(2.0)),
    "arctanh": InfoNCELoss(link=ArctanhLink()),
    "top": InfoNCELoss(0.5, top_m_terms=[TopMTerm(SoftmaxLink(), top_m=3)]),
    "lightly": NTXentLoss(0.1),
    "decoupled": DCLLoss(0.1),
    "adaptive": MACLLoss(),
}


def views(samples=24, features=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(samples, features, generator=generator) + 0.5
    noise = torch.randn(2, samples, features, generator=generator)
    return centre + 0.4 * noise[0], centre + 0.4 * noise[1]


@pytest.mark.parametrize("name", LOSSES)
def test_pair_gradients_make_up_the_gradient_of_every_embedding(name):
    z0, z1 = (z.double() for z in views())
    unit = torch.nn.functional.normalize(torch.cat([z0, z1]), dim=1).requires_grad_()
    (expected,) = torch.autograd.grad(LOSSES[name](*unit.chunk(2)), unit)
    _, pairs = pair_gradients(LOSSES[name], z0, z1)
    found = pairs.fill_diagonal_(0.0) @ unit.detach()
    # The loss scales its arguments to unit length: what points outwards does nothing.
    found -= (found * unit).sum(dim=1, keepdim=True) * unit.detach()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * expected.abs().max())


def test_pair_gradients_of_infonce_are_its_probabilities():
    z0, z1 = views()
    similarity, pairs = pair_gradients(InfoNCELoss(0.3), z0, z1)
    p = (similarity / 0.3).fill_diagonal_(-torch.inf).softmax(dim=1)
    p[range(24), range(24, 48)] -= 1
    p[range(24, 48), range(24)] -= 1
    expected = (p + p.T) / 0.3 / 48
    torch.testing.assert_close(pairs.fill_diagonal_(0.0), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.01, 0.07, 0.5, 3.0])
def test_effective_temperature_of_infonce_is_its_temperature(temperature):
    found = sharpness(InfoNCELoss(temperature), *views())
    assert found.effective_temperature == pytest.approx(temperature, rel=1e-4)


def test_shares_are_those_of_a_worked_example():
    # u0 = v0 and u1 = v1 orthogonal, u2 = v2 between them: cosines 0 and sqrt(1/2).
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = sharpness(InfoNCELoss(1.0), z, z, parts=(0.25, 0.5, 1.0))
    e0, e1, e = 1.0, torch.tensor(0.5).sqrt().exp().item(), torch.tensor(1.0).exp().item()
    # Of an anchor at an end: positive e, two negatives e0 and two e1; in the middle: four e1.
    end, middle = e + 2 * e0 + 2 * e1, e + 4 * e1
    far, near = 2 * e0 / end, e1 / end + e1 / middle
    hard = near / (2 * near + 2 * far)
    # The middle has four alike.
    assert found.hardest == pytest.approx((4 * hard + 2 * 0.25) / 6, rel=1e-5)
    assert found.shares[0] == found.hardest
    assert found.shares[1] == pytest.approx((4 * 2 * hard + 2 * 0.5) / 6, rel=1e-5)
    assert found.shares[2] == pytest.approx(1.0)


def test_a_weibit_term_sharpens_and_a_larger_temperature_blunts():
    z0, z1 = views()
    at = {name: sharpness(loss, z0, z1).effective_temperature for name, loss in LOSSES.items()}
    plain = sharpness(InfoNCELoss(0.5), z0, z1).effective_temperature
    assert at["released"] < at["infonce"] < plain
    assert at["top"] < plain
    assert at["adaptive"] > 0.1  # its temperature rises with the alignment


def test_embeddings_are_not_touched():
    z0, z1 = (z.requires_grad_() for z in views())
    loss = WEINCELoss.released(0.5)
    before = loss.eval().state_dict()
    sharpness(loss, z0, z1)
    assert z0.grad is None
    assert all(torch.equal(before[name], value) for name, value in loss.state_dict().items())


def test_a_loss_that_pushes_all_alike_has_an_infinite_temperature():
    z0, z1 = views()

    def alike(z0, z1):
        unit = torch.nn.functional.normalize(torch.cat([z0, z1]), dim=1)
        return (unit @ unit.T).sum()

    assert sharpness(alike, z0, z1).effective_temperature == float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": (0.0,)}, "parts must lie in"),
        ({"parts": (2.0,)}, "parts must lie in"),
        ({"loss": lambda z0, z1: -InfoNCELoss(0.2)(z0, z1)}, "push negatives apart"),
        ({"loss": lambda z0, z1: -torch.cosine_similarity(z0, z1).sum()}, "push negatives apart"),
        ({"z0": torch.full((24, 6), torch.nan)}, "must be finite"),
        ({"z0": torch.zeros(24, 6)}, "must have a direction"),
    ],
)
def test_what_has_no_sharpness_is_refused(change, message):
    z0, z1 = views()
    with pytest.raises(ValueError, match=message):
        sharpness(**{"loss": InfoNCELoss(0.2), "z0": z0, "z1": z1, **change})
