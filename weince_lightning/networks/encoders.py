"""Encoders by name, and the feature dimension of any encoder."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weince_lightning.checks import did_you_mean
from weince_lightning.networks.hubs import timm_model, torchvision_model
from weince_lightning.networks.resnets import resnet18, resnet18_slim, resnet50
from weince_lightning.networks.vision_transformer import vit_small

EncoderName = Literal["convnet", "resnet18", "resnet18_slim", "resnet50", "vit_small"]
"""Names without further parts. As a type of their own, the command line need not search for classes
of these names among all modules that there are, which takes as long as all else that it parses."""


def build_encoder(
    backbone: str | nn.Module, in_channels: int = 3, image_size: int = 32, **options: Any
) -> nn.Module:
    """Return an encoder that maps images to one feature vector each.

    Args:
        backbone: "convnet", "resnet18", "resnet18_slim", "resnet50", "vit_small",
            "torchvision:NAME" (a classification model of torchvision, built for photographs),
            "timm:NAME" (with the extra ``timm``), or a module, which is returned as it is.
        in_channels: Number of colour channels of the images, at least 1.
        image_size: Height and width of the images in pixels, at least 1.
        **options: Further arguments of the named encoder, see :func:`resnet18`, :func:`resnet50`
            and :func:`vit_small`; for torchvision those of ``torchvision.models.get_model``, for
            timm those of ``timm.create_model``.

    Returns:
        A module from images ``(batch, in_channels, image_size, image_size)`` to features
        ``(batch, features)``.

    Raises:
        TypeError: If ``backbone`` is neither a name nor a module.
        ValueError: If the name or an option is unknown, or options are given for a module.
        ModuleNotFoundError: If timm is asked for and not installed.

    Example:
        >>> encoder = build_encoder("convnet", in_channels=1, image_size=16)
        >>> encoder(torch.zeros(2, 1, 16, 16)).shape
        torch.Size([2, 512])
    """
    if isinstance(backbone, nn.Module):
        if options:
            names = ", ".join(options)
            raise ValueError(f"backbone_options must be empty for a module, got {names}.")
        return backbone
    if not isinstance(backbone, str):
        raise TypeError(f"backbone must be a name or an nn.Module instance, got {backbone!r}.")
    if backbone.startswith("timm:"):
        return timm_model(backbone.removeprefix("timm:"), in_channels, image_size, options)
    if backbone.startswith("torchvision:"):
        return _torchvision_encoder(backbone.removeprefix("torchvision:"), in_channels, options)
    if backbone not in ENCODERS:
        names = ", ".join(f'"{name}"' for name in ENCODERS)
        raise ValueError(
            f'backbone must be one of {names}, "torchvision:NAME", "timm:NAME" or a module (on the '
            f"command line a class that can be imported, such as mine.Backbone), got {backbone!r}."
            f"{did_you_mean(backbone, ENCODERS)}"
        )
    builder = ENCODERS[backbone]
    known = [name for name in inspect.signature(builder).parameters if name not in _SHARED]
    for option in options:
        if option not in known:
            raise ValueError(
                f"backbone_options of {backbone!r} must be {' or '.join(known) or 'empty'}, "
                f"got {option!r}.{did_you_mean(option, known)}"
            )
    return builder(in_channels=in_channels, image_size=image_size, **options)


def feature_dimension(encoder: nn.Module, in_channels: int, image_size: int) -> int:
    """Count the features that an encoder gives, by running it on a batch of zeros.

    The run leaves no trace: it is in evaluation mode, so that BatchNorm statistics stay, without
    gradient, and the random state is put back.

    Args:
        encoder: A module from images to features.
        in_channels: Number of colour channels of the images.
        image_size: Height and width of the images in pixels.

    Returns:
        The length of one image's feature vector.

    Raises:
        TypeError: If the encoder returns anything but one tensor.
        ValueError: If it cannot take such images, or its output is not ``(batch, features)``.

    Example:
        >>> feature_dimension(nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), 3, 8)
        10
    """
    features = _run_on_zeros(encoder, (2, in_channels, image_size, image_size))
    if not isinstance(features, Tensor):
        kind = type(features).__name__
        raise TypeError(f"backbone must return one tensor (batch, features), got a {kind}.")
    if features.ndim != 2 or len(features) != 2:
        raise ValueError(
            "backbone must return features of shape (batch, features), "
            f"got {tuple(features.shape)} for a batch of 2. Pool and flatten them, "
            "for example with nn.AdaptiveAvgPool2d(1) and nn.Flatten()."
        )
    return features.shape[1]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradient, and then each of its parts back.

    Args:
        model: Some of whose parts may be in evaluation mode already.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def convnet(in_channels: int = 1, image_size: int = 16) -> nn.Sequential:
    """Return a small convolutional network for a CPU and images of 8 to 32 pixels; 512 features.

    Args:
        in_channels: Number of colour channels of the images.
        image_size: Height and width of the images in pixels; the network is the same for all.

    Example:
        >>> sum(parameter.numel() for parameter in convnet().parameters())
        97392
    """
    widths = (in_channels, 16, 32, 64, 128)
    layers: list[nn.Module] = []
    for width, next_width in pairwise(widths):
        stride = 2 if layers else 1
        layers += [
            nn.Conv2d(width, next_width, kernel_size=3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(next_width),
            nn.ReLU(inplace=True),
        ]
    # A map of 2x2 keeps where a stroke is: kNN on digits 0.97, against 0.94 with one mean.
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


_SHARED = ("in_channels", "image_size")
ENCODERS: dict[str, Callable[..., nn.Module]] = {
    "convnet": convnet,
    "resnet18": resnet18,
    "resnet18_slim": resnet18_slim,
    "resnet50": resnet50,
    "vit_small": vit_small,
}
"""Those that are built here, by name."""


def _torchvision_encoder(name: str, in_channels: int, options: dict[str, Any]) -> nn.Module:
    """Return torchvision's model of that name, without its classifier and with random weights."""
    if in_channels != 3:
        raise ValueError(
            f'in_channels must be 3 for backbone "torchvision:{name}", got {in_channels}. Set it '
            "for the data, take a backbone of timm, or one of our own."
        )
    if "weights" in options:
        raise ValueError(
            'backbone_options of a model of torchvision must not hold "weights", which every '
            f'checkpoint would fetch anew. Set init_from to "torchvision:{name}".'
        )
    return torchvision_model(name, **options)


def _run_on_zeros(encoder: nn.Module, shape: tuple[int, ...]) -> object:
    """Return the encoder's output for zeros; modes and random state stay as they were."""
    like = next(encoder.parameters(), torch.empty(0))
    zeros = torch.zeros(shape, dtype=like.dtype, device=like.device)
    with torch.random.fork_rng([like.device] if like.is_cuda else []), evaluation_mode(encoder):
        try:
            return encoder(zeros)
        except RuntimeError as error:
            raise ValueError(
                f"backbone must take images of shape {shape[1:]} (in_channels, image_size twice), "
                f"got the error: {error}"
            ) from error
