"""Peaks over threshold on scores whose tail is known."""

import numpy as np
import pytest
from cases import few
from scipy import optimize, stats

from weince_lightning.extremes.nulls import gaussian_null, sphere_null
from weince_lightning.extremes.threshold import (
    Pairs,
    Tail,
    fit_stability,
    fit_threshold,
    goodness_of_fit,
    mean_excess,
    qq_points,
)


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def directions(generator, samples, dimension):
    rows = generator.standard_normal((samples, dimension))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def tail_of(rows, keep=0.05):
    """Keep the largest similarities of all pairs of rows."""
    first, second = np.triu_indices(len(rows), 1)
    scores = (rows @ rows.T)[first, second]
    kept = np.argsort(scores)[-int(keep * len(scores)) :]
    pairs = Pairs(first[kept], second[kept], len(rows), len(rows))
    return Tail(scores[kept], len(scores), pairs)


def population_shape(law, quantile):
    """Fit the law itself, without a sample: a hundred thousand evenly spaced quantiles of it."""
    levels = (np.arange(100_000) + 0.5) / 100_000
    exceedances = law.isf((1 - quantile) * levels) - law.isf(1 - quantile)

    def loss(parameters):
        xi, log_sigma = parameters
        return -stats.genpareto.logpdf(exceedances, xi, scale=np.exp(log_sigma)).mean()

    start = [-0.05, np.log(exceedances.mean())]
    return optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-5}).x[0]


def test_threshold_is_numpys_quantile_also_where_the_lower_scores_are_gone(generator):
    scores = generator.standard_normal(9973)
    whole = Tail.of(scores)
    part = Tail(whole.scores[-700:], len(scores))
    for quantile in (0.95, 0.98, 0.99, 0.9953, 1.0):
        assert part.threshold(quantile) == pytest.approx(np.quantile(scores, quantile), abs=1e-14)
        assert part.threshold(quantile) == whole.threshold(quantile)
    with pytest.raises(
        ValueError, match=r"quantile must lie in \[0\.9298, 1\] with the 700 scores"
    ):
        part.threshold(0.9)


@pytest.mark.slow
def test_shortfalls_of_beta_scores_have_their_shape_at_every_threshold():
    """Beta(1, b): exceedances are generalised Pareto, xi = -1/b, and end at 1."""
    hits = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        fit = fit_threshold(Tail.of(generator.beta(1, 4, 5000)), generator, 0.9)
        assert fit.num_exceedances == 500
        hits += fit.xi_interval[0] <= -0.25 <= fit.xi_interval[1]
    low, high = stats.binom.interval(0.999, 200, 0.95)
    assert low <= hits <= high
    assert fit.endpoint == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("dimension", range(4, 10))
def test_uniform_directions_have_the_shape_of_their_dimension(dimension, generator):
    """1500 directions, 1.1 million similarities, the largest 1 %."""
    tail = tail_of(directions(generator, 1500, dimension))
    fit = fit_threshold(tail, generator, num_resamples=20)
    assert fit.xi == pytest.approx(-2 / (dimension - 1), abs=0.05)
    assert fit.endpoint == pytest.approx(1.0, abs=0.02)
    assert (fit.xi_interval is None) == (fit.xi <= -0.5)
    assert ("likelihood theory" in fit.note) == (fit.xi <= -0.5)


@pytest.mark.parametrize(
    ("law", "limit"),
    [
        (stats.beta(2, 3), -1 / 3),
        (stats.beta(5, 2.5), -1 / 2.5),
        (stats.expon(), 0.0),
        (stats.t(3), 1 / 3),
    ],
)
def test_known_tails_are_met_at_one_percent_of_a_million(law, limit, generator):
    tail = Tail.of(law.rvs(1_000_000, random_state=generator))
    assert fit_threshold(tail, generator).xi == pytest.approx(limit, abs=0.05)


@pytest.mark.parametrize(("law", "limit"), [(stats.beta(2, 3), -1 / 3), (stats.t(3), 1 / 3)])
@pytest.mark.slow
def test_shapes_over_rising_thresholds_approach_the_limit(law, limit, generator):
    tail = Tail.of(law.rvs(2_000_000, random_state=generator))
    shapes = [fit.xi for fit in fit_stability(tail, generator, (0.8, 0.95, 0.99))]
    away = np.abs(np.array(shapes) - limit)
    assert away[0] > away[1] > away[2]


@pytest.mark.parametrize(
    "law",
    few([stats.norm(), stats.beta(63.5, 63.5, loc=-1, scale=2)], 0),
    ids=["Gaussian", "sphere in 128 dimensions"],
)
def test_slow_tails_have_the_shape_of_their_threshold(law, generator):
    """Their limits, 0 and -2/127, are far away: what 0.99 gives follows from the law alone."""
    expected = population_shape(law, 0.99)
    assert -0.11 < expected < -0.07
    tail = Tail.of(law.rvs(2_000_000, random_state=generator))
    found = fit_threshold(tail, generator)
    assert found.xi_interval[0] <= expected <= found.xi_interval[1]
    assert found.xi == pytest.approx(expected, abs=0.02)


@pytest.mark.slow
def test_nulls_are_what_a_simulation_of_scores_gives(generator):
    half_range = []
    for null, law in [
        (gaussian_null(0.2, 0.1, 1000, 0.99, generator), stats.norm(0.2, 0.1)),
        (sphere_null(16, 1000, 0.99, generator), stats.beta(7.5, 7.5, loc=-1, scale=2)),
    ]:
        fits = [
            fit_threshold(Tail.of(law.rvs(100_000, random_state=generator)), generator)
            for _ in range(30)
        ]
        shapes = [fit.xi for fit in fits]
        error = np.std(shapes) / 30**0.5
        assert null.xi == pytest.approx(np.mean(shapes), abs=4 * error)
        half_range.append((null.xi_range[1] - null.xi_range[0]) / (4 * np.std(shapes)))
        ends = [np.inf if fit.endpoint is None else fit.endpoint for fit in fits]
        assert null.endpoint == pytest.approx(np.median(ends), rel=0.15)
    assert np.mean(half_range) == pytest.approx(1.0, abs=0.3)


def test_a_circle_and_a_sphere_have_no_null(generator):
    """Shapes of -2 and -1: the likelihood has no maximum."""
    assert sphere_null(2, 1000, 0.99, generator) is None


def unequal_directions(generator, samples):
    """Some samples are near many others: their similarities are no independent scores."""
    pull = 0.8 * generator.beta(0.5, 2, size=(samples, 1))
    rows = (1 - pull) * directions(generator, samples, 16) + pull * np.eye(16)[0]
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def as_independent(tail):
    return tail._replace(pairs=None)


def test_interval_of_similarities_is_wider_where_samples_differ(generator):
    tail = tail_of(unequal_directions(generator, 300))
    fit = fit_threshold(tail, generator)
    low, high = fit_threshold(as_independent(tail), generator).xi_interval
    assert fit.xi_interval[1] - fit.xi_interval[0] > 1.5 * (high - low)
    assert fit.xi_interval[0] < fit.xi < fit.xi_interval[1]


@pytest.mark.slow
def test_interval_of_similarities_covers_where_samples_differ():
    """The shape in the population is that of 6000 samples; each run sees 300."""
    population = tail_of(unequal_directions(np.random.default_rng(999), 6000), 0.02)
    truth = fit_threshold(as_independent(population), np.random.default_rng(0)).xi
    hits, naive = 0, 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        tail = tail_of(unequal_directions(generator, 300))
        low, high = fit_threshold(tail, generator, num_resamples=200).xi_interval
        hits += low <= truth <= high
        low, high = fit_threshold(as_independent(tail), generator).xi_interval
        naive += low <= truth <= high
    assert hits >= stats.binom.ppf(0.001, 200, 0.95)
    assert naive < stats.binom.ppf(0.001, 200, 0.95)


def test_too_few_exceedances_give_a_reason_instead_of_numbers(generator):
    fit = fit_threshold(Tail.of(generator.standard_normal(500)), generator, 0.99)
    assert fit.xi is fit.sigma is fit.endpoint is fit.xi_interval is None
    assert fit.note == "too few exceedances, 5 where 10 are needed"
    with pytest.raises(ValueError, match="fit must have a shape, got none"):
        qq_points(Tail.of(np.arange(5.0)), fit)
    assert goodness_of_fit(Tail.of(generator.standard_normal(500)), fit, generator) is None


def test_equal_seeds_give_equal_intervals():
    tail = tail_of(directions(np.random.default_rng(1), 300, 8))
    one, other = (fit_threshold(tail, np.random.default_rng(5)) for _ in range(2))
    assert one == other


def test_mean_excess_is_a_line_for_an_exponential_and_falls_towards_an_end(generator):
    line = mean_excess(Tail.of(generator.exponential(2.0, 100_000)))
    assert np.abs((line.means - 2) / line.errors)[:80].max() < 5
    scores = np.sort(generator.beta(1, 4, 1000))
    curve = mean_excess(Tail.of(scores), 10)
    for threshold, mean in zip(curve.thresholds, curve.means, strict=True):
        assert mean == pytest.approx((scores[scores > threshold] - threshold).mean(), rel=1e-9)
    assert curve.means[0] > 2 * curve.means[-1]


def test_quantiles_of_a_fit_lie_on_the_diagonal_of_its_own_law(generator):
    tail = Tail.of(generator.beta(1, 4, 200_000))
    expected, observed = qq_points(tail, fit_threshold(tail, generator))
    assert len(expected) == len(observed) <= 200
    assert (np.diff(observed) > 0).all()
    assert np.abs(expected - observed).max() < 0.03
    assert observed[-1] == tail.scores[-1]


def test_goodness_of_fit_tells_a_tail_from_a_cluster(generator):
    smooth = Tail.of(generator.beta(1, 4, 50_000))
    fit = fit_threshold(smooth, generator)
    assert goodness_of_fit(smooth, fit, generator).p_value > 0.01
    lumps = Tail.of(
        np.concatenate([generator.beta(1, 4, 50_000), generator.normal(0.9, 0.003, 300)])
    )
    assert goodness_of_fit(lumps, fit_threshold(lumps, generator), generator).p_value < 0.01


@pytest.mark.parametrize("scores", [[], [1.0, np.nan], [np.inf, 0.0]])
def test_scores_that_can_not_be_used_are_refused(scores):
    with pytest.raises(ValueError, match="scores must hold finite numbers, at least one"):
        Tail.of(scores)


def test_wrong_arguments_of_a_null_are_named(generator):
    with pytest.raises(ValueError, match="standard_deviation must be a number above 0, got 0"):
        gaussian_null(0.0, 0.0, 100, 0.99, generator)
    with pytest.raises(ValueError, match="dimension must be at least 2, got 1"):
        sphere_null(1, 100, 0.99, generator)
    with pytest.raises(ValueError, match="num_exceedances must be at least 10, got 3"):
        sphere_null(8, 3, 0.99, generator)


def test_equal_scores_at_the_top_are_named(generator):
    fit = fit_threshold(Tail.of(np.minimum(generator.random(1000), 0.9)), generator)
    assert fit.note == "the largest scores are equal, so that none lies above the threshold"
