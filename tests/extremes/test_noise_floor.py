"""The noise floor of the two links, and its theory written out."""

import math

import numpy as np
import pytest

from weince_lightning.extremes.noise_floor import BETA, SCORES, noise_floor


@pytest.fixture(scope="module")
def found():
    return noise_floor(np.random.default_rng(0))


def chances_by(logits):
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def moments(chances, values):
    mean = sum(p * x for p, x in zip(chances, values, strict=True))
    return mean, sum(p * (x - mean) ** 2 for p, x in zip(chances, values, strict=True))


def test_log_odds_of_the_law():
    assert noise_floor(np.random.default_rng(0), [100], 10).log_odds == pytest.approx(
        0.8 * math.log(0.85 / 0.10)
    )


def test_weibit_error_falls_as_the_cramer_rao_bound(found):
    depths = [-math.log(1 - s) for s in SCORES]
    _, information = moments(chances_by([BETA * x for x in depths]), depths)
    bound = (depths[-1] - depths[0]) ** 2 / information
    assert bound == pytest.approx(7.136, abs=5e-4)
    assert found.weibit_floor == pytest.approx(bound, rel=1e-12)
    scaled = found.weibit_errors * found.sizes
    assert scaled[-1] == pytest.approx(7.136, rel=0.03)
    assert scaled[2:] == pytest.approx([7.136] * 3, rel=0.03)


def test_softmax_error_stays_at_its_bias(found):
    """Its limit solves E[s] under the softmax = E[s] under the law, found here by bisection."""
    law = chances_by([-BETA * math.log(1 - s) for s in SCORES])
    wanted, spread = moments(law, SCORES)
    low, high = 0.0, 20.0
    for _ in range(100):
        middle = (low + high) / 2
        mean, model_spread = moments(chances_by([middle * s for s in SCORES]), SCORES)
        low, high = (middle, high) if mean < wanted else (low, middle)
    span = SCORES[-1] - SCORES[0]
    floor = (low * span - found.log_odds) ** 2
    assert floor == pytest.approx(0.04515, abs=5e-6)
    assert found.softmax_floor == pytest.approx(floor, rel=1e-9)
    # The rest falls as 1 / n; most of it is the variance of a fit by a wrong model.
    rest = (found.softmax_errors - floor) * found.sizes
    assert rest == pytest.approx([rest.mean()] * len(rest), rel=0.1)
    assert found.softmax_errors[-1] == pytest.approx(floor + rest.mean() / 10_000, rel=0.03)
    assert rest.mean() > span**2 * spread / model_spread**2


def test_the_weibit_is_better_at_every_size_by_a_growing_factor(found):
    factors = found.softmax_errors / found.weibit_errors
    assert (np.diff(factors) > 0).all()
    assert factors[0] > 1


def test_a_seed_gives_the_same_errors():
    one, other = (noise_floor(np.random.default_rng(3), [200], 50) for _ in range(2))
    assert one.weibit_errors == other.weibit_errors
    assert one.softmax_errors == other.softmax_errors
