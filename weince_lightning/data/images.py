"""Labelled images, in memory or in files, as the readers return them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image


class MissingDataError(FileNotFoundError):
    """Files of a data set are absent, cut off or damaged."""

    def __str__(self) -> str:
        """Return the message, one line; torch puts the traceback of a worker process before it."""
        last = super().__str__().rstrip().rpartition("\n")[2]
        return last.removeprefix(f"{type(self).__module__}.{type(self).__qualname__}: ")


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
        ids: What each image shows: those of equal ids are near-duplicates. None where all differ.
    """

    def __init__(
        self,
        paths: Sequence[str],
        labels: Sequence[int] | NDArray[np.int64],
        ids: Sequence[str] | NDArray[np.int64] | None = None,
    ):
        # One array: worker processes copy the pages of a list of str as they touch its counters.
        self._paths = np.array([os.fsencode(path) for path in paths])
        self.labels = np.asarray(labels, dtype=np.int64)
        self.ids = None if ids is None else np.unique(np.asarray(ids), return_inverse=True)[1]

    def __len__(self) -> int:
        """Count the images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Image.Image:
        """Read one file as a viewer shows it: upright, on white where it is transparent.

        Returns:
            The image, grey (mode ``L``) or RGB with 8 bits per channel.

        Raises:
            MissingDataError: If the file is damaged, or its values have no known range.
        """
        with _opened(os.fsdecode(self._paths[index])) as image:
            image.load()
            return _as_shown(image)

    def check_header(self, index: int) -> None:
        """Refuse a file whose first bytes show that it cannot be read.

        Raises:
            MissingDataError: If it is no image, or its values have no known range.
        """
        with _opened(os.fsdecode(self._paths[index])) as image:
            _check_mode(image)

    @property
    def paths(self) -> list[str]:
        """The file of each image."""
        return [os.fsdecode(path) for path in self._paths]

    def part(self, indices: Sequence[int]) -> "ImageFiles":
        """Return some of the images."""
        if len(indices) == len(self):
            return self
        chosen = np.asarray(indices, dtype=np.int64)
        paths = [os.fsdecode(path) for path in self._paths[chosen]]
        return ImageFiles(
            paths, self.labels[chosen], None if self.ids is None else self.ids[chosen]
        )

    def traces(self, indices: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield sizes and times of change of the files, which are not read."""
        found = (os.stat(path) for path in self._paths[indices])
        yield np.array([(file.st_size, file.st_mtime_ns) for file in found], dtype=np.int64)


_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The turn that makes an image upright, by its EXIF orientation; 1 needs none."""

_SCALED_TO_16 = ("PNG", "PPM")
"""Formats of which Pillow brings deep grey values to 0-65535, in mode ``I``."""


@contextmanager
def _opened(path: str) -> Iterator[Image.Image]:
    """Open a file; whatever happens to its image names the file."""
    try:
        # A file object, not its name: Pillow 13 maps uncompressed TIFF files that it is to turn
        # into memory with height and width exchanged.
        with open(path, "rb") as file, Image.open(file) as image:
            yield image
    except Exception as error:
        # By place, not by class: Pillow's decoders raise whatever a damaged file leads them to.
        found = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
        raise MissingDataError(
            f"{path} must hold a whole image of 8 or 16 bits per channel, got {found}. "
            "Replace the file or take it out of the folder."
        ) from error


def _check_mode(image: Image.Image) -> bool:
    """Refuse values of unknown range; tell whether they are grey of 16 bits."""
    is_deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format in _SCALED_TO_16)
    if image.mode in ("I", "F") and not is_deep:
        raise ValueError(f"mode {image.mode}, whose range of values is unknown")
    return is_deep


def _as_shown(image: Image.Image) -> Image.Image:
    """Bring a decoded file to 8 bits, grey or RGB, and upright."""
    orientation = None
    # Metadata can be damaged where the pixels are whole. For that reason not exif_transpose, which
    # also rewrites them.
    with suppress(Exception):
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    if _check_mode(image):
        # The high byte, which Pillow itself keeps of colours of 16 bits; its convert would clip.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image).convert("RGB")
    elif image.mode == "1":
        image = image.convert("L")
    elif image.mode != "L":
        image = image.convert("RGB")
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image
