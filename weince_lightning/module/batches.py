"""Checks of a batch that the module is given."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def check_images(images: Tensor, expected: tuple[int, int, int], dtype: torch.dtype | str) -> None:
    """Refuse images that are not of the module's shape ``expected`` and precision."""
    if images.ndim != 4 or images.shape[1:] != expected:
        raise ValueError(
            f"images must have shape (batch, {', '.join(map(str, expected))}), as the module's "
            f"in_channels and image_size say, got {tuple(images.shape)}."
        )
    too_wide = images.dtype == torch.float64 != dtype
    if not images.is_floating_point() or too_wide:
        raise TypeError(
            f"images must be {dtype} in [0, 1], got {images.dtype}; convert them, "
            "for example with torchvision's ToDtype(torch.float32, scale=True)."
        )


def views_and_labels(batch: Sequence[Any]) -> tuple[Sequence[Tensor], Tensor]:
    """Return the two views and the labels of a training batch, or refuse it."""
    if not isinstance(batch, Sequence) or len(batch) < 2 or not isinstance(batch[0], Sequence):
        raise TypeError(
            "batch must be (views, labels) with a sequence of two image tensors as views, "
            f"got {_kinds(batch)}. Images without labels get the label -1."
        )
    views, labels = batch[0], batch[1]
    sizes = [len(view) for view in views]
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        raise ValueError(f"views must be two tensors of as many images, got {sizes} images.")
    return views, labels


def _kinds(batch: object) -> str:
    """Name the kinds of a batch's parts, for an error."""
    if not isinstance(batch, Sequence):
        return f"a {type(batch).__name__}"
    return f"({', '.join(type(part).__name__ for part in batch)})"
