"""A sweep file becomes a list of runs, or one clear line."""

import pytest
import yaml

from weince_lightning.cli.sweep import find_sweep
from weince_lightning.layers import packaged_configs, packaged_sweeps
from weince_lightning.sweeps import SweepError, read_sweep

SMALL = {
    "layers": ["digits"],
    "options": {"trainer.max_epochs": 2},
    "seeds": [7, 21],
    "baseline": "infonce",
    "arms": {
        "infonce": {"layers": ["loss/infonce"], "grid": {"model.loss.temperature": [0.1, 0.5]}},
        "weince": {"layers": ["loss/weince"], "options": {"trainer.max_epochs": 3}},
    },
    "evaluation": {"linear.epochs": 5, "knn.seeds": [1, 2]},
}


def read(tmp_path, content):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    )
    return read_sweep(path)


def with_arm(**arm):
    return {**SMALL, "arms": {"infonce": arm}}


def test_every_arm_has_its_first_seed_before_any_has_its_second(tmp_path):
    assert [run.name for run in read(tmp_path, SMALL).runs()] == [
        "infonce/temperature=0.1/seed_7",
        "infonce/temperature=0.5/seed_7",
        "weince/default/seed_7",
        "infonce/temperature=0.1/seed_21",
        "infonce/temperature=0.5/seed_21",
        "weince/default/seed_21",
    ]


def test_a_run_has_the_layers_and_options_of_sweep_arm_and_point(tmp_path):
    runs = {run.name: run for run in read(tmp_path, SMALL).runs()}
    assert runs["infonce/temperature=0.5/seed_21"].fit_arguments == [
        *("-c", "digits", "-c", "loss/infonce"),
        "--trainer.max_epochs=2",
        "--model.loss.temperature=0.5",
        "--seed_everything=21",
    ]
    weince = runs["weince/default/seed_7"]
    assert "--trainer.max_epochs=3" in weince.fit_arguments
    assert weince.evaluate_arguments == [
        "--linear.epochs=5",
        "--knn.seeds=[1, 2]",
        "--cache=false",
    ]


def test_a_point_is_named_by_as_much_of_each_path_as_tells_it_from_the_others(tmp_path):
    grid = {
        "model.loss.gate.aic_margin": [0, 2],
        "model.loss.weight": [0.5],
        "model.head.weight": [1.0],
    }
    [arm] = read(tmp_path, with_arm(grid=grid)).arms.values()
    assert [*arm.points()] == [
        "aic_margin=0,loss.weight=0.5,head.weight=1.0",
        "aic_margin=2,loss.weight=0.5,head.weight=1.0",
    ]


def test_names_of_points_are_names_of_folders_and_differ(tmp_path):
    values = ["a/b", "a,b", "a=b", "../b", None, [1, 5], {"class_path": "x.Y"}]
    [arm] = read(tmp_path, with_arm(grid={"model.x": values})).arms.values()
    names = [*arm.points()]
    assert len(set(names)) == len(values)
    assert not [name for name in names if "/" in name or "," in name]
    for name in names:
        (tmp_path / name).mkdir()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**SMALL, "seed": [7]}, "a sweep file must have the keys .* alone, got 'seed'"),
        ("- 1", "a sweep file must be a mapping"),
        ("arms: [", "is no YAML"),
        ({k: v for k, v in SMALL.items() if k != "seeds"}, "seeds must be given"),
        ({**SMALL, "seeds": []}, "seeds must be a list of integers"),
        ({**SMALL, "seeds": [7.5]}, "seeds must be a list of integers"),
        ({**SMALL, "seeds": [7, 21, 7]}, "seeds must hold no seed twice, got 7"),
        ({**SMALL, "baseline": "simclr"}, r"one of the arms \(infonce, weince\), got 'simclr'"),
        ({**SMALL, "layers": "digits"}, "layers must be a list of names or paths"),
        ({**SMALL, "options": ["a"]}, "options must map option paths to values"),
        ({**SMALL, "options": {"--trainer.max_epochs": 1}}, "got '--trainer.max_epochs'"),
        ({**SMALL, "options": {"seed_everything": 1}}, "leave seed_everything to the sweep"),
        ({**SMALL, "options": {"trainer.logger.save_dir": "x"}}, "leave trainer.logger.save_dir"),
        ({**SMALL, "evaluation": {"cache": True}}, "evaluation must leave cache to the sweep"),
        (with_arm(colour="red"), "arms.infonce must have the keys .* got 'colour'"),
        (with_arm(grid={"model.x": 3}), "arms.infonce.grid.model.x must be a list"),
        (with_arm(grid={"model.x": []}), "arms.infonce.grid.model.x must be a list"),
        (with_arm(grid={"model.x": [1, 1.0]}), "model.x must hold no value twice, got 1.0"),
        (with_arm(grid={"model.x": ["y" * 300]}), "names of at most 200 characters"),
        ({**SMALL, "arms": {"a b": {}}, "baseline": "a b"}, "name of an arm .* got 'a b'"),
        ({**SMALL, "paper": {"other": {}}}, r"paper must name arms \(infonce, weince\)"),
        ({**SMALL, "paper": {"weince": {"linear.test_top1": [53.28, 0.28]}}}, "in fractions"),
        ("seeds: [1]\narms:\n  a: {}\n  a: {}", "line 3: 'a' is given twice"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(SweepError, match=message) as refusal:
        read(tmp_path, content)
    assert "\n" not in str(refusal.value)
    assert "sweep.yaml" in str(refusal.value)


def test_a_merged_mapping_may_be_overridden(tmp_path):
    text = """
    seeds: [7]
    baseline: a
    arms:
      a: &a {layers: [digits], label: first}
      b: {<<: *a, label: second}
    """
    arms = read(tmp_path, text).arms
    assert [arms[name].label for name in "ab"] == ["first", "second"]
    assert arms["b"].layers == ["digits"]


@pytest.mark.parametrize("name", packaged_sweeps())
def test_packaged_sweeps_are_sweeps_of_packaged_layers(name):
    plan = read_sweep(find_sweep(name))
    layers = {layer for run in plan.runs() for layer in run.layers}
    assert layers <= {*packaged_configs()}


def test_packaged_sweeps_are_found_by_both_names_and_are_no_layers():
    assert find_sweep("sweeps/digits") == find_sweep("digits") == find_sweep("sweeps/digits.yaml")
    assert not [name for name in packaged_configs() if "sweeps" in name]


def test_an_unknown_sweep_is_told_the_packaged_ones():
    with pytest.raises(FileNotFoundError, match=r"one of sweeps/.*got 'digit'"):
        find_sweep("digit")
