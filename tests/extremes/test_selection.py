"""The link of simulated winners is found again."""

import math

import numpy as np
import pytest
from cases import few
from scipy import optimize, stats

from weince_lightning.extremes.selection import fit_link, link_profile

TEMPERATURE = 0.5


def winners(seed, share, theta, num_winners, num_candidates):
    """Draw winners by the blended logit, and split each row into it and the others."""
    generator = np.random.default_rng(seed)
    scores = generator.uniform(-0.6, 0.97, (num_winners, num_candidates))
    logits = theta * ((1 - share) * scores / TEMPERATURE - share * np.log(1 - scores))
    won = (logits + generator.gumbel(size=scores.shape)).argmax(1)
    others = np.array([np.delete(row, place) for row, place in zip(scores, won, strict=True)])
    return scores[np.arange(num_winners), won], others


def log_likelihood(positive, negatives, share, theta):
    """Sum the definition winner by winner; `-inf` is no candidate."""
    total = 0.0
    for winner, others in zip(positive, negatives, strict=True):
        candidates = [winner, *(s for s in others if s > -math.inf)]
        logits = [
            theta * ((1 - share) * s / TEMPERATURE - share * math.log(max(1 - s, 1e-6)))
            for s in candidates
        ]
        total += logits[0] - math.log(sum(math.exp(x) for x in logits))
    return total


@pytest.mark.parametrize("share", few([0.0, 0.3, 0.7, 1.0], 1))
@pytest.mark.parametrize("num_candidates", few([4, 20, 100], 1))
def test_share_and_scale_of_simulated_winners_are_found(share, num_candidates):
    positive, negatives = winners(1, share, 1.5, 3000, num_candidates)
    fit = fit_link(positive, negatives, TEMPERATURE)
    # Four standard errors of lambda are 0.2 at 4 candidates, half of that at 20 and more.
    assert fit.lambda_hat == pytest.approx(share, abs=0.2 if num_candidates == 4 else 0.12)
    assert fit.theta == pytest.approx(1.5, rel=0.1)
    assert fit.lambda_interval[0] - 0.05 <= share <= fit.lambda_interval[1] + 0.05
    assert (fit.p_value < 1e-3) == (share > 0)
    assert (fit.num_winners, fit.temperature, fit.note) == (3000, TEMPERATURE, "")


@pytest.mark.slow
def test_the_boundary_test_keeps_its_level():
    p_values = [
        fit_link(*winners(seed, 0.0, 1.5, 300, 8), TEMPERATURE).p_value for seed in range(200)
    ]
    low, high = stats.binom.interval(0.999, 200, 0.05)
    assert low <= sum(p < 0.05 for p in p_values) <= high
    # Half of the statistics are 0.
    low, high = stats.binom.interval(0.999, 200, 0.5)
    assert low <= sum(p == 1.0 for p in p_values) <= high


@pytest.mark.slow
def test_intervals_cover_at_their_rate():
    hits = 0
    for seed in range(200):
        low, high = fit_link(*winners(seed, 0.5, 1.5, 300, 8), TEMPERATURE).lambda_interval
        hits += low <= 0.5 <= high
    low, high = stats.binom.interval(0.999, 200, 0.95)
    assert low <= hits <= high


def test_fit_is_the_maximum_of_the_definition():
    positive, negatives = winners(3, 0.5, 2.0, 200, 5)
    negatives[::3, 2] = -np.inf
    fit = fit_link(positive, negatives, TEMPERATURE)
    found = optimize.minimize(
        lambda x: -log_likelihood(positive, negatives, x[0], x[1]),
        [0.5, 1.0],
        method="L-BFGS-B",
        bounds=[(0, 1), (0, None)],
        options={"ftol": 1e-15, "gtol": 1e-8},
    )
    assert 0.1 < fit.lambda_hat < 0.9
    assert fit.lambda_hat == pytest.approx(found.x[0], abs=1e-4)
    assert fit.theta == pytest.approx(found.x[1], abs=1e-4)
    assert fit.log_likelihood == pytest.approx(-found.fun, rel=1e-10)
    softmax = optimize.minimize_scalar(lambda x: -log_likelihood(positive, negatives, 0.0, x))
    ratio = 2 * (fit.log_likelihood + softmax.fun)
    assert fit.p_value == pytest.approx(stats.chi2.sf(ratio, 1) / 2, rel=1e-6)
    (at_low,) = link_profile(positive, negatives, [fit.lambda_interval[0]], TEMPERATURE)
    assert fit.lambda_interval[0] == 0 or at_low == pytest.approx(
        fit.log_likelihood - 3.841459 / 2, abs=1e-5
    )


def test_another_temperature_is_another_share_of_the_same_link():
    """Identified are theta (1 - lambda) / tau and theta lambda alone."""
    positive, negatives = winners(4, 0.5, 1.5, 1000, 10)
    one, other = (fit_link(positive, negatives, temperature) for temperature in (0.5, 0.1))
    assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-12)
    assert one.p_value == pytest.approx(other.p_value, rel=1e-6)
    assert one.theta * one.lambda_hat == pytest.approx(other.theta * other.lambda_hat, rel=1e-6)
    assert one.theta * (1 - one.lambda_hat) / 0.5 == pytest.approx(
        other.theta * (1 - other.lambda_hat) / 0.1, rel=1e-6
    )


def test_profile_peaks_at_the_fit():
    positive, negatives = winners(5, 0.5, 1.5, 1000, 10)
    fit = fit_link(positive, negatives, TEMPERATURE)
    shares = np.array([0.0, fit.lambda_hat - 0.01, fit.lambda_hat, fit.lambda_hat + 0.01, 1.0])
    heights = link_profile(positive, negatives, shares, TEMPERATURE)
    assert heights.argmax() == 2
    assert heights[2] == pytest.approx(fit.log_likelihood, rel=1e-12)


@pytest.mark.parametrize(
    ("positive", "negatives", "note"),
    [
        (np.full(9, 0.9), np.full((9, 3), 0.1), "every winner is the most similar"),
        (np.full(9, 0.1), np.full((9, 3), 0.9), "no more similar than candidates drawn at random"),
        (np.full(9, 0.5), np.full((9, 3), 0.5), "every winner is the most similar"),
        (np.empty(0), np.empty((0, 3)), "no winners"),
        (np.full(9, 0.5), np.full((9, 3), -np.inf), "every winner is the most similar"),
    ],
)
def test_winners_that_tell_nothing_give_a_reason_instead_of_numbers(positive, negatives, note):
    fit = fit_link(positive, negatives)
    assert fit.lambda_hat is fit.theta is fit.lambda_interval is fit.p_value is None
    assert note in fit.note


def test_similarities_of_one_stay_finite():
    positive, negatives = winners(6, 0.5, 1.5, 200, 6)
    negatives[:20, 0] = 1.0
    fit = fit_link(positive, negatives, TEMPERATURE)
    assert math.isfinite(fit.log_likelihood)
    assert 0 <= fit.lambda_hat <= 1


@pytest.mark.parametrize(
    ("positive", "negatives", "temperature", "message"),
    [
        (np.ones(3), np.ones((2, 3)), 0.5, "negatives must have a row for each winner"),
        (np.ones(3), np.ones(3), 0.5, "negatives must have a row for each winner"),
        (np.full(3, 2.0), np.ones((3, 3)), 0.5, "must lie in"),
        (np.ones(3), np.full((3, 3), np.nan), 0.5, "must lie in"),
        (np.ones(3), np.ones((3, 3)), 0.0, "temperature must be a number above 0, got 0.0"),
    ],
)
def test_wrong_arguments_are_named(positive, negatives, temperature, message):
    with pytest.raises(ValueError, match=message):
        fit_link(positive, negatives, temperature)
