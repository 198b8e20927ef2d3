"""What comes back from a checkpoint: loss, settings and state, in Python and the command."""

import contextlib
import io
import json
import os
import re
import shutil
import struct
import warnings
from pathlib import Path

import pytest
import torch
import wandb
import yaml
from cases import few
from lightly.loss import NTXentLoss
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch import nn
from wandb.proto import wandb_internal_pb2

from weince_lightning import (
    ArctanhLink,
    ContrastiveModule,
    InfoNCELoss,
    PowerLink,
    SoftmaxLink,
    TailGate,
    TailShape,
    TopMTerm,
    WeibitLink,
    WEINCELoss,
)
from weince_lightning.callbacks import KNNMonitor, OnlineLinearProbe, TailMonitor
from weince_lightning.checkpoints import CheckpointError
from weince_lightning.cli import main
from weince_lightning.data import VisionData
from weince_lightning.losses.descriptions import describe

SHORT = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 2}
OPTIONS = [f"--trainer.{name}={value}" for name, value in SHORT.items()]
QUIET = "--trainer.enable_progress_bar=false"


def make_module(kind=ContrastiveModule, **arguments):
    seed_everything(0, verbose=False)
    return kind(**{"backbone": "convnet", "in_channels": 1, "image_size": 8, **arguments})


def make_data():
    return VisionData(batch_size=16, image_size=8)


def make_trainer(folder, **arguments):
    defaults = {
        "accelerator": "cpu",
        "callbacks": [],
        "default_root_dir": folder,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
        "logger": False,
        "num_sanity_val_steps": 0,
    }
    return Trainer(**{**defaults, **SHORT, **arguments})


def trained(folder, kind=ContrastiveModule, checkpoint=None, trainer=None, **arguments):
    """Train a module for a few steps; give it and its checkpoint, which loads without classes."""
    module = make_module(kind, **arguments)
    trainer = make_trainer(folder, **{"limit_val_batches": 0, **(trainer or {})})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(hparams|hyperparam|nn.Module)")
        trainer.fit(module, make_data(), ckpt_path=checkpoint)
    trainer.save_checkpoint(folder / "saved.ckpt")
    torch.load(folder / "saved.ckpt", weights_only=True)
    return module, folder / "saved.ckpt"


def fixed_loss(module):
    generator = torch.Generator().manual_seed(1)
    views = [torch.rand(12, 1, 8, 8, generator=generator) for _ in range(2)]
    return module.eval().step((views, torch.zeros(12, dtype=torch.int64)))["loss"]


def assert_same(module, other):
    states = module.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert torch.equal(fixed_loss(module), fixed_loss(other))


class Halved(WEINCELoss):
    """A user's own loss: what its constructor needs is not known."""

    def terms(self, z0, z1, ids=None, negatives=None):
        return super().terms(z0 / 2, z1, ids, negatives)


class OwnLink(SoftmaxLink):
    """A user's own part of our loss."""


class Deeper(ContrastiveModule):
    """A user's module with plain arguments and objects of its own."""

    def __init__(self, extra: nn.Module, depth: int = 1, **rest) -> None:
        super().__init__(**rest)
        self.extra, self.depth, self.width = extra, depth, extra.out_features

    def encode(self, images):
        features, projections = super().encode(images)
        return features, self.extra(projections)


class Habitual(Deeper):
    """A user's module that saves its hyperparameters as Lightning's guides do."""

    def __init__(self, **rest) -> None:
        super().__init__(**rest)
        self.save_hyperparameters()


class Fixed(ContrastiveModule):
    """A user's module that decides some arguments itself."""

    def __init__(self, width: int = 5, **rest) -> None:
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        super().__init__(backbone, loss=NTXentLoss(0.2), projection_dim=width, **rest)


class HandingOn(Fixed):
    """A user's module whose constructor names nothing."""

    def __init__(self, *positional, **rest) -> None:
        super().__init__(*positional, **rest)


LOSSES = {
    "default": lambda: None,
    "infonce": lambda: InfoNCELoss(0.2, PowerLink(2.0), layout="pairs", block_size=7),
    "arctanh": lambda: InfoNCELoss(0.2, ArctanhLink()),
    "running": lambda: InfoNCELoss(0.2, WeibitLink("pooled")),
    "weince": lambda: WEINCELoss(
        0.3, TailGate(kappa_rho=5, signals="rho"), TailShape(minimum=1.0), mix="losses"
    ),
    "numbers": lambda: WEINCELoss(0.3, gate=0.5, shape=2.0, gather_distributed=False),
    "released": lambda: WEINCELoss.released(0.4, gate=TailGate(hard=True)),
    "control": lambda: InfoNCELoss(top_m_terms=(TopMTerm(), TopMTerm(SoftmaxLink(), 20, 0.1))),
    "queue": lambda: WEINCELoss(0.3, layout="queries", queue_size=40),
    "bank": lambda: InfoNCELoss(0.3, memory_bank_size=(40, 64)),
    "tensor": lambda: WEINCELoss(torch.tensor(0.07)),
    "parameter": lambda: InfoNCELoss(nn.Parameter(torch.tensor(0.07, dtype=torch.float64))),
}


@pytest.mark.parametrize("name", few(LOSSES, 1, 6, 8, -1))
def test_a_module_built_in_python_comes_back_with_its_loss(tmp_path, name):
    module, path = trained(tmp_path, loss=LOSSES[name](), learning_rate=1e-2)
    loaded = ContrastiveModule.load_from_checkpoint(path)
    assert_same(module, loaded)
    assert str(loaded.loss) == str(module.loss)
    assert loaded.hparams == {**module.hparams, "loss": describe(module.loss)}
    assert loaded.learning_rate == 1e-2
    temperatures = module.loss.temperature, loaded.loss.temperature
    assert type(temperatures[0]) is type(temperatures[1])
    if isinstance(temperatures[0], torch.Tensor):
        assert temperatures[0].dtype == temperatures[1].dtype
        assert temperatures[0].requires_grad == temperatures[1].requires_grad


@pytest.mark.parametrize("name", few(["released", "running", "queue", "bank"], 0, 2))
def test_the_state_of_the_loss_survives_a_resumed_training_to_the_bit(tmp_path, name):
    whole, _ = trained(tmp_path, loss=LOSSES[name]())
    state = whole.loss.state_dict()
    loaded, _ = trained(tmp_path, loss=LOSSES[name](), checkpoint=tmp_path / "saved.ckpt")
    assert state.keys() == loaded.loss.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in loaded.loss.state_dict().items())
    key = next(key for key in state if "running_beta" in key or "vectors" in key)
    assert not torch.equal(state[key], LOSSES[name]().state_dict()[key])


def test_the_running_shape_is_not_rounded_by_half_precision(tmp_path):
    module, path = trained(tmp_path, loss=WEINCELoss.released(), trainer={"precision": "bf16-true"})
    beta = module.loss.top_m_terms[0].link.running_beta
    assert beta.dtype == torch.float32
    assert beta != beta.bfloat16()
    other = make_module(loss=WEINCELoss.released())
    trainer = make_trainer(tmp_path, precision="bf16-true")
    trainer.fit(other, make_data(), ckpt_path=path)
    assert torch.equal(other.loss.top_m_terms[0].link.running_beta, beta)


FOREIGN = {
    "lightly": ("loss", lambda: NTXentLoss(0.2), "lightly.loss.NTXentLoss as loss"),
    "function": ("loss", lambda: nn.functional.mse_loss, "torch.nn.functional.mse_loss as loss"),
    "subclass": ("loss", Halved, f"{Halved.__module__}.Halved as loss"),
    "part": ("loss", lambda: InfoNCELoss(link=OwnLink()), f"{Halved.__module__}.OwnLink as loss"),
    "backbone": (
        "backbone",
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8)),
        "torch.nn.Sequential as backbone",
    ),
}


@pytest.mark.parametrize("name", few(FOREIGN, 0, 1, -1))
def test_a_foreign_object_built_in_python_must_be_given_again(tmp_path, name):
    argument, create, message = FOREIGN[name]
    module, path = trained(tmp_path, **{argument: create()})
    with pytest.raises(ValueError, match=rf"{argument} must be given to load_from.*{message}, bu"):
        ContrastiveModule.load_from_checkpoint(path)
    loaded = ContrastiveModule.load_from_checkpoint(path, **{argument: create()})
    assert_same(module, loaded)


def test_arguments_given_to_load_win(tmp_path):
    _, path = trained(tmp_path, loss=WEINCELoss(0.3), learning_rate=1e-2)
    loaded = ContrastiveModule.load_from_checkpoint(
        path, loss=InfoNCELoss(0.1), learning_rate=1e-4, schedule="cosine"
    )
    assert isinstance(loaded.loss, InfoNCELoss)
    assert (loaded.learning_rate, loaded.schedule) == (1e-4, "cosine")
    assert loaded.hparams["loss"]["init_args"]["temperature"] == 0.1


def test_an_open_file_can_be_loaded(tmp_path):
    module, path = trained(tmp_path, loss=WEINCELoss(0.3))
    loaded = ContrastiveModule.load_from_checkpoint(io.BytesIO(path.read_bytes()))
    assert_same(module, loaded)


def test_what_was_changed_since_the_construction_is_saved(tmp_path):
    module = make_module(loss=WEINCELoss(0.3))
    module.loss.temperature = 0.1
    trainer = make_trainer(tmp_path)
    trainer.fit(module, make_data())
    trainer.save_checkpoint(tmp_path / "moved.ckpt")
    assert_same(module, ContrastiveModule.load_from_checkpoint(tmp_path / "moved.ckpt"))
    module.loss = NTXentLoss(0.2)
    trainer.save_checkpoint(tmp_path / "replaced.ckpt")
    with pytest.raises(ValueError, match="loss must be given"):
        ContrastiveModule.load_from_checkpoint(tmp_path / "replaced.ckpt")


def test_checkpoints_of_everything_at_once_hold_no_classes(tmp_path):
    saving = ModelCheckpoint(tmp_path, "last")
    callbacks = [TailMonitor(), KNNMonitor(), OnlineLinearProbe(10), saving]
    trained(
        tmp_path,
        loss=WEINCELoss.released(queue_size=8),
        optimizer="lars",
        weight_decay=1e-6,
        schedule="cosine",
        warmup_fraction=0.5,
        backbone_options={},
        trainer={"callbacks": callbacks, "enable_checkpointing": True},
    )
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 2


# Subclasses


def test_a_subclass_comes_back_with_its_own_arguments(tmp_path):
    extra = nn.Linear(64, 6)
    module, path = trained(tmp_path, Deeper, extra=extra, depth=3, loss=WEINCELoss(0.3))
    with pytest.raises(ValueError, match=r"extra must be given .* torch\.nn\.Linear as extra"):
        Deeper.load_from_checkpoint(path)
    for kind in (Deeper, ContrastiveModule):  # the base class finds who wrote it
        loaded = kind.load_from_checkpoint(path, extra=nn.Linear(64, 6))
        assert isinstance(loaded, Deeper)
        assert loaded.depth == 3
        assert_same(module, loaded)


@pytest.mark.filterwarnings("ignore:.*is an instance of `nn.Module`")
def test_objects_that_a_subclass_puts_among_the_settings_do_not_reach_the_checkpoint(tmp_path):
    module = make_module(Habitual, extra=nn.Linear(64, 6), loss=WEINCELoss(0.3))
    trainer = make_trainer(tmp_path, logger=CSVLogger(tmp_path))
    trainer.fit(module, make_data())
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    torch.load(tmp_path / "saved.ckpt", weights_only=True)
    loaded = Habitual.load_from_checkpoint(tmp_path / "saved.ckpt", extra=nn.Linear(64, 6))
    assert_same(module, loaded)


@pytest.mark.parametrize("kind", [Fixed, HandingOn])
def test_a_subclass_decides_again_what_it_decided(tmp_path, kind):
    def build(backbone, **arguments):
        return kind(6, **arguments)

    module, path = trained(tmp_path, build, learning_rate=1e-2)
    loaded = kind.load_from_checkpoint(path)
    assert_same(module, loaded)
    assert loaded.learning_rate == 1e-2


def test_a_class_that_is_not_imported_is_named(tmp_path):
    class Local(ContrastiveModule):
        pass

    module, path = trained(tmp_path, Local)
    assert_same(module, Local.load_from_checkpoint(path))
    with pytest.raises(ValueError, match=r"must be called on .*<locals>\.Local, which wrote"):
        ContrastiveModule.load_from_checkpoint(path)


# Checkpoints that do not fit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": InfoNCELoss()}, r"has a queue of 32 keys \(loss.queue\), the module none: give"),
        ({"loss": WEINCELoss(queue_size=8)}, "queue_size must be at least 32 to hold the saved"),
        (
            {"loss": WEINCELoss.released(queue_size=40)},
            r"top_m_terms/0 unset instead of TopMTerm, .*TopMTerm\.$",
        ),
        (
            {"backbone": "resnet18", "projection_dim": 32},
            "backbone convnet instead of resnet18, .*projection_dim 64 instead of 32",
        ),
        ({"projection_dim": 32}, "projection_dim 64 instead of 32"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_explained(tmp_path, saved_queue, arguments, message):
    with pytest.raises(RuntimeError, match=message) as caught:
        ContrastiveModule.load_from_checkpoint(saved_queue, **arguments)
    assert "\n" not in str(caught.value)
    trainer = make_trainer(tmp_path)
    with pytest.raises(RuntimeError, match=message):
        trainer.fit(make_module(**arguments), make_data(), ckpt_path=saved_queue)


def test_tensors_that_differ_are_named_where_no_setting_is_known():
    state = make_module(projection_dim=32).state_dict()
    with pytest.raises(RuntimeError, match=r"one: projection_head\.layers\.2\.weight\.$"):
        make_module().load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"one: backbone\.\S+ and \d+ more tensors\.$"):
        make_module(backbone="resnet18").load_state_dict(state)


@pytest.fixture(scope="module")
def saved_queue(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("queue"), loss=WEINCELoss(queue_size=40))[1]


# Loggers


def written_hparams(folder):
    """Read what three loggers wrote, each from its files."""
    (csv,) = folder.rglob("csv/**/hparams.yaml")
    (events,) = {path.parent for path in folder.rglob("tb/**/events*")}
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    content = accumulator.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    values = HParamsPluginData.FromString(content).session_start_info.hparams
    tensorboard = {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}
    return yaml.safe_load(csv.read_text()), tensorboard, wandb_config(folder)


def wandb_config(folder):
    """Read the settings from the file of an offline run: records, laid out as LevelDB's log."""
    (file,) = folder.rglob("offline-run*/*.wandb")
    data, place, record, config = file.read_bytes(), 7, b"", {}
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            content = wandb_internal_pb2.Record.FromString(record)
            for update in (*content.run.config.update, *content.config.update):
                config[update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
            record = b""
    return config


@pytest.mark.slow
def test_loggers_get_the_same_flat_settings_from_python_and_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    loss = WEINCELoss(temperature=0.5, top_m_terms=[TopMTerm(SoftmaxLink())])
    python, command = tmp_path / "python", tmp_path / "command"
    python.mkdir()
    loggers = [
        CSVLogger(python / "csv"),
        TensorBoardLogger(python / "tb"),
        WandbLogger(save_dir=python, offline=True),
    ]
    module, _ = trained(python, loss=loss, trainer={"logger": loggers})
    loggers[2].experiment.finish()
    assert "loss/temperature" not in module.hparams  # nested there, as constructors take them

    command.mkdir()
    config = {
        "model": {"backbone": "convnet", "loss": module.hparams["loss"]},
        "data": {"batch_size": 16, "image_size": 8},
        "trainer": {
            "accelerator": "cpu",
            "logger": [
                {"class_path": f"lightning.pytorch.loggers.{name}", "init_args": init_args}
                for name, init_args in (
                    ("CSVLogger", {"save_dir": "csv"}),
                    ("TensorBoardLogger", {"save_dir": "tb"}),
                    ("WandbLogger", {"save_dir": str(command), "offline": True}),
                )
            ],
        },
    }
    (command / "run.yaml").write_text(yaml.safe_dump(config))
    run(command, "fit", "-c", "run.yaml", *OPTIONS, QUIET)
    wandb.finish()
    expected = {
        "backbone": "convnet",
        "loss": "WEINCELoss",
        "loss/temperature": 0.5,
        "loss/gate": "TailGate",
        "loss/gate/kappa_rho": 10.0,
        "loss/top_m_terms/0/link": "SoftmaxLink",
        "learning_rate": 3e-4,
        "data/batch_size": 16,
    }
    for settings in zip(written_hparams(python), written_hparams(command), strict=True):
        for each in settings:
            each.pop("_wandb", None)
            assert {name: each[name] for name in expected} == expected
            assert all(isinstance(value, (bool, int, float, str)) for value in each.values())
        assert settings[0] == settings[1]


# The command


def run(folder, *arguments):
    """Run ``weince`` in a folder; give what it wrote to standard output and standard error."""
    output, errors, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            main([*arguments])
    finally:
        os.chdir(before)
        torch.use_deterministic_algorithms(False)
    return output.getvalue(), errors.getvalue()


def val_loss(output):
    return re.search(r"\(val/loss\) +([\d.]+)", output)[1]


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A checkpoint of the command, carried away from its run; and what fit printed."""
    folder = tmp_path_factory.mktemp("run")
    layers = ["-c=digits", "-c=loss/weince_released"]
    output, _ = run(folder, "fit", *layers, *OPTIONS, QUIET, "--trainer.callbacks=null")
    away = tmp_path_factory.mktemp("away") / "weights.ckpt"
    (written,) = folder.glob("runs/digits/version_0/checkpoints/*.ckpt")
    shutil.move(written, away)
    shutil.rmtree(folder)
    return away, output


def test_a_checkpoint_alone_repeats_the_numbers_of_fit(moved):
    path, fitted = moved
    output, errors = run(path.parent, "validate", "--ckpt_path", path.name)
    assert val_loss(output) == val_loss(fitted)
    assert "instead of" not in errors


def test_what_is_given_beside_a_checkpoint_wins_and_is_reported(moved):
    path, fitted = moved
    (path.parent / "layer.yaml").write_text("data: {batch_size: 64}\nseed_everything: 7")
    output, errors = run(
        path.parent,
        "validate",
        "--ckpt_path=weights.ckpt",
        "--model.loss.temperature=0.1",
        "--config=layer.yaml",
    )
    assert val_loss(output) != val_loss(fitted)
    assert [line for line in errors.splitlines() if "instead of" in line] == [
        "model.init_args.loss.init_args.temperature: 0.1 instead of the checkpoint's 0.5",
        "data.init_args.batch_size: 64 instead of the checkpoint's 128",
    ]


@pytest.mark.slow
def test_fit_goes_on_with_the_settings_of_a_checkpoint(moved):
    path, _ = moved
    output, errors = run(path.parent, "fit", "--ckpt_path=weights.ckpt", "--trainer.max_epochs=2")
    assert "Trained for 2 epochs, 4 steps" in output
    assert "trainer.max_epochs: 2 instead of the checkpoint's 1\n" in errors


def test_a_checkpoint_of_the_command_loads_in_python(moved, tmp_path):
    loaded = ContrastiveModule.load_from_checkpoint(moved[0])
    assert loaded.loss.top_m_terms[0].link.running_beta != 4.0
    trainer = make_trainer(tmp_path, limit_val_batches=1.0)
    numbers = trainer.validate(loaded, VisionData(batch_size=128), verbose=False)[0]
    assert f"{numbers['val/loss']:.4f}"[:4] == val_loss(moved[1])[:4]


@pytest.mark.parametrize("command", few(["validate", "fit"]))
def test_the_command_refuses_weights_of_another_model_in_one_line(moved, command):
    changes = ("--model.backbone=resnet18", "--trainer.max_epochs=9")
    with pytest.raises(SystemExit) as caught:
        run(moved[0].parent, command, "--ckpt_path=weights.ckpt", *changes)
    assert re.match("weince: error: .*backbone convnet instead of resnet18", caught.value.code)
    assert "\n" not in caught.value.code


def test_the_command_validates_what_was_built_in_python(tmp_path):
    module, path = trained(tmp_path, loss=WEINCELoss(nn.Parameter(torch.tensor(0.3)), gate=0.5))
    trainer = make_trainer(tmp_path)
    expected = trainer.validate(module, make_data(), verbose=False)[0]["val/loss"]
    output, errors = run(tmp_path, "validate", f"--ckpt_path={path}", *OPTIONS[2:])
    assert val_loss(output) == f"{expected:.4f}"
    assert "instead of" not in errors


def test_the_command_asks_for_what_was_built_in_python(tmp_path, capsys):
    module, path = trained(tmp_path, loss=NTXentLoss(0.2))
    with pytest.raises(SystemExit, match="2"):
        main(["validate", f"--ckpt_path={path}"])
    error = capsys.readouterr().err
    assert "--model.loss must be given, by a class path: the checkpoint was written with " in error
    assert "lightly.loss.NTXentLoss, built in Python" in error
    given = ["--model.loss=lightly.loss.NTXentLoss", "--model.loss.temperature=0.2"]
    output, _ = run(tmp_path, "validate", f"--ckpt_path={path}", *given, *OPTIONS[2:])
    trainer = make_trainer(tmp_path)
    expected = trainer.validate(module, make_data(), verbose=False)[0]["val/loss"]
    assert val_loss(output) == f"{expected:.4f}"


def test_a_foreign_loss_of_the_command_is_rebuilt_and_can_be_saved_again(tmp_path):
    given = ["--model.loss=lightly.loss.NTXentLoss", "--model.loss.temperature=0.2"]
    data = ["--data.batch_size=16", "--data.image_size=8", "--model.backbone=convnet"]
    run(tmp_path, "fit", *data, *given, *OPTIONS, QUIET)
    loaded = ContrastiveModule.load_from_checkpoint(next(tmp_path.rglob("*.ckpt")))
    assert loaded.loss.temperature == 0.2
    trainer = make_trainer(tmp_path)
    trainer.fit(loaded, make_data())
    trainer.save_checkpoint(tmp_path / "again.ckpt")
    assert_same(loaded, ContrastiveModule.load_from_checkpoint(tmp_path / "again.ckpt"))


def test_the_command_asks_for_data_that_a_checkpoint_does_not_name(tmp_path, capsys):
    module, trainer = make_module(), make_trainer(tmp_path)
    trainer.fit(module, make_data().train_dataloader())
    trainer.save_checkpoint(tmp_path / "loaders.ckpt")
    with pytest.raises(SystemExit, match="2"):
        main(["validate", f"--ckpt_path={tmp_path / 'loaders.ckpt'}"])
    assert "--ckpt_path must hold the settings of the data, got" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["text", "nothing", "half", "weights", "list"])
def test_a_file_that_is_no_checkpoint_is_refused_with_its_name(content, tmp_path):
    path = tmp_path / "file.ckpt"
    torch.save([1] if content == "list" else {"weight": torch.zeros(999)}, path)
    whole = path.read_bytes()
    damaged = {"text": b"hi", "nothing": b"", "half": whole[: len(whole) // 2]}
    path.write_bytes(damaged.get(content, whole))
    with pytest.raises(CheckpointError, match=r"file\.ckpt"):
        ContrastiveModule.load_from_checkpoint(path)
