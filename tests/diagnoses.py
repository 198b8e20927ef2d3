"""Small real diagnoses, each made once, of which figures and pages are made."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from weince_lightning.diagnostics import diagnosis as diagnosis_module
from weince_lightning.diagnostics.diagnosis import Diagnosis, diagnose
from weince_lightning.diagnostics.embeddings import Embeddings
from weince_lightning.extremes import nulls, threshold
from weince_lightning.extremes.pareto import anderson_darling
from weince_lightning.extremes.threshold import fit_stability, fit_threshold


@contextmanager
def fewer_draws() -> Iterator[None]:
    """Draw less at random: how wide an interval is shows in tests of extremes, and in slow ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nulls, "NUM_REPLICATES", 20)
        fewer = partial(anderson_darling, num_resamples=60)
        patch.setattr(threshold, "anderson_darling", fewer)
        for function, draws in ((fit_threshold, 60), (fit_stability, 10)):
            fewer = partial(function, num_resamples=draws)
            patch.setattr(diagnosis_module, function.__name__, fewer)
        yield


@pytest.fixture(autouse=True)
def few_draws(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fewer draws in the tests that run by default."""
    with nullcontext() if request.node.get_closest_marker("slow") else fewer_draws():
        yield


def small(*arrays: NDArray[np.floating]) -> Diagnosis:
    """A diagnosis for figures and pages."""
    with fewer_draws():
        return diagnose(Embeddings(*arrays))


@functools.cache
def pairs() -> Diagnosis:
    """Two noisy views of 256 random vectors: a link can be fitted."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((256, 16))
    first, second = rows + 0.8 * generator.standard_normal((2, 256, 16))
    return small(first, second)


@functools.cache
def digits() -> Diagnosis:
    """Pixels of 600 digits: a short tail that ends near 1, no positives."""
    pixels = load_digits().data[:600]
    return small(pixels - pixels.mean(axis=0))


@functools.cache
def plane() -> Diagnosis:
    """Directions in the plane: their similarities crowd at 1, where no fit can be."""
    return small(np.random.default_rng(0).standard_normal((150, 2)))


@functools.cache
def constant() -> Diagnosis:
    """Directions at right angles: all similarities are 0."""
    return small(np.eye(100))


@functools.cache
def three() -> Diagnosis:
    """Hardly anything at all."""
    return small(np.eye(3) + 0.1)
