"""torchvision's ResNets without the classifier, with a stem for small images."""

from torch import nn
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock, Bottleneck

LARGEST_SMALL_IMAGE = 64
"""Side in pixels up to which a ResNet is built for small images, if not told otherwise."""


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


def resnet18_slim(
    in_channels: int = 3, image_size: int = 32, small_image_stem: bool | None = None
) -> ResNet:
    """Return :func:`resnet18` with a quarter of its channels, for a CPU; 128 features.

    Args:
        in_channels: Number of colour channels of the images.
        image_size: Height and width of the images in pixels.
        small_image_stem: See :func:`resnet18`.

    Example:
        >>> sum(parameter.numel() for parameter in resnet18_slim().parameters())
        700176
    """
    encoder = ResNet(BasicBlock, [2, 2, 2, 2])
    encoder.inplanes = 16
    encoder.bn1 = nn.BatchNorm2d(16)
    for stage, width in enumerate((16, 32, 64, 128), start=1):
        layer = encoder._make_layer(BasicBlock, width, 2, stride=1 if stage == 1 else 2)
        setattr(encoder, f"layer{stage}", layer)
        for module in layer.modules():
            if isinstance(module, nn.Conv2d):
                _initialise(module)
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


def _is_small(image_size: int, wanted: bool | None) -> bool:
    return image_size <= LARGEST_SMALL_IMAGE if wanted is None else wanted


def _adapt_ends(encoder: ResNet, in_channels: int, small_images: bool) -> ResNet:
    """Fit a ResNet's first layers to the images and take its classifier away."""
    width = encoder.bn1.num_features
    if small_images:
        encoder.conv1 = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
        encoder.maxpool = nn.Identity()
    elif (in_channels, width) != (3, 64):
        encoder.conv1 = nn.Conv2d(
            in_channels, width, kernel_size=7, stride=2, padding=3, bias=False
        )
    _initialise(encoder.conv1)
    encoder.fc = nn.Identity()
    return encoder


def _initialise(convolution: nn.Conv2d) -> None:
    """Follow torchvision's rule for all convolutions of a ResNet."""
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
