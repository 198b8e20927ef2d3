"""Candidates of a loss against plain loops, and what asking for them leaves as it was."""

import pytest
import reference
import torch
from torch import Tensor

from weince_lightning.functional.candidates import compare, score
from weince_lightning.losses import BatchCandidates, InfoNCELoss, WEINCELoss

LAYOUTS = ("views", "pairs", "queries")
SAMPLES, FEATURES = 7, 5


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, FEATURES, generator=generator, dtype=torch.float64)


def arguments(option: str, generator: torch.Generator) -> dict[str, Tensor]:
    found = {}
    if "ids" in option:
        found["ids"] = torch.randint(0, 4, (SAMPLES,), generator=generator)
    if "own" in option:
        found["negatives"] = draw(generator, SAMPLES, 3)
    if "shared" in option:
        found["negatives"] = draw(generator, 4)
    return found


def assert_equal_to_the_loop(found: BatchCandidates, expected: list) -> None:
    rows = [(group, row) for group in found.groups for row in range(group.num_anchors)]
    assert len(rows) == len(expected) == sum(found.anchor_counts)
    for (group, row), (anchor, positive, negatives) in zip(rows, expected, strict=True):
        torch.testing.assert_close(group.anchors[row], anchor)
        scores = score(group, compare(group))
        similarity = scores.similarity[row]
        torch.testing.assert_close(similarity[scores.positive[row, 0]], anchor @ positive)
        is_negative = scores.fill_excluded_(torch.ones_like(scores.similarity), 0.0)[row].bool()
        wanted = torch.tensor([float(anchor @ negative) for negative in negatives]).double()
        torch.testing.assert_close(similarity[is_negative].sort().values, wanted.sort().values)
        assert group.count_negatives()[row] == len(negatives)


@pytest.mark.parametrize("layout", [*LAYOUTS, "bank"])
@pytest.mark.parametrize("option", ["", "ids", "own", "shared", "ids own", "ids shared"])
@pytest.mark.parametrize("with_keys", [False, True])
def test_candidates_are_those_of_the_loop(layout, option, with_keys, generator):
    if layout == "bank":
        loss = InfoNCELoss(memory_bank_size=10)
    else:
        loss = WEINCELoss(layout=layout, queue_size=10 if with_keys else 0)
    queue: list[reference.Key] = []
    for _ in range(2 if with_keys else 0):
        z0, z1, extra = (
            draw(generator, SAMPLES),
            draw(generator, SAMPLES),
            arguments("ids", generator),
        )
        loss(z0.requires_grad_(), z1, **extra)
        queue = reference.enqueued(queue, z1, extra["ids"], 10)
    z0, z1, extra = draw(generator, SAMPLES), draw(generator, SAMPLES), arguments(option, generator)
    found = loss.candidates(z0, z1, **extra)
    assert_equal_to_the_loop(found, reference.candidates_of(z0, z1, layout, queue=queue, **extra))


@pytest.mark.parametrize("sizes", [{"queue_size": 10}, {"memory_bank_size": 10}])
def test_asking_for_candidates_changes_no_state(sizes, generator):
    loss = WEINCELoss(**sizes)
    for _ in range(2):
        loss(draw(generator, SAMPLES).requires_grad_(), draw(generator, SAMPLES))
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    random = torch.get_rng_state()
    assert loss.training
    loss.candidates(draw(generator, SAMPLES).requires_grad_(), draw(generator, SAMPLES))
    assert before.keys() == loss.state_dict().keys()
    assert all(torch.equal(value, loss.state_dict()[name]) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), random)


def test_candidates_have_a_gradient(generator):
    z0, z1 = draw(generator, SAMPLES).requires_grad_(), draw(generator, SAMPLES).requires_grad_()
    (group,) = InfoNCELoss().candidates(z0, z1).groups
    compare(group).square().sum().backward()
    assert z0.grad.any()
    assert z1.grad.any()


def test_wrong_arguments_are_refused_as_by_the_loss():
    with pytest.raises(ValueError, match="z0 must hold at least 2 samples"):
        InfoNCELoss().candidates(torch.ones(1, 4), torch.ones(1, 4))
    with pytest.raises(TypeError, match="z0 must"):
        InfoNCELoss().candidates("z0", torch.ones(2, 4))
