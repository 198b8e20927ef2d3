"""Every packaged configuration parses, builds and changes only what it names."""

import inspect
import itertools
import json
import pkgutil
from pathlib import Path

import pytest
import torch
from cases import few
from jsonargparse import capture_parser
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI

from weince_lightning import ContrastiveModule, WEINCELoss
from weince_lightning.cli.arguments import find_config
from weince_lightning.cli.lightning_cli import WeinceCLI
from weince_lightning.cli.parser import ConciseParser
from weince_lightning.data import VisionData
from weince_lightning.layers import as_yaml, merged, packaged_configs, read_layers

CONFIGS = packaged_configs()
LOSSES = [name for name in CONFIGS if name.startswith("loss/")]
DATA = [name for name in CONFIGS if name.startswith("data/")]
COMPLETE = ["digits", "fashion_mnist", "image_folder"]
SETTINGS = json.loads((Path(__file__).parent / "packaged_settings.json").read_text())
"""What each configuration sets: values by keys joined by dots, lists as one value."""
LAYERED = [name for name in CONFIGS if len(read_layers(CONFIGS[name])) > 1]
ABLATIONS = {"loss/weince_rho": "rho", "loss/weince_aic": "aic"}


@pytest.fixture(scope="module")
def parser():
    return capture_parser(lambda: WeinceCLI(["fit"]))


@pytest.fixture(scope="module")
def alone(parser):
    """The settings of the loss of each loss file by itself."""
    return {name: settings(build_loss(parser, "digits", name)) for name in LOSSES}


def parse(parser, *layers, options=()):
    layers = [part for name in layers for part in ("-c", find_config(name))]
    return parser.parse_args(["fit", *layers, *options]).fit


def without_config(parsed):
    return {key: value for key, value in parsed.as_dict().items() if key != "config"}


def build_loss(parser, *layers):
    config = parser.parse_args(["fit", *(f"-c={find_config(name)}" for name in layers)])
    return parser.instantiate_classes(config).fit.model.loss


def settings(part):
    """A loss as nested plain values, from what its parts hold."""
    if isinstance(part, torch.nn.ModuleList):
        return [settings(child) for child in part]
    if not hasattr(part, "__dict__"):
        return part
    held = {k: v for k, v in vars(part).items() if not k.startswith("_") and k != "training"}
    if isinstance(part, torch.nn.Module):
        held |= dict(part.named_children()) | {k: v.tolist() for k, v in part.named_buffers()}
    return type(part), {name: settings(value) for name, value in held.items()}


def load(name):
    return merged(read_layers(CONFIGS[name]))


def leaves(part, path=""):
    if not isinstance(part, dict) or not part:
        return {path: part}
    found = {}
    for key, value in part.items():
        found |= leaves(value, f"{path}.{key}" if path else key)
    return found


def nested(settings):
    content = {}
    for path, value in settings.items():
        *sections, key = path.split(".")
        inner = content
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    return content


def unset_arguments(spec):
    """Arguments that a class has and its specification leaves out, at any depth."""
    if isinstance(spec, list):
        return [name for item in spec for name in unset_arguments(item)]
    if not isinstance(spec, dict):
        return []
    arguments = spec.get("init_args", {})
    parameters = inspect.signature(pkgutil.resolve_name(spec["class_path"])).parameters.values()
    known = {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    unset = sorted(known - set(arguments))
    return unset + [name for value in arguments.values() for name in unset_arguments(value)]


def test_the_promised_configs_are_there():
    assert {"base", *COMPLETE} <= set(CONFIGS)
    promised = ("infonce", "weince", "weince_released", "weince_rho", "weince_aic")
    assert set(LOSSES) == {f"loss/{name}" for name in promised}


def test_the_settings_of_every_configuration_are_written_down():
    assert list(SETTINGS) == sorted(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_sets_what_is_written_down_and_nothing_else(name):
    assert leaves(load(name)) == SETTINGS[name]


@pytest.mark.parametrize("name", few(LAYERED, 0, -1))
def test_the_command_reads_layers_as_the_one_file_that_sets_the_same(parser, name):
    under = [] if "data" in load(name) else ["digits"]
    whole = parse(parser, *under, as_yaml(nested(SETTINGS[name])))
    assert without_config(parse(parser, *under, name)) == without_config(whole)


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_of_the_gate_is_the_line_that_changes(name):
    *under, own = read_layers(CONFIGS[name])
    assert [layer.source for layer in under] == [CONFIGS["loss/weince"]]
    assert leaves(own.content) == {"model.loss.init_args.gate.init_args.signals": ABLATIONS[name]}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_file_sets_the_loss_and_nothing_else(name):
    content = load(name)
    assert list(content) == ["model"]
    assert list(content["model"]) == ["loss"]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_file_sets_every_argument(name):
    assert unset_arguments(load(name)["model"]["loss"]) == []


@pytest.mark.parametrize(("first", "last"), few(itertools.permutations(LOSSES, 2), 7))
def test_last_of_two_loss_files_counts_alone(parser, alone, first, last):
    assert settings(build_loss(parser, "digits", first, last)) == alone[last]


def test_loss_files_give_different_losses(alone):
    assert all(one != other for one, other in itertools.combinations(alone.values(), 2))


def test_weince_file_is_the_default_loss(alone):
    assert alone["loss/weince"] == settings(WEINCELoss())


def test_released_file_is_the_released_recipe(alone):
    assert alone["loss/weince_released"] == settings(WEINCELoss.released())


def test_option_replaces_the_gate_of_a_loss_file(parser):
    config = parse(parser, "loss/weince_rho", options=["--model.loss.gate", "0.25"])
    assert config.model.init_args.loss.init_args.gate == 0.25


@pytest.mark.parametrize(
    "option", few(["queue_size=20", "memory_bank_size=20", "memory_bank_size=[20, 64]"], 0, -1)
)
def test_options_give_a_loss_its_earlier_keys(parser, option):
    config = parser.parse_args(["fit", "-c", find_config("loss/weince"), f"--model.loss.{option}"])
    loss = parser.instantiate_classes(config).fit.model.loss
    assert loss.queue.size == 20
    assert (loss.queue.features == 64) == ("64" in option)


def test_number_as_gate_leaves_nothing_under_a_later_loss_file(parser, alone, tmp_path):
    fixed = tmp_path / "fixed.yaml"
    fixed.write_text("model: {loss: {init_args: {gate: 0.25}}}", encoding="utf-8")
    layered = build_loss(parser, "digits", "loss/weince", str(fixed), "loss/weince_rho")
    assert settings(layered) == alone["loss/weince_rho"]


@pytest.mark.parametrize("data", few(DATA, 0, -1))
@pytest.mark.parametrize("loss", few(["loss/infonce", "loss/weince"]))
def test_every_data_and_loss_pair_parses_over_the_base(parser, data, loss):
    config = parse(parser, "base", data, loss)
    assert config.data.init_args.dataset == data.removeprefix("data/")
    assert config.trainer.max_epochs == 100


@pytest.mark.parametrize("data", few([name for name in DATA if name != "data/image_folder"], -1))
def test_base_builds_a_model_for_the_images_of_every_data_file(parser, data):
    options = ["fit", "-c", find_config("base"), "-c", find_config(data)]
    built = parser.instantiate_classes(parser.parse_args(options)).fit
    shape = (2, built.data.in_channels, built.data.image_size, built.data.image_size)
    assert built.model(torch.zeros(shape)).shape == (2, built.model.feature_dim)


@pytest.mark.parametrize("name", ["base", *COMPLETE])
def test_training_files_keep_the_last_and_the_best_checkpoint(parser, name):
    built = parser.instantiate_classes(parser.parse_args(["fit", "-c", find_config(name)])).fit
    savers = [c for c in built.trainer.callbacks if isinstance(c, ModelCheckpoint)]
    # kNN on the digits is saturated before training.
    best = "val/loss" if name == "digits" else "knn/top1"
    assert [(s.filename, s.monitor) for s in savers] == [("best", best), ("last", None)]


@pytest.mark.parametrize("name", few(LOSSES, 0, -1))
def test_loss_file_serves_a_command_of_the_users_own(name, monkeypatch):
    class MyModule(ContrastiveModule):
        pass

    arguments = ["command", "-c", find_config(name), "--model.backbone=convnet"]
    monkeypatch.setattr("sys.argv", arguments)
    # A file that stands on others needs the parser that knows of them.
    options = {"parser_class": ConciseParser} if name in LAYERED else {}
    cli = LightningCLI(MyModule, VisionData, run=False, seed_everything_default=False, **options)
    assert type(cli.model.loss).__name__ == load(name)["model"]["loss"]["class_path"].split(".")[-1]
    if name in ABLATIONS:
        assert cli.model.loss.gate.signals == ABLATIONS[name]
