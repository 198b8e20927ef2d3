"""Labelled samples: several positives of an anchor, or none."""

from pathlib import Path

import pytest
import reference
import torch
import torch.distributed as dist
from processes import meet, spawn
from pytorch_metric_learning.losses import SupConLoss
from torch import Tensor

from weince_lightning.functional.contrastive import Whole
from weince_lightning.losses import (
    ArctanhLink,
    InfoNCELoss,
    PowerLink,
    TopMTerm,
    WeibitLink,
    WEINCELoss,
)

LOSSES = {
    "infonce": lambda **rest: InfoNCELoss(0.2, **rest),
    "arctanh": lambda **rest: InfoNCELoss(link=ArctanhLink(), **rest),
    "pooled": lambda **rest: InfoNCELoss(link=WeibitLink("pooled"), **rest),
    "top-m": lambda **rest: InfoNCELoss(0.2, top_m_terms=[TopMTerm(PowerLink(), 3)], **rest),
    "weince": lambda **rest: WEINCELoss(0.2, **rest),
    "released": lambda **rest: WEINCELoss.released(0.2, **rest),
    "losses": lambda **rest: WEINCELoss(0.2, mix="losses", **rest),
}


def draw(samples: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings of unequal classes, one of which has a single sample."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    labels[samples // 2] = classes
    centres = torch.randn(classes + 1, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, 8, generator=generator, dtype=torch.float64)
    return (centres[labels] + noise).requires_grad_(), labels


def by_loops(scores: list[tuple[list[Tensor], list[Tensor]]], gate: float | None = None) -> Tensor:
    """WEINCE at temperature 0.2 for each anchor with its estimated shape."""
    found = reference.tail_of([(None, negatives) for _, negatives in scores])
    gates = reference.gates(found) if gate is None else [gate] * len(found)
    losses = []
    for (positives, negatives), lam, beta in zip(
        scores, gates, reference.shapes(found), strict=True
    ):

        def logit(s: Tensor, lam: float = lam, beta: float = beta) -> Tensor:
            return (1 - lam) * s / 0.2 - lam * beta * reference.shortfall(s).log()

        losses.append(reference.supervised([*map(logit, positives)], [*map(logit, negatives)]))
    return torch.stack(losses)


@pytest.mark.parametrize("gate", [None, 0.0, 0.4])
@pytest.mark.parametrize("with_references", [False, True])
def test_it_equals_the_loops_in_value_and_gradient(gate: float | None, with_references: bool):
    z, labels = draw(24, 4)
    others = draw(17, 4, seed=1) if with_references else ()
    leaves = [z, *others[:1]]
    scores = reference.labelled(z, labels, *others)
    per_anchor = by_loops(scores, gate)
    with_positive = sum(len(positives) > 0 for positives, _ in scores)
    expected = per_anchor.sum() / with_positive
    terms = WEINCELoss(0.2, gate).supervised_terms(z, labels, *others)
    torch.testing.assert_close(terms.loss, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(terms.per_anchor, per_anchor.detach(), rtol=1e-9, atol=1e-12)
    assert terms.num_negatives.tolist() == [len(negatives) for _, negatives in scores]
    for found, wanted in zip(
        torch.autograd.grad(terms.loss, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-12)


def test_top_m_keeps_all_positives_and_the_hardest_negatives():
    z, labels = draw(24, 4)
    labels[:21] = 0  # three negatives, of which top_m asks for more
    for top_m in (2, 5):
        loss = InfoNCELoss(0.2, top_m_terms=[TopMTerm(PowerLink(), top_m, 0.7)])
        expected = []
        for positives, negatives in reference.labelled(z, labels):
            hardest = sorted(negatives, key=lambda s: -float(s.detach()))[:top_m]
            softmax = reference.supervised(
                [s / 0.2 for s in positives], [s / 0.2 for s in negatives]
            )
            power = reference.supervised(
                [(1 + s).log() for s in positives], [(1 + s).log() for s in hardest]
            )
            expected.append(softmax + 0.7 * power)
        found = loss.supervised_terms(z, labels).per_anchor
        torch.testing.assert_close(found, torch.stack(expected).detach(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("with_references", [False, True])
def test_with_the_softmax_it_is_supcon_of_pytorch_metric_learning(with_references: bool):
    z, labels = draw(40, 6)
    others = draw(30, 6, seed=1) if with_references else (None, None)
    leaves = [z, *others[:1]] if with_references else [z]
    expected = SupConLoss(temperature=0.1)(z, labels, ref_emb=others[0], ref_labels=others[1])
    found = WEINCELoss(0.1, gate=0.0).supervised_terms(z, labels, *others).loss
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_one_positive_each_is_the_loss_of_two_views(name: str):
    z0, z1 = draw(20, 3)[0].detach(), draw(20, 3, seed=1)[0].detach()
    both = torch.cat([z0, z1]).requires_grad_()
    labels = torch.arange(20).repeat(2)
    expected = LOSSES[name]().terms(*both.chunk(2))
    found = LOSSES[name]().supervised_terms(both, labels)
    torch.testing.assert_close(found.per_anchor, expected.per_anchor, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        *(torch.autograd.grad(terms.loss, both)[0] for terms in (found, expected)),
        rtol=1e-8,
        atol=1e-12,
    )


@pytest.mark.parametrize("name", LOSSES)
def test_blocks_give_what_the_whole_matrix_gives(name: str, monkeypatch: pytest.MonkeyPatch):
    z, labels = draw(30, 4)
    in_blocks = LOSSES[name](block_size=7).supervised_terms(z, labels)
    loss = LOSSES[name]()
    monkeypatch.setattr(loss, "_compare", Whole)
    whole = loss.supervised_terms(z, labels)
    torch.testing.assert_close(in_blocks.per_anchor, whole.per_anchor)
    torch.testing.assert_close(
        *(torch.autograd.grad(terms.loss, z)[0] for terms in (in_blocks, whole))
    )


def test_gradients_are_those_of_finite_differences():
    z, labels = draw(9, 2)
    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def value(z: Tensor, temperature: Tensor) -> Tensor:
        return WEINCELoss(temperature, gate=0.4, shape=2.0).supervised_terms(z, labels).loss

    assert torch.autograd.gradcheck(value, (z, temperature))
    assert torch.autograd.gradgradcheck(value, (z, temperature))


@pytest.mark.parametrize(
    "labels", [torch.arange(6), torch.zeros(6, dtype=torch.int32)], ids=["no positive", "all"]
)
@pytest.mark.parametrize("name", LOSSES)
def test_without_positives_or_without_negatives_all_is_finite(name: str, labels: Tensor):
    z = draw(6, 2)[0].detach().float().requires_grad_()
    terms = LOSSES[name]().supervised_terms(z, labels)
    (gradient,) = torch.autograd.grad(terms.loss, z)
    assert terms.loss.isfinite()
    assert gradient.isfinite().all()
    if labels.unique().numel() == len(labels):
        assert float(terms.loss) == 0
        assert not gradient.any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.ones(1, 2), torch.zeros(1).long()), ValueError, "at least 2 samples"),
        ((torch.ones(4, 2), torch.zeros(4)), TypeError, "labels must hold integers"),
        ((torch.ones(4, 2), torch.zeros(3).long()), ValueError, r"labels .* per sample \(4\)"),
        (
            (torch.ones(4, 2), torch.zeros(4).long(), torch.ones(3, 2)),
            ValueError,
            "reference_labels must be given where references are",
        ),
        (
            (torch.ones(4, 2), torch.zeros(4).long(), torch.ones(3, 5), torch.zeros(3).long()),
            ValueError,
            "references must have shape",
        ),
    ],
)
def test_bad_input_is_refused(arguments: tuple[Tensor, ...], error: type, message: str):
    with pytest.raises(error, match=message):
        InfoNCELoss().supervised_terms(*arguments)


def test_a_queue_is_refused():
    with pytest.raises(ValueError, match="queue_size must be 0 for labelled samples, got 64"):
        InfoNCELoss(queue_size=64).supervised_terms(*draw(8, 2))


def of_rows(
    loss: InfoNCELoss | WEINCELoss, rows: slice, with_references: bool
) -> tuple[Tensor, ...]:
    z, labels = (tensor.detach() for tensor in draw(11, 3))
    references, their_labels = (tensor.detach() for tensor in draw(22, 3, seed=1))
    weight = torch.eye(8, dtype=torch.float64).add_(0.1).requires_grad_()
    others = ()
    if with_references:
        theirs = rows if rows.stop is None else slice(2 * rows.start, 2 * rows.stop)
        others = references[theirs] @ weight, their_labels[theirs]
    terms = loss.supervised_terms(z[rows] @ weight, labels[rows], *others)
    (gradient,) = torch.autograd.grad(terms.loss, weight)
    state = [tensor.double() for tensor in loss.state_dict().values()]
    return terms.loss.detach(), gradient, terms.per_anchor, *state


def work(rank: int, folder: str) -> None:
    rows = meet(rank, [7, 4], folder)
    found = {}
    for name in LOSSES:
        for with_references in (False, True):
            value, gradient, *rest = of_rows(LOSSES[name](), rows, with_references)
            for mean in (value, gradient):
                dist.all_reduce(mean)
                mean /= 2
            found[f"{name} {with_references}"] = value, gradient, *rest
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="needs gloo processes")
def test_two_processes_equal_one_with_the_whole_batch(tmp_path: Path):
    spawn(work, (str(tmp_path),), 2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name in LOSSES:
        for with_references in (False, True):
            expected = of_rows(LOSSES[name](), slice(None), with_references)
            case = f"{name} {with_references}"
            together = torch.cat([rank[case][2] for rank in ranks])
            torch.testing.assert_close(together, expected[2], rtol=1e-9, atol=1e-12)
            for rank in ranks:
                value, gradient, _, *state = rank[case]
                torch.testing.assert_close(value, expected[0], rtol=1e-9, atol=0)
                torch.testing.assert_close(gradient, expected[1], rtol=1e-9, atol=1e-12)
                torch.testing.assert_close(state, [*expected[3:]], rtol=1e-9, atol=0)
