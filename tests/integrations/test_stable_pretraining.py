"""Our losses under stable-pretraining's Module, beside the losses whose place they take."""

from functools import partial
from typing import Any

import lightning
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader

from weince_lightning import InfoNCELoss, WEINCELoss

pytest.importorskip("stable_pretraining")

import stable_pretraining as spt
from stable_pretraining.forward import simclr

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def value_and_gradient(loss: nn.Module) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, 24, 16, generator=generator, dtype=torch.float64).requires_grad_()
    value = loss(views[0], views[1])
    return value.detach(), torch.autograd.grad(value, views)[0]


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize("layout", ["views", "pairs"])
@pytest.mark.parametrize(
    "build", [InfoNCELoss, partial(WEINCELoss, gate=0.0)], ids=["InfoNCELoss", "WEINCELoss"]
)
def test_without_a_gate_value_and_gradient_are_those_of_its_loss(build, layout, temperature):
    theirs = {"views": spt.losses.NTXEntLoss, "pairs": spt.losses.CLIPLoss}[layout](temperature)
    found, expected = map(value_and_gradient, (build(temperature, layout=layout), theirs))
    assert abs(found[0] - expected[0]) < 1e-6
    assert (found[1] - expected[1]).abs().max() < 1e-6
    assert expected[1].abs().max() > 1e-3


def test_with_its_gate_the_loss_is_another_one():
    found, other = map(value_and_gradient, (WEINCELoss(0.5), spt.losses.NTXEntLoss(0.5)))
    assert abs(found[0] - other[0]) > 1e-3


def two_views(rows: list[Tensor]) -> dict[str, Any]:
    batch = torch.stack(rows)
    return {"views": [{"image": batch + 0.3 * torch.randn_like(batch)} for _ in range(2)]}


class Recorder(lightning.Callback):
    """Notes the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.losses.append(float(outputs["loss"].detach()))


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Train on digits with its Manager, Module and forward function; losses and weights."""
    folder = tmp_path_factory.mktemp("cache")
    before = spt.get_config().cache_dir
    off = dict.fromkeys(("env_dump", "hf_checkpoint", "progress_bar"), False)
    spt.set(cache_dir=str(folder), default_callbacks=off)
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16

    def run(loss: nn.Module, steps: int, optimizer: dict[str, Any]) -> tuple[list[float], Tensor]:
        torch.manual_seed(0)
        loader = DataLoader(images, 64, shuffle=True, drop_last=True, collate_fn=two_views)
        module = spt.Module(
            forward=simclr,
            backbone=nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)),
            projector=nn.Sequential(nn.ReLU(), nn.Linear(64, 32)),
            simclr_loss=loss,
            optim={"optimizer": optimizer},
        )
        recorder = Recorder()
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[recorder],
        )
        spt.Manager(trainer, module, spt.data.DataModule(train=loader), seed=0)()
        return recorder.losses, nn.utils.parameters_to_vector(module.backbone.parameters()).detach()

    yield run
    spt.set(cache_dir=before, default_callbacks=dict.fromkeys(off, True))


def test_an_encoder_learns_under_its_module(train):
    losses, weights = train(WEINCELoss(0.5), 24, {"type": "AdamW", "lr": 3e-3})
    assert len(losses) == 24
    assert losses[-1] < 0.9 * losses[0], losses
    assert weights.isfinite().all()


def test_without_a_gate_training_ends_with_the_weights_of_its_loss(train):
    descend = {"type": "SGD", "lr": 0.5}
    expected = train(spt.losses.NTXEntLoss(0.5), 5, descend)
    found = train(WEINCELoss(0.5, gate=0.0), 5, descend)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert expected[0][-1] < expected[0][0]
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)
