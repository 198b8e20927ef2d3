"""Options that make the encoder faster and change nothing else."""

import copy
import shutil
from functools import partial

import pytest
import torch
from cases import few
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch._dynamo.utils import counters
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from weince_lightning import ContrastiveModule, InfoNCELoss

IMAGES = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network():
    """Convolutions and running statistics; a bias before those would have a gradient of noise."""
    first = [nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, 10))


def make_module(backbone=None, **options):
    torch.manual_seed(1)
    return ContrastiveModule(backbone or network(), InfoNCELoss(), 3, 8, 8, 1e-2, **options)


def loader():
    """Four batches, of which the last is smaller."""
    views = TensorDataset(IMAGES, IMAGES.flip(3), torch.arange(24) % 3)
    return DataLoader(views, 7, collate_fn=collate)


def collate(samples):
    first, second, labels = (torch.stack(part) for part in zip(*samples, strict=True))
    return [first, second], labels


def fit(module, ckpt_path=None, callbacks=(), **options):
    seed_everything(3, verbose=False)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(each, ModelCheckpoint) for each in callbacks),
        **options,
    )
    trainer.fit(module, loader(), loader(), ckpt_path=ckpt_path)
    return trainer


def first_gradients(module):
    """The gradient of a first training step, with whatever a trainer prepares for it."""

    class Stop(Callback):
        def on_after_backward(self, trainer, module):
            self.found = [parameter.grad.clone() for parameter in module.parameters()]
            trainer.should_stop = True

    stop = Stop()
    trainer = Trainer(
        accelerator="cpu", max_steps=1, barebones=True, callbacks=[stop], limit_val_batches=0
    )
    trainer.fit(module, loader())
    return stop.found


def assert_same_weights(module, other):
    assert module.state_dict().keys() == other.state_dict().keys()
    for one, two in zip(module.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("option", ["channels_last", "compile_backbone"])
def test_a_flag_that_is_not_one_is_refused(option):
    with pytest.raises(TypeError, match=f"{option} must be True or False, got 'yes'"):
        make_module(**{option: "yes"})


# Channels last


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 3}], ids=str)
def test_channels_last_gives_the_same_gradients(options):
    found = first_gradients(make_module(channels_last=True, **options))
    expected = first_gradients(make_module(**options))
    assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_channels_last_reaches_every_convolution():
    module, seen = make_module(channels_last=True), []
    for layer in module.backbone.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.is_contiguous(memory_format=torch.channels_last)
            layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    module(IMAGES)
    assert len(seen) == 2
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images in seen)


@pytest.mark.parametrize("saved", [True, False])
def test_checkpoints_are_the_same_with_channels_last_and_without(saved, tmp_path):
    module = make_module("convnet", channels_last=saved)
    fit(module, callbacks=[ModelCheckpoint(tmp_path, "last")])
    path = tmp_path / "last.ckpt"
    same = ContrastiveModule.load_from_checkpoint(path)
    other = ContrastiveModule.load_from_checkpoint(path, channels_last=not saved)
    assert (same.channels_last, other.channels_last) == (saved, not saved)
    assert_same_weights(same, module)
    assert_same_weights(other, module)
    assert_close(same.eval()(IMAGES), other.eval()(IMAGES))


# Compiled


@pytest.fixture
def compiler(monkeypatch):
    """Count compiled graphs, without the minutes of machine code: that has a test of its own."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch.compiler.reset()


@pytest.mark.parametrize("options", few([{}, {"micro_batch_size": 3}], 1), ids=str)
def test_a_compiled_backbone_gives_the_same_gradients(options, compiler):
    found = first_gradients(make_module(compile_backbone=True, **options))
    assert compiler() > 0
    expected = first_gradients(make_module(**options))
    assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 3}], ids=str)
def test_machine_code_gives_the_same_gradients(options):
    found = first_gradients(make_module(compile_backbone=True, channels_last=True, **options))
    assert_close(found, first_gradients(make_module(**options)), rtol=1e-4, atol=1e-6)


class Watch(Callback):
    """Remember what is compiled when, and copy the module in the middle of training."""

    def __init__(self, num_graphs):
        self.num_graphs = num_graphs
        self.counts = {}

    def note(self, place):
        self.counts.setdefault(place, []).append(self.num_graphs())

    def on_train_start(self, *arguments):
        self.note("after the sanity check")

    def on_train_batch_end(self, trainer, module, *arguments):
        self.note("training")
        self.copied = copy.deepcopy(module.backbone)

    def on_validation_end(self, *arguments):
        self.note("validation")


def test_the_backbone_is_compiled_in_training_alone(compiler):
    module, watch = make_module(compile_backbone=True), Watch(compiler)
    fit(module, callbacks=[watch], num_sanity_val_steps=1)
    assert watch.counts["after the sanity check"] == [0]
    # One graph for the first size, one for all others.
    assert watch.counts["training"] == [1, 1, 1, 2] + [2] * 4
    assert watch.counts["validation"] == [0, 2, 2]
    watch.copied(IMAGES)  # nor is a copy compiled, or the module once it is trained
    module.train()(IMAGES)
    assert compiler() == 2


@pytest.mark.slow
def test_checkpoints_of_a_compiled_backbone_need_no_compiler(compiler, tmp_path, monkeypatch):
    module = make_module(compile_backbone=True)
    trainer = fit(module, callbacks=[ModelCheckpoint(tmp_path, "last")])
    assert compiler() > 0

    def refuse(*arguments, **options):
        raise AssertionError("this must need no compiler")

    monkeypatch.setattr(torch, "compile", refuse)
    load = partial(ContrastiveModule.load_from_checkpoint, tmp_path / "last.ckpt")
    loaded = load(backbone=network())
    assert loaded.compile_backbone
    assert_same_weights(loaded, module)
    validator = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    (metrics,) = validator.validate(loaded, loader(), verbose=False)
    assert metrics["val/loss"] == trainer.callback_metrics["val/loss"].item()
    fit(load(backbone=network(), compile_backbone=False), tmp_path / "last.ckpt")


@pytest.mark.slow
def test_training_with_a_compiled_backbone_resumes_exactly(compiler, tmp_path):
    whole, resumed = (make_module(compile_backbone=True) for _ in range(2))
    fit(whole, callbacks=[ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)])
    torch.compiler.reset()
    fit(resumed, tmp_path / "epoch=0.ckpt")
    assert_same_weights(resumed, whole)
