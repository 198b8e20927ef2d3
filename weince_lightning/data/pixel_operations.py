"""What torchvision does to one PIL image, for a batch of images with numbers of their own each."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

GREY_WEIGHTS = (0.299, 0.587, 0.114)
"""Red, green and blue in a grey value, as in Pillow (ITU-R 601-2 luma)."""


class Crops(NamedTuple):
    """A rectangle of each image, in pixels; every field has shape ``(images,)``."""

    top: NDArray[np.int64]
    """First line."""

    left: NDArray[np.int64]
    """First column."""

    height: NDArray[np.int64]
    """Lines."""

    width: NDArray[np.int64]
    """Columns."""


def to_grey_pixels(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn RGB into grey as Pillow does, in integers: ``(..., 3)`` to ``(...)``."""
    red, green, blue = (pixels[..., i].astype(np.uint32) for i in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)


def resampling_weights(
    start: NDArray[np.int64], length: NDArray[np.int64], in_size: int, out_size: int
) -> Tensor:
    """Return what each pixel of a resized line takes from the pixels of the line.

    Bilinear with antialiasing as in Pillow: a triangle of the width of an output pixel, of an
    input pixel where those are larger, cut off at the ends of the crop.

    Args:
        start: First pixel of each image's crop, shape ``(images,)``.
        length: Pixels of the crop, shape ``(images,)``.
        in_size: Pixels of the line.
        out_size: Pixels of the result.

    Returns:
        Weights that sum to 1, shape ``(images, out_size, in_size)``, float32.
    """
    begin, extent = (torch.from_numpy(each).float()[:, None, None] for each in (start, length))
    # Middles of the pixels within the crop, (images, 1, in_size).
    pixels = torch.arange(in_size, dtype=torch.float32) + 0.5 - begin
    scale = extent / out_size
    # Middles of those of the result, (images, out_size, 1).
    centres = (torch.arange(out_size, dtype=torch.float32)[:, None] + 0.5) * scale
    weights = (pixels - centres).abs_().div_(-scale.clamp_min(1)).add_(1).clamp_min_(0)
    weights *= (pixels > 0) & (pixels < extent)
    return weights.div_(weights.sum(2, keepdim=True))


def resize_crops(images: Tensor, crops: Crops, size: Sequence[int]) -> Tensor:
    """Cut a rectangle out of each image and resize all of them to one size (height, width)."""
    count, channels, in_height, in_width = images.shape
    rows = resampling_weights(crops.top, crops.height, in_height, size[0])
    columns = resampling_weights(crops.left, crops.width, in_width, size[1])
    # Channels last for the first product, whose sum runs over lines; as they lie in a data set.
    lines = images.permute(0, 2, 3, 1).reshape(count, in_height, in_width * channels)
    lines = torch.bmm(rows, lines).reshape(count, size[0], in_width, channels)
    planes = lines.permute(0, 3, 1, 2).reshape(count, channels * size[0], in_width)
    return torch.bmm(planes, columns.mT).reshape(count, channels, *size)


def turn_images(
    images: Tensor,
    angle: NDArray[np.float64],
    right: NDArray[np.float64],
    down: NDArray[np.float64],
    scale: NDArray[np.float64],
) -> Tensor:
    """Scale and turn each image about its middle, then shift it; black comes in, bilinear.

    Args:
        images: Images, shape ``(images, channels, height, width)``.
        angle: Clockwise, in radians, shape ``(images,)`` like the others.
        right: Shift in pixels.
        down: Shift in pixels.
        scale: Above 1 enlarges.
    """
    height, width = images.shape[2:]
    cosine, sine = np.cos(angle) / scale, np.sin(angle) / scale
    # From a pixel of the result to the place in the image; PyTorch's coordinates run from -1 to 1.
    rows = [[cosine, sine * height / width], [-sine * width / height, cosine]]
    forms = np.array(rows).transpose(2, 0, 1).copy()  # (images, 2, 2)
    shifts = -forms @ np.stack([2 * right / width, 2 * down / height], 1)[..., None]
    maps = torch.from_numpy(np.concatenate([forms, shifts], axis=2)).float()
    places = functional.affine_grid(maps, list(images.shape), align_corners=False)
    turned = functional.grid_sample(images, places, padding_mode="border", align_corners=False)
    # As in Pillow, all or nothing: beyond the edge black, up to it the pixel at the edge.
    inside = (places.abs() < 1).all(-1)
    return turned.mul_(inside[:, None])


def to_grey(images: Tensor) -> Tensor:
    """Weigh the three channels to one, ``(images, 1, height, width)``."""
    red, green, blue = images.chunk(3, dim=1)
    grey = red * GREY_WEIGHTS[0]
    return grey.add_(green, alpha=GREY_WEIGHTS[1]).add_(blue, alpha=GREY_WEIGHTS[2])


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Scale the images by ``factor``, shape ``(images, 1, 1, 1)``; changes its argument."""
    return images.mul_(factor).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to the mean grey value; changes its argument."""
    grey = images if images.shape[1] == 1 else to_grey(images)
    mean = grey.flatten(1).mean(1)[:, None, None, None]
    return images.mul_(factor).add_((1 - factor) * mean).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance to the pixel's grey value; changes its argument."""
    grey = to_grey(images).mul_(1 - factor)
    return images.mul_(factor).add_(grey).clamp_(0, 1)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by ``shift`` of the circle; changes its argument."""
    red, green, blue = images.unbind(1)
    low, high = images.amin(1), images.amax(1)
    chroma = high - low
    safe = chroma.clamp_min(1e-30)  # grey: the hue is of no consequence
    # In sixths of the circle, from red over green to blue.
    hue = torch.where(
        high == red,
        (green - blue).div_(safe),
        torch.where(
            high == green, (blue - red).div_(safe).add_(2), (red - green).div_(safe).add_(4)
        ),
    )
    hue += 6 * shift[:, 0]
    for channel, peak in enumerate((0, 2, 4)):
        # How far the hue is from that of the channel, in [0, 3].
        away = hue - peak
        away = away.sub_((away / 6).round_().mul_(6)).abs_()
        # Full up to one sixth, none from two sixths on.
        torch.addcmul(low, away.neg_().add_(2).clamp_(0, 1), chroma, out=images[:, channel])
    return images


ADJUSTMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
}
"""The operations of a ColorJitter, by the name of their range there."""
