"""WEINCE in open_clip's training step, held to its ClipLoss and its training loop."""

import math
import sys
from datetime import timedelta
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import reference
import torch
import torch.distributed as dist
from processes import spawn
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from weince_lightning.integrations.open_clip import WEINCEClipLoss

OPEN_CLIP = find_spec("open_clip")
if OPEN_CLIP is None:
    pytest.skip("needs the extra clip", allow_module_level=True)

SAMPLES, FEATURES = 24, 16


def load_clip_loss() -> type[nn.Module]:
    """open_clip's loss from its file alone: all of open_clip takes a process ten seconds."""
    spec = spec_from_file_location("clip_loss", Path(OPEN_CLIP.origin).with_name("loss.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ClipLoss


ClipLoss = load_clip_loss()


def draw_pairs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Raw embeddings of images and texts, and the logarithm of the scale; all want a gradient."""
    generator = torch.Generator().manual_seed(3)
    images, noise = torch.randn(2, SAMPLES, FEATURES, generator=generator, dtype=dtype)
    leaves = images, images + noise, torch.tensor(math.log(1 / 0.07), dtype=dtype)
    return tuple(leaf.requires_grad_() for leaf in leaves)


def evaluate(loss: nn.Module, leaves: tuple[Tensor, ...], **options: Any) -> list[Tensor]:
    """The value as open_clip's model and loop compute it, and the gradients."""
    images, texts, log_scale = leaves
    value = loss(normalize(images, dim=1), normalize(texts, dim=1), log_scale.exp(), **options)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_without_a_gate_value_and_gradients_are_those_of_clip_loss(dtype):
    found = evaluate(WEINCEClipLoss(gate=0.0), draw_pairs(dtype))
    expected = evaluate(ClipLoss(), draw_pairs(dtype))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_value_and_gradients_are_those_of_the_equations():
    leaves = draw_pairs()
    images, texts, log_scale = leaves
    scores = reference.compare(reference.candidates_of(images, texts, "pairs"))
    tail = reference.tail_of(scores)
    value = reference.weince(
        scores, reference.gates(tail), reference.shapes(tail), 1 / log_scale.exp()
    )
    expected = [value.detach(), *torch.autograd.grad(value, leaves)]
    for mine, theirs in zip(evaluate(WEINCEClipLoss(), leaves), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_gradient_of_the_scale_is_that_of_differences():
    images, texts, log_scale = draw_pairs()
    loss = WEINCEClipLoss()  # gate and shape do not depend on the scale
    assert torch.autograd.gradcheck(
        lambda log: loss(images.detach(), texts.detach(), log.exp()), log_scale
    )


def test_all_gradients_are_those_of_differences_where_gate_and_shape_are_fixed():
    loss = WEINCEClipLoss(gate=0.4, shape=1.5)
    images, texts, log_scale = draw_pairs()
    few = [z.detach()[:5, :4].requires_grad_() for z in (images, texts)]
    assert torch.autograd.gradcheck(
        lambda images, texts, log: loss(images, texts, log.exp()), (*few, log_scale)
    )


@pytest.mark.parametrize("scale", [14.0, torch.tensor([14.0], dtype=torch.float64)], ids=type)
def test_scale_may_be_a_number_or_a_vector_of_one(scale):
    images, texts, _ = draw_pairs()
    expected = WEINCEClipLoss()(images, texts, torch.tensor(14.0, dtype=torch.float64))
    torch.testing.assert_close(WEINCEClipLoss()(images, texts, scale), expected)


def test_bias_changes_nothing_and_gets_a_gradient_of_zeros():
    leaves = draw_pairs()
    bias = torch.tensor([-10.0], requires_grad=True)
    images, texts, log_scale = leaves
    value = WEINCEClipLoss()(images, texts, log_scale.exp(), bias)
    value.backward()
    assert value.shape == ()
    assert torch.equal(value, WEINCEClipLoss()(images, texts, log_scale.exp()))
    assert torch.equal(bias.grad, torch.zeros(1))


def test_half_precision_features_give_a_loss_in_float32():
    images, texts, log_scale = draw_pairs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        half = WEINCEClipLoss()(images.bfloat16(), texts.bfloat16(), log_scale.exp())
    assert half.dtype == torch.float32
    rounded = [z.bfloat16().float() for z in (images, texts)]
    torch.testing.assert_close(half, WEINCEClipLoss()(*rounded, log_scale.exp()))


def test_dictionary_holds_the_loss_under_open_clips_name():
    images, texts, log_scale = draw_pairs()
    arguments = images, texts, log_scale.exp()
    found = WEINCEClipLoss()(*arguments, output_dict=True)
    assert found.keys() == ClipLoss()(*arguments, output_dict=True).keys()
    assert torch.equal(found["contrastive_loss"], WEINCEClipLoss()(*arguments))


def test_last_batch_of_one_pair_is_zero_as_in_clip_loss():
    images, texts, log_scale = draw_pairs()
    leaves = images[:1].detach().requires_grad_(), texts[:1].detach().requires_grad_(), log_scale
    for found, expected in zip(
        evaluate(WEINCEClipLoss(), leaves), evaluate(ClipLoss(), leaves), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert not found.any()


@pytest.mark.parametrize("scale", [-3.0, 0.0, math.nan, "x", None], ids=str)
def test_number_that_is_no_scale_is_refused(scale):
    images, texts, _ = draw_pairs()
    with pytest.raises((TypeError, ValueError), match="logit_scale must be"):
        WEINCEClipLoss()(images, texts, scale)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_horovod": True}, "use_horovod must be False, got True"),
        ({"world_size": 2}, "gather_with_grad must be True for 2 processes, got False"),
        ({"gate": 1.5}, "gate must be at least 0 and at most 1, got 1.5"),
    ],
)
def test_what_it_does_not_do_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        WEINCEClipLoss(**arguments)


def test_features_of_two_sizes_are_named_as_open_clip_names_them():
    images, texts, scale = draw_pairs()
    with pytest.raises(ValueError, match="text_features must have the shape of image_features"):
        WEINCEClipLoss()(images, texts[:, 1:], scale.exp())


def test_processes_that_are_not_there_are_missed():
    loss = WEINCEClipLoss(gather_with_grad=True, world_size=2)
    with pytest.raises(RuntimeError, match=r"world_size must be torch\.distributed's, 1, got 2\."):
        loss(*draw_pairs())


def test_scale_of_each_sample_is_refused():
    images, texts, _ = draw_pairs()
    with pytest.raises(ValueError, match=r"logit_scale must be one number, got the shape \(24,\)"):
        WEINCEClipLoss()(images, texts, torch.ones(SAMPLES))


class TwoTowers(nn.Module):
    """Two encoders and a scale, with the outputs of open_clip's models."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = (
            nn.Linear(FEATURES, 8, bias=False, dtype=torch.float64) for _ in range(2)
        )
        generator = torch.Generator().manual_seed(5)
        for layer in (self.image, self.text):
            nn.init.normal_(layer.weight, generator=generator)
        self.logit_scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, images: Tensor, texts: Tensor) -> dict[str, Tensor]:
        return {
            "image_features": normalize(self.image(images), dim=1),
            "text_features": normalize(self.text(texts), dim=1),
            "logit_scale": self.logit_scale.exp(),
        }


LOSSES = {
    "theirs": partial(ClipLoss, local_loss=True, gather_with_grad=True),
    "ours": partial(WEINCEClipLoss, local_loss=True, gather_with_grad=True, gate=0.0),
    "ours, local_loss=False": partial(WEINCEClipLoss, gather_with_grad=True, gate=0.0),
    "weince": partial(WEINCEClipLoss, gather_with_grad=True),
}


def step(model: nn.Module, loss: nn.Module, rows: slice) -> dict[str, Tensor]:
    """The value and the gradients of a model on some rows of the batch."""
    images, texts, _ = draw_pairs()
    model.zero_grad()
    value = loss(**model(images.detach()[rows], texts.detach()[rows]))
    value.backward()
    found = {name.removeprefix("module."): p.grad.clone() for name, p in model.named_parameters()}
    return {"value": value.detach(), **found}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting, limit = f"file://{folder}/meeting", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=limit)
    rows = slice(rank * SAMPLES // 2, (rank + 1) * SAMPLES // 2)
    model = DistributedDataParallel(TwoTowers())
    found = {
        name: step(model, build(rank=rank, world_size=2), rows) for name, build in LOSSES.items()
    }
    found["alone"] = step(TwoTowers(), WEINCEClipLoss(), rows)  # world_size=1: nothing is gathered
    for name, wrong in (("rank", {"rank": 1 - rank}), ("world_size", {"world_size": 3})):
        loss = WEINCEClipLoss(gather_with_grad=True, **{"rank": rank, "world_size": 2, **wrong})
        with pytest.raises(RuntimeError, match=f"^{name} must be torch"):
            step(model, loss, rows)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, dict[str, Tensor]]]:
    if not dist.is_available() or sys.platform == "win32":
        pytest.skip("needs gloo processes")
    folder = tmp_path_factory.mktemp("processes")
    spawn(work, (str(folder),), 2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def mean_value(ranks: list[dict[str, dict[str, Tensor]]], name: str) -> Tensor:
    return torch.stack([rank[name]["value"] for rank in ranks]).mean()


@pytest.mark.parametrize("name", ["ours", "ours, local_loss=False"])
def test_two_processes_get_what_clip_loss_gives_them(ranks, name):
    for rank in ranks:
        assert rank[name].keys() == {"value", "image.weight", "text.weight", "logit_scale"}
        for key, theirs in rank["theirs"].items():
            torch.testing.assert_close(rank[name][key], theirs, rtol=1e-9, atol=1e-12)


def test_two_processes_get_what_one_gets_from_the_whole_batch(ranks):
    whole = step(TwoTowers(), WEINCEClipLoss(), slice(None))
    torch.testing.assert_close(mean_value(ranks, "weince"), whole.pop("value"), rtol=1e-9, atol=0)
    for rank in ranks:
        for key, expected in whole.items():
            torch.testing.assert_close(rank["weince"][key], expected, rtol=1e-9, atol=1e-12)


def test_world_size_of_one_leaves_each_process_its_own_samples(ranks):
    for number, rank in enumerate(ranks):
        rows = slice(number * SAMPLES // 2, (number + 1) * SAMPLES // 2)
        torch.testing.assert_close(rank["alone"], step(TwoTowers(), WEINCEClipLoss(), rows))


class Recorder:
    """What open_clip writes its scalars to, in place of TensorBoard's writer."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        if name == "train/contrastive_loss":
            self.losses.append(value)


def train_clip(loss: nn.Module, epochs: int, accumulate: int, optimizer: Any) -> tuple[Any, Any]:
    """Train a tiny CLIP with open_clip's own loop; returns its losses and its weights."""
    import open_clip
    from open_clip_train.train import train_one_epoch

    torch.manual_seed(0)
    model = open_clip.CLIP(
        embed_dim=16,
        vision_cfg=open_clip.CLIPVisionCfg(
            layers=1, width=32, head_width=16, patch_size=8, image_size=16
        ),
        text_cfg=open_clip.CLIPTextCfg(
            context_length=8, vocab_size=32, width=32, heads=2, layers=1
        ),
        output_dict=True,
        init_logit_bias=0.0,
    )
    pairs = torch.randn(SAMPLES, 3, 16, 16), torch.randint(1, 32, (SAMPLES, 8))
    batches = list(zip(*(part.chunk(accumulate) for part in pairs), strict=True))
    loader = SimpleNamespace(num_batches=accumulate, num_samples=SAMPLES)
    loader = type("Loader", (list,), vars(loader))(batches)
    data = {"train": SimpleNamespace(dataloader=loader, set_epoch=lambda epoch: None)}
    args = SimpleNamespace(
        device="cpu", precision="fp32", distill=False, accum_freq=accumulate, skip_scheduler=True,
        horovod=False, grad_clip_norm=None, rank=0, world_size=1, batch_size=SAMPLES,
        log_every_n_steps=1, wandb=False,
    )  # fmt: skip
    recorder, steps = Recorder(), optimizer(model.parameters())
    for epoch in range(epochs):
        train_one_epoch(model, data, loss, epoch, steps, None, None, None, args, recorder)
    return recorder.losses, nn.utils.parameters_to_vector(model.parameters()).detach()


def test_a_clip_model_learns_in_open_clips_own_loop():
    losses, weights = train_clip(WEINCEClipLoss(), 25, 1, partial(torch.optim.Adam, lr=1e-3))
    assert len(losses) == 25
    assert losses[-1] < 0.5 * losses[0]
    assert weights.isfinite().all()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_without_a_gate_the_loop_ends_with_the_weights_that_clip_loss_gives(accumulate):
    descend = partial(torch.optim.SGD, lr=0.1)
    start = train_clip(ClipLoss(), 0, accumulate, descend)[1]
    expected = train_clip(ClipLoss(), 3, accumulate, descend)
    found = train_clip(WEINCEClipLoss(gate=0.0), 3, accumulate, descend)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert (expected[1] - start).norm() > 0.1
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)
