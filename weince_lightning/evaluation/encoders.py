"""Encoders by name or file, for every command that runs one over images."""

import logging
import re
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torchvision.transforms import v2

from weince_lightning.checkpoints import Checkpoint, EncoderWeights, open_checkpoint, read_encoder
from weince_lightning.checkpoints.encoders import build_known
from weince_lightning.checks import did_you_mean
from weince_lightning.evaluation.saved_run import build_saved_backbone
from weince_lightning.networks import build_encoder
from weince_lightning.networks.encoders import ENCODERS
from weince_lightning.networks.hubs import HUBS, hub_model

_log = logging.getLogger(__name__)

_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_OF_FILES = re.compile(r"\.(pt|pth|ckpt|safetensors|npy|npz|csv|parquet|ya?ml)$")


class ImageEncoder(NamedTuple):
    """An encoder of images in ``[0, 1]``, in evaluation mode, on the CPU."""

    module: nn.Module
    """From images to features, shape ``(batch, features)``."""
    in_channels: int | None
    """Channels of the images; None if that is not known."""
    image_size: int | None
    """Height and width that the images should have, in pixels; None if that is not known."""
    weights: EncoderWeights | None
    """What its file holds; None for an encoder by name."""

    is_published: bool = False
    """Whether it is a model of a hub, which prepares its images itself."""

    @property
    def is_ours(self) -> bool:
        """Whether a module of ours wrote the file."""
        return self.weights is not None and self.weights.layout == "weince_lightning"

    @property
    def backbone(self) -> str | nn.Module | None:
        """The backbone of the file as it was given or found; None if nothing names it."""
        return None if self.weights is None else self.weights.arguments.get("backbone")


def find_encoder(source: str | Path | Checkpoint) -> Checkpoint | str:
    """Open the file of an encoder, or return its name.

    Args:
        source: A checkpoint (see :func:`~weince_lightning.checkpoints.read_encoder`),
            ``torchvision:NAME`` or ``timm:NAME`` with their published weights, or without weights a
            name that :func:`~weince_lightning.networks.build_encoder` knows or the class path of a
            module that needs no arguments. A file of that name takes precedence.

    Returns:
        The open checkpoint; a name as it is.

    Raises:
        FileNotFoundError: If there is neither such a file nor such a name.
        CheckpointError: If the file cannot be read.
    """
    if not isinstance(source, str | Path):
        return open_checkpoint(source)
    name = str(source)
    if is_encoder_name(name):
        return name
    if Path(name).exists() or "://" in name or "/" in name or _OF_FILES.search(name):
        return open_checkpoint(source)  # an address, or the error of a missing file
    raise FileNotFoundError(
        f"there is no checkpoint {name}, and no encoder of that name. Encoders are a file, "
        f"torchvision:NAME, timm:NAME, {', '.join(ENCODERS)}, or a class path."
        f"{did_you_mean(name, ENCODERS)}"
    )


def is_encoder_name(source: str) -> bool:
    """Whether an encoder is given by its name and not by a file; see :func:`find_encoder`."""
    if Path(source).exists():
        return False
    return source.startswith(HUBS) or source in ENCODERS or _class_at(source) is not None


def resolve_encoder(
    source: str | Path | Checkpoint,
    backbone: str | nn.Module | None = None,
    v1_stride: bool | None = None,
    *,
    pretrained: bool = True,
    in_channels: int = 3,
    image_size: int = 32,
) -> ImageEncoder:
    """Build the encoder that a file holds or a name stands for, without projection head.

    Args:
        source: See :func:`find_encoder`.
        backbone: The backbone where the file does not tell it: a name, the class path of a module
            that needs no arguments, or a module for its weights.
        v1_stride: Where the stride of a ResNet-50 is, if the file does not tell.
        pretrained: Whether ``torchvision:NAME`` and ``timm:NAME`` have their published weights.
            Weights that are not published are random, the same each time.
        in_channels: Channels of the images, for names that stand for no certain ones.
        image_size: Likewise, height and width of the images in pixels.

    Raises:
        FileNotFoundError: If there is neither such a file nor such a name.
        CheckpointError: If the file cannot be read, or its weights are not those of the backbone.
        ValueError: If the file does not tell what is needed to build the encoder, there is no such
            model, or its weights cannot be fetched.
        TypeError: If a class path names no module.
        ModuleNotFoundError: If timm is needed and not installed.

    Example:
        >>> resolve_encoder("convnet", in_channels=1, image_size=16).module(
        ...     torch.zeros(2, 1, 16, 16)
        ... ).shape
        torch.Size([2, 512])
    """
    found = find_encoder(source)
    if isinstance(found, Checkpoint):
        if backbone is None:
            backbone = build_saved_backbone(found)
        elif isinstance(backbone, str) and _class_at(backbone) is not None:
            backbone = _built_from_class(backbone)
        weights = read_encoder(found, backbone=backbone, v1_stride=v1_stride)
        known = weights.arguments
        return ImageEncoder(
            build_known(weights), known.get("in_channels"), known.get("image_size"), weights
        )
    if backbone is not None or v1_stride is not None:
        raise ValueError(f"backbone and v1_stride must not be given for {found}, which is a name.")
    # Random weights are the same in every run, and cost the caller no random numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if found.startswith(HUBS):
            return _published(found, pretrained)
        if found in ENCODERS:
            _log.warning(
                "%s has random weights: none are published. A checkpoint has trained ones.", found
            )
            module = build_encoder(found, in_channels, image_size)
            return ImageEncoder(module.eval(), in_channels, image_size, None)
        return ImageEncoder(_built_from_class(found).eval(), None, None, None)


def images_of(data: object) -> dict[str, int]:
    """Return the shape of a data module's images, as :func:`resolve_encoder` takes it."""
    names = ("in_channels", "image_size")
    return {name: getattr(data, name) for name in names if hasattr(data, name)}


def _published(name: str, pretrained: bool) -> ImageEncoder:
    """Put what a model of a hub expects of its images before it."""
    module, size, mean, std = hub_model(name, pretrained)
    # Images in [0, 1] of any size, gray or in color, become what a pretrained model takes.
    prepare = v2.Compose(
        [
            v2.Resize((size, size), v2.InterpolationMode.BICUBIC),
            v2.Lambda(lambda images: images.expand(-1, 3, -1, -1)),
            v2.Normalize(mean or [0.0, 0.0, 0.0], std or [1.0, 1.0, 1.0]),
        ]
    )
    return ImageEncoder(nn.Sequential(prepare, module).eval(), 3, size, None, True)


def _class_at(name: str) -> object | None:
    """Return what a class path names; None if it is none."""
    if not _CLASS_PATH.fullmatch(name) or _OF_FILES.search(name):
        return None
    place, _, last = name.rpartition(".")
    try:
        return getattr(import_module(place), last, None)
    except ModuleNotFoundError as error:
        if not place.startswith(str(error.name)):  # the module is there and lacks another one
            raise
        return None


def _built_from_class(path: str) -> nn.Module:
    create = _class_at(path)
    module = create() if callable(create) else None
    if not isinstance(module, nn.Module):
        raise TypeError(f"{path} must be a class of nn.Module that needs no arguments.")
    return module
