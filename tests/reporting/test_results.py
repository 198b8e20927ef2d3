"""What is read from a folder of results, and what is named instead."""

import json
import re
import shutil

import pytest

from weince_lightning.reporting import compare, read_results
from weince_lightning.sweeps import SweepError


def test_every_number_of_an_evaluation_is_a_metric(sweep):
    run = read_results(sweep.path).runs[0]
    assert (run.arm, run.point, run.seed) == ("infonce", "temperature=0.1", 7)
    assert run.metrics == pytest.approx(
        {
            "linear.val_top1": 0.60,
            "linear.test_top1": 0.50,
            "knn.val_top1_k50": 0.50,
            "knn.test_top1_k50": 0.40,
            "knn.test_recall_at_1": 0.30,
            "gradient.hardest_1": 0.25,
        }
    )


def test_runs_are_in_the_order_of_the_sweep_file(sweep):
    sweep.plan["arms"] = dict(reversed(sweep.plan["arms"].items()))
    sweep.plan["seeds"] = [63, 7, 21]
    sweep.write_plan()
    runs = [(run.point, run.seed) for run in read_results(sweep.path).runs]
    assert runs[:4] == [("default", 63), ("default", 7), ("default", 21), ("temperature=0.1", 63)]


def test_points_of_several_options_are_those_of_the_sweep_file(sweep):
    paths = ("model.loss.gate.aic_margin", "model.loss.gate.kappa_rho")
    sweep.plan["arms"]["weince"]["grid"] = dict(zip(paths, ([2], [5, 10]), strict=True))
    sweep.write_plan()
    arm = compare(read_results(sweep.path)).arms[1]
    assert [each.point for each in arm.configurations] == [
        "aic_margin=2,kappa_rho=5",
        "aic_margin=2,kappa_rho=10",
    ]


def change_record(**changes):
    def change(sweep, file):
        file.write_text(json.dumps(json.loads(file.read_text()) | changes), encoding="utf-8")

    return change


def change_text(text):
    return lambda sweep, file: file.write_text(text, encoding="utf-8")


def change_metric(part, metric, value):
    return lambda sweep, file: sweep.change("weince", "default", 21, part, metric, value)


def cut(sweep, file):
    file.write_bytes(file.read_bytes()[:200])


STRANGE = {
    "cut off": (cut, "no JSON"),
    "empty": (change_text(""), "no JSON"),
    "a list": (change_text("[]"), "must hold arm, point, seed and evaluation"),
    "no evaluation": (change_text('{"arm": "weince", "point": {}, "seed": 21}'), "must hold arm"),
    "another arm's": (change_record(arm="infonce"), "must lie in results/infonce/"),
    "another seed's": (change_record(seed=7), "must lie in"),
    "a seed that is text": (change_record(seed="21"), "seed in it must be an integer"),
    "another point's": (
        change_record(point={"model.loss.temperature": 1}),
        r"that of the plan \{\}",
    ),
    "trained otherwise": (
        change_record(fit={"arguments": ["-c", "digits", "--trainer.max_epochs=9"]}),
        "trained with --trainer.max_epochs=9 where sweep.yaml has loss/weince .*max_epochs=2",
    ),
    "an evaluation without numbers": (change_record(evaluation={"linear": {}}), "no metric"),
    "an accuracy in per cent": (change_metric("knn", "test_top1_k50", 54.2), r"\[0, 1\], got 54.2"),
    "a mean of others": (
        change_metric("linear", "test_top1", {"mean": 0.9, "values": [0.5, 0.6]}),
        "must be that of its values, 0.55, got 0.9",
    ),
    "values that are no numbers": (
        change_metric("linear", "test_top1", {"mean": 0.9, "values": ["high"]}),
        "must be a list of numbers",
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_strange_file_is_named_and_left_out(sweep, case):
    change, reason = STRANGE[case]
    change(sweep, sweep.file("weince", "default", 21))
    results = read_results(sweep.path)
    (problem,) = [line for line in results.problems if "left out" in line]
    assert problem.startswith("results/weince/default/seed_21.json is left out: ")
    assert re.search(reason, problem)
    assert compare(results).arms[1].configurations[0].missing == [21]


def test_a_file_that_is_no_result_is_named(sweep):
    (sweep.path / "results" / "notes.txt").write_text("well", encoding="utf-8")
    (problem,) = read_results(sweep.path).problems
    assert problem.startswith("results/notes.txt is left out: it is no JSON")


def test_what_a_killed_process_left_half_written_is_no_result(sweep):
    (sweep.file("weince", "default", 21).parent / ".seed_21.json.1f.part").write_text("{")
    assert read_results(sweep.path).problems == []


def test_results_outside_of_the_plan_are_named_and_not_compared(sweep):
    sweep.plan["arms"]["infonce"]["grid"] = {"model.loss.temperature": [0.1]}
    sweep.plan["seeds"] = [7, 21]
    del sweep.plan["paper"]["weince"]
    sweep.plan["arms"]["other"] = sweep.plan["arms"].pop("weince")
    sweep.write_plan()
    results = read_results(sweep.path)
    assert {(run.arm, run.point) for run in results.runs} == {("infonce", "temperature=0.1")}
    reasons = [line.partition("left out: ")[2] for line in results.problems]
    assert reasons.count("sweep.yaml has no arm 'weince'.") == 3
    assert reasons.count("sweep.yaml has no configuration 'temperature=0.5' of 'infonce'.") == 3
    assert reasons.count("sweep.yaml has no seed 63.") == 1
    assert [arm.name for arm in compare(results).arms] == ["infonce", "other"]


def test_without_a_sweep_file_arms_and_seeds_are_those_found(sweep):
    (sweep.path / "sweep.yaml").unlink()
    sweep.file("weince", "default", 21).unlink()
    results = read_results(sweep.path)
    assert results.plan.source is None
    assert results.plan.seeds == (7, 21, 63)
    infonce, weince = compare(results).arms
    assert (infonce.label, infonce.chosen.point) == ("infonce", "temperature=0.1")
    assert weince.chosen is None  # another arm has seed 21
    assert (infonce.differences, weince.differences) == ({}, {})


def test_configurations_found_are_in_the_order_of_their_numbers(sweep):
    (sweep.path / "sweep.yaml").unlink()
    for name, temperature in (("temperature=0.05", 0.05), ("temperature=10", 10)):
        content = json.loads(sweep.file("infonce", "temperature=0.1", 7).read_text())
        content["point"] = {"model.loss.temperature": temperature}
        sweep.write("infonce", name, 7, content)
    arm = compare(read_results(sweep.path)).arms[0]
    assert [each.point for each in arm.configurations] == [
        f"temperature={value}" for value in ("0.05", "0.1", "0.5", "10")
    ]


def test_an_absent_or_infinite_number_is_named(sweep):
    sweep.change("weince", "default", 21, "linear", "test_top1", float("nan"))
    sweep.change("weince", "default", 63, "knn", "test_top1_k50", None)
    assert read_results(sweep.path).problems == [
        "results/weince/default/seed_21.json has no finite number for linear.test_top1.",
        "results/weince/default/seed_63.json has no finite number for knn.test_top1_k50.",
    ]


def test_a_metric_that_is_finite_nowhere_is_named_too(sweep):
    for seed in (7, 21, 63):
        sweep.change("weince", "default", seed, "gradient", "norm", float("inf"))
    assert read_results(sweep.path).problems[-1].endswith("has no finite number for gradient.norm.")


def test_one_encoder_under_two_seeds_is_named(sweep):
    content = json.loads(sweep.file("weince", "default", 7).read_text())
    sweep.write("weince", "default", 63, content | {"seed": 63})
    (problem,) = read_results(sweep.path).problems
    assert "seed_63.json has the very weights of results/weince/default/seed_7.json" in problem


def test_a_folder_without_results_says_so(sweep, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        read_results(tmp_path / "absent")
    shutil.rmtree(sweep.path / "results")
    with pytest.raises(SweepError, match="not finished a run yet"):
        read_results(sweep.path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("arms: [", "YAML"),
        ("- infonce", "mapping"),
        ("seeds: [7]\nbaseline: infonce\narms: {}", "arms"),
        ("seeds: seven\nbaseline: infonce\narms: {infonce: {}}", "seeds"),
        ("seeds: [7]\nbaseline: weince\narms: {infonce: {}}", "baseline"),
    ],
)
def test_a_damaged_sweep_file_is_an_error_of_one_line(sweep, text, reason):
    (sweep.path / "sweep.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(SweepError, match=reason) as error:
        read_results(sweep.path)
    assert "\n" not in str(error.value)
