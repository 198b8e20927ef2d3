"""The losses: oracle, limits, invariances, precision, errors."""

import inspect
import math

import pytest
import reference
import torch
from cases import few
from jsonargparse import ArgumentParser
from lightly.loss import NTXentLoss
from torch import Tensor

from weince_lightning.functional.candidates import compare, score
from weince_lightning.functional.contrastive import weince
from weince_lightning.functional.layouts import build_candidates
from weince_lightning.losses import (
    ArctanhLink,
    InfoNCELoss,
    PowerLink,
    SoftmaxLink,
    TailGate,
    TailShape,
    TopMTerm,
    WeibitLink,
    WEINCELoss,
)

LAYOUTS = ("views", "pairs", "queries")
ALL_LOSSES = {
    "infonce": lambda tau=0.5, **rest: InfoNCELoss(tau, **rest),
    "weibit": lambda tau=0.5, **rest: InfoNCELoss(tau, WeibitLink(4.0), **rest),
    "weibit pooled": lambda tau=0.5, **rest: InfoNCELoss(tau, WeibitLink("pooled"), **rest),
    "power": lambda tau=0.5, **rest: InfoNCELoss(tau, PowerLink(2.0), **rest),
    "arctanh": lambda tau=0.5, **rest: InfoNCELoss(tau, ArctanhLink(), **rest),
    "top-m": lambda tau=0.5, **rest: InfoNCELoss(tau, top_m_terms=[TopMTerm(top_m=5)], **rest),
    "weince": lambda tau=0.5, **rest: WEINCELoss(tau, **rest),
    "weince shape 1": lambda tau=0.5, **rest: WEINCELoss(tau, shape=1.0, **rest),
    "weince hard rho": lambda tau=0.5, **rest: WEINCELoss(
        tau, TailGate(signals="rho", hard=True), **rest
    ),
    "weince aic": lambda tau=0.5, **rest: WEINCELoss(tau, TailGate(signals="aic"), **rest),
    "losses mixed": lambda tau=0.5, **rest: WEINCELoss(tau, mix="losses", **rest),
    "released": lambda tau=0.5, **rest: WEINCELoss.released(tau, **rest),
}
every_loss = pytest.mark.parametrize("build", ALL_LOSSES.values(), ids=ALL_LOSSES)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture
def views(generator) -> tuple[Tensor, Tensor]:
    """Two correlated views of 24 samples, float64, with gradient."""
    z0 = torch.randn(24, 6, generator=generator, dtype=torch.float64)
    z1 = z0 + 0.5 * torch.randn(24, 6, generator=generator, dtype=torch.float64)
    return z0.requires_grad_(), z1.requires_grad_()


def gradients(loss: Tensor, *inputs: Tensor) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, inputs)])


# Oracle


def extras(name: str, n: int, d: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Options of a call: none, ids with repeats, own negatives, shared negatives, both."""
    options: dict[str, Tensor] = {}
    if "ids" in name:
        options["ids"] = torch.randint(0, n // 2, (n,), generator=generator)
    if "own" in name:
        options["negatives"] = torch.randn(n, 3, d, generator=generator, dtype=torch.float64)
    if "shared" in name:
        options["negatives"] = torch.randn(5, d, generator=generator, dtype=torch.float64)
    return options


@every_layout
@pytest.mark.parametrize(
    "extra", few(["none", "ids", "own", "shared", "ids own", "ids shared"], 0, -2, -1)
)
def test_weince_equals_the_loop(views, layout, extra, generator):
    z0, z1 = views
    options = extras(extra, *z0.shape, generator)
    inputs = [z0, z1] + [v.requires_grad_() for k, v in options.items() if k == "negatives"]
    terms = WEINCELoss(0.2, layout=layout).terms(z0, z1, **options)
    scores = reference.compare(reference.candidates_of(z0, z1, layout, **options))
    found = reference.tail_of(scores)
    expected = reference.weince(scores, reference.gates(found), reference.shapes(found), 0.2)
    torch.testing.assert_close(terms.loss, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        gradients(terms.loss, *inputs), gradients(expected, *inputs), rtol=1e-10, atol=1e-12
    )
    assert terms.num_negatives.tolist() == [len(negatives) for _, negatives in scores]
    for name, values in {
        "gate": reference.gates(found),
        "shape": reference.shapes(found),
        "beta_hat": [e.beta_hat for e in found],
        "delta_aic": [e.delta_aic for e in found],
        "r_squared": [e.r_squared for e in found],
        "rho": [e.rho for e in found],
    }.items():
        torch.testing.assert_close(
            getattr(terms.tail, name),
            torch.tensor(values, dtype=torch.float64),
            rtol=1e-9,
            atol=1e-10,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    assert float(terms.tail.rho0) == pytest.approx(reference.hardness_reference(found), rel=1e-12)


@every_layout
@pytest.mark.parametrize("samples", [2, 3, 4, 6])
def test_few_negatives_equal_the_loop(layout, samples, generator):
    z0 = torch.randn(samples, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    z1 = torch.randn(samples, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    terms = WEINCELoss(layout=layout).terms(z0, z1)
    scores = reference.compare(reference.candidates_of(z0, z1, layout))
    found = reference.tail_of(scores)
    expected = reference.weince(scores, reference.gates(found), reference.shapes(found), 0.5)
    torch.testing.assert_close(terms.loss, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        gradients(terms.loss, z0, z1), gradients(expected, z0, z1), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"signals": "rho"},
        {"signals": "aic", "aic_margin": 20.0, "kappa_aic": 0.3},
        {"hard": True},
        {"hard": True, "signals": "rho", "rho_quantile": 0.5},
        {"hard": True, "signals": "aic", "aic_margin": 30.0},
        {"rho_quantile": 0.0, "kappa_rho": 3.0},
        {"rho_quantile": 1.0},
    ],
)
def test_every_gate_equals_the_loop(views, settings):
    tail = WEINCELoss(gate=TailGate(**settings)).terms(*views).tail
    found = reference.tail_of(reference.compare(reference.candidates_of(*views, "views")))
    renamed = {
        {"rho_quantile": "quantile", "aic_margin": "margin"}.get(k, k): v
        for k, v in settings.items()
    }
    expected = torch.tensor(reference.gates(found, **renamed), dtype=torch.float64)
    torch.testing.assert_close(tail.gate, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("build", [PowerLink, ArctanhLink, WeibitLink, SoftmaxLink])
def test_every_link_equals_its_formula(views, build):
    logits = {
        PowerLink: lambda s: torch.log(1 + s),
        ArctanhLink: lambda s: 2 * torch.atanh(s),
        WeibitLink: lambda s: -torch.log(1 - s),
        SoftmaxLink: lambda s: s / 0.3,
    }[build]
    scores = reference.compare(reference.candidates_of(*views, "views"))
    expected = torch.stack(
        [reference.cross_entropy(logits(p), [logits(s) for s in ns]) for p, ns in scores]
    ).mean()
    loss = InfoNCELoss(0.3, build())(*views)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        gradients(loss, *views), gradients(expected, *views), rtol=1e-9, atol=1e-12
    )


def test_top_m_term_equals_the_loop(views):
    term = TopMTerm(WeibitLink(3.0), top_m=4, weight=0.25)
    terms = InfoNCELoss(0.5, top_m_terms=[term]).terms(*views)
    scores = reference.compare(reference.candidates_of(*views, "views"))

    def logit(s: Tensor) -> Tensor:
        return -3.0 * reference.shortfall(s).log()

    expected = torch.stack(
        [
            reference.cross_entropy(p / 0.5, [s / 0.5 for s in ns])
            + 0.25 * reference.cross_entropy(logit(p), [logit(s) for s in sorted(ns)[-4:]])
            for p, ns in scores
        ]
    )
    torch.testing.assert_close(terms.per_anchor, expected.detach(), rtol=1e-10, atol=0)
    torch.testing.assert_close(
        gradients(terms.loss, *views), gradients(expected.mean(), *views), rtol=1e-9, atol=1e-12
    )


def test_top_m_with_ids_counts_no_masked_candidate(views, generator):
    z0, z1 = views
    ids = torch.zeros(len(z0), dtype=torch.long)
    ids[:2] = torch.tensor([1, 2])  # most anchors have 4 negatives, far fewer than were asked for
    terms = InfoNCELoss(top_m_terms=[TopMTerm(PowerLink(1.0), top_m=20, weight=1.0)])
    found = terms.terms(z0, z1, ids=ids)
    plain = InfoNCELoss().terms(z0, z1, ids=ids).per_anchor
    all_negatives = InfoNCELoss(link=PowerLink(1.0)).terms(z0, z1, ids=ids).per_anchor
    few = found.num_negatives <= 20
    assert 0 < few.sum() < len(few)
    torch.testing.assert_close(found.per_anchor[few], (plain + all_negatives)[few])


def test_gradcheck_holds_with_gate_and_shape_fixed(generator):
    z0 = torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    z1 = torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    gate = torch.rand(10, generator=generator, dtype=torch.float64)
    shape = 0.5 + 4 * torch.rand(10, generator=generator, dtype=torch.float64)

    def loss(z0: Tensor, z1: Tensor, temperature: Tensor) -> Tensor:
        (scores,) = [score(g, compare(g)) for g in build_candidates(z0, z1, "views")]
        return weince(scores, gate, shape, temperature).mean()

    temperature = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (z0, z1, temperature))
    assert torch.autograd.gradgradcheck(loss, (z0, z1, temperature))

    def fused(z0: Tensor, z1: Tensor) -> Tensor:
        return WEINCELoss(0.3, gate=0.4, shape=2.0)(z0, z1)

    assert torch.autograd.gradcheck(fused, (z0, z1))
    assert torch.autograd.gradgradcheck(fused, (z0, z1))


@every_loss
@pytest.mark.parametrize("layout", few(LAYOUTS))
@pytest.mark.parametrize("added", few(("nothing", "ids", "negatives"), 0, 1))
# A part of torch has no rule of its own for several batches at once, and says that it is slower.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_torch_func_find_the_same_values_and_gradients(build, layout, added):
    generator = torch.Generator().manual_seed(0)
    batches = torch.randn(3, 2, 24, 6, generator=generator, dtype=torch.float64)
    ids = torch.randint(20, (24,), generator=generator) if added == "ids" else None
    negatives = batches[0, 0, :5] if added == "negatives" else None
    loss = build(layout=layout).eval()

    def value(z0: Tensor, z1: Tensor) -> Tensor:
        return loss(z0, z1, ids, negatives)

    values, gradient = [], []
    for z0, z1 in batches:
        leaf = z0.clone().requires_grad_()
        values.append(value(leaf, z1))
        gradient += torch.autograd.grad(values[-1], leaf)
    both = torch.func.vmap(torch.func.grad_and_value(value))(batches[:, 0], batches[:, 1])
    torch.testing.assert_close(both[0], torch.stack(gradient))
    torch.testing.assert_close(both[1], torch.stack(values))
    _, along = torch.func.jvp(lambda z: value(z, batches[0, 1]), (batches[0, 0],), (batches[1, 0],))
    torch.testing.assert_close(along, (gradient[0] * batches[1, 0]).sum())


@pytest.mark.parametrize(
    "loss", [WEINCELoss(queue_size=64), WEINCELoss.released()], ids=["queue", "running shape"]
)
def test_transforms_of_torch_func_move_no_state(loss, views):
    z0, z1 = (z.detach() for z in views)
    loss(z0, z1)
    saved = {name: value.clone() for name, value in loss.state_dict().items()}
    torch.func.grad(lambda z: loss(z, z1))(z0 + 1)
    assert len(saved) > 0
    for name, value in loss.state_dict().items():
        assert torch.equal(value, saved[name])


# Limits


@every_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gate_zero_gives_infonce_bit_for_bit(views, layout, dtype):
    z0, z1 = (z.detach().to(dtype).requires_grad_() for z in views)
    found = WEINCELoss(0.2, gate=0.0, layout=layout)(z0, z1)
    expected = InfoNCELoss(0.2, layout=layout)(z0, z1)
    assert torch.equal(found, expected)
    assert torch.equal(gradients(found, z0, z1), gradients(expected, z0, z1))


def test_gate_one_gives_the_weibit_link(views):
    found = WEINCELoss(gate=1.0, shape=4.0)(*views)
    expected = InfoNCELoss(link=WeibitLink(4.0))(*views)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        gradients(found, *views), gradients(expected, *views), rtol=1e-10, atol=1e-14
    )


@pytest.mark.parametrize("temperature", [0.05, 0.2, 0.5, 2.0])
def test_infonce_equals_lightly(views, temperature):
    found = InfoNCELoss(temperature)(*views)
    expected = NTXentLoss(temperature)(*views)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        gradients(found, *views), gradients(expected, *views), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 1.118), (0.2, 0.553), (0.05, 0.127)])
def test_worked_example_of_one_positive_and_three_negatives(temperature, expected):
    similarity = torch.tensor([0.70, 0.60, 0.20, 0.10], dtype=torch.float64)
    # Unit vectors in four dimensions whose first coordinate is the similarity to the query.
    rest = (1 - similarity.square()).sqrt()
    documents = torch.stack([similarity, rest], dim=1)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    loss = InfoNCELoss(temperature, layout="queries")
    found = loss(query, documents[:1], negatives=documents[1:])
    assert float(found) == pytest.approx(expected, abs=5e-4)


def test_aligned_views_of_orthogonal_images_have_almost_no_loss():
    z = torch.eye(32)
    assert float(InfoNCELoss(0.05)(z, z)) < 1e-6


# Invariances


@every_loss
@every_layout
def test_the_order_of_the_batch_does_not_matter(views, build, layout, generator):
    z0, z1 = (z.detach() for z in views)
    order = torch.randperm(len(z0), generator=generator)
    loss = build(layout=layout).eval()
    torch.testing.assert_close(loss(z0[order], z1[order]), loss(z0, z1), rtol=1e-10, atol=0)


@every_loss
@pytest.mark.parametrize("layout", ["views", "pairs"])
def test_the_views_can_be_swapped(views, build, layout):
    z0, z1 = (z.detach() for z in views)
    loss = build(layout=layout).eval()
    torch.testing.assert_close(loss(z1, z0), loss(z0, z1), rtol=1e-10, atol=0)


@every_loss
def test_a_rotation_does_not_matter(views, build, generator):
    z0, z1 = (z.detach() for z in views)
    square = torch.randn(z0.shape[1], z0.shape[1], generator=generator, dtype=z0.dtype)
    rotation = torch.linalg.qr(square).Q
    loss = build().eval()
    torch.testing.assert_close(loss(z0 @ rotation, z1 @ rotation), loss(z0, z1), rtol=1e-9, atol=0)


@every_loss
@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_length_of_the_embeddings_does_not_matter(views, build, scale, dtype):
    z0, z1 = (z.detach().to(dtype) for z in views)
    loss = build().eval()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(loss(z0 * scale, z1 * scale), loss(z0, z1), rtol=tolerance, atol=0)


def test_shared_negatives_equal_the_same_negatives_given_to_each(views, generator):
    z0, z1 = views
    shared = torch.randn(7, z0.shape[1], generator=generator, dtype=z0.dtype)
    own = shared.expand(len(z0), -1, -1)
    loss = WEINCELoss(layout="queries")
    torch.testing.assert_close(
        loss(z0, z1, negatives=shared), loss(z0, z1, negatives=own), rtol=1e-12, atol=0
    )


def test_unique_ids_change_nothing(views):
    ids = torch.arange(len(views[0])) * 7 - 3
    for build in ALL_LOSSES.values():
        loss = build().eval()
        torch.testing.assert_close(loss(*views, ids=ids), loss(*views), rtol=1e-12, atol=0)


def test_a_repeated_sample_with_its_id_is_no_negative(views):
    z0, z1 = views
    ids = torch.arange(len(z0))
    repeated0, repeated1 = torch.cat([z0, z0[:1]]), torch.cat([z1, z1[:1]])
    terms = WEINCELoss().terms(repeated0, repeated1, ids=torch.cat([ids, ids[:1]]))
    plain = WEINCELoss().terms(z0, z1)
    assert int(terms.num_negatives[0]) == int(plain.num_negatives[0])
    torch.testing.assert_close(terms.tail.rho[0], plain.tail.rho[0], rtol=1e-12, atol=0)


# Precision and degenerate batches


@every_loss
@pytest.mark.parametrize("temperature", [0.005, 0.01, 0.05, 0.5, 10.0])
def test_float32_is_close_to_float64_at_any_temperature(views, build, temperature):
    z0, z1 = (z.detach().float().requires_grad_() for z in views)
    loss = build(temperature).eval()
    single, double = loss(z0, z1), loss(z0.double(), z1.double())
    assert gradients(single, z0, z1).isfinite().all()
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=0)


@every_loss
@pytest.mark.parametrize(
    "dtype", few([torch.float16, torch.bfloat16, torch.float32, torch.float64], 0, 2)
)
@pytest.mark.parametrize("batch", ["identical views", "all identical", "zero rows", "tiny rows"])
@pytest.mark.parametrize("samples", few([2, 3, 20], 0, 2))
def test_degenerate_batches_are_finite(build, dtype, batch, samples, generator):
    z0 = torch.randn(samples, 8, generator=generator).to(dtype)
    z1 = z0.clone()
    if batch == "all identical":
        z0 = z1 = torch.ones(samples, 8, dtype=dtype)
    elif batch == "zero rows":
        z0[0] = 0
        z1[:2] = 0
    elif batch == "tiny rows":
        z0[0] = 1e-7
        z1[1] = 6e-8
    z0, z1 = z0.clone().requires_grad_(), z1.clone().requires_grad_()
    loss = build()(z0, z1)
    loss.backward()
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert loss.isfinite()
    assert z0.grad.isfinite().all()
    assert z1.grad.isfinite().all()


def test_zero_rows_get_no_gradient(views):
    z0, z1 = (z.detach().clone() for z in views)
    z0[0] = 0
    z0[1] = 1e-8
    z0.requires_grad_()
    WEINCELoss()(z0, z1).backward()
    assert not z0.grad[:2].any()
    assert z0.grad[2:].all()


@every_loss
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_half_precision_is_close_to_single(build, noise, generator):
    z0 = torch.randn(64, 32, generator=generator)
    z1 = z0 + noise * torch.randn(64, 32, generator=generator)
    expected = build()(z0, z1)
    for dtype in (torch.float16, torch.bfloat16):
        found = build()(z0.to(dtype), z1.to(dtype))
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@every_loss
def test_autocast_changes_nothing(build, generator):
    z0 = torch.randn(16, 8, generator=generator).requires_grad_()
    z1 = torch.randn(16, 8, generator=generator)
    expected = build()(z0, z1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = build()(z0, z1)
    assert torch.equal(found, expected)


def test_views_may_have_different_precisions(views):
    z0, z1 = (z.detach().float() for z in views)
    found = WEINCELoss()(z0.to(torch.bfloat16), z1)
    torch.testing.assert_close(found, WEINCELoss()(z0.to(torch.bfloat16).float(), z1))


def test_an_anchor_without_negatives_has_no_loss_and_counts_as_easy():
    z0 = torch.eye(4, dtype=torch.float64).requires_grad_()
    z1 = torch.eye(4, dtype=torch.float64)
    terms = WEINCELoss().terms(z0, z1, ids=torch.tensor([3, 3, 3, 3]))
    terms.loss.backward()
    assert terms.num_negatives.tolist() == [0] * 8
    assert not terms.per_anchor.any()
    assert terms.tail.rho.tolist() == [2.0] * 8
    assert not z0.grad.any()


@every_loss
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomalies_are_not_found_where_there_are_none(build, generator):
    z0 = torch.randn(4, 3, generator=generator, requires_grad=True)
    z1 = z0.detach().clone()
    with torch.autograd.detect_anomaly():
        # No negatives, few negatives, a zero row.
        for ids in (torch.tensor([1, 1, 1, 1]), torch.tensor([1, 1, 1, 2])):
            build()(torch.cat([z0[:3], 0 * z0[:1]]), z1, ids=ids).backward()
    assert z0.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [40, 128, 256])
def test_exact_duplicates_are_no_evidence_of_a_weibull_tail(dtype, samples, generator):
    z0 = torch.randn(samples, 32, generator=generator, dtype=dtype)
    z1 = z0 + 0.3 * torch.randn(samples, 32, generator=generator, dtype=dtype)
    z0[:30] = z1[:30] = z0[0]
    tail = WEINCELoss().terms(z0, z1).tail
    assert (tail.delta_aic[:30].abs() < 0.01).all()
    assert not tail.beta_hat[:30].any()


@pytest.mark.parametrize("layout", ["views", "pairs"])
@pytest.mark.parametrize("shape", [(1, 5, 4), (5, 4)])
@every_loss
def test_one_sample_with_explicit_negatives_leaves_the_second_view_without(
    build, layout, shape, generator
):
    z0, z1 = torch.randn(2, 1, 4, generator=generator)
    negatives = torch.randn(*shape, generator=generator)
    terms = build(layout=layout).terms(z0, z1, negatives=negatives)
    assert terms.num_negatives.tolist() == [5, 0]
    assert float(terms.per_anchor[1]) == 0.0
    assert terms.loss.isfinite()


def test_absent_evidence_leaves_infonce(views):
    z0, z1 = (z[:3] for z in views)
    terms = WEINCELoss(gate=TailGate(signals="rho"), layout="queries").terms(z0, z1)
    assert not terms.tail.gate.any()
    torch.testing.assert_close(terms.loss, InfoNCELoss(layout="queries")(z0, z1))


# State and temperature


def test_the_temperature_can_be_learned(views):
    tau = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
    for build in (InfoNCELoss, WEINCELoss):
        loss = build(tau)
        assert dict(loss.named_parameters()) == {"temperature": tau}

        def value(temperature: Tensor, build: type = build) -> Tensor:
            return build(temperature)(*(z.detach() for z in views))

        assert torch.autograd.gradcheck(value, tau)


def test_the_running_shape_moves_only_in_training_with_gradients(views):
    loss = WEINCELoss.released()
    link = loss.top_m_terms[0].link
    loss.eval()(*views)
    loss.train()
    with torch.no_grad():
        loss(*views)
    assert float(link.running_beta) == 4.0
    loss(*views)
    assert float(link.running_beta) != 4.0
    assert loss.state_dict()["top_m_terms.0.link.running_beta"] == link.running_beta


def test_the_running_shape_keeps_small_moves_in_a_module_of_half_precision(views):
    whole, half = (InfoNCELoss(link=WeibitLink("pooled")) for _ in range(2))
    half.bfloat16()
    for _ in range(20):
        whole(*views)
        half(*views)
    assert half.link.running_beta == whole.link.running_beta


def test_two_forwards_before_one_backward_work(views):
    loss = WEINCELoss.released()
    first = loss(*views)
    (first + loss(*views)).backward()
    assert views[0].grad.isfinite().all()


def test_a_link_shared_by_two_terms_moves_once(views):
    link = WeibitLink("pooled")
    shared = InfoNCELoss(top_m_terms=[TopMTerm(link), TopMTerm(link, top_m=5)])
    alone = InfoNCELoss(link=WeibitLink("pooled"))
    shared(*views)
    alone(*views)
    assert torch.equal(link.running_beta, alone.link.running_beta)


def test_forward_is_the_loss_of_the_terms(views):
    for build in ALL_LOSSES.values():
        loss = build().eval()
        terms = loss.terms(*views)
        assert torch.equal(loss(*views), terms.loss)
        assert terms.per_anchor.shape == terms.num_negatives.shape == (48,)
        torch.testing.assert_close(terms.per_anchor.mean(), terms.loss.detach())
        assert not any(
            t.requires_grad for t in (terms.per_anchor, terms.num_negatives, *(terms.tail or ()))
        )


def test_default_parts_are_not_shared_between_losses():
    assert WEINCELoss().gate == TailGate()
    assert WEINCELoss().shape == TailShape()
    assert TopMTerm().link is not TopMTerm().link


# The door


@pytest.mark.parametrize("temperature", ["x", 0.2, torch.tensor([0.2]), torch.tensor(2)], ids=str)
def test_temperature_of_a_call_is_a_scalar_tensor(temperature):
    z0, z1 = torch.randn(2, 8, 4)
    with pytest.raises(TypeError, match="temperature must be a"):
        WEINCELoss().terms(z0, z1, temperature=temperature)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: InfoNCELoss(0.0), ValueError, "temperature must be above 0, got 0.0"),
        (lambda: WEINCELoss(-1), ValueError, "temperature must be above 0, got -1"),
        (lambda: InfoNCELoss(math.nan), ValueError, "temperature must be above 0, got nan"),
        (lambda: InfoNCELoss("0.5"), TypeError, "temperature must be a number, got '0.5'"),
        (lambda: InfoNCELoss(True), TypeError, "temperature must be a number, got True"),
        (lambda: InfoNCELoss(torch.zeros(2)), TypeError, "0-dim floating-point tensor"),
        (lambda: InfoNCELoss(torch.tensor(-1.0)), ValueError, "temperature must be above 0"),
        (lambda: WEINCELoss(gate=1.5), ValueError, "gate must be at least 0 and at most 1, got 1"),
        (
            lambda: WEINCELoss(gate="both"),
            TypeError,
            "gate must be a TailGate object or a number, got 'both'",
        ),
        (lambda: WEINCELoss(shape=0), ValueError, "shape must be above 0, got 0"),
        (lambda: WEINCELoss(mix="logit"), ValueError, 'Did you mean "logits"'),
        (lambda: InfoNCELoss(layout="view"), ValueError, 'Did you mean "views"'),
        (lambda: InfoNCELoss(link="softmax"), TypeError, "link must be a SoftmaxLink"),
        (lambda: InfoNCELoss(gather_distributed="no"), TypeError, "gather_distributed must be"),
        (lambda: InfoNCELoss(top_m_terms=TopMTerm()), TypeError, "top_m_terms must be a sequence"),
        (lambda: InfoNCELoss(top_m_terms=[50]), TypeError, "top_m_terms must hold TopMTerm"),
        (lambda: TopMTerm(top_m=0), ValueError, "top_m must be at least 1, got 0"),
        (lambda: TopMTerm(top_m=2.0), TypeError, "top_m must be an integer, got 2.0"),
        (lambda: TopMTerm(weight=-1), ValueError, "weight must be at least 0, got -1"),
        (lambda: WeibitLink("pool"), ValueError, "beta must be one of \"pooled\", got 'pool'"),
        (lambda: WeibitLink(0.0), ValueError, "beta must be above 0, got 0.0"),
        (lambda: PowerLink(-2.0), ValueError, "alpha must be above 0, got -2.0"),
        (lambda: TailGate(rho_quantile=2), ValueError, "rho_quantile must be at least 0 and at"),
        (lambda: TailGate(signals="roh"), ValueError, 'Did you mean "rho"'),
        (lambda: TailGate(tail_fraction=0), ValueError, "tail_fraction must be above 0 and at"),
        (lambda: TailGate(min_tail_points=0), ValueError, "min_tail_points must be at least 1"),
        (lambda: TailGate(hard="False"), TypeError, "hard must be True or False, got 'False'"),
        (lambda: TailShape(minimum=2, maximum=1), ValueError, "maximum must be at least 2, got 1"),
    ],
)
def test_wrong_settings_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"z0": torch.ones(4)}, ValueError, r"z0 must have shape \(samples, features\), got \(4,"),
        ({"z1": torch.ones(3, 8)}, ValueError, r"z1 must have the shape of z0, \(4, 8\), got \(3"),
        ({"z1": torch.ones(4, 7)}, ValueError, r"z1 must have the shape of z0"),
        ({"z0": torch.ones(4, 8).long()}, TypeError, "z0 must hold floating-point numbers, got"),
        ({"z1": [1.0]}, TypeError, "z1 must be a tensor, got list"),
        ({"ids": torch.ones(4)}, TypeError, "ids must hold integers, got torch.float32"),
        ({"ids": torch.arange(5)}, ValueError, r"ids must hold one integer per sample \(4\)"),
        ({"ids": [1, 2, 3, 4]}, TypeError, "ids must be a tensor, got list"),
        ({"negatives": torch.ones(4, 2, 7)}, ValueError, r"negatives must have shape \(4, own, 8"),
        ({"negatives": torch.ones(3, 2, 8)}, ValueError, r"got \(3, 2, 8\)"),
        ({"negatives": torch.ones(3, 2).bool()}, TypeError, "negatives must hold floating"),
        ({"z1": torch.ones(4, 8, device="meta")}, ValueError, "z1 must be on the device of z0"),
    ],
)
def test_wrong_batches_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        WEINCELoss()(**{"z0": torch.ones(4, 8), "z1": torch.ones(4, 8), **call})


@every_loss
@every_layout
def test_one_sample_has_no_negative_and_says_so(build, layout):
    with pytest.raises(ValueError, match=f'at least 2 samples in layout "{layout}", got 1'):
        build(layout=layout)(torch.ones(1, 4), torch.ones(1, 4))


@pytest.mark.parametrize("kind", [InfoNCELoss, WEINCELoss])
def test_the_help_of_the_command_describes_every_argument(kind):
    parser = ArgumentParser()
    parser.add_class_arguments(kind)
    named = {action.dest: action.help for action in parser._actions}
    for name in inspect.signature(kind).parameters:
        assert "." in named[name], name


def test_one_sample_with_explicit_negatives_works():
    z = torch.tensor([[1.0, 0.0]])
    loss = InfoNCELoss(1.0, layout="queries")(z, z, negatives=torch.tensor([[0.0, 1.0]]))
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-1)))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_nan_is_named_when_anomalies_are_looked_for():
    z = torch.ones(4, 8)
    broken = z.clone()
    broken[0, 0] = math.nan
    with (
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(ValueError, match="z1 must be finite, got 1 values"),
    ):
        WEINCELoss()(z, broken)
