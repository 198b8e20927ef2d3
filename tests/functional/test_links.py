"""Links at the endpoint and in the middle."""

import pytest
import torch

from weince_lightning.functional.links import (
    arctanh_logits,
    blend_logits,
    power_logits,
    softmax_logits,
    weibit_logits,
)

LINKS = {
    "softmax": lambda s: softmax_logits(s, 0.5),
    "weibit": lambda s: weibit_logits(s, 2.0),
    "power": lambda s: power_logits(s, 2.0),
    "arctanh": arctanh_logits,
    "blend": lambda s: blend_logits(s[None], torch.tensor([0.3]), torch.tensor([2.0]), 0.5)[0],
}
every_link = pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)


@every_link
def test_logits_increase_with_the_similarity(link):
    logits = link(torch.linspace(-0.999, 0.999, 101))
    assert (logits.diff() > 0).all()


@every_link
@pytest.mark.parametrize("endpoint", [-1.0000001, -1.0, 1.0, 1.0000001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_stay_finite_at_the_endpoints(link, endpoint, dtype):
    similarity = torch.tensor([endpoint], dtype=dtype, requires_grad=True)
    logits = link(similarity)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert similarity.grad.isfinite().all()


def test_the_weibull_part_has_no_gradient_where_the_shortfall_is_floored():
    similarity = torch.tensor([1.0, 1 - 1e-7, 0.5], dtype=torch.float64, requires_grad=True)
    weibit_logits(similarity, 3.0).sum().backward()
    assert similarity.grad.tolist() == [0.0, 0.0, 6.0]


def test_the_blend_moves_between_its_two_links():
    similarity = torch.tensor([[-0.5, 0.2, 0.9]])
    one, beta = torch.ones(1), torch.tensor([3.0])
    assert torch.equal(
        blend_logits(similarity, 0 * one, beta, 0.1), softmax_logits(similarity, 0.1)
    )
    assert torch.equal(blend_logits(similarity, one, beta, 0.1), weibit_logits(similarity, 3.0))
