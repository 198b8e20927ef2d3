"""Loaders of images and labels that stand in for a data module."""

from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

_SPLITS = ("train", "val", "test")
_SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class GivenLoaders(LightningDataModule):
    """A data module for evaluation, of loaders that give ``(images, labels)`` in a fixed order.

    Args:
        loaders: By split: "train" and "test", and "val" if there is one.

    Raises:
        TypeError: If one of them cannot be iterated over again and again.
        ValueError: If a loader shuffles or is missing, or there is no such split.

    Example:
        >>> given = GivenLoaders({"train": DataLoader([0, 1]), "test": DataLoader([2])})
        >>> [loader.dataset for loader in map(given.evaluation_dataloader, ["train", "test"])]
        [[0, 1], [2]]
    """

    def __init__(self, loaders: Mapping[str, Iterable[Any]]) -> None:
        super().__init__()
        names = list(loaders)
        if not {"train", "test"} <= {*names} <= {*_SPLITS}:
            raise ValueError(
                'data must hold loaders for "train" and "test", and may for "val", got '
                f"{', '.join(map(repr, names)) or 'none'}."
            )
        for split, loader in loaders.items():
            if not isinstance(loader, Iterable) or iter(loader) is loader:
                raise TypeError(
                    f"data[{split!r}] must be a loader of (images, labels), got "
                    f"{type(loader).__name__}."
                )
            if _shuffles(loader):
                raise ValueError(
                    f"data[{split!r}] must give images in a fixed order and without augmentation, "
                    "got a loader that shuffles, as one of training does. Build one with "
                    "shuffle=False over the plain images."
                )
        self._loaders = dict(loaders)

    def evaluation_dataloader(self, split: str) -> Iterable[Any]:
        """Return the loader of a split.

        Raises:
            ValueError: If there is none.
        """
        if split not in self._loaders:
            raise ValueError(f"split must be one of {', '.join(self._loaders)}, got {split!r}.")
        return self._loaders[split]

    def test_dataloader(self) -> Any:
        """Refuse: two views of an image, by which a loss is described, are not given."""
        raise ValueError("the loaders give no two views of an image.")


def _shuffles(loader: Iterable[Any]) -> bool:
    """Whether a loader of torch draws its order at random."""
    if not isinstance(loader, DataLoader):
        return False
    samplers = (
        loader.sampler,
        loader.batch_sampler,
        getattr(loader.batch_sampler, "sampler", None),
    )
    return any(isinstance(each, _SHUFFLING) or getattr(each, "shuffle", False) for each in samplers)
