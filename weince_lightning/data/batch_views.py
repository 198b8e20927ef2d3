"""Two random views of a whole batch at once, by the law that ``views`` has for one image."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import v2

from weince_lightning.data.images import Images, StoredImages
from weince_lightning.data.pixel_operations import (
    ADJUSTMENTS,
    Crops,
    resize_crops,
    to_grey,
    to_grey_pixels,
    turn_images,
)
from weince_lightning.data.views import Normalization, Transform, normalize

CROP_ATTEMPTS = 10
"""How often torchvision draws a crop before it takes the middle."""

GROUP = 128
"""Images at a time: more spare no time, and large ones outgrow the processor's cache."""


class Streams:
    """Random numbers of each image of a batch, from its own seed and nothing else.

    The j-th number of a stream is a hash of its key and j (splitmix64, Steele, Lea and Flood,
    OOPSLA 2014), so it does not matter in which batch or process an image is.

    Args:
        keys: One number of 64 bits for each image, shape ``(images,)``, uint64.
    """

    def __init__(self, keys: NDArray[np.uint64]):
        self._keys = keys[:, None]
        self._drawn = 0

    def uniform(self, count: int, low: float = 0.0, high: float = 1.0) -> NDArray[np.float64]:
        """Draw the next numbers of every image, shape ``(images, count)``, in [low, high)."""
        turns = np.arange(self._drawn, self._drawn + count, dtype=np.uint64)
        self._drawn += count
        bits = hashed(self._keys, turns) >> np.uint64(11)  # a double holds 53 bits
        return low + (high - low) * (bits.astype(np.float64) * 2.0**-53)


def hashed(keys: NDArray[np.uint64], turns: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 generator's number ``turns`` (from 0) for each seed in ``keys``."""
    bits = keys + (turns + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


class BatchViews:
    """Draw two views of each image of a batch, with tensor operations for all of them together.

    The views have the distribution of :class:`~weince_lightning.data.views.TwoViews` with the same
    transforms, up to the rounding to 8 bits that Pillow does after every step and this does not.

    Args:
        transforms: torchvision's transforms of a view: RandomResizedCrop, RandomHorizontalFlip,
            RandomApply of one ColorJitter, RandomGrayscale, Resize, RandomAffine without shear.
        mode: ``"L"`` (grey) or ``"RGB"``.
        channels: Normalization of the views; None leaves values in [0, 1].

    Raises:
        ValueError: If there is a transform of another kind.
    """

    def __init__(
        self, transforms: Sequence[Transform], mode: str, channels: Normalization | None = None
    ):
        strangers = [type(one).__name__ for one in transforms if type(one) not in STEPS]
        if strangers:
            known = ", ".join(kind.__name__ for kind in STEPS)
            raise ValueError(f"transforms must be of {known}, got {', '.join(strangers)}.")
        self._transforms = transforms
        self._mode = mode
        self._channels = channels

    def __call__(self, pixels: NDArray[np.uint8], seeds: NDArray[np.uint64]) -> list[Tensor]:
        """Return the two views of every image.

        Args:
            pixels: Images, shape ``(images, height, width)`` or ``(images, height, width, 3)``.
            seeds: Seed of each image, shape ``(images,)``.

        Returns:
            Two float32 tensors of shape ``(images, channels, height, width)``.
        """
        if self._mode == "L" and pixels.ndim == 4:
            pixels = to_grey_pixels(pixels)
        if pixels.ndim == 3:
            pixels = pixels[..., None]
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32).div_(255)
        keys = hashed(seeds, np.arange(2, dtype=np.uint64)[:, None])  # (views, images)
        views = torch.cat([images, images])
        streams = Streams(keys.reshape(-1))
        for transform in self._transforms:
            views = STEPS[type(transform)](views, streams, transform)
        if self._mode == "RGB" and views.shape[1] == 1:  # equal channels stay equal in every step
            views = views.repeat(1, 3, 1, 1)
        return list(normalize(views, self._channels).chunk(2))

    def of_images(
        self, images: Images, positions: Sequence[int], seeds: Sequence[int]
    ) -> list[list[Tensor]]:
        """Return the two views of some images in memory, each by a seed of 64 bits."""
        pixels = cast(StoredImages, images).pixels(positions)
        keys = np.array(seeds, dtype=np.uint64)
        pairs: list[list[Tensor]] = []
        for start in range(0, len(keys), GROUP):
            group = slice(start, start + GROUP)
            pairs += map(list, zip(*self(pixels[group], keys[group]), strict=True))
        return pairs


def draw_crops(streams: Streams, height: int, width: int, transform: v2.RandomResizedCrop) -> Crops:
    """Draw a crop of each image, of ``height`` and ``width``, by torchvision's law."""
    areas = height * width * streams.uniform(CROP_ATTEMPTS, *transform.scale)
    ratios = np.exp(streams.uniform(CROP_ATTEMPTS, *np.log(transform.ratio)))
    places = streams.uniform(2)
    widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    # Where no attempt fits: all of the image, or the middle of what is too long or too high.
    narrowest, widest = min(transform.ratio), max(transform.ratio)
    middle_width = min(width, round(height * widest)) if width / height > widest else width
    middle_height = min(height, round(width / narrowest)) if width / height < narrowest else height
    first = fits.argmax(axis=1)[:, None]
    found = fits.any(axis=1)
    crop_width = np.where(found, np.take_along_axis(widths, first, 1)[:, 0], middle_width)
    crop_height = np.where(found, np.take_along_axis(heights, first, 1)[:, 0], middle_height)
    spare_height, spare_width = height - crop_height, width - crop_width
    top = np.where(found, np.floor(places[:, 0] * (spare_height + 1)), spare_height // 2)
    left = np.where(found, np.floor(places[:, 1] * (spare_width + 1)), spare_width // 2)
    return Crops(*(each.astype(np.int64) for each in (top, left, crop_height, crop_width)))


def _crop(images: Tensor, streams: Streams, transform: v2.RandomResizedCrop) -> Tensor:
    _, _, height, width = images.shape
    return resize_crops(images, draw_crops(streams, height, width, transform), transform.size)


def _resize(images: Tensor, streams: Streams, transform: v2.Resize) -> Tensor:
    count, _, height, width = images.shape
    if (height, width) == tuple(transform.size):
        return images
    none = np.zeros(count, dtype=np.int64)
    whole = Crops(none, none, none + height, none + width)
    return resize_crops(images, whole, transform.size)


def _flip(images: Tensor, streams: Streams, transform: v2.RandomHorizontalFlip) -> Tensor:
    chosen = _chosen(streams, transform.p)
    return images.index_copy_(0, chosen, images.index_select(0, chosen).flip(-1))


def _grey(images: Tensor, streams: Streams, transform: v2.RandomGrayscale) -> Tensor:
    chosen = _chosen(streams, transform.p)
    if images.shape[1] == 1:
        return images
    grey = to_grey(images.index_select(0, chosen))
    return images.index_copy_(0, chosen, grey.expand(-1, 3, -1, -1))


def _jitter(images: Tensor, streams: Streams, transform: v2.RandomApply) -> Tensor:
    (jitter,) = transform.transforms
    names = list(ADJUSTMENTS)
    touched = streams.uniform(1) < transform.p
    turns = streams.uniform(len(names)).argsort(axis=1)  # (images, turns): what comes when
    turns = np.where(touched, turns, len(names))
    factors = {
        name: torch.from_numpy(streams.uniform(1, *bounds)).float()[..., None, None]
        for name in names
        if (bounds := getattr(jitter, name)) is not None
    }
    if images.shape[1] == 1:  # grey has neither
        factors.pop("saturation", None)
        factors.pop("hue", None)
    place = np.arange(len(images))  # of each image, while those that do the same lie together
    for turn in range(len(names)):
        order = turns[place, turn].argsort(kind="stable")
        place = place[order]
        images = images.index_select(0, torch.from_numpy(order))
        ends = np.searchsorted(turns[place, turn], np.arange(len(names) + 1))
        for number, name in enumerate(names):
            if name in factors:
                together = slice(ends[number], ends[number + 1])
                factor = factors[name][torch.from_numpy(place[together])]
                ADJUSTMENTS[name](images[together], factor)
    return images.index_select(0, torch.from_numpy(place.argsort()))


def _chosen(streams: Streams, probability: float) -> Tensor:
    """Draw which images a step touches, as their indices."""
    return torch.from_numpy(np.flatnonzero(streams.uniform(1)[:, 0] < probability))


def _affine(images: Tensor, streams: Streams, transform: v2.RandomAffine) -> Tensor:
    height, width = images.shape[2:]
    angle = np.deg2rad(streams.uniform(1, *transform.degrees)[:, 0])
    shares = transform.translate
    right = np.rint(streams.uniform(1, -shares[0] * width, shares[0] * width)[:, 0])
    down = np.rint(streams.uniform(1, -shares[1] * height, shares[1] * height)[:, 0])
    scale = streams.uniform(1, *transform.scale)[:, 0]
    return turn_images(images, angle, right, down, scale)


STEPS: dict[type, Callable[[Tensor, Streams, Any], Tensor]] = {
    v2.RandomResizedCrop: _crop,
    v2.Resize: _resize,
    v2.RandomHorizontalFlip: _flip,
    v2.RandomApply: _jitter,
    v2.RandomGrayscale: _grey,
    v2.RandomAffine: _affine,
}
"""What does for a batch what a transform of torchvision does for one image."""
