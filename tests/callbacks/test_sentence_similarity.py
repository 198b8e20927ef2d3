"""Spearman's correlation and retrieval from the pairs of a validation epoch."""

import sys
from pathlib import Path

import pytest
import sentences
import torch
from lightning.pytorch import seed_everything
from processes import run_ranks
from scipy.stats import spearmanr
from sentence_processes import LIGHTNING, Pass, draw, rows, validate, validate_odd_numbers
from torch.utils.data import DataLoader
from two_processes import make_trainer

from weince_lightning.callbacks import SentenceSimilarityMonitor
from weince_lightning.functional.retrieval import paired_similarity, top1_among


def test_spearman_is_that_of_scipy(generator):
    first, second = draw(generator, 40)
    scores = torch.randint(6, (40,), generator=generator).float()
    cosine = torch.nn.functional.cosine_similarity(first, second)
    found = validate(rows(first, second, scores))
    assert found["sts/spearman"] == pytest.approx(spearmanr(cosine, scores).statistic, abs=1e-6)
    assert "retrieval/top1" not in found


def test_retrieval_is_the_share_of_partners_that_are_nearest(generator):
    first, second = draw(generator, 30)
    unit = [torch.nn.functional.normalize(side) for side in (first, second)]
    expected = 0
    for block in range(3):
        for i in range(10 * block, 10 * block + 10):
            nearest = max(range(10 * block, 10 * block + 10), key=lambda j: unit[0][i] @ unit[1][j])
            expected += nearest == i
    found = validate(rows(first, second, torch.arange(30)), num_candidates=10)
    assert found["retrieval/top1"] == pytest.approx(expected / 30)
    assert 0 < expected < 30


def test_order_of_the_pairs_is_that_of_their_labels(generator):
    first, second = draw(generator, 30)
    pairs = rows(first, second, torch.arange(30))
    mixed = [pairs[i] for i in torch.randperm(30, generator=generator)]
    assert validate(mixed, num_candidates=10) == validate(pairs, num_candidates=10)


def test_both_kinds_of_pairs_are_validated_together(generator):
    scored = rows(*draw(generator, 20), torch.rand(20, generator=generator))
    partners = rows(*draw(generator, 20), torch.arange(20))
    assert validate(scored, partners) == {**validate(scored), **validate(partners)}


def test_collapsed_features_find_nothing():
    ones = torch.ones(5, 3)
    assert top1_among(ones, ones, 5) == 0
    assert top1_among(torch.eye(5), torch.eye(5), 5) == 1


def test_pairs_beyond_the_last_whole_block_are_passed_over():
    partners = torch.eye(5)[[0, 1, 2, 3, 0]]
    assert top1_among(torch.eye(5), partners, 2) == 1
    assert top1_among(torch.eye(5)[:3], torch.eye(5)[:3], 1000) == 1


def test_half_precision_is_compared_in_single():
    first = torch.tensor([[300.0, 400.0]], dtype=torch.float16)  # whose squares overflow
    assert paired_similarity(first, first).dtype == torch.float32
    assert paired_similarity(first, first).item() == pytest.approx(1.0)


@pytest.mark.parametrize("outputs", [None, {"labels": torch.zeros(2)}], ids=["none", "no features"])
def test_module_without_pairs_is_refused(outputs):
    class Other(Pass):
        def validation_step(self, batch, batch_idx):
            return outputs

    trainer = make_trainer(LIGHTNING, 1, callbacks=[SentenceSimilarityMonitor()])
    with pytest.raises(TypeError, match="must return a dict with features"):
        trainer.validate(Other(), DataLoader([torch.zeros(1)]), verbose=False)


@pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform == "win32", reason="needs gloo processes"
)
def test_two_processes_log_what_one_would(tmp_path):
    run_ranks(2, Path(__file__).parents[1] / "sentence_processes.py", tmp_path, timeout=240)
    whole = validate_odd_numbers(1)
    assert 0 < whole["retrieval/top1"] < 1
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pt") == pytest.approx(whole)


def test_single_candidate_is_refused():
    with pytest.raises(ValueError, match="num_candidates must be at least 2, got 1"):
        SentenceSimilarityMonitor(num_candidates=1)


def test_training_is_bit_identical_with_and_without(tmp_path):
    pytest.importorskip("transformers")
    from weince_lightning.data import SentenceData
    from weince_lightning.module import SentenceModule

    pairs = [
        f"{first}\t{second}" for first, second in zip(*[iter(sentences.SENTENCES)] * 2, strict=True)
    ]
    files = {
        "train_file": sentences.write_lines(tmp_path / "train.txt", sentences.SENTENCES),
        "tokenizer": sentences.write_vocabulary(tmp_path),
        "sts_file": sentences.write_lines(
            tmp_path / "sts.tsv", [f"{i % 6}\t{pair}" for i, pair in enumerate(pairs)]
        ),
        "retrieval_file": sentences.write_lines(tmp_path / "pairs.tsv", pairs),
    }

    def train(callbacks):
        seed_everything(3, verbose=False)
        module = SentenceModule("bert", sentences.SIZES)
        trainer = make_trainer(
            LIGHTNING, 1, callbacks=callbacks, max_epochs=2, gradient_clip_val=0.5
        )
        trainer.fit(module, SentenceData(**files, batch_size=32))
        return module.state_dict(), torch.get_rng_state(), trainer

    weights, stream, trainer = train([])
    watched_weights, watched_stream, watched = train([SentenceSimilarityMonitor()])
    assert watched.global_step == trainer.global_step == 6
    assert weights.keys() == watched_weights.keys()
    assert all(torch.equal(watched_weights[name], weights[name]) for name in weights)
    assert torch.equal(watched_stream, stream)
    assert {"sts/spearman", "retrieval/top1", "val/loss"} <= watched.callback_metrics.keys()
