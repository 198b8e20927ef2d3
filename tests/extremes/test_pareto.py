"""Fits of the generalised Pareto distribution: scipy, likelihoods by hand, simulations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from weince_lightning.extremes.pareto import (
    anderson_darling,
    exponential_test,
    fit_pareto,
    fit_rows,
    profile_likelihood,
    xi_interval,
)

SMALL = np.array([0.02, 0.05, 0.11, 0.16, 0.22, 0.31, 0.38, 0.52, 0.71, 0.94, 1.35, 2.1])


def pareto(xi, size, seed, sigma=1.0):
    generator = np.random.default_rng(seed)
    return stats.genpareto.rvs(xi, scale=sigma, size=size, random_state=generator)


def log_likelihood(values, xi, sigma):
    """Sum the log-density of the definition, one value at a time."""
    if xi == 0:
        return sum(-math.log(sigma) - y / sigma for y in values)
    return sum(-math.log(sigma) - (1 + 1 / xi) * math.log(1 + xi * y / sigma) for y in values)


@pytest.mark.parametrize("xi", [-0.6, -0.45, -0.2, 0.0, 0.4, 1.5])
def test_fit_agrees_with_scipy(xi):
    values = pareto(xi, 2000, seed=3, sigma=0.05)
    shape, _, scale = stats.genpareto.fit(values, xi, floc=0, scale=0.05)
    fit = fit_pareto(values)
    assert fit.xi == pytest.approx(shape, abs=2e-3)  # Nelder-Mead stops at 1e-4 of its simplex
    assert fit.sigma == pytest.approx(scale, rel=2e-3)
    theirs = stats.genpareto.logpdf(values, shape, scale=scale).sum()
    assert fit.log_likelihood >= theirs - 1e-9
    ours = stats.genpareto.logpdf(values, fit.xi, scale=fit.sigma).sum()
    assert fit.log_likelihood == pytest.approx(ours, rel=1e-12)


def test_fit_of_a_small_sample_solves_the_equations_of_the_likelihood():
    """Coles (2001), 4.10: both derivatives written out, and no neighbour is better."""
    fit = fit_pareto(SMALL)
    xi, sigma = fit.xi, fit.sigma
    reach = [1 + xi * y / sigma for y in SMALL]
    by_sigma = sum(
        -1 / sigma + (1 + xi) * y / sigma**2 / r for y, r in zip(SMALL, reach, strict=True)
    )
    by_xi = sum(
        math.log(r) / xi**2 - (1 + 1 / xi) * y / sigma / r
        for y, r in zip(SMALL, reach, strict=True)
    )
    assert by_sigma == pytest.approx(0, abs=1e-6)
    assert by_xi == pytest.approx(0, abs=1e-6)
    best = log_likelihood(SMALL, xi, sigma)
    assert fit.log_likelihood == pytest.approx(best, rel=1e-13)
    for step in (1e-3, -1e-3):
        assert log_likelihood(SMALL, xi + step, sigma) < best
        assert log_likelihood(SMALL, xi, sigma + step) < best


def test_interval_of_a_small_sample_ends_where_the_profile_drops_by_half_of_3_84():
    fit = fit_pareto(SMALL)

    def profile(xi):
        lowest = max(0.0, -xi * SMALL.max())
        found = optimize.minimize_scalar(
            lambda sigma: -log_likelihood(SMALL, xi, sigma),
            bounds=(lowest + 1e-9, lowest + 5),
            method="bounded",
            options={"xatol": 1e-10},
        )
        return -found.fun

    low, high = xi_interval(SMALL, fit)
    assert low < fit.xi < high
    for end in (low, high):
        assert fit.log_likelihood - profile(end) == pytest.approx(3.841459 / 2, abs=1e-5)


def test_exponential_test_is_the_likelihood_ratio():
    fit = fit_pareto(SMALL)
    mean = SMALL.mean()
    outcome = exponential_test(SMALL, fit)
    ratio = 2 * (fit.log_likelihood - log_likelihood(SMALL, 0, mean))
    assert outcome.statistic == pytest.approx(ratio, rel=1e-9)
    # Chi-square with one degree of freedom is a squared normal.
    assert outcome.p_value == pytest.approx(math.erfc(math.sqrt(ratio / 2)), rel=1e-9)


@pytest.mark.slow
@settings(max_examples=20)
@given(xi=st.floats(-0.95, 0.5), seed=st.integers(0, 1000))
def test_fit_of_any_sample_is_the_interior_maximum(xi, seed):
    assert_interior_maximum(xi, seed)


@pytest.mark.parametrize(("xi", "seed"), [(-0.95, 0), (-0.95, 8), (-0.3, 0), (0.4, 1)])
def test_fit_is_the_interior_maximum_and_none_where_there_is_none(xi, seed):
    """There is none for the first."""
    assert_interior_maximum(xi, seed)


def assert_interior_maximum(xi, seed):
    values = pareto(xi, 60, seed)
    shapes = np.linspace(-0.999, 2, 600)
    heights = np.array([profile_likelihood(values, x).log_likelihood for x in shapes])
    inside = heights[1:-1]
    peaks = np.flatnonzero((inside > heights[:-2]) & (inside > heights[2:])) + 1
    fit = fit_pareto(values)
    assert (fit is None) == (len(peaks) == 0)
    if fit is not None:
        assert fit.xi == pytest.approx(shapes[peaks[heights[peaks].argmax()]], abs=0.006)


def test_fit_follows_the_unit_of_the_scores():
    values = pareto(-0.3, 300, seed=0)
    one, other = fit_pareto(values), fit_pareto(values * 1e-7)
    assert other.xi == pytest.approx(one.xi, abs=1e-6)
    assert other.sigma == pytest.approx(one.sigma * 1e-7, rel=1e-6)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_what_is_no_exceedance_is_refused(bad):
    with pytest.raises(ValueError, match="exceedances must be greater than 0 and finite"):
        fit_pareto(np.append(SMALL, bad))


@pytest.mark.parametrize("values", [np.ones(50), np.arange(1.0, 10.0), np.empty(0)])
def test_one_value_or_few_give_no_fit(values):
    assert fit_pareto(values) is None


def test_weights_count_repetitions():
    values = pareto(-0.2, 200, seed=1)
    weights = np.random.default_rng(0).multinomial(200, np.full(200, 1 / 200), 3).astype(float)
    # The largest value is left out once: it must not bound the scale there.
    weights[0, values.argmax()] = 0
    together = np.stack(fit_rows(values[None], weights), axis=1)
    for row, found in zip(weights, together, strict=True):
        assert found == pytest.approx(fit_pareto(np.repeat(values, row.astype(int))), rel=1e-5)


def covered(count, level=0.95, runs=200):
    """Tell whether a count of 200 is what 95 % gives, at a probability of 0.999."""
    low, high = stats.binom.interval(0.999, runs, level)
    return low <= count <= high


@pytest.mark.parametrize("xi", [-0.45, -0.2, 0.0, 0.4])
@pytest.mark.slow
def test_intervals_cover_at_their_rate(xi):
    hits, rejected = 0, 0
    for seed in range(200):
        values = pareto(xi, 500, seed)
        fit = fit_pareto(values)
        interval = xi_interval(values, fit)
        # Near -1/2 some fits fall below, where no interval is given.
        hits += fit.xi > -0.5 if interval is None else interval[0] <= xi <= interval[1]
        rejected += xi == 0 and exponential_test(values, fit).p_value < 0.05
    if xi == -0.45:
        with_interval = sum(fit_pareto(pareto(xi, 500, seed)).xi > -0.5 for seed in range(200))
        assert with_interval > 160
        assert hits >= stats.binom.ppf(0.0005, with_interval, 0.95)
    else:
        assert covered(hits)
    if xi == 0:
        assert covered(200 - rejected)


def test_there_is_no_interval_where_likelihood_theory_breaks_down():
    values = pareto(-0.7, 500, seed=0)
    fit = fit_pareto(values)
    assert fit.xi < -0.5
    assert xi_interval(values, fit) is None


@pytest.mark.slow
def test_goodness_of_fit_keeps_its_level_and_finds_another_law():
    generator = np.random.default_rng(0)
    p_values = []
    for seed in range(100):
        values = pareto(-0.3, 200, seed)
        p_values.append(anderson_darling(values, fit_pareto(values), generator, 99).p_value)
    # Uniform under its null hypothesis; Kolmogorov's distance at 0.001 is 0.19 for 100.
    assert stats.kstest(p_values, "uniform").statistic < 0.19
    humps = np.random.default_rng(1).gamma(4.0, size=500)
    assert anderson_darling(humps, fit_pareto(humps), generator, 99).p_value == 0.01


def test_the_statistic_is_that_of_the_definition():
    values = np.sort(pareto(0.2, 50, seed=5))
    fit = fit_pareto(values)
    law = stats.genpareto(fit.xi, scale=fit.sigma)
    n = len(values)
    total = sum(
        (2 * i + 1) * (math.log(law.cdf(values[i])) + math.log(law.sf(values[n - 1 - i])))
        for i in range(n)
    )
    outcome = anderson_darling(values, fit, np.random.default_rng(0), 1)
    assert outcome.statistic == pytest.approx(-n - total / n, rel=1e-9)
