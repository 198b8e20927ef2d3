"""Encoders by name, any module as encoder, and the projection head."""

import sys
from typing import get_args

import pytest
import torch
import torchvision
from cases import few
from torch import nn

from weince_lightning.networks import (
    build_encoder,
    convnet,
    feature_dimension,
    projection_head,
    resnet18,
    resnet50,
    vit_small,
)
from weince_lightning.networks.encoders import ENCODERS, EncoderName

FEATURES = {
    "convnet": 512,
    "resnet18": 512,
    "resnet18_slim": 128,
    "resnet50": 2048,
    "vit_small": 384,
}
CHEAP = few(FEATURES, 0, 2, 4)
"""All names, ResNets of the usual width as slow cases."""


class NoisyInEvaluation(nn.Module):
    """An encoder that draws random numbers and holds a frozen part and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.frozen = nn.Dropout().eval()

    def forward(self, images):
        return (self.frozen(self.norm(images)) + torch.rand(())).flatten(1)


@pytest.mark.parametrize("image_size", few([32, 64, 96], 0, -1))
@pytest.mark.parametrize("name", CHEAP)
def test_every_encoder_gives_its_features_at_every_size(name, image_size):
    encoder = build_encoder(name, image_size=image_size)
    assert feature_dimension(encoder, 3, image_size) == FEATURES[name]


@pytest.mark.parametrize("name", CHEAP)
@pytest.mark.parametrize("in_channels", few([1, 4], 0))
def test_every_encoder_takes_other_numbers_of_channels(name, in_channels):
    encoder = build_encoder(name, in_channels=in_channels, image_size=28)
    assert feature_dimension(encoder, in_channels, 28) == FEATURES[name]


@pytest.mark.parametrize("image_size", [8, 16, 28, 32])
def test_convnet_takes_small_grey_images(image_size):
    features = convnet(1, image_size)(torch.rand(2, 1, image_size, image_size))
    assert features.shape == (2, 512)


def test_slim_resnet_differs_in_width_alone():
    full, slim = build_encoder("resnet18"), build_encoder("resnet18_slim")
    shapes = {name: value.shape for name, value in slim.state_dict().items()}
    assert list(shapes) == list(full.state_dict())
    for name, value in full.state_dict().items():
        widths = [n if n in (1, 3) else n // 4 for n in value.shape]
        assert [*shapes[name]] == widths
    for convolution in (slim.conv1, slim.layer3[0].conv1):  # torchvision's rule: fan_out
        fan_out = convolution.out_channels * 9
        assert convolution.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.15)


@pytest.mark.parametrize(("image_size", "patch_size"), [(17, 4), (30, 7), (33, 32), (5, 5)])
def test_vit_takes_images_that_are_no_multiple_of_the_patch(image_size, patch_size):
    encoder = vit_small(3, image_size, patch_size)
    assert encoder(torch.rand(2, 3, image_size, image_size)).shape == (2, 384)


@pytest.mark.parametrize(
    ("image_size", "patch_size"),
    few([(1, 1), (8, 1), (16, 2), (32, 4), (64, 8), (96, 8), (224, 16)], 0, 3, -2),
)
def test_vit_patch_follows_the_image_size(image_size, patch_size):
    assert vit_small(image_size=image_size).patch_size == patch_size


@pytest.mark.parametrize("patch_size", [0, 33])
def test_vit_refuses_a_patch_that_does_not_fit(patch_size):
    with pytest.raises(ValueError, match=f"patch_size must be between 1 and 32, got {patch_size}"):
        vit_small(image_size=32, patch_size=patch_size)


@pytest.mark.parametrize(("image_size", "small"), [(32, True), (64, True), (96, False)])
@pytest.mark.parametrize("build", few([resnet18, resnet50]))
def test_stem_follows_the_image_size(build, image_size, small):
    encoder = build(image_size=image_size)
    assert encoder.conv1.kernel_size == ((3, 3) if small else (7, 7))
    assert isinstance(encoder.maxpool, nn.Identity) is small


@pytest.mark.parametrize("small", [True, False])
def test_stem_can_be_chosen(small):
    options = {"image_size": 96 if small else 32, "small_image_stem": small}
    assert build_encoder("resnet18", **options).conv1.stride == ((1, 1) if small else (2, 2))


@pytest.mark.parametrize(
    ("options", "v1"),
    [
        ({"image_size": 32}, True),
        ({"image_size": 96}, False),
        ({"image_size": 32, "v1_stride": False}, False),
        ({"image_size": 96, "v1_stride": True}, True),
    ],
)
def test_stride_of_resnet50_stands_on_the_convolution_asked_for(options, v1):
    block = resnet50(**options).layer3[0]
    strides = (block.conv1.stride, block.conv2.stride, block.downsample[0].stride)
    assert strides == (((2, 2), (1, 1), (2, 2)) if v1 else ((1, 1), (2, 2), (2, 2)))


@pytest.mark.parametrize(
    ("name", "head"), few([("resnet18", "fc."), ("resnet50", "fc."), ("vit_small", "heads.")])
)
def test_weights_load_into_torchvisions_model_and_give_its_features(name, head):
    encoder = build_encoder(name, image_size=96).eval()
    if name == "vit_small":
        theirs = torchvision.models.VisionTransformer(96, 8, 12, 6, 384, 1536)
    else:
        theirs = torchvision.models.get_model(name)
    result = theirs.load_state_dict(encoder.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all(key.startswith(head) for key in result.missing_keys)
    setattr(theirs, head.removesuffix("."), nn.Identity())
    images = torch.rand(2, 3, 96, 96)
    assert torch.equal(encoder(images), theirs.eval()(images))


def test_stem_and_stride_leave_torchvisions_key_names():
    theirs = torchvision.models.resnet50().state_dict()
    assert list(resnet50(image_size=32).state_dict()) == [
        key for key in theirs if not key.startswith("fc.")
    ]


def test_head_is_two_linear_layers_without_bias_and_a_relu():
    linear0, relu, linear1 = projection_head(10, 4).layers
    assert (linear0.in_features, linear0.out_features, linear0.bias) == (10, 10, None)
    assert isinstance(relu, nn.ReLU)
    assert (linear1.in_features, linear1.out_features, linear1.bias) == (10, 4, None)


def test_a_module_is_taken_as_it_is():
    encoder = nn.Flatten()
    assert build_encoder(encoder) is encoder


def test_counting_features_leaves_no_trace():
    encoder = NoisyInEvaluation()
    buffers = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    state = torch.get_rng_state()
    assert feature_dimension(encoder, 3, 8) == 192
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in encoder.named_buffers())
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert encoder.training
    assert encoder.norm.training
    assert not encoder.frozen.training


def test_features_of_a_double_precision_encoder_are_counted():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double()
    assert feature_dimension(encoder, 3, 2) == 5


def test_an_encoder_without_pooling_is_refused_with_the_mend():
    with pytest.raises(ValueError, match=r"got \(2, 6, 6, 6\) for a batch of 2. Pool and flatten"):
        feature_dimension(nn.Conv2d(3, 6, 3), 3, 8)


def test_an_encoder_that_returns_no_tensor_is_refused():
    with pytest.raises(TypeError, match=r"one tensor .* got a tuple"):
        feature_dimension(nn.AdaptiveMaxPool2d(1, return_indices=True), 3, 8)


def test_an_encoder_for_other_channels_is_refused():
    with pytest.raises(ValueError, match=r"images of shape \(1, 8, 8\).* got the error: "):
        feature_dimension(nn.Conv2d(3, 6, 3), 1, 8)


@pytest.mark.parametrize(
    ("backbone", "options", "error", "message"),
    [
        ("resnet81", {}, ValueError, "got 'resnet81'. Did you mean \"resnet18\"?"),
        ("", {}, ValueError, "backbone must be one of .*, got ''"),
        (nn.Flatten, {}, TypeError, "a name or an nn.Module instance, got <class"),
        (18, {}, TypeError, "a name or an nn.Module instance, got 18"),
        (nn.Flatten(), {"patch_size": 4}, ValueError, "empty for a module, got patch_size"),
        ("resnet18", {"v1_stride": True}, ValueError, "small_image_stem, got 'v1_stride'"),
        ("convnet", {"depth": 3}, ValueError, "'convnet' must be empty, got 'depth'"),
        ("vit_small", {"patchsize": 4}, ValueError, 'Did you mean "patch_size"'),
    ],
)
def test_wrong_backbones_are_refused(backbone, options, error, message):
    with pytest.raises(error, match=message):
        build_encoder(backbone, **options)


@pytest.mark.parametrize(("name", "features"), [("resnet10t", 512), ("vit_tiny_patch16_224", 192)])
def test_timm_models_are_built_for_the_images(name, features):
    pytest.importorskip("timm", reason="timm is an optional extra")
    encoder = build_encoder(f"timm:{name}", in_channels=1, image_size=32)
    assert feature_dimension(encoder, 1, 32) == features


def test_timm_takes_its_own_options():
    pytest.importorskip("timm", reason="timm is an optional extra")
    encoder = build_encoder("timm:vit_tiny_patch16_224", image_size=32, img_size=32, patch_size=8)
    assert encoder.patch_embed.grid_size == (4, 4)


def test_an_unknown_timm_model_is_refused_with_the_nearest():
    pytest.importorskip("timm", reason="timm is an optional extra")
    with pytest.raises(ValueError, match=r'got "timm:resnet1O"\. Did you mean "resnet'):
        build_encoder("timm:resnet1O")


def test_timm_that_is_not_installed_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install weince-lightning\[timm\]"):
        build_encoder("timm:resnet18")


def test_the_type_of_names_lists_every_encoder():
    assert {*get_args(EncoderName)} == ENCODERS.keys()
