"""Encoders by name, the feature dimension of any encoder, and the paper's projection head.

The named ResNets and the vision transformer are torchvision's own classes without the classifier:
their ``state_dict`` has torchvision's key names and loads into torchvision's model (classifier
aside) wherever the shapes are torchvision's.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import ResNet, VisionTransformer
from torchvision.models.resnet import BasicBlock, Bottleneck

LARGEST_SMALL_IMAGE = 64
"""Side in pixels up to which a ResNet is built for small images, if not told otherwise."""


def build_encoder(
    backbone: str | nn.Module, in_channels: int = 3, image_size: int = 32, **options: Any
) -> nn.Module:
    """Return an encoder that maps images to one feature vector each.

    Args:
        backbone: "convnet", "resnet18", "resnet50", "vit_small", "timm:NAME" (with the extra
            ``timm``), or a module, which is returned as it is.
        in_channels: Number of colour channels of the images, at least 1.
        image_size: Height and width of the images in pixels, at least 1.
        **options: Further arguments of the named encoder, see :func:`resnet18`, :func:`resnet50`
            and :func:`vit_small`; for timm those of ``timm.create_model``.

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
        return _timm_encoder(backbone.removeprefix("timm:"), in_channels, image_size, options)
    if backbone not in _ENCODERS:
        names = ", ".join(f'"{name}"' for name in _ENCODERS)
        raise ValueError(
            f'backbone must be one of {names}, "timm:NAME", got {backbone!r}.'
            f"{_nearest(backbone, _ENCODERS)}"
        )
    builder = _ENCODERS[backbone]
    known = [name for name in inspect.signature(builder).parameters if name not in _SHARED]
    for option in options:
        if option not in known:
            raise ValueError(
                f"backbone_options of {backbone!r} must be {' or '.join(known) or 'empty'}, "
                f"got {option!r}.{_nearest(option, known)}"
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
        ValueError: If it can not take such images, or its output is not ``(batch, features)``.

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


def projection_head(feature_dim: int, projection_dim: int) -> nn.Module:
    """Return the paper's projection head: two linear layers without bias, ReLU between.

    Args:
        feature_dim: Length of the feature vectors, and width of the hidden layer.
        projection_dim: Length of the projections.

    Returns:
        lightly's ``ProjectionHead``, from ``(batch, feature_dim)`` to ``(batch, projection_dim)``.

    Example:
        >>> projection_head(512, 64)(torch.zeros(2, 512)).shape
        torch.Size([2, 64])
    """
    # Imported here: lightly's models import timm wherever that is installed.
    from lightly.models.modules.heads import ProjectionHead

    head: nn.Module = ProjectionHead(
        [
            (feature_dim, feature_dim, None, nn.ReLU(), False),
            (feature_dim, projection_dim, None, None, False),
        ]
    )
    return head


def resnet18(
    in_channels: int = 3, image_size: int = 32, small_image_stem: bool | None = None
) -> ResNet:
    """Return torchvision's ResNet-18 without its classifier; 512 features.

    Args:
        in_channels: Number of colour channels of the images.
        image_size: Height and width of the images in pixels.
        small_image_stem: Whether the first convolution is 3x3 with stride 1 and no max-pool
            follows. None: up to 64 pixels. The paper's authors do so for 32 pixels and not for the
            96 of STL-10; at 64, torchvision's own stem would leave a last map of 2x2.

    Example:
        >>> resnet18(image_size=32).conv1.stride, resnet18(image_size=96).conv1.stride
        ((1, 1), (2, 2))
    """
    encoder = ResNet(BasicBlock, [2, 2, 2, 2])
    return _adapt_ends(encoder, in_channels, _is_small(image_size, small_image_stem))


def resnet50(
    in_channels: int = 3,
    image_size: int = 32,
    small_image_stem: bool | None = None,
    v1_stride: bool | None = None,
) -> ResNet:
    """Return torchvision's ResNet-50 without its classifier; 2048 features.

    Args:
        in_channels: Number of colour channels of the images.
        image_size: Height and width of the images in pixels.
        small_image_stem: See :func:`resnet18`.
        v1_stride: Whether a block's stride stands on its first 1x1 convolution, as in the paper,
            and not on the 3x3 one, as in torchvision ("v1.5"). None: up to 64 pixels.

    Example:
        >>> resnet50(image_size=32).layer2[0].conv1.stride
        (2, 2)
    """
    encoder = ResNet(Bottleneck, [3, 4, 6, 3])
    if _is_small(image_size, v1_stride):
        for module in encoder.modules():
            if isinstance(module, Bottleneck):
                module.conv1.stride, module.conv2.stride = module.conv2.stride, (1, 1)
    return _adapt_ends(encoder, in_channels, _is_small(image_size, small_image_stem))


def vit_small(
    in_channels: int = 3, image_size: int = 32, patch_size: int | None = None
) -> VisionTransformer:
    """Return torchvision's vision transformer in size "small", without its classifier.

    384 features (the class token), 12 layers, 6 heads.

    Args:
        in_channels: Number of colour channels of the images.
        image_size: Height and width of the images in pixels. Zeros are added at the right and
            below, up to a multiple of the patch size.
        patch_size: Height and width of a patch in pixels, at most ``image_size``. None: the largest
            power of two up to 16 that gives 7 patches a side (4 at 32 pixels, 8 at 64, 16 at 224).

    Raises:
        ValueError: If the patch is larger than the image, or smaller than a pixel.

    Example:
        >>> vit_small(image_size=64).patch_size
        8
    """
    if patch_size is None:
        patch_size = max(size for size in (1, 2, 4, 8, 16) if size == 1 or image_size // size >= 7)
    if not 1 <= patch_size <= image_size:
        raise ValueError(f"patch_size must be between 1 and {image_size}, got {patch_size}.")
    return _SmallVisionTransformer(in_channels, image_size, patch_size)


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
_ENCODERS: dict[str, Callable[..., nn.Module]] = {
    "convnet": convnet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vit_small": vit_small,
}


class _SmallVisionTransformer(VisionTransformer):  # type: ignore[misc]  # torchvision is untyped
    """torchvision's transformer for any number of channels and any image size."""

    def __init__(self, in_channels: int, image_size: int, patch_size: int) -> None:
        padding = -image_size % patch_size
        super().__init__(
            image_size=image_size + padding,
            patch_size=patch_size,
            num_layers=12,
            num_heads=6,
            hidden_dim=384,
            mlp_dim=1536,
        )
        self.padding = padding
        self.heads = nn.Identity()
        if in_channels != 3:
            self.conv_proj = nn.Conv2d(in_channels, 384, patch_size, stride=patch_size)
            # torchvision's rule for its own three channels
            nn.init.trunc_normal_(self.conv_proj.weight, std=(in_channels * patch_size**2) ** -0.5)
            nn.init.constant_(self.conv_proj.get_parameter("bias"), 0.0)

    def forward(self, images: Tensor) -> Tensor:
        """Return the class token's features, shape ``(batch, 384)``."""
        padded = F.pad(images, (0, self.padding, 0, self.padding))
        features: Tensor = super().forward(padded)
        return features


def _is_small(image_size: int, wanted: bool | None) -> bool:
    return image_size <= LARGEST_SMALL_IMAGE if wanted is None else wanted


def _adapt_ends(encoder: ResNet, in_channels: int, small_images: bool) -> ResNet:
    """Fit a ResNet's first layers to the images and take its classifier away."""
    if small_images:
        encoder.conv1 = nn.Conv2d(in_channels, 64, kernel_size=3, padding=1, bias=False)
        encoder.maxpool = nn.Identity()
    elif in_channels != 3:
        encoder.conv1 = nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    # torchvision's rule for all convolutions of a ResNet
    nn.init.kaiming_normal_(encoder.conv1.weight, mode="fan_out", nonlinearity="relu")
    encoder.fc = nn.Identity()
    return encoder


def _timm_encoder(
    name: str, in_channels: int, image_size: int, options: dict[str, Any]
) -> nn.Module:
    """Return timm's model of that name, without its classifier."""
    try:
        timm = import_module("timm")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'backbone "timm:{name}" needs timm: pip install weince-lightning[timm]'
        ) from error
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(
            f'backbone must be "timm:NAME" with a model of timm, got "timm:{name}".'
            f"{_nearest(name, timm.list_models())}"
        )
    encoder: nn.Module = timm.create_model(
        name, **{"num_classes": 0, "in_chans": in_channels, **options}
    )
    # timm's transformers are built for one image size; its convolutional models take any.
    set_input_size = getattr(encoder, "set_input_size", None)
    if callable(set_input_size) and "img_size" not in options:
        set_input_size(img_size=(image_size, image_size))
    return encoder


def _run_on_zeros(encoder: nn.Module, shape: tuple[int, ...]) -> object:
    """Return the encoder's output for zeros; modes and random state stay as they were."""
    modes = [(module, module.training) for module in encoder.modules()]
    like = next(encoder.parameters(), torch.empty(0))
    zeros = torch.zeros(shape, dtype=like.dtype, device=like.device)
    with torch.random.fork_rng([like.device] if like.is_cuda else []), torch.no_grad():
        encoder.eval()
        try:
            return encoder(zeros)
        except RuntimeError as error:
            raise ValueError(
                f"backbone must take images of shape {shape[1:]} (in_channels, image_size twice), "
                f"got the error: {error}"
            ) from error
        finally:
            for module, training in modes:
                module.training = training


def _nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word most like the given one, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""
