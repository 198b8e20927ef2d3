"""Parts of the images as PyTorch data sets: two views of each image, or without augmentation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from weince_lightning.data.batch_views import BatchViews
from weince_lightning.data.images import ImageFiles, Images, StoredImages
from weince_lightning.data.views import EvaluationView, TwoViews, to_float


class Selection(Dataset[Any]):
    """Some of the images, by position."""

    def __init__(self, images: Images, positions: NDArray[np.int64]):
        self.images = images
        self.positions = positions

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each, known without reading an image."""
        return self.images.labels[self.positions]

    @property
    def paths(self) -> list[str] | None:
        """The file of each; None for images in memory."""
        if not isinstance(self.images, ImageFiles):
            return None
        every = self.images.paths
        return [every[position] for position in self.positions]

    def __len__(self) -> int:
        """Count the images."""
        return len(self.positions)


class Sample(NamedTuple):
    """Two views of an image that may have near-duplicates; a batch of such has the same fields."""

    views: list[Tensor]
    labels: int
    ids: int
    """Equal for images that are no negatives of each other."""


class TwoViewsOfImages(Selection):
    """Two views of each image, by a seed that comes with its index.

    An index alone gives views that depend on ``seed`` and the image's place in its data set.
    """

    def __init__(
        self,
        images: Images,
        positions: NDArray[np.int64],
        two_views: TwoViews | BatchViews,
        seed: int,
    ):
        super().__init__(images, positions)
        self._two_views = two_views
        self._seed = seed
        self._ids = images.ids if isinstance(images, ImageFiles) else None

    def __getitem__(self, index: int | tuple[int, int]) -> tuple[list[Tensor], int] | Sample:
        """Return the two views of an image and its label."""
        return self.__getitems__([index])[0]

    def __getitems__(
        self, indices: Sequence[int | tuple[int, int]]
    ) -> Sequence[tuple[list[Tensor], int] | Sample]:
        """Return the images of a batch: both kinds of views are quicker for many at a time."""
        positions, seeds = zip(*map(self._found, indices), strict=True)
        labels = self.images.labels[list(positions)].tolist()
        views = self._two_views.of_images(self.images, positions, seeds)
        if self._ids is None:
            return list(zip(views, labels, strict=True))
        ids = self._ids[list(positions)].tolist()
        return [Sample(*each) for each in zip(views, labels, ids, strict=True)]

    def _found(self, index: int | tuple[int, int]) -> tuple[int, int]:
        """Return the image's place in its data set and its seed of 64 bits."""
        if isinstance(index, tuple):
            return int(self.positions[index[0]]), index[1]
        position = int(self.positions[index])
        key = np.random.SeedSequence((self._seed, position))
        return position, int(key.generate_state(1, np.uint64)[0])


class EvaluationImages(Selection):
    """Images without augmentation."""

    def __init__(self, images: Images, positions: NDArray[np.int64], view: EvaluationView):
        super().__init__(images, positions)
        self._view = view

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image and its label."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Return the images of a batch, read together where they are as wanted already."""
        positions = self.positions[list(indices)]
        labels = self.images.labels[positions].tolist()
        if isinstance(self.images, StoredImages) and self._view.keeps(*self.images.shape):
            pixels = self.images.pixels(positions).reshape(len(positions), *self._view.size, -1)
            stored = torch.from_numpy(pixels).permute(0, 3, 1, 2)
            views = to_float(stored, self._view.normalization)
            return list(zip(views, labels, strict=True))
        return [
            (self._view(self.images[position]), label)
            for position, label in zip(positions, labels, strict=True)
        ]
