"""Labelled images, in memory or in files, as the readers return them."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_IMAGES_AT_ONCE = 1024


class Images(Protocol):
    """Images with one label each, -1 where the label is unknown."""

    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Count the images."""

    def __getitem__(self, index: int) -> Image.Image:
        """Return one image, grey (mode ``L``) or in colour."""

    def traces(self, indices: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Yield arrays that differ as soon as one of the images does."""


class StoredImages:
    """Images in memory.

    Args:
        blocks: Arrays of shape ``(n, height, width)`` (grey) or ``(n, height, width, 3)``, uint8.
            Several blocks stay apart: joining them would need the memory twice for a moment.
        labels: Class of each image over all blocks, -1 = unknown.
    """

    def __init__(self, blocks: Sequence[NDArray[np.uint8]], labels: Sequence[int] | NDArray[Any]):
        self.blocks = blocks
        self.labels = np.asarray(labels, dtype=np.int64)
        self._ends = np.cumsum([len(block) for block in blocks])

    def __len__(self) -> int:
        """Count the images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Image.Image:
        """Copy one image out of its block."""
        block = int(np.searchsorted(self._ends, index, side="right"))
        return Image.fromarray(self.blocks[block][index - self._ends[block]])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images, which have one size."""
        height, width, *channels = self.blocks[0].shape[1:]
        return height, width, *(channels or [1])

    def pixels(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Copy images of one size out of their blocks, ``(images, height, width)`` or with 3."""
        found = np.empty((len(indices), *self.blocks[0].shape[1:]), dtype=np.uint8)
        wanted = np.asarray(indices)
        of_blocks = np.searchsorted(self._ends, wanted, side="right")
        for block in np.unique(of_blocks):
            here = of_blocks == block
            found[here] = self.blocks[block][wanted[here] - self._ends[block]]
        return found

    def traces(self, indices: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
        """Yield all pixels, a part at a time."""
        for start in range(0, len(indices), _IMAGES_AT_ONCE):
            yield self.pixels(indices[start : start + _IMAGES_AT_ONCE])


class ImageFiles:
    """Images that stay in their files until they are asked for.

    Args:
        paths: One file per image.
        labels: Class of each image, -1 = unknown.
    """

    def __init__(self, paths: Sequence[str], labels: Sequence[int]):
        # One array: worker processes copy the pages of a list of str as they touch its counters.
        self._paths = np.array([os.fsencode(path) for path in paths])
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        """Count the images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Image.Image:
        """Read one file."""
        path = os.fsdecode(self._paths[index])
        try:
            with Image.open(path) as image:
                image.load()
        except OSError as error:
            raise OSError(f"{path} must hold a whole image, got an error: {error}.") from error
        if image.mode[0] in "IF":  # Pillow would clip the values instead of scaling them
            raise ValueError(f"{path} must hold 8 bits per channel, got mode {image.mode}.")
        return image

    def traces(self, indices: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield sizes and times of change of the files, which are not read."""
        found = (os.stat(path) for path in self._paths[indices])
        yield np.array([(file.st_size, file.st_mtime_ns) for file in found], dtype=np.int64)
