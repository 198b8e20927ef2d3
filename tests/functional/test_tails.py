"""Tail evidence against known samples, a loop, and degenerate tails."""

import math

import pytest
import reference
import torch

from weince_lightning.functional.tails import (
    TailFit,
    _tail_sizes,
    fit_pooled,
    fit_tail,
    pooled_tail,
    smallest,
    tail_size,
)


def fit_all(shortfalls: torch.Tensor, counts: torch.Tensor | None, most: int) -> TailFit:
    hardest = smallest(shortfalls.clone(), tail_size(most, 0.1, 32))
    return fit_tail(hardest, counts, most)


@pytest.mark.parametrize(("rows", "columns"), [(7, 5), (3, 512), (3, 513), (2, 2000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_smallest_are_selected_in_order(rows, columns, dtype, generator):
    values = torch.randn(rows, columns, generator=generator, dtype=dtype)
    values[0, ::2] = math.inf
    expected = values.sort(dim=1).values
    for width in (1, columns // 2, columns):
        assert torch.equal(smallest(values.clone(), width), expected[:, :width])


@pytest.mark.parametrize(
    ("negatives", "expected"),
    [(0, 0), (1, 1), (9, 9), (31, 31), (33, 32), (320, 32), (505, 50), (515, 52), (510, 51)],
)
def test_the_tail_is_a_tenth_rounded_half_to_even(negatives, expected):
    assert tail_size(negatives, 0.1, 32) == expected


@pytest.mark.parametrize(("fraction", "least"), [(0.1, 32), (0.05, 1), (0.3, 5), (1.0, 1)])
def test_the_table_of_tail_sizes_agrees(fraction, least):
    table = _tail_sizes(3000, fraction, least).tolist()
    assert table == [tail_size(k, fraction, least) for k in range(3001)]


def test_a_tail_has_at_least_ten_points():
    assert tail_size(500, 0.001, 1) == 10


def test_nan_among_the_negatives_gives_nan_without_a_warning():
    # Sorted last, it leaves its place to an excluded pair, which is infinitely far away.
    shortfalls = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, math.inf, math.inf, math.nan]])
    assert fit_all(shortfalls, None, 6).beta_hat.isnan().all()


@pytest.mark.parametrize("beta", [1.0, 2.5, 6.0])
def test_the_shape_of_a_weibull_sample_is_recovered(beta, generator):
    # Shortfalls u^(1/beta) have the distribution function x^beta. The slope of 500 order
    # statistics has a relative standard error near 1 / sqrt(500) = 4.5 %; the mean over 400
    # anchors is left with its bias, a few percent.
    sample = torch.rand(400, 5000, generator=generator, dtype=torch.float64) ** (1 / beta)
    fit = fit_all(sample, None, 5000)
    assert float(fit.beta_hat.mean()) == pytest.approx(beta, rel=0.03)
    assert float(fit.r_squared.min()) > 0.9


@pytest.mark.parametrize("k", [3, 9, 10, 19, 20, 40, 41, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_lines_equal_the_loop(k, dtype, generator):
    sample = 0.05 + torch.rand(6, k, generator=generator, dtype=dtype)
    fit = fit_all(sample, None, k)
    tolerance = (
        {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
    )
    for i, row in enumerate(sample.double().tolist()):
        expected = reference.evidence(row)
        for name in ("beta_hat", "r_squared", "delta_aic", "rho"):
            torch.testing.assert_close(
                getattr(fit, name)[i].double(),
                torch.tensor(getattr(expected, name), dtype=torch.float64),
                **tolerance,
            )
        assert int(fit.num_points[i]) == expected.num_points


@pytest.mark.parametrize(
    "counts",
    [[0, 1, 2, 3, 12, 100, 505, 510], [0, 0], [2, 2], [100, 100, 100], [300, 301], [510] * 3, []],
    ids=str,
)  # different ones, equal ones, different ones with tails of one size, none
def test_anchors_follow_their_own_numbers_of_negatives(generator, counts):
    sample = torch.rand(len(counts), 510, generator=generator, dtype=torch.float64)
    for row, count in zip(sample, counts, strict=True):
        row[count:] = math.inf
    fit = fit_all(sample, torch.tensor(counts, dtype=torch.int64), 510)
    for i, (row, count) in enumerate(zip(sample.tolist(), counts, strict=True)):
        expected = reference.evidence(row[:count])
        found = [float(column[i]) for column in fit]
        assert found == pytest.approx(
            [
                expected.beta_hat,
                expected.r_squared,
                expected.delta_aic,
                expected.rho,
                expected.num_points,
            ],
            rel=1e-9,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tail_of_equal_shortfalls_is_finite_and_no_weibull(dtype):
    fit = fit_all(torch.full((2, 64), 0.3, dtype=dtype), None, 64)
    assert all(column.isfinite().all() for column in fit)
    assert fit.beta_hat.tolist() == pytest.approx([0.0, 0.0], abs=1e-3)
    assert fit.r_squared.tolist() == pytest.approx([0.0, 0.0], abs=1e-3)


def test_only_the_tail_counts(generator):
    sample = torch.rand(3, 510, generator=generator, dtype=torch.float64)
    shuffled = sample[:, torch.randperm(510, generator=generator)]
    # What lies beyond the tenth may be anything.
    beyond = shuffled.where(shuffled <= shuffled.kthvalue(51, dim=1, keepdim=True).values, 1.9)
    for found, expected in zip(
        fit_all(beyond, None, 510),
        fit_all(sample, None, 510),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("count", [2, 500, 1024, 5000, 30_000])
def test_the_pooled_line_equals_the_loop(count, generator):
    sample = torch.rand(count, generator=generator, dtype=torch.float64) ** 0.3
    padded = torch.cat([sample, torch.full((40,), math.inf, dtype=torch.float64)])
    size = min(count, max(1024, math.floor(0.05 * count)))
    expected = reference.fit(sorted(sample.tolist()), size)
    groups = [padded[:21][None], padded[21:][None]]
    found = fit_pooled(pooled_tail(groups, count + 40), torch.tensor(count))
    assert [float(value) for value in found] == pytest.approx(expected[:2], rel=1e-9)
