"""Mistyped input: one line that names the option, the file and line, and the mend."""

import re

import numpy as np
import pytest
import torch
from cases import few
from test_cli import refusal, run

LOSS = "--model.loss=weince_lightning.WEINCELoss"
GATE = "--model.loss.gate=weince_lightning.TailGate"


def refused(capsys, folder, *arguments):
    """The error of a command line that ends with status 2; where its help is may follow."""
    with pytest.raises(SystemExit) as caught:
        run(folder, *arguments)
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert "Traceback" not in said
    assert "digits.yaml" not in said
    (error,) = [line for line in said.splitlines() if "error:" in line]
    for line in said.splitlines():
        assert not line.startswith("All options") or f"weince {arguments[0]} --help" in line
    return error.partition("error: ")[2]


@pytest.mark.parametrize(
    ("options", "message"),
    few([
        (["--trainer.max_epochs=-3"], "--trainer.max_epochs must be at least -1, got -3."),
        (["--trainer.acelerator=gpu"], "--trainer.acelerator. Did you mean --trainer.accelerator?"),
        (["--modle.depth=1"], "--modle.depth. Did you mean --model.depth?"),
        (["--model.los.gate=1"], "ContrastiveModule has no argument 'los'. Did you mean 'loss'?"),
        ([LOSS, GATE, "--model.loss.gate.kapa_rho=1"], "Did you mean 'kappa_rho'?"),
        (["-c=base", "--model.loss.gate=1"], "--model.loss must name a class before"),
        (["--model.loss.mix=1", LOSS], "must be named before its argument 'mix'"),
        ([LOSS, GATE, "--model.loss.gate.rho_quantile=7"], "--model.loss.gate.rho_quantile must"),
        (["--trainer.profiler=no"], "--trainer.profiler parameter"),
        (["--trainer.strategy=dpp"], "--trainer.strategy dpp."),
        (["--seed_everything=-1"], "--seed_everything must be at least 0"),
        (["--trainer.check_val_every_n_epoch=0"], "must be at least 1, got 0."),
        (["--trainer.val_check_interval=99"], "--trainer.val_check_interval (99) must be less"),
        (["-c=digits", "-c=trainer: 5"], "settings, each by its name, got 5."),
        (["--trainer=5"], "--trainer must be a file of settings, got '5'."),
        (["digits"], "options must begin with --, got 'digits'"),
        (["-c"], "-c must be followed by a YAML file"),
        (["-c=nothere.yaml"], "got 'nothere.yaml': no such file. The nearest packaged one is"),
        (["-c=folder.yaml"], "got the folder 'folder.yaml'."),
    ], 0, 7, 15),
)  # fmt: skip
def test_fit_names_the_option_and_the_mend(options, message, tmp_path, capsys):
    (tmp_path / "folder.yaml").mkdir()
    assert message in refused(capsys, tmp_path, "fit", *options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_accelerator_that_is_not_there_is_refused(tmp_path, capsys):
    said = refused(capsys, tmp_path, "fit", "--trainer.accelerator=gpu")
    assert "--trainer.accelerator must be one that this machine has, got 'gpu'." in said


@pytest.mark.parametrize(
    ("content", "message"),
    few([
        ("model:\ntrainer: 5", "--trainer must hold settings, .* See wrong.yaml, line 2."),
        ("trainer: {max_steps: -2}", "--trainer.max_steps must .* See wrong.yaml, line 1."),
        ("layers:", "wrong.yaml must hold settings, .* got blank keys alone"),
        ("model:\n  init_args:\n    3: x", "wrong.yaml, line 3: keys must be words, got 3."),
    ], 0, 2, 3),
)  # fmt: skip
def test_fit_names_file_and_line(content, message, tmp_path, capsys):
    (tmp_path / "wrong.yaml").write_text(content)
    assert re.search(message, refused(capsys, tmp_path, "fit", "-c", "wrong.yaml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    few([
        (["diagnose", "--devise=gpu"], "there is no option --devise. Did you mean --device?"),
        (["diagnose", "--device=gpu"], "device must be one of 'auto', 'cpu', 'cuda', got 'gpu'."),
        (["evaluate", "--data.batchsize=8"], "Did you mean 'batch_size'?"),
        (["evaluate", "--knn.kk=8"], "'kk'"),
        (["evaluate", "--linear.epochs=0"], "--linear.epochs must be at least 1, got 0."),
        (["sweep", "digits", "--jbs=2"], "there is no option --jbs. Did you mean --jobs?"),
    ], 0, 1, 3, 5),
)  # fmt: skip
def test_other_commands_name_the_option_and_the_mend(arguments, message, tmp_path, capsys):
    command, *options = arguments
    files = {"evaluate": ["a.pt", "-c=data/cifar10"], "diagnose": ["a.npy"]}
    torch.save({"weight": torch.zeros(1)}, tmp_path / "a.pt")
    np.save(tmp_path / "a.npy", np.eye(4, dtype=np.float32))
    given = [command, *files.get(command, []), *options]
    assert message in refused(capsys, tmp_path, *given)


def test_hints_are_in_the_words_of_the_caller(tmp_path, capsys):
    options = ("--data.dataset=cifar10", "--model.backbone=convnet", "--trainer.logger=false")
    said = refusal(capsys, tmp_path, "fit", *options)
    assert "Set --data.download true, or" in said
