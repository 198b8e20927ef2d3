"""WEINCE as a loss of sentence-transformers, beside the loss that it replaces."""

import math
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import sentences
import torch
import torch.distributed as dist
from processes import spawn

pytest.importorskip("sentence_transformers")
pytest.importorskip("datasets")

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.util import dot_score

from weince_lightning import TailGate, TailShape, WEINCELoss
from weince_lightning.integrations.sentence_transformers import (
    MultipleNegativesRankingLoss,
    WEINCERankingLoss,
)
from weince_lightning.losses.descriptions import build

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

BATCH = 6
BOTH_WAYS = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder with a tiny BERT; without dropout, so that two forwards are the same."""
    torch.manual_seed(0)
    sizes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return sentences.write_bert(tmp_path_factory.mktemp("bert"), **sizes)


def load(folder):
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def tokenised(model, num_columns, rows=slice(None)):
    """Columns anchor, positive, negative_1, ... of one batch, as the trainer gives them."""
    chosen = sentences.SENTENCES[:: len(sentences.SENTENCES) // (BATCH * num_columns)]
    columns = [chosen[k * BATCH : (k + 1) * BATCH][rows] for k in range(num_columns)]
    return [dict(model.tokenize(column)) for column in columns]


def value_and_gradient(loss, features):
    loss.model.zero_grad()
    value = loss(features, torch.empty(0))
    value.backward()
    gradients = [p.grad.flatten() for p in loss.model.parameters() if p.grad is not None]
    return value.detach(), torch.cat(gradients)


@pytest.mark.parametrize("options", [{}, {"scale": 5.0}, BOTH_WAYS], ids=["", "scale", "both ways"])
@pytest.mark.parametrize("num_columns", [2, 3, 5])
def test_gate_zero_gives_value_and_gradient_of_the_replaced_loss(bert, num_columns, options):
    model = load(bert).double()  # in single precision the encoder alone rounds to 1e-6
    features = tokenised(model, num_columns)
    theirs = value_and_gradient(MultipleNegativesRankingLoss(model, **options), features)
    ours = value_and_gradient(WEINCERankingLoss(model, gate=0.0, **options), features)
    assert abs(ours[0] - theirs[0]) < 1e-6
    assert (ours[1] - theirs[1]).abs().max() < 1e-6
    assert theirs[1].abs().max() > 1e-3


def test_default_gate_sees_the_negatives_of_all_anchors(bert):
    model = load(bert)
    features = tokenised(model, 4)
    anchors, positives, *columns = (model(column)["sentence_embedding"] for column in features)
    terms = WEINCELoss(0.05, layout="queries").terms(
        anchors, positives, negatives=torch.cat(columns)
    )
    assert terms.num_negatives.tolist() == [BATCH - 1 + 2 * BATCH] * BATCH
    assert terms.tail.gate.max() > 0.1
    loss = WEINCERankingLoss(model)(features, torch.empty(0))
    torch.testing.assert_close(loss, terms.loss)


def test_gate_and_shape_are_those_of_the_loss(bert):
    model = load(bert)
    loss = WEINCERankingLoss(model, gate=TailGate(signals="rho"), shape=2.0)
    features = tokenised(model, 3)
    embeddings = [model(column)["sentence_embedding"] for column in features]
    expected = WEINCELoss(0.05, TailGate(signals="rho"), 2.0, layout="queries")(
        embeddings[0], embeddings[1], negatives=embeddings[2]
    )
    torch.testing.assert_close(loss(features, torch.empty(0)), expected)
    assert loss(features, torch.empty(0)) != WEINCERankingLoss(model)(features, torch.empty(0))


def test_lone_pair_has_loss_zero_as_in_the_replaced_loss(bert):
    model = load(bert)
    features = tokenised(model, 2, rows=slice(1))
    for loss in (MultipleNegativesRankingLoss(model), WEINCERankingLoss(model)):
        value, gradient = value_and_gradient(loss, features)
        assert abs(value) < 1e-6
        assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"similarity_fct": dot_score}, r"similarity_fct must be .*cos_sim, got dot_score"),
        ({"hardness_mode": "hard_negatives"}, "hardness_mode must be None, got 'hard_negatives'"),
        ({"directions": ("query_to_doc", "doc_to_doc")}, "directions must be"),
        ({"directions": "query_to_doc"}, "directions must be .* got 'query_to_doc'"),
        ({"partition_mode": "apart"}, 'partition_mode must be one of "joint", "per_direction"'),
        ({"directions": BOTH_WAYS["directions"]}, 'partition_mode must be "per_direction"'),
        ({"scale": 0.0}, r"scale must be above 0, got 0\.0"),
        ({"gate": 2.0}, "gate must be at least 0 and at most 1"),
    ],
)
def test_what_it_can_not_do_is_refused(bert, arguments, message):
    with pytest.raises(ValueError, match=message):
        WEINCERankingLoss(load(bert), **arguments)


def test_data_without_positives_is_refused(bert):
    model = load(bert)
    with pytest.raises(ValueError, match="must have columns for anchors and positives, got 1"):
        WEINCERankingLoss(model)(tokenised(model, 1), torch.empty(0))


def test_columns_of_different_lengths_are_named(bert):
    loss = WEINCERankingLoss(load(bert))
    with pytest.raises(ValueError, match="positives must have the shape of anchors"):
        loss.compute_loss_from_embeddings([torch.ones(3, 4), torch.ones(2, 4)], torch.empty(0))


def test_config_is_that_of_the_replaced_loss_with_gate_and_shape_as_plain_values(bert):
    theirs = MultipleNegativesRankingLoss(load(bert), scale=10.0).get_config_dict()
    ours = WEINCERankingLoss(load(bert), scale=10.0, gate=0.5).get_config_dict()
    assert ours.pop("gate") == 0.5
    assert build(ours.pop("shape")) == TailShape()
    assert ours == theirs


@pytest.fixture(scope="module")
def trained(bert, tmp_path_factory):
    """A trainer after 24 steps, and the model it saved."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model = load(bert)
    columns = {
        "anchor": sentences.SENTENCES,
        "positive": [sentence.replace("the", "our") for sentence in sentences.SENTENCES],
        "negative_1": sentences.SENTENCES[7:] + sentences.SENTENCES[:7],
    }
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=24,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        logging_steps=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(columns),
            loss=WEINCERankingLoss(model),
        )
        trainer.train()
        model.save_pretrained(str(folder / "model"))
    return trainer, model, folder / "model"


def test_trainer_learns_with_it(trained):
    trainer, _, _ = trained
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert trainer.state.global_step == 24
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.5 * losses[0]


def test_trained_model_is_saved_and_loaded_as_any_other(trained):
    _, model, folder = trained
    texts = sentences.SENTENCES[:5]
    expected = model.encode(texts, convert_to_tensor=True)
    assert torch.equal(load(folder).encode(texts, convert_to_tensor=True), expected)


def test_model_card_names_the_loss_and_cites_the_paper(trained):
    card = (trained[2] / "README.md").read_text(encoding="utf-8")
    assert "WEINCERankingLoss" in card
    assert '"scale": 20.0' in card
    assert "When Softmax Fails at the Top" in card


def work(rank, sizes, bert, folder, options):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=len(sizes),
        timeout=timedelta(seconds=60),
    )
    model = load(bert)
    rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    loss = WEINCERankingLoss(model, gather_across_devices=True, **options)
    value, gradient = value_and_gradient(loss, tokenised(model, 4, rows))
    for tensor in (value, gradient):
        dist.all_reduce(tensor)  # with the division below what DistributedDataParallel does
    if rank == 0:
        torch.save((value / len(sizes), gradient / len(sizes)), f"{folder}/found.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(
    not dist.is_available() or sys.platform == "win32", reason="needs gloo processes"
)
def test_two_processes_that_gather_equal_one_with_the_whole_batch(bert, tmp_path: Path):
    spawn(work, ([4, 2], str(bert), str(tmp_path), {}), 2)
    value, gradient = torch.load(tmp_path / "found.pt")
    model = load(bert)
    expected = value_and_gradient(WEINCERankingLoss(model), tokenised(model, 4))
    torch.testing.assert_close(value, expected[0], rtol=1e-5, atol=1e-5)
    assert (gradient - expected[1]).norm() < 1e-4 * expected[1].norm()
