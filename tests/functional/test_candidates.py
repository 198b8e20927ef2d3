"""Unit vectors, layouts and masks."""

import pytest
import torch

from weince_lightning.functional.candidates import Candidates, Scores, compare, score
from weince_lightning.functional.layouts import Keys, build_bank_candidates, build_candidates
from weince_lightning.functional.vectors import unit_vectors
from weince_lightning.losses import WEINCELoss


def scores_of(group: Candidates) -> Scores:
    return score(group, compare(group))


def count_negatives(scores: Scores) -> torch.Tensor:
    return scores.fill_excluded_(torch.ones_like(scores.similarity), 0.0).sum(dim=1)


def test_rows_have_length_one_whatever_their_length(generator):
    rows = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    for scale in (1e-3, 1.0, 1e3):
        norms = torch.linalg.vector_norm(unit_vectors(rows * scale), dim=1)
        torch.testing.assert_close(norms, torch.ones(5, dtype=torch.float64))


def test_rows_below_the_least_norm_are_zero_with_zero_gradient():
    rows = torch.tensor([[3e-7, 4e-7], [0.0, 0.0], [3e-6, 4e-6]], requires_grad=True)
    unit = unit_vectors(rows)
    unit[:, 0].sum().backward()
    assert unit.tolist()[:2] == [[0.0, 0.0], [0.0, 0.0]]
    assert unit[2].tolist() == pytest.approx([0.6, 0.8])
    assert rows.grad[:2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert rows.grad[2].all()


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_rows_of_any_scale_have_a_gradient_that_numbers_confirm(scale, generator):
    rows = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    weights = torch.randn(3, 5, generator=generator, dtype=torch.float64)

    def gradient(rows):
        rows = rows.clone().requires_grad_()
        (unit_vectors(rows) * weights).sum().backward()
        return rows.grad

    expected = gradient(rows) / scale if scale >= 1e-3 else torch.zeros(3, 5).double()
    torch.testing.assert_close(gradient(rows * scale), expected, rtol=1e-10, atol=0)
    found = gradient((rows * scale).float()).double()
    torch.testing.assert_close(found * scale, expected * scale, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_unit_vectors_has_a_gradient(generator):
    rows = torch.randn(3, 5, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(unit_vectors, rows)
    assert torch.autograd.gradgradcheck(unit_vectors, rows)


@pytest.mark.parametrize(
    ("layout", "anchors", "negatives"), [("views", 8, 6), ("pairs", 8, 3), ("queries", 4, 3)]
)
def test_layouts_have_the_promised_numbers(layout, anchors, negatives, generator):
    z = torch.randn(4, 3, generator=generator)
    groups = build_candidates(z, z, layout)
    assert sum(len(group.anchors) for group in groups) == anchors
    for group in groups:
        assert set(group.count_negatives().tolist()) == {negatives}
        assert group.max_negatives == negatives
        assert (count_negatives(scores_of(group)) == negatives).all()


@pytest.mark.parametrize("layout", ["views", "pairs", "queries"])
@pytest.mark.parametrize("shape", [(4, 2, 3), (5, 3)])
def test_explicit_negatives_are_seen_by_the_anchors_of_the_first_view_alone(
    layout, shape, generator
):
    z = torch.randn(4, 3, generator=generator)
    negatives = torch.randn(*shape, generator=generator)
    plain = build_candidates(z, z, layout)
    base = scores_of(plain[0]).max_negatives
    groups = [scores_of(g) for g in build_candidates(z, z, layout, negatives=negatives)]
    assert groups[0].max_negatives == base + shape[-2]
    assert all(group.max_negatives == base for group in groups[1:])


def test_positives_are_the_other_view(generator):
    z0 = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    z1 = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    expected = torch.cosine_similarity(z0, z1)
    for layout in ("views", "pairs", "queries"):
        for group in build_candidates(z0, z1, layout):
            scores = scores_of(group)
            found = scores.similarity.gather(1, scores.positive).squeeze(1)
            torch.testing.assert_close(found, expected.repeat(len(found) // 4))


def test_equal_ids_are_no_negatives(generator):
    z = torch.randn(4, 3, generator=generator)
    ids = torch.tensor([5, 6, 5, 7])
    (scores,) = [scores_of(group) for group in build_candidates(z, z, "views", ids=ids)]
    assert scores.num_negatives.tolist() == [4, 6, 4, 6, 4, 6, 4, 6]
    assert count_negatives(scores).tolist() == [4, 6, 4, 6, 4, 6, 4, 6]
    assert scores.max_negatives == 6


def earlier_keys(generator: torch.Generator) -> Keys:
    """Five keys, of which the last two came without id."""
    vectors = unit_vectors(torch.randn(5, 3, generator=generator))
    return Keys(vectors, torch.tensor([5, 9, 5, 5, 0]), torch.arange(5) < 3)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("views", [7, 11, 7, 10, 4, 6, 4, 6]),
        ("pairs", [5, 8, 5, 7, 2, 3, 2, 3]),
        ("queries", [5, 8, 5, 7]),
        ("bank", [3, 5, 3, 4]),
    ],
)
def test_earlier_keys_are_negatives_of_the_first_view_unless_their_id_is_equal(
    layout, expected, generator
):
    z0, z1 = torch.randn(2, 4, 3, generator=generator)
    ids, keys = torch.tensor([5, 6, 5, 9]), earlier_keys(generator)
    if layout == "bank":
        groups = build_bank_candidates(z0, z1, keys, ids)
    else:
        groups = build_candidates(z0, z1, layout, ids, queue=keys)
    assert torch.cat([group.count_negatives() for group in groups]).tolist() == expected
    for group in groups:
        counted = group.counted()
        assert torch.equal(counted.count_negatives(), group.count_negatives())
        rows = slice(1, 3)
        assert torch.equal(
            counted.select(rows).count_negatives(), group.select(rows).count_negatives()
        )
        no_negatives = 2 if layout == "views" else 1  # the positive, and in "views" the anchor
        assert group.max_negatives == compare(group).shape[1] - no_negatives


def test_a_bank_compares_each_anchor_with_its_own_positive_and_the_keys(generator):
    z0, z1 = torch.randn(2, 4, 3, generator=generator)
    keys = earlier_keys(generator)
    (group,) = build_bank_candidates(z0, z1, keys, rows=slice(1, 3))
    similarity = compare(group)
    u0, u1 = unit_vectors(z0[1:3]), unit_vectors(z1[1:3])
    torch.testing.assert_close(similarity[:, :-1], u0 @ keys.vectors.T)
    torch.testing.assert_close(similarity[:, -1], (u0 * u1).sum(dim=1))
    assert group.excluded_columns.tolist() == [[5], [5]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint64])
def test_ids_of_any_integer_type_mean_the_same(dtype, generator):
    z0, z1 = torch.randn(2, 4, 3, generator=generator)
    ids = torch.tensor([5, 6, 5, 7])
    assert torch.equal(WEINCELoss()(z0, z1, ids.to(dtype)), WEINCELoss()(z0, z1, ids))
