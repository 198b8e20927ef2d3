"""SimCSE: dropout makes the views, the head is there in training alone, checkpoints hold all."""

import ast
import shutil
from pathlib import Path

import pytest
import sentences
import torch
from cases import few
from lightning.pytorch import Trainer, seed_everything
from torch import nn

import weince_lightning
from weince_lightning import InfoNCELoss, WEINCELoss
from weince_lightning.callbacks import SentenceSimilarityMonitor
from weince_lightning.checkpoints import CheckpointError, load_encoder
from weince_lightning.data import SentenceData
from weince_lightning.module import SentenceModule
from weince_lightning.networks.text import TextEncoder

pytest.importorskip("transformers")

TOKENS = torch.tensor([[2, 7, 8, 3, 0, 0], [2, 9, 10, 11, 12, 3], [2, 13, 3, 0, 0, 0]])


def build(loss=None, **arguments):
    torch.manual_seed(0)
    return SentenceModule("bert", sentences.SIZES, loss, **arguments)


def train(module, tmp_path, **options):
    data = SentenceData(
        sentences.write_lines(tmp_path / "train.txt", sentences.SENTENCES),
        sentences.write_vocabulary(tmp_path),
        batch_size=32,
    )
    trainer = Trainer(
        **{"max_epochs": 1, **options},
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    trainer.fit(module, data)
    return trainer


def test_dropout_makes_two_views_of_the_same_tokens():
    outputs = build().train().step(([TOKENS, TOKENS], torch.full((3,), -1)))
    first, second = outputs["features"]
    assert not torch.allclose(first, second)
    assert outputs["loss"].requires_grad
    assert not first.requires_grad


def test_evaluation_is_without_head_and_without_chance():
    module = build().eval()
    first, second = module.step(([TOKENS, TOKENS], torch.full((3,), -1)))["projections"]
    assert torch.equal(first, second)
    assert torch.equal(first, module(TOKENS))


def test_training_projects_by_a_linear_layer_and_tanh():
    module = build().train()
    features, projections = module.encode(TOKENS)
    layer = module.projection_head[0]
    assert torch.equal(projections, torch.tanh(features @ layer.weight.T + layer.bias))


def test_without_head_the_loss_sees_the_features():
    module = build(has_head=False).train()
    features, projections = module.encode(TOKENS)
    assert projections is features
    assert {name.split(".")[0] for name, _ in module.named_parameters()} == {"backbone"}


def test_default_loss_is_weince_at_the_temperature_of_simcse():
    loss = build().loss
    assert isinstance(loss, WEINCELoss)
    assert loss.temperature == 0.05


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_changes_no_feature(pooling):
    module = build(pooling=pooling).eval()
    torch.testing.assert_close(module(TOKENS)[:1], module(TOKENS[:1, :4]), rtol=1e-5, atol=1e-6)


def test_features_are_those_of_transformers(tmp_path):
    from transformers import AutoModel

    folder = sentences.write_bert(tmp_path / "bert")
    hidden = (
        AutoModel.from_pretrained(folder)
        .eval()(input_ids=TOKENS, attention_mask=(TOKENS != 0).long())
        .last_hidden_state
    )
    weights = (TOKENS != 0).unsqueeze(-1).float()
    expected = {"cls": hidden[:, 0], "mean": (hidden * weights).sum(1) / weights.sum(1)}
    for pooling, features in expected.items():
        module = SentenceModule(str(folder), pooling=pooling).eval()
        torch.testing.assert_close(module(TOKENS), features)


def test_options_change_a_pretrained_encoder_and_keep_its_weights(tmp_path):
    folder = sentences.write_bert(tmp_path / "bert")
    plain = TextEncoder(str(folder))
    changed = TextEncoder(str(folder), {"hidden_dropout_prob": 0.4})
    assert changed.config.hidden_dropout_prob == 0.4
    for mine, theirs in zip(changed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    dropouts = {m.p for m in changed.modules() if isinstance(m, nn.Dropout)}
    assert 0.4 in dropouts


def test_every_parameter_gets_a_gradient(tmp_path):
    for encoder in ("bert", str(sentences.write_bert(tmp_path / "bert"))):
        module = SentenceModule(encoder, sentences.SIZES, InfoNCELoss(0.05)).train()
        module.step(([TOKENS, TOKENS], torch.full((3,), -1)))["loss"].backward()
        assert [name for name, p in module.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    "loss", few([None, InfoNCELoss(0.05, layout="queries")], 0), ids=["weince", "ours"]
)
def test_training_lowers_the_loss(tmp_path, loss):
    module = build(loss, learning_rate=3e-3, pooling="mean", warmup_fraction=0.1)
    values = []
    module.on_train_batch_end = lambda outputs, *rest: values.append(float(outputs["loss"]))
    train(module, tmp_path, max_epochs=10)
    assert len(values) == 30
    assert sum(values[-5:]) < 0.5 * sum(values[:5])


def test_test_run_gives_the_numbers_of_a_validation_of_the_same_pairs(tmp_path):
    pairs = [f"{a}\t{b}" for a, b in zip(*[iter(sentences.SENTENCES)] * 2, strict=True)]
    scored = [f"{number % 6}\t{pair}" for number, pair in enumerate(pairs)]
    files = {
        "sts_file": sentences.write_lines(tmp_path / "sts.tsv", scored),
        "retrieval_file": sentences.write_lines(tmp_path / "pairs.tsv", pairs),
    }
    data = SentenceData(
        sentences.write_lines(tmp_path / "train.txt", sentences.SENTENCES),
        sentences.write_vocabulary(tmp_path),
        **files,
        **{f"test_{name}": path for name, path in files.items()},
    )
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[SentenceSimilarityMonitor(num_candidates=10)],
    )  # fmt: skip
    module = build()
    trainer.validate(module, data, verbose=False)
    validated = dict(trainer.callback_metrics)
    trainer.test(module, data, verbose=False)
    tested = trainer.callback_metrics
    assert tested["test/loss"] == validated["val/loss"]
    for name in ("sts/spearman", "retrieval/top1"):
        assert tested[name] == validated[name] != 0


def test_any_function_of_two_views_is_a_loss():
    module = build(lambda z0, z1: (z0 - z1).square().mean()).train()
    outputs = module.step(([TOKENS, TOKENS], torch.full((3,), -1)))
    assert outputs["terms"] is None
    assert outputs["loss"] > 0


def test_linear_schedule_is_that_of_transformers(tmp_path):
    from transformers import get_linear_schedule_with_warmup

    module = build(learning_rate=0.5, warmup_fraction=0.0)
    rates = []
    module.on_train_batch_start = lambda *_: rates.append(
        module.trainer.optimizers[0].param_groups[0]["lr"]
    )
    train(module, tmp_path, max_epochs=2)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=0.5)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, len(rates))
    for rate in rates:
        assert rate == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()


def test_checkpoint_brings_the_module_back_without_the_folder_it_came_from(tmp_path):
    folder = sentences.write_bert(tmp_path / "bert", num_hidden_layers=2)
    loss = WEINCELoss(0.1, gate=0.3)
    module = SentenceModule(
        str(folder), {"hidden_dropout_prob": 0.2}, loss, "mean", False, learning_rate=1e-3
    )
    trainer = train(module, tmp_path)
    path = tmp_path / "last.ckpt"
    trainer.save_checkpoint(path)
    shutil.rmtree(folder)

    assert torch.load(path, weights_only=True)["state_dict"].keys() == module.state_dict().keys()
    again = SentenceModule.load_from_checkpoint(path, weights_only=True)
    assert torch.equal(again.eval()(TOKENS), module.eval()(TOKENS))
    assert again.backbone.config.hidden_dropout_prob == 0.2
    assert (again.backbone.pooling, again.learning_rate) == ("mean", 1e-3)
    assert (again.loss.temperature, again.loss.gate) == (0.1, 0.3)


def test_commands_for_images_refuse_its_checkpoint_and_transformers_reads_what_they_name(tmp_path):
    trainer = train(build(), tmp_path)
    path = tmp_path / "sentences.ckpt"
    trainer.save_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"encoder of images, got one of sentences\."):
        load_encoder(path)
    saved = SentenceModule.load_from_checkpoint(path)
    saved.backbone.model.save_pretrained(tmp_path / "encoder")
    again = SentenceModule(str(tmp_path / "encoder")).eval()
    assert torch.equal(again(TOKENS), saved.eval()(TOKENS))


def test_settings_of_images_are_none_of_a_sentence_module():
    names = build().hparams.keys()
    assert {"encoder", "encoder_options", "loss", "pooling", "learning_rate"} <= names
    assert not {"image_size", "in_channels", "projection_dim"} & names


def test_resumed_training_ends_as_one_without_a_stop(tmp_path):
    def run(epochs, ckpt_path=None):
        seed_everything(3, verbose=False)
        module = build(learning_rate=1e-3, schedule="constant")
        data = SentenceData(
            sentences.write_lines(tmp_path / "train.txt", sentences.SENTENCES),
            sentences.write_vocabulary(tmp_path),
            batch_size=32,
        )
        trainer = Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(module, data, ckpt_path=ckpt_path)
        return module, trainer

    whole, _ = run(2)
    _, trainer = run(1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    resumed, _ = run(2, tmp_path / "one.ckpt")
    for mine, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_micro_batches_give_the_gradient_of_the_whole_batch():
    sizes = {**sentences.SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    gradients = []
    for size in (None, 2):
        torch.manual_seed(0)
        module = SentenceModule("bert", sizes, InfoNCELoss(0.05), micro_batch_size=size).train()
        other = TOKENS.flip(0)  # without dropout two views of the same would be the same
        module.step(([TOKENS, other], torch.full((3,), -1)))["loss"].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"vocab_size": 9}, "vocab_size of at least 25"),
        ({"vocab_size": 30, "pad_token_id": 4}, "must have the pad_token_id of .* 0, got 4"),
    ],
)
def test_encoder_that_does_not_fit_the_tokenizer_is_refused(tmp_path, sizes, message):
    module = SentenceModule("bert", {**sentences.SIZES, **sizes})
    with pytest.raises(ValueError, match=message):
        train(module, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"encoder": "brt"},
            "encoder must be a local folder .* got 'brt', which is neither: .* "
            'Did you mean "bert"',
        ),
        ({"encoder_options": {"hiden_size": 8}}, "got 'hiden_size'. Did you mean \"hidden_size\""),
        ({"pooling": "max"}, 'pooling must be "cls" or "mean"'),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"schedule": "step"}, 'schedule must be one of "constant", "cosine", "linear"'),
    ],
)
def test_argument_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SentenceModule(**{"encoder": "bert", **arguments})


def test_a_folder_without_an_encoder_is_named(tmp_path):
    with pytest.raises(ValueError, match=rf"encoder must be a folder that .*, got '{tmp_path}'"):
        SentenceModule(str(tmp_path))


def test_tokens_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="tokens must be integers"):
        build()(torch.rand(2, 3))
    with pytest.raises(ValueError, match=r"tokens must be at most 16 in a sentence, .* got 17\."):
        build()(torch.zeros(2, 17, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"tokens must have shape \(batch, length\)"):
        build()(TOKENS[0])


def test_no_file_imports_transformers_before_something_is_built():
    package = Path(weince_lightning.__file__).parent
    for file in package.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if "integrations" not in file.parts:
            named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
                     for alias in node.names}  # fmt: skip
            named |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
            roots = {name.split(".")[0] for name in named}
            assert not roots & {"transformers", "tokenizers", "sentence_transformers"}, file
