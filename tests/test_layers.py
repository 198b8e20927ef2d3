"""Configurations that stand for several layers, and what every command says of layers."""

import json
import re

import pytest
from jsonargparse import capture_parser

from weince_lightning.checkpoints.record import RunSettings
from weince_lightning.cli.arguments import UsageError, complete_arguments, read_config
from weince_lightning.cli.checkpoint_config import with_checkpoint_config
from weince_lightning.cli.encoder_arguments import sort_arguments
from weince_lightning.cli.lightning_cli import WeinceCLI
from weince_lightning.layers import merged, packaged_configs, read_layers
from weince_lightning.sweeps import SweepError, read_sweep
from weince_lightning.sweeps.folder import describe
from weince_lightning.yaml_files import YAMLFileError

CONFIGS = packaged_configs()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder, and a function that writes files there."""
    monkeypatch.chdir(tmp_path)

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture(scope="module")
def parser():
    return capture_parser(lambda: WeinceCLI(["fit"]))


def sources(layers):
    return [layer.source.stem for layer in layers]


def test_layers_stand_under_the_file_that_names_them_in_order(folder):
    folder(
        a="layers: [b.yaml, c.yaml]\nx: a",
        b="layers: [d.yaml]\nx: b\ny: b",
        c="y: c\nz: {u: 1, v: 2}",
        d="w: d\nz: {u: 0}",
    )
    layers = read_layers("a.yaml")
    assert sources(layers) == ["d", "b", "c", "a"]
    assert merged(layers) == {"w": "d", "z": {"u": 1, "v": 2}, "x": "a", "y": "c"}


def test_merging_changes_no_layer_and_adds_up_what_is_appended(folder):
    folder(a="layers: [b.yaml]\ncallbacks+: [1]\nx: {y: 1}", b="callbacks+: [2]\nx: {y: 0, z: 0}")
    layers = read_layers("a.yaml")
    before = json.dumps([layer.content for layer in layers])
    assert merged(layers) == {"callbacks+": [2, 1], "x": {"y": 1, "z": 0}}
    assert json.dumps([layer.content for layer in layers]) == before


def test_names_are_seen_from_the_file_and_then_packaged_never_from_the_working_folder(folder):
    base = folder(digits="x: mine", base="x: mine")
    (base / "inner").mkdir()
    (base / "inner" / "own.yaml").write_text("layers: [near.yaml, ../digits.yaml, base]")
    (base / "inner" / "near.yaml").write_text("y: 1")
    (base / "base").write_text("x: not meant")
    found = [layer.source.resolve() for layer in read_layers("inner/own.yaml")]
    inner = base / "inner"
    assert found == [inner / "near.yaml", base / "digits.yaml", CONFIGS["base"], inner / "own.yaml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers: [a.yaml]", r"a.yaml, line 1: layers must not lead back .*, got .*a.yaml"),
        ("x: 1\nlayers: base", r"line 2: layers must be .* got 'base'. Write layers: \[base\]."),
        (
            "layers: [sweeps/digits]",
            r"line 1: .* It is a sweep: weince sweep sweeps/digits.",
        ),
        (
            "layers: [data/cifar1000]",
            r"line 1: layers, seen from .*must name .*got 'data/cifar1000'. .*'data/cifar100'",
        ),
    ],
)
def test_layers_without_sense_are_refused_in_one_line(folder, text, message):
    folder(a=text)
    with pytest.raises(YAMLFileError, match=message) as refusal:
        read_layers("a.yaml")
    assert "\n" not in str(refusal.value)


def test_a_circle_over_two_files_is_refused(folder):
    folder(a="layers: [b.yaml]", b="layers: [a.yaml]")
    with pytest.raises(YAMLFileError, match=r"b.yaml, line 1: layers .*a.yaml -> .*b.yaml -> "):
        read_layers("a.yaml")


def test_settings_that_are_typed_may_name_layers():
    assert [layer.source for layer in read_config("{layers: [base], seed_everything: 1}")] == [
        CONFIGS["base"],
        None,
    ]


BROKEN = {
    "twice": ("data:\n  x: 1\n  x: 2", "twice.yaml, line 2: 'x' is given twice, again in line 3"),
    "tab": ("data:\n\tx: 1", "tab.yaml, line 2, column 1: this is no YAML"),
    "comments": ("# data: 1", "comments.yaml must hold settings"),
    "names": ("layers: [tab.yaml]", "tab.yaml, line 2, column 1: this is no YAML"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize(
    "read",
    [
        lambda layer: complete_arguments(["fit", "-c", layer]),
        lambda layer: sort_arguments(["a.ckpt", "-c", layer], ["data"]),
        lambda layer: with_checkpoint_config(
            ["fit", "--ckpt_path", "a.ckpt", "-c", layer], RunSettings({}, {}, "a.ckpt")
        ),
    ],
    ids=["fit", "evaluate", "resumed"],
)
def test_every_command_refuses_a_layer_in_the_same_words(folder, name, read):
    folder(**{each: text for each, (text, _) in BROKEN.items()})
    with pytest.raises(UsageError, match=re.escape(BROKEN[name][1])):
        read(f"{name}.yaml")


@pytest.mark.parametrize("name", ["twice", "tab"])
def test_a_sweep_file_is_refused_in_the_same_words(folder, name):
    folder(**{each: text for each, (text, _) in BROKEN.items()})
    with pytest.raises(SweepError, match=re.escape(BROKEN[name][1])):
        read_sweep(f"{name}.yaml")


def test_evaluate_takes_its_part_of_each_layer(folder):
    folder(a="layers: [b.yaml]\ndata: {x: 1}\ntrainer: {y: 1}", b="trainer: {y: 0}\nknn: null")
    given = sort_arguments(["a.ckpt", "-c", "a.yaml"], ["data", "knn"])
    assert given.layers == [{"knn": None}, {"data": {"x": 1}}]


def test_a_blank_section_takes_nothing_away(folder, parser):
    folder(mine="trainer:\n#  max_epochs: 3\nmodel:\n  learning_rate: 0.01\n")
    parsed = parser.parse_args(["fit", "-c", "digits", "-c", "mine.yaml"]).fit
    alone = parser.parse_args(["fit", "-c", "digits"]).fit
    assert parsed.trainer == alone.trainer
    assert parsed.model.init_args.learning_rate == 0.01


def test_numbers_without_a_point_stay_numbers(folder, parser):
    folder(mine="model: {learning_rate: 1e-3}\ntrainer: {limit_val_batches: 1}")
    parsed = parser.parse_args(["fit", "-c", "digits", "-c", "mine.yaml"]).fit
    assert parsed.model.init_args.learning_rate == 0.001
    assert type(parsed.trainer.limit_val_batches) is int


def test_appended_callbacks_of_several_layers_add_up(folder, parser):
    layer = "trainer: {callbacks+: [{class_path: lightning.pytorch.callbacks.Timer}]}"
    folder(a=f"layers: [digits, b.yaml]\n{layer}", b=layer)
    names = [
        callback.class_path.rpartition(".")[2]
        for callback in parser.parse_args(["fit", "-c", "a.yaml"]).fit.trainer.callbacks
    ]
    assert len(names) == 8
    assert names[-2:] == ["Timer", "Timer"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "trainer:\n  max_epochs: five",
            "trainer.max_epochs must be .* See my.yaml, line 2",
        ),
        ("model:\n  loss:\n    init_args: {tau: 1}", "no argument 'tau'.* See my.yaml, line 3"),
        ("trainer:\n  max_epoch: 5", "no option 'trainer.max_epoch'.* See my.yaml, line 2"),
    ],
)
def test_a_wrong_setting_is_found_by_file_and_line(folder, parser, capsys, text, message):
    folder(my=text)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["fit", "-c", "digits", "-c", "my.yaml"])
    assert re.search(message, capsys.readouterr().err)


def test_a_wrong_option_is_not_looked_for_in_files(parser, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["fit", "-c", "digits", "--trainer.max_epochs=five"])
    assert "See" not in capsys.readouterr().err


def test_the_digest_of_a_layer_covers_what_is_under_it(folder):
    folder(
        sweep="layers: [a.yaml]\nseeds: [1]\nbaseline: x\narms: {x: }",
        a="layers: [b.yaml]\nx: 1",
        b="y: 1",
    )
    [run] = read_sweep("sweep.yaml").runs()

    def digest():
        return describe(run, str)["layers"]["a.yaml"]

    first = digest()
    folder(b="# a comment\ny: 1")
    assert digest() == first
    folder(b="y: 2")
    assert digest() != first
    folder(a="x: 1", b="y: 1")
    assert digest() != first
