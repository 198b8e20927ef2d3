"""The command as a person types it: real training on the digits, real files, real Ctrl-C."""

import contextlib
import io
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cases import few
from lightning.pytorch import LightningDataModule
from processes import WITH_TQDM, Python, run_python
from torch.utils.data import DataLoader, TensorDataset

from weince_lightning import ContrastiveModule
from weince_lightning.cli import main
from weince_lightning.cli.arguments import UsageError, complete_arguments, find_config
from weince_lightning.layers import packaged_configs

SHORT = [
    "--trainer.max_epochs=2",
    "--trainer.limit_train_batches=3",
    "--trainer.enable_progress_bar=false",
]
INTERRUPTIBLE = [
    "fit",
    "-c=digits",
    "--trainer.max_epochs=2",
    "--trainer.limit_train_batches=6",
    WITH_TQDM,
]


class Finished(NamedTuple):
    """A training run: its working folder, what it printed, and its own folder."""

    folder: Path
    output: str
    run: Path


def run(folder, *arguments):
    """Run ``weince`` in a folder; give what it wrote to standard output."""
    output, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(output):
            main([*arguments])
    finally:
        os.chdir(before)
        # The trainer sets it for the whole process.
        torch.use_deterministic_algorithms(False)
    return output.getvalue()


def command_after(label, text):
    """The arguments of the ``weince`` command that the text suggests."""
    return shlex.split(re.search(rf"{label}.*\n  weince (.+)", text)[1])


def numbers(text):
    return dict(re.findall(r"\(([\w/]+)\) +([\d.]+)\n", text))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    return Finished(folder, run(folder, "fit", *SHORT), folder / "runs" / "digits" / "version_0")


def test_fit_ends_with_the_promised_numbers(finished):
    assert set(numbers(finished.output)) == {
        "train/loss",
        "val/loss",
        "knn/top1",
        "probe/val_top1",
        "tail/lambda_mean",
        "tail/beta_hat_mean",
    }


def test_files_that_fit_names_exist(finished):
    named = re.findall(r"  (runs/\S+)", finished.output)
    assert len(named) >= 4
    assert all((finished.folder / name).exists() for name in named)


@pytest.mark.parametrize("name", ["best", "last"])
def test_checkpoints_load_without_pickled_classes(finished, name):
    torch.load(finished.run / "checkpoints" / f"{name}.ckpt", weights_only=True)


def test_validate_as_suggested_repeats_the_numbers_of_fit(finished):
    output = run(finished.folder, *command_after("Next", finished.output))
    for name in ("val/loss", "knn/top1", "probe/val_top1"):
        assert numbers(output)[name] == numbers(finished.output)[name]


def test_fit_proposes_what_can_be_done_with_its_checkpoint(finished):
    proposed = re.findall(r"\n  weince (.*)", finished.output.partition("Next:")[2])
    commands = [shlex.split(line) for line in proposed]
    assert [command[0] for command in commands] == ["validate", "evaluate", "diagnose", "export"]
    named = {word for command in commands for word in command if word.endswith(".ckpt")}
    assert named == {"runs/digits/version_0/checkpoints/last.ckpt"}


def test_a_checkpoint_of_weights_alone_finds_the_configuration_beside_it(finished, capsys):
    checkpoint = torch.load(finished.run / "checkpoints" / "last.ckpt", weights_only=True)
    del checkpoint["weince_lightning"]["config"], checkpoint["callbacks"]
    torch.save(checkpoint, finished.run / "checkpoints" / "weights.ckpt")
    options = ("--ckpt_path", f"{finished.run}/checkpoints/weights.ckpt")
    output = run(finished.folder, "validate", *options, "--trainer.callbacks=null")
    assert numbers(output)["val/loss"] == numbers(finished.output)["val/loss"]
    assert "version_0/config.yaml" in capsys.readouterr().err


@pytest.mark.slow
def test_option_overrides_the_settings_behind_a_checkpoint(finished):
    arguments = [*command_after("Next", finished.output), "--model.loss.temperature=5"]
    output = run(finished.folder, *arguments)
    assert numbers(output)["val/loss"] != numbers(finished.output)["val/loss"]


def test_predict_writes_features_and_labels_of_the_test_images(finished):
    run(finished.folder, "predict", "--ckpt_path", f"{finished.run}/checkpoints/last.ckpt")
    saved = np.load(finished.run / "checkpoints" / "last.features.npz")
    assert saved["features"].shape[0] == 359
    assert np.bincount(saved["labels"]).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]


@pytest.mark.slow
def test_evaluation_starts_no_log_of_its_own(finished):
    run(finished.folder, "test", "--ckpt_path", f"{finished.run}/checkpoints/last.ckpt")
    assert not list(finished.folder.glob("lightning_logs"))


@pytest.mark.slow
def test_second_run_is_bit_identical_and_keeps_the_first(finished, tmp_path):
    run(finished.folder, "fit", *SHORT)
    states = [
        torch.load(
            finished.run.with_name(version) / "checkpoints" / "last.ckpt", weights_only=True
        )["state_dict"]
        for version in ("version_0", "version_1")
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0] | states[1])


def test_fit_without_arguments_says_which_configuration_it_takes(capsys):
    assert complete_arguments(["fit"]) == ["fit", "-c", find_config("digits")]
    assert "'digits'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", ["--model=X", "--data.dataset=cifar10", "-c=loss/weince", "--help"]
)
def test_default_configuration_stands_back_for_choices_of_the_user(given):
    assert find_config("digits") not in complete_arguments(["fit", given])[2:]


@pytest.mark.parametrize("name", ["digits", "digits.yaml", "loss/weince", "data/cifar100.yaml"])
def test_packaged_configurations_have_names(name):
    assert find_config(name) == str(packaged_configs()[name.removesuffix(".yaml")])


def test_an_existing_path_wins_over_a_packaged_name(tmp_path, monkeypatch):
    (tmp_path / "digits").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert complete_arguments(["fit", "--config", "digits"]) == ["fit", "-c", "digits"]


def test_layers_stand_before_options_however_they_were_typed():
    given = ["fit", "--trainer.max_epochs", "1", "-c", "digits", "--config=loss/weince"]
    layers = ["-c", find_config("digits"), "-c", find_config("loss/weince")]
    assert complete_arguments(given) == ["fit", *layers, "--trainer.max_epochs", "1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["fti"], "got 'fti'. Did you mean 'fit'?"),
        (["validate"], "give --ckpt_path CHECKPOINT"),
        (
            ["predict", "--ckpt_path", "nowhere/last.ckpt"],
            "there is no checkpoint nowhere/last.ckpt.",
        ),
    ],
)
def test_a_command_line_without_sense_is_refused_at_once(given, message, capsys):
    with pytest.raises(SystemExit, match=r"[12]"):
        main(given)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_classes_of_the_working_folder_can_be_named(tmp_path):
    (tmp_path / "my_project.py").write_text(
        "import weince_lightning\nclass MyModule(weince_lightning.ContrastiveModule): ...\n"
    )
    command = [Path(sys.executable).with_name("weince"), "fit", "-c", "digits"]
    command += ["--model", "my_project.MyModule", "--print_config"]
    assert "class_path: my_project.MyModule" in run_python(*command, folder=tmp_path, timeout=300)


def test_unknown_configuration_names_the_nearest(capsys):
    with pytest.raises(UsageError, match="nearest packaged one is 'loss/infonce'"):
        find_config("loss/infonc")
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "-c", "loss/infonc"])
    assert capsys.readouterr().err.count("\n") == 1


def test_help_names_every_packaged_configuration_and_a_first_command(capsys):
    main(["--help"])
    text = capsys.readouterr().out
    assert "weince fit -c digits\n" in text
    assert all(f"  {name}" in text for name in packaged_configs())


@pytest.mark.parametrize(
    ("content", "message"),
    few([
        ("model: {loss: {class_path: weince_lightning.WEINCELoss, init_args: {temprature: 1}}}",
         "WEINCELoss has no argument 'temprature'. Did you mean 'temperature'?"),
        ("model: {learning_rat: 1}",
         "ContrastiveModule has no argument 'learning_rat'. Did you mean 'learning_rate'?"),
        ("data: {batchsize: 8}",
         "VisionData has no argument 'batchsize'. Did you mean 'batch_size'?"),
        ("trainer: {max_epoch: 8}", "'trainer.max_epoch'. Did you mean 'trainer.max_epochs'?"),
        ("modle: {depth: 1}", "there is no option 'modle.depth'. Did you mean 'model'?"),
        ("model: {loss: {class_path: weince_lightning.WEINCELoss, init_args: {mix: logit}}}",
         "mix must be one of 'logits', 'losses', got 'logit'."),
        ("model: {loss: {class_path: weince_lightning.WEINCELoss, init_args: {gate: 2.0}}}",
         "gate must be"),
        ("data: {dataset: digit}", "Did you mean 'digits'?"),
        ("model: {loss: {class_path: weince_lightning.WEINCELoss, init_args: {temperature: abc}}}",
         "model.loss.temperature must be one of float, Tensor, got 'abc'."),
        ("model: {loss: my.Loss}", "model.loss must be a class that can be imported, got 'my."),
        ("model: {loss: Loss}", "A class is named by its import path."),
        ("data: {transforms: foo}", "data.transforms must be one of list["),
        ("trainer: {max_epochs: five}", "trainer.max_epochs must be one of int, null, got 'five'."),
    ], 0, 3, 4, 6, 8, 9),
)  # fmt: skip
def test_wrong_configuration_is_refused_in_a_few_lines(content, message, tmp_path, capsys):
    file = tmp_path / "wrong.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "-c", "digits", "-c", str(file)])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") <= 3


class ForeignData(LightningDataModule):
    """Data of a user's own, without the attributes that the command links."""

    def train_dataloader(self):
        views = torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(views), batch_size=16, collate_fn=self.two_views)

    @staticmethod
    def two_views(samples):
        images = torch.stack([image for (image,) in samples])
        return (images, images.flip(-1)), torch.zeros(len(images)).long()


class ForeignModule(ContrastiveModule):
    """A module of a user's own, with an argument and defaults of its own."""

    def __init__(self, depth: int = 1, learning_rate: float = 0.02, **rest):
        super().__init__(learning_rate=learning_rate, projection_dim=5, **rest)
        self.depth = depth


class ForeignBackbone(torch.nn.Sequential):
    """A backbone of a user's own."""

    def __init__(self, width: int = 6):
        super().__init__(torch.nn.Flatten(), torch.nn.LazyLinear(width))


def test_other_classes_run_with_a_loss_of_lightly(tmp_path):
    here = Path(__file__).stem
    output = run(
        tmp_path,
        "fit",
        f"--data={here}.ForeignData",
        f"--model={here}.ForeignModule",
        "--model.depth=3",
        f"--model.backbone={here}.ForeignBackbone",
        "--model.in_channels=1",
        "--model.image_size=8",
        "--model.loss=lightly.loss.NTXentLoss",
        "--trainer.log_every_n_steps=1",
        *SHORT,
    )
    assert "train/loss" in numbers(output)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)
    assert len(saved["state_dict"]["backbone.1.weight"]) == 6
    # Its own default, not that of ContrastiveModule.
    assert saved["optimizer_states"][0]["param_groups"][0]["lr"] == 0.02


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:KNNMonitor "knn" logs nothing')
@pytest.mark.parametrize("without", [[], ["--without=KNNMonitor", "--without", "GeometryMonitor"]])
def test_base_serves_data_without_loaders_for_evaluation(without, tmp_path):
    here = Path(__file__).stem
    model = ["--model.backbone=convnet", "--model.in_channels=1", "--model.image_size=8"]
    epochs = ["--trainer.max_epochs=5", "--trainer.enable_progress_bar=false"]
    run(tmp_path, "fit", "-c=base", f"--data={here}.ForeignData", *model, *epochs, *without)
    (best,) = tmp_path.rglob("best.ckpt")
    saved = torch.load(best, weights_only=True)
    (follower,) = [each for name, each in saved["callbacks"].items() if "'train/loss'" in name]
    assert follower["best_model_score"] > 0
    assert ("GeometryMonitor" in (best.parents[1] / "config.yaml").read_text()) == (not without)


@pytest.mark.slow
def test_only_a_callback_that_is_there_can_be_left_out(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "-c=digits", "--without=KNNMonitr"])
    error = capsys.readouterr().err
    assert "got 'KNNMonitr'. There are: " in error
    assert 'Did you mean "KNNMonitor"?' in error


@pytest.mark.slow
def test_layers_override_the_defaults_of_a_class_and_say_so(tmp_path, capsys):
    layer, here = tmp_path / "mine.yaml", Path(__file__).stem
    layer.write_text("model: {weight_decay: 0.5}", encoding="utf-8")
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "-c", "base", "-c", "data/digits", "-c", "loss/weince", "--print_config"])
    assert capsys.readouterr().err == ""
    options = [f"--model={here}.ForeignModule", "--model.backbone=convnet", "--print_config"]
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "-c", "base", "-c", str(layer), *options])
    settings, said = capsys.readouterr()
    assert "    learning_rate: 0.0003\n" in settings
    assert said == (
        f"weince: {here}.ForeignModule takes from layers: learning_rate 0.0003 (its default is "
        "0.02), weight_decay 0.5 (its default is 0.0)\n"
    )


def start(folder, *arguments):
    return Python("-m", "weince_lightning", *arguments, folder=folder)


@pytest.mark.slow
def test_interrupted_training_resumes_as_suggested(tmp_path):
    process = start(tmp_path, *INTERRUPTIBLE)
    process.read_until(rb"Epoch 1: +33%")
    process.send(signal.SIGINT)
    output = process.finish(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in output
    saved = tmp_path / "runs" / "digits" / "version_0" / "checkpoints" / "interrupted.ckpt"
    assert 6 < torch.load(saved, weights_only=True)["global_step"] < 12
    resumed = run(tmp_path, *command_after("Resume", output))
    assert "Trained for 2 epochs, 12 steps" in resumed


@pytest.mark.slow
def test_impatient_interruptions_leave_a_checkpoint(tmp_path):
    process = start(tmp_path, *INTERRUPTIBLE)
    process.read_until(rb"Epoch 1: +33%")
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
    output = process.finish(timeout=180)
    assert process.returncode == 130
    checkpoint = command_after("Resume", output)[-1]
    assert torch.load(tmp_path / checkpoint, weights_only=True)["global_step"] >= 6


def refusal(capsys, folder, *arguments):
    """The last line of a command that ends with an error, without a traceback."""
    with pytest.raises(SystemExit) as caught:
        run(folder, *arguments)
    said = capsys.readouterr().err + (caught.value.code if type(caught.value.code) is str else "")
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


def test_a_file_where_the_logs_should_go_is_named(tmp_path, capsys):
    (tmp_path / "logs").touch()
    said = refusal(capsys, tmp_path, "fit", *SHORT, "--trainer.logger.save_dir", "logs")
    assert re.search(r"^weince: error: .*Not a directory: .*logs", said)


def test_a_finished_training_is_not_resumed(finished, capsys, tmp_path):
    checkpoint = str(finished.run / "checkpoints" / "last.ckpt")
    said = refusal(capsys, tmp_path, "fit", "--ckpt_path", checkpoint)
    assert said.startswith("weince: error: --trainer.max_epochs must be above 2")
    steps = ("--trainer.max_epochs=9", "--trainer.max_steps=6")
    said = refusal(capsys, tmp_path, "fit", "--ckpt_path", checkpoint, *steps)
    assert said.startswith("weince: error: --trainer.max_steps must be above 6")
    assert not any(tmp_path.iterdir())


def test_validate_leaves_no_file_behind(finished, tmp_path):
    run(tmp_path, "validate", "--ckpt_path", str(finished.run / "checkpoints" / "last.ckpt"))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["fit", "validate", "predict"])
def test_weights_of_another_program_are_refused_in_one_line(command, capsys, tmp_path):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "plain.ckpt")
    said = refusal(capsys, tmp_path, command, "-c=digits", "--ckpt_path", "plain.ckpt")
    assert "plain.ckpt must be a checkpoint that Lightning wrote" in said


def test_what_this_package_refuses_in_training_is_told_in_one_line(capsys, tmp_path):
    said = refusal(capsys, tmp_path, "fit", "--data.batch_size=1", *SHORT)
    assert said.startswith("weince: error: z0 must hold at least 2 samples")


def test_a_trial_run_points_to_no_files(tmp_path):
    output = run(tmp_path, "fit", "--trainer.fast_dev_run=true", *SHORT)
    assert "nothing was written" in output
    assert ".ckpt" not in output
    assert not any(tmp_path.iterdir())


def test_one_batch_is_not_all_of_them(tmp_path):
    (tmp_path / "one.yaml").write_text("trainer:\n  limit_train_batches: 1\n")
    layers = ("-c=digits", "-c=one.yaml", "--trainer.limit_val_batches=1", "--trainer.max_epochs=1")
    quick = ("--trainer.enable_progress_bar=false", "--trainer.callbacks=null")
    output = run(tmp_path, "fit", *layers, *quick)
    assert "Trained for 1 epochs, 1 steps" in output
    saved = (tmp_path / "runs/digits/version_0/config.yaml").read_text()
    assert "limit_train_batches: 1\n" in saved
    assert "limit_val_batches: 1\n" in saved
