"""The SimCSE configurations: complete files that train what they name, under any loss layer."""

from pathlib import Path

import numpy as np
import pytest
import sentences
import torch
import yaml
from cases import few
from jsonargparse import capture_parser
from processes import run_python

from weince_lightning import InfoNCELoss, WEINCELoss
from weince_lightning.cli.arguments import complete_arguments, find_config
from weince_lightning.cli.lightning_cli import WeinceCLI
from weince_lightning.layers import packaged_configs
from weince_lightning.module import SentenceModule

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
CONFIGS = packaged_configs()
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files under the names of the configuration, of this test's few sentences."""
    folder = tmp_path_factory.mktemp("wordnet")
    pairs = [f"{a}\t{b}" for a, b in zip(*[iter(sentences.SENTENCES)] * 2, strict=True)]
    sentences.write_lines(folder / "train.txt", sentences.SENTENCES)
    sentences.write_vocabulary(folder)
    for name in ("val.tsv", "test.tsv"):
        sentences.write_lines(folder / name, pairs)
    return folder


def fit_tiny(folder, *layers, options=()):
    files = {"train_file": "train.txt", "tokenizer": "vocab.txt", "retrieval_file": "val.tsv"}
    given = [f"--data.{name}={folder / file}" for name, file in files.items()]
    given += ["--trainer.accelerator=cpu", "--data.batch_size=8", *QUIET]
    given += ["--trainer.max_steps=2", "--trainer.val_check_interval=2"]
    given += options
    return WeinceCLI(complete_arguments(["fit", "-c", "simcse/wordnet_tiny", *layers, *given]))


@pytest.mark.parametrize("layer", few([None, "loss/infonce", "loss/weince"], 1))
def test_tiny_configuration_trains_under_each_loss(folder, tmp_path, monkeypatch, layer):
    monkeypatch.chdir(tmp_path)
    layers = ["-c", layer, "--model.loss.temperature=0.1"] if layer else []
    cli = fit_tiny(folder, *layers)
    assert type(cli.model) is SentenceModule
    assert type(cli.model.loss) is (InfoNCELoss if layer == "loss/infonce" else WEINCELoss)
    assert cli.model.loss.temperature == 0.1
    assert {"train/loss", "val/loss", "retrieval/top1"} <= cli.trainer.callback_metrics.keys()
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    again = SentenceModule.load_from_checkpoint(checkpoint, weights_only=True)
    tokens = torch.tensor([[2, 7, 8, 3]])
    assert torch.equal(again.eval()(tokens), cli.model.eval()(tokens))


def test_report_names_what_is_there_and_nothing_else(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fit_tiny(folder, options=["--trainer.val_check_interval=9"])  # after the last step
    said = capsys.readouterr().out
    assert not list(tmp_path.rglob("*.ckpt"))
    assert "none: the run ended before the first was due" in said
    assert "tensorboard" not in said  # it logs to a table


@pytest.mark.slow
def test_checkpoint_of_the_command_is_validated_by_its_path_alone(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    fitted = fit_tiny(folder)
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    capsys.readouterr()
    cli = WeinceCLI(complete_arguments(["validate", "--ckpt_path", str(checkpoint)]))
    expected = fitted.trainer.callback_metrics["retrieval/top1"]
    assert cli.trainer.callback_metrics["retrieval/top1"] == expected
    assert "retrieval/top1" in capsys.readouterr().out


@pytest.mark.slow
def test_checkpoint_is_tested_and_predicts_by_the_files_beside_it(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    fitted = fit_tiny(folder)
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    call = ["--ckpt_path", str(checkpoint)]
    pairs = f"--data.test_retrieval_file={folder / 'test.tsv'}"
    cli = WeinceCLI(complete_arguments(["test", *call, pairs]))
    expected = fitted.trainer.callback_metrics["retrieval/top1"]  # of the same pairs
    assert cli.trainer.callback_metrics["retrieval/top1"] == expected
    assert "test/loss" in capsys.readouterr().out

    asked = f"--data.predict_file={folder / 'train.txt'}"
    WeinceCLI(complete_arguments(["predict", *call, asked]))
    found = np.load(checkpoint.with_suffix(".features.npz"))
    module = fitted.model.eval()
    with torch.no_grad():
        features = module(fitted.datamodule.tokens(sentences.SENTENCES, 64))
    np.testing.assert_allclose(found["features"], features, rtol=1e-4, atol=1e-5)
    assert found["labels"].tolist() == list(range(len(features)))


def commands(name):
    """Commands in the comment at the head of a configuration, as their arguments."""
    text = CONFIGS[name].read_text(encoding="utf-8")
    return [line.split()[2:] for line in text.splitlines() if line.startswith("#   weince fit")]


@pytest.mark.parametrize(
    ("name", "layout", "temperature"),
    [("simcse/bert_base", "queries", 0.05), ("simcse/wordnet_tiny", "views", 0.1)],
)
def test_commands_at_the_head_of_a_file_keep_its_layout_and_temperature(name, layout, temperature):
    parser = capture_parser(lambda: WeinceCLI(["fit"]))
    assert len(commands(name)) > 1
    for command in commands(name):
        parsed = parser.parse_args(complete_arguments(command)).fit
        loss = parsed.model.init_args.loss.init_args
        assert (loss.layout, loss.temperature) == (layout, temperature), command


def test_paper_configuration_trains_a_pretrained_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "data" / "simcse"
    sentences.write_bert(home / "bert-base-uncased")
    sentences.write_lines(home / "wiki1m_for_simcse.txt", sentences.SENTENCES)
    pairs = zip(sentences.SENTENCES, reversed(sentences.SENTENCES), strict=True)
    scored = [f"{i % 6}\t{first}\t{second}" for i, (first, second) in enumerate(pairs)]
    sentences.write_lines(home / "sts_dev.tsv", scored)
    options = ["--trainer.val_check_interval=1.0", "--trainer.accelerator=cpu", *QUIET]
    cli = WeinceCLI(complete_arguments(["fit", "-c", "simcse/bert_base", *options]))
    assert "sts/spearman" in cli.trainer.callback_metrics
    assert sorted(path.name for path in tmp_path.rglob("*.ckpt")) == ["best.ckpt", "last.ckpt"]
    (group,) = cli.trainer.optimizers[0].param_groups
    assert (group["initial_lr"], group["weight_decay"]) == (3e-5, 0.0)
    assert (cli.model.loss.layout, cli.model.loss.temperature) == ("queries", 0.05)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.startswith("simcse/")])
def test_every_argument_of_the_files_is_known(name):
    parser = capture_parser(lambda: WeinceCLI(["fit"]))
    parsed = parser.parse_args(["fit", "-c", find_config(name)]).fit
    given = yaml.safe_load(CONFIGS[name].read_text(encoding="utf-8"))
    assert parsed.model.class_path == given["model"]["class_path"]
    assert parsed.data.class_path == given["data"]["class_path"]


@pytest.mark.slow
def test_benchmark_compares_the_losses_and_the_untrained_encoder(folder, tmp_path):
    import json

    script = ["benchmarks/simcse_wordnet.py", "--data", folder, "--output", tmp_path]
    script += ["--seeds", "1", "2", "--data.batch_size=8", "--trainer.max_steps=2"]
    script += ["--trainer.val_check_interval=2", *QUIET]
    run_python(*script, folder=ROOT, timeout=600)
    names = ["untrained", "InfoNCE", "WEINCE, the paper's form", "WEINCE with shape 1"]
    kept = (tmp_path / "numbers.json").read_bytes()
    assert [(run["seed"], run["name"]) for run in json.loads(kept)["runs"]] == [
        (seed, name) for seed in (1, 2) for name in names
    ]
    rows = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == [
        "tf-idf", *names,
    ]  # fmt: skip
    run_python(*script, folder=ROOT, timeout=600)
    assert (tmp_path / "numbers.json").read_bytes() == kept  # with its seconds: nothing ran again
