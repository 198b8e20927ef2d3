"""The answer to simulated embeddings of every kind, and that nothing beside it says otherwise."""

import re
from pathlib import Path

import diagnoses
import numpy as np
import pytest
from cases import few

from weince_lightning.diagnostics import Embeddings, decision, diagnose, draw, pronounce
from weince_lightning.diagnostics.page import render_page

NO_REASON, CANNOT_TELL = "no reason to expect a gain", "cannot tell"
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def uniform(seed, samples=600, dimension=64, filled=None):
    """Directions without structure, in some of the dimensions."""
    rows = np.zeros((samples, dimension))
    filled = filled or dimension
    rows[:, :filled] = np.random.default_rng(seed).standard_normal((samples, filled))
    return rows


def around(centers, times, spread, seed=1):
    """Several rows about each center."""
    rows = np.repeat(centers, times, axis=0)
    return rows + spread * np.random.default_rng(seed).standard_normal(rows.shape)


def twice_written():
    return np.concatenate([uniform(0), uniform(0)[:60]])


def far_from_one():
    """A spectrum: the hardest similarities stop, at about 0.8."""
    rows = np.random.default_rng(0).standard_normal((1500, 512))
    return rows * np.arange(1, 513) ** -0.5


def short():
    """Few dimensions of many: the hardest similarities stop near 1."""
    return uniform(0, 500, filled=7)


CASES = {
    "uniform on the sphere": (lambda: uniform(0), {}, NO_REASON, "no earlier than those of random"),
    "too few": (lambda: uniform(0, 50), {}, CANNOT_TELL, "50 rows are too few"),
    "near copies": (lambda: around(uniform(0, 200), 3, 0.01), {}, CANNOT_TELL, "nearly copies"),
    "shorter than untrained": (
        short, {"against": lambda: uniform(1, 500)}, CANNOT_TELL,
        "no training published with this package has gained",
    ),
    "short, nothing known of the untrained": (short, {}, CANNOT_TELL, "an untrained encoder often"),
    "as short as untrained": (
        short, {"against": lambda: uniform(1, 500, filled=7)}, NO_REASON, "training has not made",
    ),
    "short, at a low temperature": (short, {"temperature": 0.02}, NO_REASON, "change little"),
    "equal rows": (twice_written, {}, NO_REASON, "no earlier than those of random"),
    "collapsed": (lambda: 1 + 0.001 * uniform(0), {}, CANNOT_TELL, "collapsed encoder"),
    "classes of two": (lambda: around(uniform(0, 300), 2, 0.5), {}, NO_REASON, "stop no earlier"),
    "classes of forty": (
        lambda: around(uniform(0, 10), 40, 0.2), {}, CANNOT_TELL, "may or may not",
    ),
    "few dimensions in all": (
        lambda: uniform(0, 2000, 6), {}, NO_REASON, "no earlier than those of random",
    ),
    "far from 1": (far_from_one, {}, NO_REASON, "stop early, at a similarity of 0."),
    "in the plane": (lambda: uniform(0, 600, 2), {}, CANNOT_TELL, "copies"),
}  # fmt: skip


@pytest.fixture(scope="module")
def made():
    """Diagnoses by the name of the case."""
    return {}


def found(made, name):
    rows, options = CASES[name][:2]
    if name not in made:
        options = dict(options)
        if "against" in options:
            options["against"] = Embeddings(options["against"]())
        made[name] = diagnose(Embeddings(rows()), **options)
    return made[name]


@pytest.mark.parametrize("name", few(CASES, 0, 1, 2, 3))
def test_every_kind_of_embeddings_has_its_answer(made, name):
    diagnosis = found(made, name)
    answer, why = CASES[name][2:]
    verdict = pronounce(diagnosis, "my rows.npy")
    assert verdict.answer == answer
    assert why in verdict.why
    # One sentence, in words for everybody.
    assert re.fullmatch(r"[^ξλσβΔ]+[^.]\.", verdict.why)
    assert not re.search(r"\b(xi|tail|Weibull|Pareto|shape|threshold)\b", verdict.why)
    assert re.match(r"weince (diagnose 'my rows.npy'|sweep sweeps/digits --dry-run)", verdict.next)
    # No line names an end that no cosine can have.
    for number in re.findall(r"ends at a similarity of ([\d.]+\d)", " ".join(verdict.findings)):
        assert float(number) <= 1


def test_nothing_is_worth_trying_before_results_support_it(made, monkeypatch):
    """They are folders of docs/results; the answer follows as soon as there is one."""
    assert all((RESULTS / name).is_dir() for name in decision.SUPPORTED_BY)
    promising = found(made, "shorter than untrained")
    monkeypatch.setattr(decision, "SUPPORTED_BY", ())
    assert pronounce(promising).answer == CANNOT_TELL
    monkeypatch.setattr(decision, "SUPPORTED_BY", ("some_results",))
    verdict = pronounce(promising)
    assert verdict.answer == "worth trying"
    assert "some_results" in verdict.why
    # Only together with all the rest.
    assert pronounce(promising._replace(against=None)).answer == CANNOT_TELL
    assert pronounce(found(made, "uniform on the sphere")).answer == NO_REASON


def test_an_end_beyond_similarity_1_is_no_finding(made):
    promising = found(made, "shorter than untrained")
    beyond = promising._replace(threshold=promising.threshold._replace(endpoint=4.95))
    verdict = pronounce(beyond)
    pictures = draw(beyond)
    page = render_page(beyond, verdict, {"hardest": pictures["hardest"]}, "a.npy")
    texts = [page, *verdict.findings, *(picture.alt for picture in pictures.values())]
    assert not any("4.95" in text for text in texts)
    assert "places no end of the tail below a similarity of 1" in " ".join(verdict.findings)


@pytest.mark.parametrize(
    ("interval", "means"),
    [
        ((0.0, 1.0), "inconclusive"),
        ((0.03, 0.97), "inconclusive"),
        ((0.0, 0.3), "the softmax alone is not ruled out"),
        ((0.1, 0.4), "not the softmax alone"),
    ],
)
def test_the_interval_of_the_link_says_what_it_means_whatever_its_p_value(interval, means):
    diagnosis = diagnoses.pairs()
    for p_value in (1e-9, 0.9):
        link = diagnosis.link._replace(lambda_interval=interval, p_value=p_value)
        (text,) = [
            finding
            for finding in pronounce(diagnosis._replace(link=link)).findings
            if "the link" in finding
        ]
        assert text.endswith(f": {means}.")
        assert "p =" not in text
