"""The geometry of embeddings against closed forms and plain loops."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weince_lightning.functional import geometry
from weince_lightning.functional.geometry import (
    alignment,
    candidate_geometry,
    effective_rank,
    normalized_std,
    positive_similarity,
    uniformity,
)
from weince_lightning.losses import InfoNCELoss

MATRIX_MEASURES = [uniformity, effective_rank, normalized_std]
PAIR_MEASURES = [alignment, positive_similarity]


@pytest.fixture
def views(generator):
    """Two views of 13 samples, of very different lengths."""
    z0, z1 = torch.randn(2, 13, 5, generator=generator, dtype=torch.float64)
    return z0 * torch.logspace(-3, 3, 13, dtype=torch.float64)[:, None], 0.5 * z0 + z1


def unit(row):
    return row / row.norm()


def test_alignment_and_positive_similarity_agree_with_a_plain_loop(views):
    rows = [(unit(u), unit(v)) for u, v in zip(*views, strict=True)]
    distance = sum(float((u - v).square().sum()) for u, v in rows) / 13
    similarity = sum(float(u @ v) for u, v in rows) / 13
    assert alignment(*views).item() == pytest.approx(distance, rel=1e-12)
    assert positive_similarity(*views).item() == pytest.approx(similarity, rel=1e-12)
    assert alignment(*views).item() == pytest.approx(2 - 2 * similarity, rel=1e-12)


def test_uniformity_agrees_with_a_plain_loop(views):
    rows = [unit(row) for row in views[0]]
    pairs = [(i, j) for i in range(13) for j in range(i)]
    potentials = [math.exp(-2 * float((rows[i] - rows[j]).square().sum())) for i, j in pairs]
    expected = math.log(sum(potentials) / len(pairs))
    assert uniformity(views[0]).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("num_points", [3, 7, 100])
def test_uniformity_of_a_uniform_circle_is_a_bessel_function(num_points):
    angle = 2 * math.pi * torch.arange(num_points, dtype=torch.float64) / num_points
    points = torch.stack([angle.cos(), angle.sin()], dim=1)
    if num_points < 100:
        other = math.fsum(math.exp(-4 + 4 * math.cos(a)) for a in angle[1:].tolist())
    else:  # the mean of exp(4 cos) over the circle, to rounding; a point's distance to itself is 0
        bessel = torch.special.i0(torch.tensor(4.0, dtype=torch.float64)).item()
        other = num_points * math.exp(-4) * bessel - 1
    expected = math.log(other / (num_points - 1))
    assert uniformity(3 * points).item() == pytest.approx(expected, rel=1e-12)


def test_uniformity_is_0_for_equal_and_minus_8_for_opposite_rows():
    row = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(uniformity(row.repeat(5, 1)), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(uniformity(torch.cat([row, -row])), torch.tensor(-8.0))


def test_effective_rank_agrees_with_singular_values(views):
    for matrix in (views[0], views[0].T):
        singular = torch.linalg.svdvals(matrix)
        share = singular / singular.sum()
        expected = torch.exp(-sum(p * p.log() for p in share))
        torch.testing.assert_close(effective_rank(matrix), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_effective_rank_of_orthonormal_rows_is_their_number(rank, generator):
    rows = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q[:rank]
    repeated = rows.repeat(4, 1).float() * 1e-3
    assert effective_rank(repeated).item() == pytest.approx(rank, rel=1e-5)


def test_normalized_std_is_0_when_collapsed_and_1_over_root_d_when_spread(generator):
    assert normalized_std(torch.randn(1, 9, generator=generator).repeat(5, 1)) < 1e-7
    torch.testing.assert_close(normalized_std(torch.eye(4)), torch.tensor(math.sqrt(3) / 4))
    spread = normalized_std(torch.randn(4000, 16, generator=generator))
    # The standard error of 4000 * 16 entries is a hundredth of this tolerance.
    torch.testing.assert_close(spread, torch.tensor(0.25), rtol=2e-2, atol=0)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("layout", ["views", "pairs", "queries"])
def test_information_is_log_candidates_minus_infonce(views, layout, temperature):
    found = candidate_geometry(*views, temperature, layout)
    num_candidates = 25 if layout == "views" else 13
    loss = InfoNCELoss(temperature, layout=layout)(*views)
    torch.testing.assert_close(found.information, math.log(num_candidates) - loss)
    torch.testing.assert_close(found.information_limit.item(), math.log(num_candidates))
    assert found.information <= found.information_limit


def test_hardest_negative_agrees_with_a_plain_loop(views):
    rows = [unit(row) for row in torch.cat(views)]
    hardest = [
        max(float(rows[i] @ rows[j]) for j in range(26) if j % 13 != i % 13) for i in range(26)
    ]
    found = candidate_geometry(*views, 0.5).hardest_negative_similarity
    assert found.item() == pytest.approx(sum(hardest) / 26, rel=1e-12)


def test_information_of_equal_rows_is_0_and_of_orthogonal_pairs_the_limit():
    same = torch.ones(6, 3)
    assert candidate_geometry(same, same, 0.1).information.abs() < 1e-6
    found = candidate_geometry(torch.eye(6), torch.eye(6), 0.02)
    torch.testing.assert_close(found.information, torch.tensor(math.log(11)))


def test_results_do_not_depend_on_the_blocks(views, monkeypatch):
    whole = [uniformity(views[0]), effective_rank(views[0]), *candidate_geometry(*views, 0.2)]
    monkeypatch.setattr(geometry, "_BLOCK", 30)  # 2 rows, and 1 anchor
    monkeypatch.setattr(geometry, "_ROWS", 4)
    parts = [uniformity(views[0]), effective_rank(views[0]), *candidate_geometry(*views, 0.2)]
    torch.testing.assert_close(parts, whole, rtol=1e-10, atol=0)


def test_no_whole_matrix_of_similarities_is_built(generator, monkeypatch):
    class Largest(TorchDispatchMode):
        entries = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.entries = max(self.entries, result.numel())
            return result

    rows, block = torch.randn(2, 500, 4, generator=generator), 5000
    monkeypatch.setattr(geometry, "_BLOCK", block)
    with Largest() as largest:
        uniformity(rows[0])
        candidate_geometry(*rows, 0.2)
    assert 0 < largest.entries <= block


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype, views):
    halves = [view.to(dtype) for view in views]
    singles = [half.float() for half in halves]
    for measure in PAIR_MEASURES:
        assert torch.equal(measure(*halves), measure(*singles))
    for measure in MATRIX_MEASURES:
        assert torch.equal(measure(halves[0]), measure(singles[0]))
    assert candidate_geometry(*halves, 0.2) == candidate_geometry(*singles, 0.2)
    assert uniformity(halves[0]).dtype == torch.float32


def test_autocast_does_not_reach_the_measures(views):
    singles = [view.float() for view in views]
    expected = [uniformity(singles[0]), *candidate_geometry(*singles, 0.2)]
    with torch.autocast("cpu", torch.bfloat16):
        found = [uniformity(singles[0]), *candidate_geometry(*singles, 0.2)]
    assert found == expected


def test_zero_rows_have_the_stated_results():
    zero, row = torch.zeros(3, 2), torch.tensor([[1.0, 0.0]])
    assert alignment(zero, zero) == positive_similarity(zero, zero) == 0
    assert uniformity(zero) == effective_rank(zero) == normalized_std(zero) == 0
    torch.testing.assert_close(uniformity(torch.cat([zero[:1], row])), torch.tensor(-2.0))
    found = candidate_geometry(zero, zero, 0.1)
    assert found.hardest_negative_similarity == 0
    torch.testing.assert_close(found.information, torch.tensor(0.0), atol=1e-6, rtol=0)


def test_one_row_and_none_have_the_stated_results():
    one, none = torch.tensor([[0.0, 2.0]]), torch.zeros(0, 2)
    assert alignment(one, one) == normalized_std(one) == 0
    assert positive_similarity(one, one) == effective_rank(one) == 1
    assert uniformity(one).isnan()
    assert uniformity(none).isnan()
    assert alignment(none, none).isnan()
    assert normalized_std(none).isnan()
    assert effective_rank(none) == 0


def test_embeddings_that_are_not_finite_give_nan_and_no_error():
    broken = torch.tensor([[1.0, 2.0], [math.nan, 0.0], [3.0, 1.0]])
    for measure in MATRIX_MEASURES:
        assert measure(broken).isnan()
    assert candidate_geometry(broken, broken, 0.5).information.isnan()


def test_no_gradient_and_no_argument_is_touched(views):
    z0, z1 = (view.clone().requires_grad_() for view in views)
    results = [measure(z0, z1) for measure in PAIR_MEASURES]
    results += [measure(z0) for measure in MATRIX_MEASURES]
    results += candidate_geometry(z0, z1, 0.5)
    assert not any(result.requires_grad for result in results)
    assert torch.equal(z0, views[0])
    assert torch.equal(z1, views[1])


@pytest.mark.parametrize("measure", MATRIX_MEASURES)
def test_what_is_no_matrix_of_numbers_is_refused(measure):
    with pytest.raises(ValueError, match=r"embeddings must have shape \(rows, features\), got"):
        measure(torch.zeros(3))
    with pytest.raises(TypeError, match="embeddings must hold floating-point numbers, got"):
        measure(torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="embeddings must be a tensor, got list"):
        measure([[1.0]])


@pytest.mark.parametrize("measure", [*PAIR_MEASURES, lambda a, b: candidate_geometry(a, b, 0.5)])
def test_views_of_other_shapes_are_refused(measure):
    with pytest.raises(ValueError, match=r"z1 must have the shape of z0, \(3, 2\), got \(2, 2\)"):
        measure(torch.zeros(3, 2), torch.zeros(2, 2))


def test_one_sample_has_no_candidates_and_is_refused():
    with pytest.raises(ValueError, match="z0 must hold at least 2 samples"):
        candidate_geometry(torch.ones(1, 2), torch.ones(1, 2), 0.5)


def test_a_temperature_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        candidate_geometry(torch.eye(2), torch.eye(2), 0.0)
