"""What is compared with whom, against loops; the numbers of a diagnosis as a whole."""

import json
import math
import subprocess
import sys

import diagnoses
import numpy as np
import pytest
import reference
import torch
from cases import few

from weince_lightning import WEINCELoss
from weince_lightning.diagnostics import anchors as anchors_module
from weince_lightning.diagnostics import pooled as pooled_module
from weince_lightning.diagnostics.anchors import known_tails, look_at_batches
from weince_lightning.diagnostics.diagnosis import diagnose
from weince_lightning.diagnostics.embeddings import Embeddings, take_census
from weince_lightning.diagnostics.pooled import pool
from weince_lightning.diagnostics.verdict import pronounce
from weince_lightning.extremes.threshold import fit_threshold

SAMPLES = 60
LAYOUTS = ("alone", "views", "pairs", "queries")


@pytest.fixture
def make():
    """Embeddings with an id that comes twice and a row that comes twice."""

    def build(layout):
        generator = np.random.default_rng(0)
        first, second = generator.standard_normal((2, SAMPLES, 5))
        first[30] = first[20]
        ids = np.arange(SAMPLES)
        ids[40] = 10
        if layout == "alone":
            return Embeddings(first, None, ids)
        return Embeddings(first, second, ids, layout)

    return build


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def are_negatives(i, j):
    return i != j and {i, j} not in ({30, 20}, {40, 10})


def similarities_by_loops(embeddings, num_anchors):
    """List each pair of negatives once."""
    first, second = embeddings.first, embeddings.second
    found = []
    for i in range(num_anchors):
        for j in range(SAMPLES):
            if not are_negatives(i, j):
                continue
            if second is not None and embeddings.layout != "views":
                found.append(cosine(first[i], second[j]))
            elif j >= num_anchors or i < j:
                sides = [first] if second is None else [first, second]
                found += [cosine(one[i], other[j]) for one in sides for other in sides]
    return sorted(found)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_rows", [1000, 30])
def test_pooled_similarities_are_those_of_loops(make, layout, num_rows, monkeypatch):
    """With all samples as anchors, and with the first ones alone."""
    monkeypatch.setattr(pooled_module, "MAX_ANCHORS", num_rows)
    embeddings = make(layout)
    found = pool(embeddings, take_census(embeddings), torch.arange(SAMPLES))
    num_anchors = min(SAMPLES, num_rows // 2 if layout == "views" else num_rows)
    assert found.num_anchors == num_anchors
    expected = similarities_by_loops(embeddings, num_anchors)
    assert found.tail.num_scores == len(expected)
    kept = len(found.tail.scores)
    assert kept >= 0.025 * len(expected)
    assert found.tail.scores == pytest.approx(expected[-kept:], abs=1e-12)
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.standard_deviation == pytest.approx(np.std(expected))
    pairs = found.tail.pairs
    sides = [embeddings.first] if embeddings.second is None else embeddings.sides
    # Things are numbered as they come: 30 shows what 20 does, and 40 what 10 does.
    alike = {30: 20, 40: 10}
    firsts = [i for i in range(SAMPLES) if i not in alike]
    samples = [[j for j in range(SAMPLES) if alike.get(j, j) == i] for i in firsts]
    assert pairs.num_things == len(firsts)
    for score, one, other in zip(found.tail.scores, pairs.first, pairs.second, strict=True):
        assert one != other
        values = [
            cosine(a[i], b[j])
            for i in samples[one] for j in samples[other] for a in sides for b in sides
        ]  # fmt: skip
        assert min(abs(score - value) for value in values) < 1e-12


@pytest.mark.parametrize("layout", ["views", "pairs", "queries"])
def test_evidence_is_what_the_loss_sees(make, layout):
    embeddings = make(layout)
    census = take_census(embeddings)
    found = look_at_batches(embeddings, census, torch.arange(SAMPLES), 0.5)
    views = [torch.from_numpy(side) for side in embeddings.sides]
    tail = WEINCELoss(0.5, layout=layout).terms(*views, ids=census.labels).tail
    for name in ("gate", "beta_hat", "rho", "delta_aic"):
        assert torch.allclose(getattr(found, name), getattr(tail, name), rtol=1e-9), name
    assert len(found.positive) == SAMPLES
    assert found.positive.tolist() == pytest.approx(
        [cosine(a, b) for a, b in zip(embeddings.first, embeddings.second, strict=True)]
    )
    row = found.negatives[10]
    sides = [embeddings.second] if layout != "views" else embeddings.sides
    expected = [cosine(embeddings.first[10], side[j]) for side in sides for j in range(SAMPLES)
                if are_negatives(10, j)]  # fmt: skip
    assert sorted(row[row > -np.inf].tolist()) == pytest.approx(sorted(expected))


def test_evidence_without_positives_is_that_of_the_equations(make):
    embeddings = make("alone")
    found = look_at_batches(embeddings, take_census(embeddings), torch.arange(SAMPLES), 0.5)
    rows = embeddings.first
    evidence = [
        reference.evidence(
            [max(1 - cosine(rows[i], rows[j]), 1e-6) for j in range(SAMPLES) if are_negatives(i, j)]
        )
        for i in range(SAMPLES)
    ]
    assert found.rho.tolist() == pytest.approx([each.rho for each in evidence])
    assert found.beta_hat.tolist() == pytest.approx([each.beta_hat for each in evidence])
    assert found.gate.tolist() == pytest.approx(reference.gates(evidence))
    assert len(found.positive) == 0


def test_shares_of_the_gradient_are_those_of_autograd(make):
    """For the softmax at 0.5: derivatives of the loss by each similarity."""
    embeddings = make("queries")
    found = look_at_batches(embeddings, take_census(embeddings), torch.arange(SAMPLES), 0.5)
    similarity = torch.tensor(
        [[cosine(embeddings.first[0], embeddings.second[j])] for j in range(SAMPLES)]
    )[:, 0].requires_grad_()
    torch.log_softmax(similarity / 0.5, 0)[0].backward()
    pull = similarity.grad[1:].abs().sort(descending=True).values
    counts = [round(part * (SAMPLES - 1)) for part in (0.01, 0.05, 0.1)]
    shares = [float(pull[: max(count, 1)].sum() / pull.sum()) for count in counts]
    assert found.shares[0, 0].tolist() == pytest.approx(shares)


def test_many_samples_are_looked_at_in_several_batches(monkeypatch):
    monkeypatch.setattr(anchors_module, "BATCH_SIZE", 16)
    generator = np.random.default_rng(0)
    embeddings = Embeddings(*generator.standard_normal((2, 70, 5)))
    found = look_at_batches(embeddings, take_census(embeddings), torch.randperm(70), 0.5)
    assert (found.num_batches, found.batch_size, len(found.gate)) == (4, 16, 128)
    assert found.num_negatives == 30


def test_delta_aic_of_known_tails_is_large_for_all():
    """It was simulated elsewhere with 510 scores: 171, 176, 156 and 174."""
    found = known_tails(510, np.random.default_rng(0))
    assert [*found.values()] == pytest.approx([171, 176, 156, 174], rel=0.1)


@pytest.mark.parametrize("name", ["pairs", "digits", "plane", "constant", "three"])
def test_numbers_are_json_with_all_keys(name):
    numbers = json.loads(json.dumps(getattr(diagnoses, name)().numbers(), allow_nan=False))
    assert {"xi", "xi_interval", "sigma", "quantile", "endpoint"} <= set(numbers["threshold"])
    assert {"lambda_hat", "lambda_interval", "p_value"} <= set(numbers["link"])
    assert {"lambda_mean", "beta_hat_median", "rho_median"} <= set(numbers["tail"])
    assert set(numbers["gradient_share"]) == {"softmax", "weibit", "weince"}
    assert all(set(shares) == {"1", "5", "10"} for shares in numbers["gradient_share"].values())
    assert {"samples", "dimension", "duplicates"} <= set(numbers)


def test_a_seed_gives_the_same_numbers(monkeypatch):
    monkeypatch.setattr(pooled_module, "MAX_ANCHORS", 100)
    rows = np.random.default_rng(0).standard_normal((120, 4))
    one, other = (diagnose(Embeddings(rows), seed=3).numbers() for _ in range(2))
    assert one == other
    assert diagnose(Embeddings(rows), seed=4).numbers() != one


def test_turned_and_scaled_embeddings_give_the_same_numbers():
    generator = np.random.default_rng(0)
    first, second = generator.standard_normal((2, 100, 6))
    turn = np.linalg.qr(generator.standard_normal((6, 6)))[0]
    scale = generator.uniform(0.1, 10, (100, 1))
    one = diagnose(Embeddings(first, second)).numbers()
    other = diagnose(Embeddings(scale * first @ turn, second @ turn)).numbers()
    assert one["threshold"]["xi"] == pytest.approx(other["threshold"]["xi"], abs=1e-5)
    assert one["link"]["theta"] == pytest.approx(other["link"]["theta"], rel=1e-5)
    assert one["tail"]["lambda_mean"] == pytest.approx(other["tail"]["lambda_mean"], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantile": 0.5}, r"quantile must lie in \[0.98, 0.9999\], got 0.5"),
        ({"temperature": 0.0}, "temperature must be a number above 0, got 0.0"),
        ({"seed": -1}, r"seed must lie in \[0, 2\*\*63\), got -1"),
        ({"temperature": float("nan")}, "temperature must be a number above 0, got nan"),
    ],
)
def test_wrong_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        diagnose(Embeddings(np.eye(3)), **arguments)


def test_ids_that_leave_no_negatives_are_refused():
    with pytest.raises(ValueError, match="ids must leave at least two samples that are negatives"):
        diagnose(Embeddings(np.eye(3), ids=np.ones(3, int)))


@pytest.mark.parametrize("seeds", few([range(3), range(8)]))
def test_there_is_no_verdict_without_interval_on_few_exceedances(seeds):
    found = [
        diagnose(Embeddings(np.random.default_rng(seed).standard_normal((50, 5))), seed=seed)
        for seed in seeds
    ]
    without = [each for each in found if each.threshold.xi is not None
               and each.threshold.xi_interval is None]  # fmt: skip
    assert without
    assert all("50 rows are too few to judge by" in pronounce(each).why for each in without)
    assert all(pronounce(each).answer == "cannot tell" for each in without)


def test_repeated_samples_change_nothing():
    rows = np.random.default_rng(5).standard_normal((100, 16))
    once = diagnose(Embeddings(rows))
    often = diagnose(Embeddings(np.tile(rows, (4, 1))))
    assert often.census.num_duplicates == 300
    assert often.threshold.num_exceedances == once.threshold.num_exceedances
    # Similarities are of float32, and round as kernels for products of that size do.
    assert often.threshold.xi == pytest.approx(once.threshold.xi, abs=1e-7)
    assert often.pooled.tail.num_scores == once.pooled.tail.num_scores
    assert len(often.anchors.gate) == len(once.anchors.gate) == 100


def test_what_is_drawn_anew_are_things_and_not_samples():
    """Ten near copies of each of 100 things: as ids say so, the interval is that of 100 things."""
    generator = np.random.default_rng(0)
    things = generator.standard_normal((100, 32))
    rows = np.repeat(things, 10, axis=0) + 0.1 * generator.standard_normal((1000, 32))
    found = diagnose(Embeddings(rows, ids=np.repeat(np.arange(100), 10)))
    pairs = found.pooled.tail.pairs
    assert (pairs.num_anchors, pairs.num_things) == (100, 100)
    independent = fit_threshold(found.pooled.tail._replace(pairs=None), generator)
    assert independent.xi == found.threshold.xi
    width, other = (np.ptp(each.xi_interval) for each in (found.threshold, independent))
    assert width > 4 * other


@pytest.mark.parametrize("scale", few([1e-30, 1e-12, 1e20, 1e160, 1e200], 0, -1))
def test_the_length_of_rows_changes_nothing(scale):
    rows = np.random.default_rng(0).standard_normal((100, 6))
    one, other = (diagnose(Embeddings(each)).threshold for each in (rows, rows * scale))
    assert other.xi == pytest.approx(one.xi, abs=1e-6)


def test_the_verdict_names_the_numbers_and_leaves_delta_aic_out():
    diagnosis = diagnoses.pairs()
    text = " ".join(pronounce(diagnosis).findings)
    fit, link = diagnosis.threshold, diagnosis.link
    for number in (fit.xi, *fit.xi_interval, fit.endpoint, link.lambda_hat):
        assert f"{number:.3f}" in text
    for null in diagnosis.nulls.values():
        assert f"{null.xi:.3f}" in text
    assert "AIC" not in text


def test_the_verdict_on_hardly_anything_is_none():
    verdict = pronounce(diagnoses.three())
    assert verdict.headline == "Cannot tell: 3 rows are too few to judge by."
    assert "the largest scores are equal, so that none lies above" in verdict.findings[0]


def test_the_verdict_says_where_the_fit_is_bad():
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((1000, 32))
    rows[:, 0] = 0
    rows[:40] = rows[0] + 0.2 * generator.standard_normal((40, 32))  # one cluster of many
    diagnosis = diagnose(Embeddings(rows))
    assert diagnosis.goodness.p_value < 0.05
    assert "does not fit what lies above" in " ".join(pronounce(diagnosis).findings)


def test_the_verdict_says_that_ids_were_used():
    rows = np.random.default_rng(0).standard_normal((100, 6))
    ids = np.arange(100) // 5
    findings = " ".join(pronounce(diagnose(Embeddings(rows, ids=ids))).findings)
    assert "By the ids or labels beside them the 100 samples show 20 different things" in findings


def test_the_verdict_says_how_many_dimensions_are_filled():
    rows = np.random.default_rng(0).standard_normal((150, 32))
    text = " ".join(pronounce(diagnose(Embeddings(rows))).findings)
    values = np.linalg.svd(rows / np.linalg.norm(rows, axis=1, keepdims=True), compute_uv=False)
    parts = values / values.sum()
    rank = np.exp(-(parts * np.log(parts)).sum())
    assert f"The effective rank of the directions is {rank:.3g} of 32." in text
    assert "Both nulls fill all dimensions" not in text


def test_the_verdict_names_similarities_that_are_near_copies():
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((100, 32))
    assert "copies" not in " ".join(pronounce(diagnose(Embeddings(rows))).findings)
    near = np.concatenate([rows, rows + 1e-4 * generator.standard_normal(rows.shape)])
    text = " ".join(pronounce(diagnose(Embeddings(near))).findings)
    assert "100 of the similarities of negatives are above 0.999: copies, or nearly so" in text


def test_an_array_is_told_how_to_be_diagnosed():
    with pytest.raises(TypeError, match=r"must be Embeddings, got ndarray. Wrap an array: Embeddi"):
        diagnose(np.eye(3))


def test_the_verdict_names_a_narrow_cone():
    rows = np.random.default_rng(0).standard_normal((100, 16))
    assert "narrow cone" not in " ".join(pronounce(diagnose(Embeddings(rows))).findings)
    rows[:, 0] += 8
    assert "narrow cone" in " ".join(pronounce(diagnose(Embeddings(rows))).findings)


PEAK = """
import re, sys, threading, time
import numpy as np
from weince_lightning.diagnostics import Embeddings, diagnose

def used():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

def watch():
    while True:
        peaks.append(used())
        time.sleep(0.02)

embeddings = Embeddings(np.load(sys.argv[1], mmap_mode="r"))
before, peaks = used(), []
threading.Thread(target=watch, daemon=True).start()
diagnose(embeddings)
print(max(peaks) - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_samples(tmp_path):
    """100 and 400 MiB of embeddings; what grows is some bytes for each row."""
    rows = np.random.default_rng(0).standard_normal((400_000, 256), dtype=np.float32)
    peaks = []
    for size in (100_000, 400_000):
        np.save(tmp_path / "rows.npy", rows[:size])
        script = [sys.executable, "-c", PEAK, tmp_path / "rows.npy"]
        found = subprocess.run(script, check=True, capture_output=True, text=True)
        peaks.append(float(found.stdout))
    assert peaks[1] < peaks[0] + 100  # of 300 MiB more; 200 bytes for each row
