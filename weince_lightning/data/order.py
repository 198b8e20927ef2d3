"""The order of the training images, and the seeds of their views, as functions of the epoch."""

import itertools
import math
import signal
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from weince_lightning.distributed import rank, world_size

SECONDS_TO_LIVE_ON = 30
"""How long a worker serves on after SIGTERM: as long as clusters commonly wait before SIGKILL."""

BLOCK = 2**13
"""Images whose places in the order are Python's integers at once."""


class EpochOrder(DistributedSampler[tuple[int, int]]):
    """Every image once, with the seed of its views; both depend on seed and epoch alone.

    Several processes share the order among them as they would share a deck of cards, so that the
    batches of all together are those of one process with a larger batch. It is a
    DistributedSampler so that Lightning does not put one around it, which would shuffle again.
    While an epoch lasts it takes sixteen bytes an image: for the order and for the seed.

    Args:
        num_images: Images to put in order.
        seed: Seed of all epochs, at least 0.

    Attributes:
        epoch: The epoch whose order is given.
        first: Images of this process at its beginning that have been seen. They come last: who
            counts the batches counts on the length.

    Example:
        >>> order = EpochOrder(5, seed=0)
        >>> images, seeds = zip(*order)
        >>> sorted(images)
        [0, 1, 2, 3, 4]
        >>> order.first = 2
        >>> next(iter(order)) == (images[2], seeds[2])
        True
    """

    def __init__(self, num_images: int, seed: int) -> None:
        super().__init__(cast(Dataset[Any], range(num_images)), num_replicas=1, rank=0, seed=seed)
        self.num_images = num_images
        self.first = 0

    def __len__(self) -> int:
        """Number of images of this process, the same for all: some images may come twice."""
        return math.ceil(self.num_images / world_size())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Give each image of this process with its seed."""
        generator = np.random.default_rng((self.seed, self.epoch))
        images = generator.permutation(self.num_images)
        seeds = generator.integers(2**63, size=self.num_images)
        places = _places(self.num_images, len(self), self.first)
        return itertools.chain.from_iterable(
            zip(images[block].tolist(), seeds[images[block]].tolist(), strict=True)
            for block in places
        )


def _places(num_images: int, own: int, first: int) -> Iterator[NDArray[np.int64]]:
    """Return where in the order this process finds its images, in turn and block by block.

    As a whole they would be Python's integers, which take several times an array's memory.

    Args:
        num_images: Images of all processes.
        own: Images of this process; those that are missing are the first ones once more.
        first: Of them, those that come last.
    """
    offset, step = rank(), world_size()
    starts = range(0, own, BLOCK)
    turns = (np.arange(start, min(start + BLOCK, own)) for start in starts)
    return (((turn + first) % own * step + offset) % num_images for turn in turns)


class EpochLoader(DataLoader[Any]):
    """A loader that begins each epoch where the training stands when it asks for a batch.

    Lightning makes the iterator before it knows where a resumed training goes on, and workers
    would start to load at once. So here the first batch asked for, not the iterator, decides.

    Args:
        dataset: What the order's pairs (image, seed) are looked up in.
        order: Order of the images.
        place: From this loader to the epoch and the batches of it that have been seen; None counts
            the iterations and starts each at its beginning.
        sampler: Given by Lightning if it is not to shuffle, in the order's place.
        options: Further arguments of the DataLoader.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        order: EpochOrder,
        place: Callable[["EpochLoader"], tuple[int, int] | None],
        sampler: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset, sampler=order if sampler is None else sampler, **options)
        self.order = order
        self.place = place
        self._iterations = itertools.count()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Give the batches that are left of the epoch."""
        epoch, batches = self.place(self) or (next(self._iterations), 0)
        self.order.epoch = epoch
        self.order.first = batches * (self.batch_size or 1)
        yield from super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Say that training can go on within an epoch; where, Lightning's own progress says."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to load, see :meth:`state_dict`."""


def outlive_signals(worker: int) -> None:
    """Let a worker process serve on when Ctrl-C or SIGTERM reaches the whole group of processes.

    The main process finishes its step and saves; a worker that died would tear the step apart.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(SECONDS_TO_LIVE_ON))
