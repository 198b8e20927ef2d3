"""From an image to what the network sees: two random views, or the one evaluation image."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from weince_lightning.checks import check_number
from weince_lightning.data.images import Images

Transform: TypeAlias = nn.Module | Callable[[Any], Any]
"""Takes a PIL image; torchvision's and lightly's transforms, or any function, are such."""


class Normalization(NamedTuple):
    """Mean and standard deviation of each channel over the images that an encoder learns from."""

    mean: Sequence[float]
    """One number per channel, on the scale [0, 1]."""

    std: Sequence[float]
    """Likewise, above 0."""

    @classmethod
    def checked(
        cls, mean: Sequence[float] | None, std: Sequence[float] | None, in_channels: int
    ) -> Self | None:
        """Build it from arguments of a data module; None if there are none.

        Raises:
            TypeError: If one is no sequence of numbers.
            ValueError: If only one is given, or it lacks a channel, or a number is out of its
                range.
        """
        if mean is None and std is None:
            return None
        for name, given in (("mean", mean), ("std", std)):
            if isinstance(given, str) or not (given is None or isinstance(given, Sequence)):
                raise TypeError(f"{name} must be a list of numbers, got {given!r}.")
            if given is None or len(given) != in_channels:
                raise ValueError(
                    f"{name} must hold one number per channel ({in_channels}), got {given!r}. "
                    "Give mean and std, or neither."
                )
            for value in given:
                check_number(name, value, above=0.0 if name == "std" else -math.inf)
        return cls([*map(float, mean or ())], [*map(float, std or ())])


def normalization_in(transform: Any) -> Normalization | None:
    """Find the normalization that a transform ends with, such as one of lightly's views."""
    if isinstance(transform, v1.Normalize | v2.Normalize):
        return Normalization([*map(float, transform.mean)], [*map(float, transform.std)])
    parts = transform if isinstance(transform, list | tuple) else _parts(transform)
    return next(filter(None, map(normalization_in, parts)), None)


def _parts(transform: Any) -> list[Any]:
    found = [getattr(transform, name, None) for name in ("transforms", "transform")]
    return [part for part in found if isinstance(part, list | tuple) or callable(part)]


def colour_augmentation(image_size: int) -> list[Transform]:
    """Augmentation of the WEINCE paper: SimCLR's without blur and normalisation."""
    return [
        v2.RandomResizedCrop(image_size, scale=(0.08, 1.0)),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        v2.RandomGrayscale(p=0.2),
    ]


def grey_augmentation(image_size: int) -> list[Transform]:
    """The paper's augmentation as far as it touches grey images: saturation and hue fall away."""
    return [
        v2.RandomResizedCrop(image_size, scale=(0.08, 1.0)),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.8, 0.8)], p=0.8),
    ]


def digits_augmentation(image_size: int) -> list[Transform]:
    """Small rotations, shifts and scalings; a mirrored or cropped digit may be another digit."""
    affine = v2.RandomAffine(
        degrees=10,
        translate=(1 / 16, 1 / 16),  # one pixel of the default 16
        scale=(0.9, 1.1),
        interpolation=v2.InterpolationMode.BILINEAR,
    )
    return [v2.Resize((image_size, image_size)), affine]


def to_float(view: Any, channels: Normalization | None = None) -> Tensor:
    """Turn an image into a plain float32 tensor; integers are scaled to [0, 1] and normalized.

    Args:
        view: A PIL image or a tensor. Floating-point numbers count as prepared already.
        channels: Mean and deviation of the channels; None leaves values in [0, 1].

    Raises:
        TypeError: If ``view`` is neither a PIL image nor a tensor.
    """
    if isinstance(view, Image.Image):
        view = v2.functional.pil_to_tensor(view)
    if not isinstance(view, Tensor):
        kind = type(view).__name__
        raise TypeError(f"transforms must return a PIL image or a tensor, got {kind}.")
    is_prepared = view.is_floating_point()
    scaled: Tensor = v2.functional.to_dtype(view.as_subclass(Tensor), torch.float32, scale=True)
    return scaled if is_prepared else normalize(scaled, channels)


def normalize(images: Tensor, channels: Normalization | None) -> Tensor:
    """Subtract the mean of each channel and divide by its deviation."""
    if channels is None:
        return images
    normalized: Tensor = v2.functional.normalize(images, [*channels.mean], [*channels.std])
    return normalized


class TwoViews:
    """Draw two views of an image.

    Args:
        transforms: A list of transforms, composed and applied twice, or one transform, applied
            twice unless it returns a list of two views itself, as lightly's multi-view ones do.
        mode: PIL mode that the transforms receive, ``"L"`` (grey) or ``"RGB"``.
        channels: Normalization of views that are not floating-point tensors already.

    Raises:
        TypeError: If ``transforms`` is neither callable nor a list of callables.
        ValueError: If the list is empty.
    """

    def __init__(
        self,
        transforms: Sequence[Transform] | Transform,
        mode: str,
        channels: Normalization | None = None,
    ):
        if not callable(transforms):
            if not isinstance(transforms, list | tuple) or not all(map(callable, transforms)):
                raise TypeError(
                    f"transforms must be callable or a list of callables, got {transforms!r}."
                )
            if not transforms:
                raise ValueError("transforms must hold at least one transform, got an empty list.")
        self._transform: Transform = transforms if callable(transforms) else v2.Compose(transforms)
        self._mode = mode
        self._channels = channels

    def __call__(self, image: Image.Image) -> list[Tensor]:
        """Return the two views, float32 of shape ``(channels, height, width)``."""
        image = image.convert(self._mode)
        views = self._transform(image)
        if not isinstance(views, list | tuple):
            views = [views, self._transform(image)]
        if len(views) != 2:
            raise ValueError(f"transforms must return one view or two, got {len(views)}.")
        return [to_float(view, self._channels) for view in views]

    def of_images(
        self, images: Images, positions: Sequence[int], seeds: Sequence[int]
    ) -> list[list[Tensor]]:
        """Return the two views of some images, each by a seed of 64 bits."""
        found = []
        with kept_random_numbers():
            for position, seed in zip(positions, seeds, strict=True):
                seed_random_numbers(seed)
                found.append(self(images[position]))
        return found


class EvaluationView:
    """Bring an image to ``image_size`` (shorter side resized, middle cut out), nothing random.

    Args:
        image_size: Side of the square result in pixels.
        mode: PIL mode of the result, ``"L"`` (grey) or ``"RGB"``.
        channels: Normalization of the result; None leaves values in [0, 1].
    """

    def __init__(self, image_size: int, mode: str, channels: Normalization | None = None):
        self.normalization = channels
        self.size = (image_size, image_size)
        self._transform = v2.Compose([v2.Resize(image_size), v2.CenterCrop(image_size)])
        self._mode = mode

    def keeps(self, height: int, width: int, channels: int) -> bool:
        """Whether images of this shape stay as they are."""
        return (height, width) == self.size and channels == {"L": 1, "RGB": 3}[self._mode]

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the image, float32 of shape ``(channels, image_size, image_size)``."""
        image = image.convert(self._mode)
        resized = image if image.size == self.size else self._transform(image)
        return to_float(resized, self.normalization)


@contextmanager
def kept_random_numbers() -> Iterator[None]:
    """Restore torch's CPU, NumPy's and Python's global generators at the end.

    Transforms draw from the global generators, so there is no generator to pass to them.
    """
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def seed_random_numbers(seed: int) -> None:
    """Seed these three generators by a number of 64 bits."""
    # Not torch.manual_seed: it would reseed the accelerator's generator too, beyond restoring.
    torch.default_generator.manual_seed(seed)
    # The other half: torch takes 32 bits, and from the same ones NumPy would draw the same numbers.
    np.random.seed(seed >> 32)
    random.seed(seed)
