"""``weince sweep`` carries out real trainings and evaluations, and says what became of them."""

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import torch
from cases import few
from sweep_folders import LAST, LAYER, RUNS, SWEEP, TAILS

from weince_lightning.cli import main
from weince_lightning.sweeps import read_sweep
from weince_lightning.sweeps.folder import alone, run_folder

OWN_CLASSES = """
import os, signal, torch, weince_lightning
class Counting(weince_lightning.ContrastiveModule):
    def on_train_epoch_end(self):
        self.log("threads", float(torch.get_num_threads()))
class Killed(weince_lightning.ContrastiveModule):
    def on_train_epoch_end(self):
        os.kill(os.getpid(), signal.SIGKILL)
class Raising(weince_lightning.ContrastiveModule):
    def on_train_epoch_end(self):
        raise RuntimeError("the sky fell")
"""


def changed(**parts):
    return {**copy.deepcopy(SWEEP), **parts}


def with_arm(**arm):
    return changed(arms={"infonce": arm}, seeds=[7])


def one_run(**arm):
    return with_arm(layers=["loss/infonce"], **arm)


# Results


def test_every_run_has_a_result(finished):
    assert set(finished.results()) == set(RUNS)
    assert (finished.output / "sweep.yaml").read_text() == (
        finished.path / "small.yaml"
    ).read_text()


def test_a_result_holds_what_the_report_needs(finished):
    result = finished.results()["weince/aic_margin=0/seed_21"]
    assert (result["arm"], result["seed"]) == ("weince", 21)
    assert result["point"] == {"model.loss.gate.aic_margin": 0}
    assert 0 <= result["evaluation"]["linear"]["test_top1"]["mean"] <= 1
    assert len(result["evaluation"]["knn"]["val_top1_k10"]["values"]) == 1
    assert result["evaluation"]["checkpoint"] == "last.ckpt"
    assert "--seed_everything=21" in result["fit"]["arguments"]
    assert torch.__version__.startswith(result["versions"]["torch"])
    assert len(result["fit"]["history"]["tail/lambda_mean"]) == 2
    assert result["fit"]["metrics"]["val/loss"] == result["fit"]["history"]["val/loss"][-1]


def test_the_evaluated_weights_are_those_of_the_end_of_the_training(finished):
    for name in RUNS:
        checkpoint = torch.load(finished.run(name) / "checkpoints" / "last.ckpt", weights_only=True)
        assert checkpoint["global_step"] == 6
        written = finished.run(name) / "checkpoints" / "last" / "evaluation.json"
        assert json.loads(written.read_text()) == finished.results()[name]["evaluation"]


def test_runs_write_into_their_own_folders_alone(finished):
    assert {path.name for path in finished.path.iterdir()} == {
        "layer.yaml",
        "small.yaml",
        "sweeps",
    }
    names = {path.name for path in finished.run(RUNS[0]).iterdir()}
    assert {"checkpoints", "config.yaml", "log.txt", "metrics.csv", "run.json"} <= names
    assert not list(finished.output.rglob("features-*"))


def test_seeds_and_arms_give_different_numbers(finished):
    losses = {result["fit"]["metrics"]["val/loss"] for result in finished.results().values()}
    assert len(losses) == len(RUNS)


@pytest.mark.slow
def test_the_commands_of_the_dry_run_do_what_the_sweep_does(finished, work, sweep):
    status, listed = sweep("small.yaml", "--dry-run")
    assert status == 0
    assert re.findall(r"^\d+\. (\S+)$", listed, flags=re.MULTILINE) == RUNS
    assert not work.output.exists()
    commands = re.findall(r"^   weince (.*)", listed, flags=re.MULTILINE)
    before = torch.get_num_threads()
    torch.set_num_threads(finished.results()[RUNS[1]]["threads"])
    for command in commands[2:4]:
        main(shlex.split(command))
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)
    written = work.run(RUNS[1]) / "checkpoints" / "last" / "evaluation.json"
    assert json.loads(written.read_text()) == finished.results()[RUNS[1]]["evaluation"]


# Doing it again, with the same plan or another


@pytest.fixture
def again(finished, work):
    """A copy of the finished sweep."""
    shutil.copytree(finished.output, work.output)
    return work


def stamps(work):
    return {path: path.stat().st_mtime_ns for path in (work.output / "results").rglob("*.json")}


def test_a_finished_sweep_does_nothing(again, sweep):
    before = stamps(again)
    status, said = sweep("small.yaml")
    assert status == 0
    assert "4 runs in sweeps/small, 4 of them done" in said
    assert "weince report sweeps/small" in said
    assert stamps(again) == before
    assert sweep("small.yaml", "--dry-run")[1].count("(done)") == 4


@pytest.mark.slow
def test_added_seeds_are_run_and_the_others_kept(again, sweep):
    before = stamps(again)
    arms = {"infonce": SWEEP["arms"]["infonce"]}
    again.write("small.yaml", changed(seeds=[7, 21, 63], arms=arms))
    assert sweep("small.yaml")[0] == 0
    after = stamps(again)
    assert len(after) == 5
    assert {path: after[path] for path in before} == before
    assert "63" in (again.output / "sweep.yaml").read_text()


@pytest.mark.parametrize(
    ("parts", "named"),
    few(
        [
            (
                {"options": {"model.learning_rate": 0.1}},
                "nothing where the plan has --model.learning_rate=0.1. Give another --output, or "
                "delete sweeps/small/results/infonce/default/seed_7.json and "
                "sweeps/small/runs/infonce/default/seed_7 to run it again",
            ),
            (
                {"evaluation": {"linear.epochs": 3}},
                "--linear.epochs=2 --linear.seeds=[1] --knn.seeds=[1] --knn.k=10 where the plan "
                "has --linear.epochs=3. Give another --output, or delete "
                "sweeps/small/results/infonce/default/seed_7.json to run it again",
            ),
        ]
    ),
)
def test_results_of_another_plan_are_not_taken(again, sweep, parts, named):
    before = stamps(again)
    again.write("small.yaml", changed(**parts))
    status, said = sweep("small.yaml")
    assert status == 2
    assert named in said
    assert said.count("\n") == 1
    assert stamps(again) == before
    assert (again.output / "sweep.yaml").read_text() != (again.path / "small.yaml").read_text()


def test_results_of_a_layer_with_other_content_are_not_taken(again, sweep):
    layer = copy.deepcopy(LAYER)
    (again.path / "layer.yaml").write_text(
        "# a comment changes nothing\n" + (again.path / "layer.yaml").read_text()
    )
    assert sweep("small.yaml")[0] == 0
    layer["model"]["init_args"]["projection_dim"] = 32
    again.write("layer.yaml", layer)
    status, said = sweep("small.yaml")
    assert status == 2
    assert "seed_7.json was made with another content of the layer layer.yaml" in said


def test_a_deleted_result_is_evaluated_again_without_training(again, sweep):
    result = again.output / "results" / f"{RUNS[0]}.json"
    before = json.loads(result.read_text())
    result.unlink()
    again.write("small.yaml", SWEEP)
    assert sweep("small.yaml")[0] == 0
    assert json.loads(result.read_text()) == before
    assert (again.run(RUNS[0]) / "log.txt").read_text().count("weince fit -c") == 1


def test_a_damaged_result_is_named(again, sweep):
    (again.output / "results" / f"{RUNS[2]}.json").write_text("{")
    status, said = sweep("small.yaml")
    assert status == 2
    assert f"results/{RUNS[2]}.json cannot be read: delete it to run it again" in said


def test_a_run_that_another_sweep_is_at_is_left_alone(work, sweep):
    work.write("small.yaml", one_run())
    [run] = read_sweep("small.yaml").runs()
    with alone(run_folder(work.output, run)) as is_free:
        assert is_free
        status, said = sweep("small.yaml", "--output", work.output)
    assert status == 1
    assert "infonce/default/seed_7: another sweep is at work on it" in said


# Failures


def test_a_run_that_fails_or_is_killed_fails_alone_and_is_named(work, sweep):
    (work.path / "own_classes.py").write_text(OWN_CLASSES)
    arms = {
        name: {"options": {"model": f"own_classes.{name}", "model.backbone": "convnet"}}
        for name in ("Killed", "Raising", "Counting")
    }
    arms["refused"] = {"options": {"model.loss.temperature": -1}, "layers": ["loss/infonce"]}
    work.write("small.yaml", changed(arms=arms, baseline="Counting", seeds=[7]))
    status, said = sweep("small.yaml")
    assert status == 1
    assert set(work.results()) == {"Counting/default/seed_7"}
    assert "Killed/default/seed_7: run 1 of 4, its log is sweeps/small/runs/Killed/" in said
    assert re.search(r"FAILED Raising/default/seed_7: .*; 2 left, about", said)
    assert "3 of 4 runs failed:" in said
    ending = said.partition("runs failed:")[2]
    assert "Killed/default/seed_7: fit was killed by SIGKILL" in ending
    assert "Raising/default/seed_7: fit failed: RuntimeError: the sky fell" in ending
    assert re.search(r"refused/default/seed_7: fit failed: .*temperature must be", ending)
    assert "sweeps/small/runs/Raising/default/seed_7/log.txt" in ending


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (with_arm(layers=["loss/infonc"]), "nearest packaged one is 'loss/infonce'"),
        (one_run(options={"trainer.maxepochs": 1}), "there is no option --trainer.maxepochs. Did"),
        (one_run(options={"trainer.max_epochs": "many"}), "trainer.max_epochs"),
        (one_run(options={"trainer.callbacks": [TAILS, {**LAST, "init_args": {"monitor": "x"}}]}),
         "ModelCheckpoint without monitor"),
        (one_run(options={"trainer.enable_checkpointing": False, "trainer.callbacks": None}),
         "ModelCheckpoint without monitor"),
        (changed(evaluation={"linear.epoch": 1}), "evaluation: .*has no argument .epoch"),
        (changed(evaluation={"linear.epochs": -1}), "epochs must be"),
        (changed(evaluation={"probe.epochs": 1}), "evaluation: .*probe.epochs"),
    ],
)  # fmt: skip
def test_what_the_commands_would_refuse_is_refused_before_anything_is_trained(
    work, sweep, content, message
):
    work.write("small.yaml", content)
    status, said = sweep("small.yaml")
    assert status == 2
    assert re.search(message, said), said
    assert said.count("\n") == 1
    assert not work.output.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere.yaml"], 1, "SWEEP must be a YAML file or one of sweeps/"),
        ([], 2, "required: SWEEP"),
        (["small.yaml", "--jobs", "0"], 2, "must be an integer above 0"),
        (["small.yaml", "--keep-checkpoints", "no"], 2, "must be true or false"),
        (["small.yaml", "--slurm.partition", "gpu"], 2, "must stand with --engine slurm"),
        (["small.yaml", "--engine", "slurm", "--slurm.timeout_min=9"], 2, "must run where srun is"),
    ],
)
def test_arguments_without_sense_are_refused_in_one_line(work, sweep, arguments, status, message):
    found, said = sweep(*arguments)
    assert found == status
    assert message in said
    assert said.count("\n") == 1


def test_help_names_the_packaged_sweeps(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["sweep", "--help"])
    assert "sweeps/digits" in capsys.readouterr().out


# Options


@pytest.mark.slow
def test_runs_side_by_side_share_the_processors_and_may_drop_their_checkpoints(work, sweep):
    (work.path / "own_classes.py").write_text(OWN_CLASSES)
    arm = {"options": {"model": "own_classes.Counting", "model.backbone": "convnet"}}
    work.write("small.yaml", changed(arms={"infonce": arm}))
    jobs = 2
    assert sweep("small.yaml", "--jobs", jobs, "--keep-checkpoints", "false")[0] == 0
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    assert len(work.results()) == 2
    for result in work.results().values():
        assert result["threads"] == threads
        assert result["fit"]["metrics"]["threads"] == threads
    assert not list(work.output.rglob("*.ckpt"))


@pytest.mark.slow
def test_a_run_may_train_on_two_devices(work, sweep):
    options = {"trainer.devices": 2, "trainer.strategy": "ddp"}
    work.write("small.yaml", one_run(options=options))
    assert sweep("small.yaml")[0] == 0
    assert len(work.results()) == 1
    assert "Starting with 2 processes" in (work.run(RUNS[0]) / "log.txt").read_text()


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_the_command_quietly(work):
    command = f"{sys.executable} -m weince_lightning sweep small.yaml --dry-run | head -n 1"
    found = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert found.stdout.startswith("1. ")
    assert found.stderr == ""
