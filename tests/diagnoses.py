"""Small real diagnoses, each made once, of which figures and pages are made."""

import functools
from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_digits

from weince_lightning.diagnostics import diagnosis as diagnosis_module
from weince_lightning.diagnostics.diagnosis import Diagnosis, diagnose
from weince_lightning.diagnostics.embeddings import Embeddings
from weince_lightning.extremes import nulls
from weince_lightning.extremes.threshold import fit_stability, fit_threshold


@pytest.fixture(autouse=True)
def few_draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw less at random: how wide an interval is shows in tests of extremes, and in slow ones."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(nulls, "NUM_REPLICATES", 60)
        monkeypatch.setattr(diagnosis_module, "SHARES", diagnosis_module.SHARES[::5])
        for function, draws in ((fit_threshold, 60), (fit_stability, 20)):
            fewer = partial(function, num_resamples=draws)
            monkeypatch.setattr(diagnosis_module, function.__name__, fewer)


@functools.cache
def pairs() -> Diagnosis:
    """Two noisy views of 256 random vectors: a link can be fitted."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((256, 16))
    first, second = rows + 0.8 * generator.standard_normal((2, 256, 16))
    return diagnose(Embeddings(first, second))


@functools.cache
def digits() -> Diagnosis:
    """Pixels of 600 digits: a short tail that ends near 1, no positives."""
    pixels = load_digits().data[:600]
    return diagnose(Embeddings(pixels - pixels.mean(axis=0)))


@functools.cache
def plane() -> Diagnosis:
    """Directions in the plane: their similarities crowd at 1, where no fit can be."""
    return diagnose(Embeddings(np.random.default_rng(0).standard_normal((150, 2))))


@functools.cache
def constant() -> Diagnosis:
    """Directions at right angles: all similarities are 0."""
    return diagnose(Embeddings(np.eye(100)))


@functools.cache
def three() -> Diagnosis:
    """Hardly anything at all."""
    return diagnose(Embeddings(np.eye(3) + 0.1))
