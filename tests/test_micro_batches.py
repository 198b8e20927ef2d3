"""Micro-batches: the gradient of the whole batch in a part of its memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import few
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader

from weince_lightning import ContrastiveModule, InfoNCELoss, WEINCELoss

SIZE = 8
NUM_IMAGES = 11
LOSSES = {"infonce": InfoNCELoss, "weince": WEINCELoss, "released": WEINCELoss.released}


def convolutions(*last: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), *last, nn.GELU(), nn.Flatten(), nn.LayerNorm(216), nn.Linear(216, 12)
    )


def make_module(
    backbone=convolutions,
    kind=ContrastiveModule,
    dtype=torch.float32,
    loss=InfoNCELoss,
    **arguments,
):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = kind(backbone(), loss(), in_channels=1, image_size=SIZE, **arguments)
    return module.to(dtype)


def batch(num_images=NUM_IMAGES, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    images, *noise = torch.randn(3, num_images, 1, SIZE, SIZE, generator=generator, dtype=dtype)
    return [images + 0.5 * each for each in noise], torch.zeros(num_images, dtype=torch.int64)


class Kept(ContrastiveModule):
    """The same micro-batches, their activations kept: what recomputation must not change."""

    def _encode_view(self, images):
        parts = [self.encode(part) for part in images.tensor_split(4)]
        return tuple(map(torch.cat, zip(*parts, strict=True)))


class Counted(ContrastiveModule):
    """Notes how many images each call of its encoder gets."""

    def encode(self, images):
        self.calls = [*getattr(self, "calls", []), len(images)]
        return super().encode(images)


def gradient(module, num_images=NUM_IMAGES, dtype=torch.float32):
    module.step(batch(num_images, dtype))["loss"].backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


def assert_close(found, expected, tolerance):
    assert (found - expected).norm() <= tolerance * expected.norm()


class Rowwise(nn.Linear):
    """A linear layer that rounds a row the same way in every batch, as matrix products do not."""

    def forward(self, rows):
        return (rows.unsqueeze(1) * self.weight).sum(dim=2)


class Exact(ContrastiveModule):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.projection_head = Rowwise(24, 16, bias=False)


def rowwise():
    return nn.Sequential(nn.Flatten(), Rowwise(SIZE * SIZE, 24, bias=False), nn.GELU())


NETWORKS = {"exact": (rowwise, Exact), "convolutions": (convolutions, ContrastiveModule)}


@pytest.mark.parametrize(
    ("loss", "network", "dtype", "tolerance"),
    [
        *((loss, "exact", torch.float32, 1e-6) for loss in LOSSES),
        *((loss, "convolutions", torch.float64, 1e-12) for loss in LOSSES),
        ("infonce", "convolutions", torch.float32, 1e-6),
        # Near the endpoint a shortfall's relative error is many times that of the similarity.
        ("weince", "convolutions", torch.float32, 1e-4),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", few([1, 10, 100], 1))
def test_gradient_is_that_of_the_whole_batch(loss, network, dtype, tolerance, size):
    arguments = {"loss": LOSSES[loss], "dtype": dtype}
    whole, parts = (
        gradient(make_module(*NETWORKS[network], **arguments, micro_batch_size=each), 64, dtype)
        for each in (None, size)
    )
    assert_close(parts, whole, tolerance)


@pytest.mark.parametrize(
    "backbone",
    [
        lambda: convolutions(nn.Dropout(0.3)),
        lambda: convolutions(nn.BatchNorm2d(6)),
        lambda: convolutions(nn.BatchNorm2d(6, momentum=None), nn.ReLU(inplace=True)),
    ],
    ids=["dropout", "batch norm", "cumulative batch norm"],
)
def test_recomputation_leaves_no_trace(backbone):
    left = []
    for kind in (Kept, ContrastiveModule):
        module = make_module(backbone, kind, micro_batch_size=3)
        with torch.random.fork_rng():
            torch.manual_seed(5)
            left.append([gradient(module), torch.get_rng_state(), *module.buffers()])
    for found, expected in zip(*left, strict=True):
        assert torch.equal(found, expected)


def test_batch_norm_sees_micro_batches_and_moves_once_for_each():
    module = make_module(lambda: convolutions(nn.BatchNorm2d(6)), micro_batch_size=3)
    buffers = list(module.buffers())
    gradient(module)
    convolution, norm = module.backbone[:2]
    assert norm.num_batches_tracked == 2 * 4
    expected = torch.zeros(6)
    for view in batch()[0]:
        for part in view.tensor_split(4):
            expected = 0.9 * expected + 0.1 * convolution(part).mean(dim=(0, 2, 3))
    torch.testing.assert_close(norm.running_mean, expected)
    # The very tensors: DistributedDataParallel holds on to them.
    assert all(now is before for now, before in zip(module.buffers(), buffers, strict=True))


def test_micro_batches_are_of_nearly_one_size_and_run_twice():
    module = make_module(kind=Counted, micro_batch_size=4)
    gradient(module)
    sizes = [4, 4, 3]
    assert module.calls[:6] == [*sizes, *sizes]
    assert sorted(module.calls[6:]) == sorted([*sizes, *sizes])


def test_evaluation_and_no_grad_encode_a_view_at_once():
    module = make_module(kind=Counted, micro_batch_size=4)
    with torch.no_grad():
        module.step(batch())
    module.eval().step(batch())
    assert module.calls == [NUM_IMAGES] * 4


def test_an_encode_of_a_subclass_is_used():
    class Scaled(ContrastiveModule):
        def encode(self, images):
            features, projections = super().encode(1.0 - images)
            return features, projections[:, :5]

    whole, parts = (make_module(kind=Scaled, micro_batch_size=size) for size in (None, 4))
    assert_close(gradient(parts), gradient(whole), 1e-6)
    assert parts.step(batch())["projections"][0].shape == (NUM_IMAGES, 5)


def train(tmp_path, module, **arguments):
    """Two steps of plain descent; returns how far the parameters went."""
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=2,
        **arguments,
    )
    (views, labels) = batch()
    pairs = list(zip(zip(*views, strict=True), labels, strict=True))
    trainer.fit(module, DataLoader(pairs, batch_size=NUM_IMAGES))
    return nn.utils.parameters_to_vector(module.parameters()).detach() - before


class Descent(ContrastiveModule):
    """Plain descent: Adam's steps hide the length of a gradient."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    # bfloat16 has 8 bits: its sums over micro-batches round by up to 0.4 % each.
    [("32-true", 1e-5), ("bf16-mixed", 2e-2)],
)
@pytest.mark.parametrize("clip", [None, 0.01])
def test_training_with_mixed_precision_and_clipping_is_that_of_whole_batches(
    tmp_path, precision, tolerance, clip
):
    whole, parts = (
        train(
            tmp_path,
            make_module(kind=Descent, micro_batch_size=size),
            precision=precision,
            gradient_clip_val=clip,
        )
        for size in (None, 4)
    )
    assert_close(parts, whole, tolerance)
    if clip is not None:
        assert parts.norm() <= 2 * 0.5 * clip * 1.001


def test_the_second_run_has_the_default_type_of_the_first(tmp_path):
    class Shifted(Descent):
        def encode(self, images):
            features, projections = super().encode(images + torch.full((1,), 0.1))
            return features, projections * torch.ones(projections.shape[1])

    whole, parts = (
        train(tmp_path, make_module(kind=Shifted, micro_batch_size=size), precision="64-true")
        for size in (None, 4)
    )
    assert_close(parts, whole, 1e-12)


def test_a_checkpoint_keeps_the_setting():
    assert make_module(micro_batch_size=4).hparams["micro_batch_size"] == 4


MEASURE = """
import re
from pathlib import Path

import torch
from torch import nn
from weince_lightning import ContrastiveModule, InfoNCELoss

torch.set_num_threads(1)
layers = [layer for _ in range(6) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.GELU())]
net = nn.Sequential(nn.Conv2d(1, 8, 1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
views = [torch.rand(128, 1, 32, 32) for _ in range(2)]


def peak():
    # Not ru_maxrss: it remembers the process that this one was forked from.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])


def rise(size, num_images=128):
    module = ContrastiveModule(net, InfoNCELoss(), 1, 32, micro_batch_size=size)
    before = peak()
    batch = [view[:num_images] for view in views], torch.zeros(num_images)
    module.step(batch)["loss"].backward()
    return peak() - before


rise(None, 4)  # what torch loads once
print(rise(8), rise(None))  # the smaller first: the mark only rises
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
@pytest.mark.slow
def test_peak_memory_falls():
    result = subprocess.run(
        [sys.executable, "-c", MEASURE],
        # Freed tensors leave the process; else the heap may keep them, and the mark counts them.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    of_parts, beyond_parts = map(int, result.stdout.split())
    # 12 maps of 8 x 32 x 32 numbers for each of 2 x 128 images are 96 MiB, for 8 images 3 MiB.
    assert of_parts + beyond_parts > 80 * 1024
    assert of_parts < 0.2 * (of_parts + beyond_parts)
