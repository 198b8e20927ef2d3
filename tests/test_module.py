"""The module under real trainers: its steps, optimizers, checkpoints and refusals."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from cases import few
from lightly.loss import NTXentLoss
from lightning.pytorch import Callback, LightningDataModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from processes import run_python
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from weince_lightning import ContrastiveModule, InfoNCELoss, WEINCELoss
from weince_lightning.networks import projection_head

SIZE = 8
CHANNELS = 1


class Pairs(LightningDataModule):
    """Noisy views of random images: an encoder that looks at the image tells them apart."""

    def __init__(self, num_images: int = 24, batch_size: int = 8) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shape = (num_images, CHANNELS, SIZE, SIZE)
        images = torch.rand(shape, generator=generator)
        views = [images + 0.1 * torch.rand(shape, generator=generator) for _ in range(2)]
        labels = torch.arange(num_images) % 3
        self.in_channels, self.image_size = CHANNELS, SIZE
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.pairs = [((views[0][i], views[1][i]), labels[i]) for i in range(num_images)]

    def train_dataloader(self):
        return DataLoader(self.pairs, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.pairs, batch_size=self.batch_size)

    test_dataloader = val_dataloader

    def predict_dataloader(self):
        images = list(zip(self.images, self.labels, strict=True))
        return DataLoader(images, batch_size=self.batch_size)


class Outputs(Callback):
    """Keeps what the steps hand to callbacks."""

    def __init__(self) -> None:
        self.train, self.validation = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.train.append(outputs)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.validation.append(outputs)


class Subclass(ContrastiveModule):
    """What a user's project may add: an argument of its own.

    Args:
        bottleneck: Length of the projections.
    """

    def __init__(self, bottleneck: int = 5, extra: nn.Module | None = None, **kwargs) -> None:
        super().__init__(**kwargs)
        self.projection_head = projection_head(self.feature_dim, bottleneck)


def make_module(**arguments) -> ContrastiveModule:
    defaults = {"backbone": "convnet", "in_channels": CHANNELS, "image_size": SIZE}
    return ContrastiveModule(**{**defaults, **arguments})


def make_trainer(tmp_path, **arguments) -> Trainer:
    defaults = {
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": tmp_path,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "logger": False,
        "max_epochs": 1,
    }
    return Trainer(**{**defaults, **arguments})


def fit(tmp_path, seed=0, data=None, checkpoint=None, trainer=None, **arguments):
    """Build and train a module from a seed."""
    seed_everything(seed, verbose=False)
    module = make_module(**arguments)
    trainer = make_trainer(tmp_path, **(trainer or {}))
    trainer.fit(module, Pairs() if data is None else data, ckpt_path=checkpoint)
    return module, trainer


def batch(num_images=4, in_channels=CHANNELS, size=SIZE, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shape = (num_images, in_channels, size, size)
    views = [torch.rand(shape, generator=generator).to(dtype) for _ in range(2)]
    return views, torch.zeros(num_images, dtype=torch.int64)


def assert_equal_weights(module, other):
    states = module.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


# Steps


@pytest.mark.parametrize("loss", few([InfoNCELoss, WEINCELoss, NTXentLoss], 1))
def test_training_lowers_the_loss(tmp_path, loss):
    outputs = Outputs()
    fit(
        tmp_path,
        loss=loss(temperature=0.2),
        learning_rate=1e-3,
        trainer={"max_epochs": 8, "callbacks": [outputs]},
    )
    losses = [output["loss"].item() for output in outputs.train]
    assert sum(losses[-3:]) < 0.7 * sum(losses[:3])


def test_training_step_hands_out_detached_tensors_and_a_loss_with_gradient():
    outputs = make_module().training_step(batch(), 0)
    assert outputs["loss"].requires_grad
    terms = outputs["terms"]
    others = (*outputs["features"], *outputs["projections"], *terms[:3], *terms.tail)
    assert not any(tensor.requires_grad for tensor in others)
    assert torch.equal(terms.loss, outputs["loss"])
    assert [tuple(tensor.shape) for tensor in outputs["features"]] == [(4, 512)] * 2
    assert [tuple(tensor.shape) for tensor in outputs["projections"]] == [(4, 64)] * 2


def test_step_outputs_reach_the_callbacks(tmp_path):
    outputs = Outputs()
    fit(tmp_path, trainer={"callbacks": [outputs]})
    for output in (outputs.train[0], outputs.validation[0]):
        assert output.keys() == {"loss", "terms", "features", "projections", "labels"}
        assert output["terms"].tail.gate.shape == (16,)


def test_step_is_the_loss_of_the_projections():
    module = make_module(loss=InfoNCELoss(temperature=0.3)).eval()
    views, labels = batch()
    projections = [module.encode(view)[1] for view in views]
    assert torch.equal(module.step((views, labels))["loss"], module.loss(*projections))


@pytest.mark.parametrize("loss", [NTXentLoss(), nn.functional.mse_loss])
def test_a_foreign_loss_has_no_terms(loss):
    outputs = make_module(loss=loss).step(batch())
    assert outputs["terms"] is None
    assert outputs["loss"].requires_grad


def test_a_loss_is_computed_once_per_step():
    class Counted(WEINCELoss):
        calls = 0

        def terms(self, *args):
            self.calls += 1
            return super().terms(*args)

    loss = Counted()
    make_module(loss=loss).step(batch())
    assert loss.calls == 1


def test_no_loss_means_weince_and_is_not_shared():
    modules = make_module(), make_module()
    assert all(isinstance(module.loss, WEINCELoss) for module in modules)
    assert modules[0].loss is not modules[1].loss


def test_what_follows_the_labels_is_ignored():
    views, labels = batch()
    module = make_module().eval()
    outputs = module.step((views, labels, ["a.png"] * 4)), module.step([tuple(views), labels])
    assert torch.equal(outputs[0]["loss"], outputs[1]["loss"])


def test_each_view_is_normalised_by_its_own_statistics():
    module = make_module()
    views, labels = batch()
    alone = module.encode(views[1])[0]
    shifted = [views[0] * 0.1, views[1]]
    assert torch.equal(module.step((shifted, labels))["features"][1], alone)


@pytest.mark.parametrize("name", few(["convnet", "resnet18", "resnet50", "vit_small", None], 0, -1))
def test_gradients_reach_every_parameter(name):
    # Plain DistributedDataParallel refuses a parameter without.
    backbone = name or nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 6))
    module = make_module(backbone=backbone)
    module.training_step(batch(), 0)["loss"].backward()
    assert not [key for key, value in module.named_parameters() if value.grad is None]


@pytest.mark.parametrize("num_images", [2, 3])
def test_small_batches_train(num_images):
    loss = make_module().training_step(batch(num_images), 0)["loss"]
    loss.backward()
    assert loss.isfinite()


def test_training_on_one_image_is_refused():
    with pytest.raises(ValueError, match="negative"):
        make_module(image_size=16).training_step(batch(1, size=16), 0)


def test_a_lone_image_is_validated_without_a_loss(tmp_path):
    outputs = Outputs()
    trainer = make_trainer(tmp_path, callbacks=[outputs])
    trainer.validate(make_module(), Pairs(num_images=9, batch_size=4), verbose=False)
    full0, full1, lone = outputs.validation
    assert lone["loss"] is None
    assert lone["terms"] is None
    assert lone["features"][1].shape == (1, 512)
    expected = (full0["loss"] + full1["loss"]) / 2
    torch.testing.assert_close(trainer.callback_metrics["val/loss"], expected)


@pytest.mark.parametrize("stage", ["val", "test"])
def test_evaluation_loss_is_the_mean_over_samples(tmp_path, stage):
    data, module, trainer = Pairs(10, batch_size=6), make_module().eval(), make_trainer(tmp_path)
    run = trainer.validate if stage == "val" else trainer.test
    (metrics,) = run(module, data, verbose=False)
    losses = [module.step(each)["loss"].item() for each in data.val_dataloader()]
    assert list(metrics) == [f"{stage}/loss"]
    assert metrics[f"{stage}/loss"] == pytest.approx((6 * losses[0] + 4 * losses[1]) / 10)


def test_several_loaders_have_a_loss_each_under_the_names_of_lightning(tmp_path):
    sizes, module = (6, 9), make_module().eval()
    loaders = [Pairs(size, batch_size=size).val_dataloader() for size in sizes]
    outputs = make_trainer(tmp_path).predict(module, [Pairs().predict_dataloader()] * 2)
    assert len(outputs) == 2
    for stage, run in (("val", Trainer.validate), ("test", Trainer.test)):
        metrics = run(make_trainer(tmp_path), module, loaders, verbose=False)
        for number, (loader, found) in enumerate(zip(loaders, metrics, strict=True)):
            expected = module.step(next(iter(loader)))["loss"].item()
            assert found == {f"{stage}/loss/dataloader_idx_{number}": pytest.approx(expected)}


def test_fit_logs_both_losses(tmp_path):
    _, trainer = fit(tmp_path)
    assert {"train/loss", "val/loss"} <= trainer.callback_metrics.keys()


def test_predict_returns_features_and_labels(tmp_path):
    data, module = Pairs(), make_module()
    predictions = make_trainer(tmp_path).predict(module, data)
    features, labels = map(torch.cat, zip(*predictions, strict=True))
    torch.testing.assert_close(features, module.eval()(data.images))
    assert torch.equal(labels, data.labels)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions_train(tmp_path, precision):
    _, trainer = fit(tmp_path, trainer={"precision": precision})
    assert trainer.callback_metrics["train/loss"].isfinite()


# Optimizers


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
@pytest.mark.parametrize("optimizer", few(["adam", "adamw", "lars"], 0, -1))
def test_every_optimizer_and_schedule_moves_every_parameter(tmp_path, optimizer, schedule):
    arguments = {"optimizer": optimizer, "schedule": schedule, "weight_decay": 1e-4}
    seed_everything(0, verbose=False)
    before = make_module().state_dict()
    module, trainer = fit(tmp_path, **arguments, warmup_fraction=0.5, trainer={"max_epochs": 2})
    assert type(trainer.optimizers[0]).__name__.lower() == optimizer
    assert not [key for key, value in module.named_parameters() if torch.equal(value, before[key])]


def rates(tmp_path, **arguments) -> list[float]:
    class Rates(Callback):
        def on_train_batch_start(self, trainer, *args):
            seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    seen: list[float] = []
    fit(tmp_path, learning_rate=0.1, trainer={"max_epochs": 4, "callbacks": [Rates()]}, **arguments)
    return seen


def test_cosine_schedule_warms_up_and_ends_at_a_thousandth(tmp_path):
    expected = [0.1 * step / 3 for step in (1, 2, 3)]
    cosine = [(1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)]
    expected += [0.1 * (0.001 + 0.999 * value) for value in cosine]
    assert rates(tmp_path, schedule="cosine", warmup_fraction=0.25) == pytest.approx(expected)


def test_constant_schedule_can_warm_up(tmp_path):
    assert rates(tmp_path, warmup_fraction=0.25) == pytest.approx([0.1 / 3, 0.2 / 3] + [0.1] * 10)


def test_schedule_without_an_end_is_refused(tmp_path):
    message = r"known length, got a trainer without a last step; .*, also beside max_time\."
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, schedule="cosine", trainer={"max_epochs": -1})


class Streamed(IterableDataset):
    """Pairs whose number is not known before they are read."""

    def __iter__(self):
        views, labels = batch(12)
        return iter([([x0, x1], y) for x0, x1, y in zip(*views, labels, strict=True)])


@pytest.mark.parametrize(
    "scheduled", [{"schedule": "cosine"}, {"schedule": "linear"}, {"warmup_fraction": 0.25}]
)
def test_schedule_of_data_without_a_length_is_refused(tmp_path, scheduled):
    with pytest.raises(ValueError, match=r"known length, got training data without a length; set"):
        fit(tmp_path, data=DataLoader(Streamed(), 4), **scheduled)


@pytest.mark.parametrize("known", [{"max_steps": 6}, {"limit_train_batches": 3}])
def test_data_without_a_length_follow_a_schedule_of_known_length(tmp_path, known):
    data = DataLoader(Streamed(), 4)
    trainer = {"max_epochs": 2, **known}
    _, fitted = fit(tmp_path, data=data, trainer=trainer, schedule="cosine", learning_rate=0.1)
    assert fitted.global_step == 6
    (rate,) = fitted.lr_scheduler_configs[0].scheduler.get_last_lr()
    assert rate == pytest.approx(0.1 * 0.001)


def test_biases_and_normalisation_do_not_decay(tmp_path):
    module, trainer = fit(tmp_path, weight_decay=0.1)
    decayed, plain = trainer.optimizers[0].param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert all(parameter.ndim > 1 for parameter in decayed["params"])
    assert all(parameter.ndim <= 1 for parameter in plain["params"])
    sizes = len(decayed["params"]), len(plain["params"])
    assert sum(sizes) == len(list(module.parameters()))


def test_parameters_of_the_loss_are_trained_and_frozen_ones_are_not(tmp_path):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.5))

        def forward(self, z0, z1):
            return InfoNCELoss(temperature=self.scale)(z0, z1)

    backbone = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 6)).requires_grad_(False)
    before = backbone[1].weight.clone()
    module, _ = fit(tmp_path, backbone=backbone, loss=Scaled())
    assert module.loss.scale.item() != 0.5
    assert torch.equal(backbone[1].weight, before)


# Repeating and coming back


def test_the_same_seed_gives_the_same_weights(tmp_path):
    runs = [fit(tmp_path, trainer={"max_epochs": 2})[0] for _ in range(2)]
    assert_equal_weights(*runs)


@pytest.mark.parametrize("kept", few([{}, {"queue_size": 40}, {"memory_bank_size": (40, 64)}], 1))
def test_resuming_gives_the_weights_of_a_training_in_one_go(tmp_path, kept):
    class Plain(Pairs):
        def train_dataloader(self):
            return self.val_dataloader()

    def run(folder, checkpoint=None):
        saving = ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
        trainer = {"max_epochs": 2, "callbacks": [saving], "enable_checkpointing": True}
        arguments = {"schedule": "cosine", "warmup_fraction": 0.5, "optimizer": "adamw"}
        loss = WEINCELoss.released(gate=0.5, **kept)
        return fit(
            folder, data=Plain(), loss=loss, trainer=trainer, checkpoint=checkpoint, **arguments
        )

    module, trainer = run(tmp_path / "whole")
    resumed, other = run(tmp_path / "resumed", tmp_path / "whole" / "epoch=0.ckpt")
    assert other.global_step == trainer.global_step == 6
    assert_equal_weights(module, resumed)
    states = [each.optimizers[0].state_dict() for each in (trainer, other)]
    assert str(states[0]) == str(states[1])


@pytest.mark.parametrize(
    "arguments",
    few(
        [
            {},
            {"loss": NTXentLoss()},
            {"loss": lambda z0, z1: (z0 - z1).square().mean()},
            {"backbone": nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 6))},
            {"learning_rate": np.float64(1e-3), "schedule": "cosine"},
            {"backbone": "resnet18", "backbone_options": {"small_image_stem": True}},
        ],
        1,
        2,
        3,
        4,
    ),
)
def test_checkpoints_load_safely_and_hold_plain_settings(tmp_path, arguments):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is an instance of `nn.Module`.*")
        _, trainer = fit(tmp_path, **arguments)
    trainer.save_checkpoint(tmp_path / "module.ckpt")
    settings = torch.load(tmp_path / "module.ckpt", weights_only=True)["hyper_parameters"]
    assert (settings["in_channels"], settings["image_size"]) == (CHANNELS, SIZE)
    assert settings.get("learning_rate", 1e-3) == arguments.get("learning_rate", 3e-4)
    assert isinstance(settings.get("backbone"), str) == ("backbone" not in arguments) or (
        settings["backbone"] == arguments["backbone"]
    )


def test_a_subclass_with_a_module_argument_saves_safely(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is an instance of `nn.Module`.*")
        module = Subclass(
            3, nn.Identity(), backbone="convnet", in_channels=CHANNELS, image_size=SIZE
        )
    assert module.hparams["bottleneck"] == 3
    assert module.hparams["extra"] == {"built_in_python": "torch.nn.Identity"}


def run_cli(tmp_path, *arguments, module=Subclass):
    """Run LightningCLI with the settings of these tests."""
    trainer = {
        "accelerator": "cpu",
        "default_root_dir": tmp_path,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 1,
        "log_every_n_steps": 1,
    }
    return LightningCLI(
        module,
        Pairs,
        args=[*map(str, arguments)],
        trainer_defaults=trainer,
        seed_everything_default=0,
        save_config_kwargs={"overwrite": True},
    )


MODEL = [
    "--model.backbone=convnet",
    f"--model.in_channels={CHANNELS}",
    f"--model.image_size={SIZE}",
]
LOSSES = {
    "ours": (
        "--model.loss=weince_lightning.WEINCELoss",
        "--model.loss.gate=weince_lightning.TailGate",
        "--model.loss.gate.signals=rho",
        "--model.loss.temperature=0.3",
    ),
    "queue": ("--model.loss=weince_lightning.WEINCELoss", "--model.loss.queue_size=20"),
    "bank": ("--model.loss=weince_lightning.InfoNCELoss", "--model.loss.memory_bank_size=20"),
    "foreign": ("--model.loss=lightly.loss.NTXentLoss", "--model.loss.temperature=0.3"),
    "default": (),
}


@pytest.mark.parametrize("loss", few(LOSSES, -2))
def test_a_checkpoint_of_the_command_line_comes_back_with_its_loss(tmp_path, loss):
    cli = run_cli(tmp_path, "fit", *MODEL, "--model.bottleneck=6", *LOSSES[loss])
    path = cli.trainer.checkpoint_callback.best_model_path
    torch.load(path, weights_only=True)
    module = Subclass.load_from_checkpoint(path)
    assert_equal_weights(module, cli.model)
    values = [each.eval().step(batch())["loss"] for each in (module, cli.model)]
    assert torch.equal(*values)


@pytest.mark.parametrize("loss", few(["ours", "queue", "bank"], 0))
def test_the_command_line_validates_and_resumes_its_checkpoint(tmp_path, loss):
    cli = run_cli(tmp_path, "fit", *MODEL, *LOSSES[loss])
    path = cli.trainer.checkpoint_callback.best_model_path
    config = f"{cli.trainer.log_dir}/config.yaml"
    expected = cli.trainer.callback_metrics["val/loss"]
    again = run_cli(tmp_path, "validate", f"--config={config}", f"--ckpt_path={path}")
    assert torch.equal(again.trainer.callback_metrics["val/loss"], expected)
    alone = run_cli(tmp_path, "validate", f"--ckpt_path={path}")
    assert torch.equal(alone.trainer.callback_metrics["val/loss"], expected)
    resumed = run_cli(
        tmp_path, "fit", f"--config={config}", f"--ckpt_path={path}", "--trainer.max_epochs=2"
    )
    assert resumed.trainer.global_step == 6


PROJECT = """
import torch
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader
from weince_lightning import ContrastiveModule


class Loader(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return (torch.rand(1, 8, 8), torch.rand(1, 8, 8)), -1


class MyModule(ContrastiveModule):
    def __init__(self, scale: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def encode(self, images):
        features, projections = super().encode(images)
        return features, self.scale * projections

    def train_dataloader(self):
        return DataLoader(Loader(), 4)


cli = LightningCLI(MyModule)
print("steps", cli.trainer.global_step, "scale", cli.model.scale, type(cli.model.loss).__name__)
"""


def test_a_project_elsewhere_runs_its_subclass_from_its_command_line(tmp_path):
    (tmp_path / "project.py").write_text(PROJECT)
    command = [tmp_path / "project.py", "fit", "--trainer.max_epochs=1", *MODEL]
    command += ["--trainer.accelerator=cpu", "--model.scale=2", *LOSSES["foreign"]]
    output = run_python(*command, folder=tmp_path, timeout=300)
    assert "steps 2 scale 2.0 NTXentLoss" in output


# Subclasses


def test_the_encoder_step_can_be_overridden():
    class Halved(ContrastiveModule):
        def encode(self, images):
            features, projections = super().encode(images)
            return features, projections[:, :32]

    module = Halved("convnet", in_channels=CHANNELS, image_size=SIZE)
    assert module.training_step(batch(), 0)["projections"][0].shape == (4, 32)


def test_the_step_can_be_overridden(tmp_path):
    class Penalised(ContrastiveModule):
        def step(self, batch):
            outputs = super().step(batch)
            return {**outputs, "loss": outputs["loss"] + 100.0}

    module = Penalised("convnet", in_channels=CHANNELS, image_size=SIZE)
    trainer = make_trainer(tmp_path)
    trainer.fit(module, Pairs())
    assert trainer.callback_metrics["train/loss"] > 100.0
    assert trainer.callback_metrics["val/loss"] > 100.0


def test_the_optimizer_can_be_overridden(tmp_path):
    class Descent(ContrastiveModule):
        def configure_optimizers(self):
            return torch.optim.SGD(self.backbone.parameters(), lr=0.1)

    module = Descent("convnet", in_channels=CHANNELS, image_size=SIZE)
    trainer = make_trainer(tmp_path)
    trainer.fit(module, Pairs())
    assert isinstance(trainer.optimizers[0], torch.optim.SGD)


# Refusals


@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("backbone", "convnot", ValueError, "got 'convnot'. Did you mean \"convnet\""),
        ("backbone", nn.Conv2d(1, 3, 3), ValueError, "Pool and flatten"),
        ("backbone_options", {"patch_size": 4}, ValueError, "must be empty, got 'patch_size'"),
        ("backbone_options", ["patch_size"], TypeError, "a dict or None, got ['patch_size']"),
        ("loss", WEINCELoss, TypeError, "nn.Module instance or a function, got <class"),
        ("loss", "weince", TypeError, "nn.Module instance or a function, got 'weince'"),
        ("in_channels", 0, ValueError, "in_channels must be at least 1, got 0"),
        ("image_size", 8.0, TypeError, "image_size must be an integer, got 8.0"),
        ("projection_dim", -1, ValueError, "projection_dim must be at least 1, got -1"),
        ("learning_rate", 0.0, ValueError, "learning_rate must be above 0, got 0.0"),
        ("learning_rate", "1e-3", TypeError, "learning_rate must be a number, got '1e-3'"),
        ("weight_decay", math.nan, ValueError, "weight_decay must be at least 0, got nan"),
        ("optimizer", "adma", ValueError, "got 'adma'. Did you mean \"adam\""),
        ("optimizer", "lars", ValueError, 'weight_decay must be above 0 with optimizer "lars"'),
        ("schedule", "cosin", ValueError, "got 'cosin'. Did you mean \"cosine\""),
        ("micro_batch_size", 0, ValueError, "micro_batch_size must be at least 1, got 0"),
        ("micro_batch_size", 2.5, TypeError, "micro_batch_size must be an integer, got 2.5"),
        ("warmup_fraction", 1.0, ValueError, "warmup_fraction must be below 1, got 1.0"),
        ("warmup_fraction", -0.1, ValueError, "warmup_fraction must be at least 0, got -0.1"),
    ],
)
def test_wrong_arguments_are_refused(argument, value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make_module(**{argument: value})


IMAGES = torch.rand(4, CHANNELS, SIZE, SIZE)
LABELS = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (batch(in_channels=3), ValueError, "(batch, 1, 8, 8), as the module's in_channels"),
        (batch(size=16), ValueError, "image_size say, got (4, 1, 16, 16)"),
        (
            batch(dtype=torch.uint8),
            TypeError,
            "images must be torch.float32 in [0, 1], got torch.u",
        ),
        (
            batch(dtype=torch.float64),
            TypeError,
            "must be torch.float32 in [0, 1], got torch.float64",
        ),
        ((IMAGES, LABELS), TypeError, "got (Tensor, Tensor). Images without labels get"),
        (IMAGES, TypeError, "batch must be (views, labels) with a sequence of two"),
        (((IMAGES, IMAGES),), TypeError, "batch must be (views, labels) with a sequence of two"),
        (((IMAGES,) * 3, LABELS), ValueError, "two tensors of as many images, got [4, 4, 4]"),
        (((IMAGES, IMAGES[:3]), LABELS), ValueError, "as many images, got [4, 3] images"),
    ],
)
def test_batches_that_do_not_fit_are_refused(wrong, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make_module().step(wrong)


def test_images_that_do_not_fit_are_refused_in_evaluation_too():
    with pytest.raises(ValueError, match=r"got \(4, 1, 9, 9\)"):
        make_module()(torch.rand(4, 1, 9, 9))


@pytest.mark.parametrize("loss", [nn.PairwiseDistance(), lambda z0, z1: 0.0])
def test_a_loss_that_gives_no_scalar_is_refused(loss):
    with pytest.raises(TypeError, match=r"loss must return a scalar tensor, got (\(4,\)|float)"):
        make_module(loss=loss).step(batch())
