"""Several threads for work on independent rows, and the memory of each.

With torch's own threads all meet after every operation, and what is not an operation of torch, such
as sorting, waits for one of them. Threads that each do a whole piece of the work alone meet once.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from threading import Barrier, local
from typing import TypeVar

import torch
from torch import Tensor

from weince_lightning.functional.tracing import is_traced

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 16
"""Each has memory of its own."""


MOST_HELD = 2**20
"""Elements of a tensor that a thread keeps from one batch to the next."""


class Scratch:
    """Tensors of a thread that are used again and again: they stay in the cache.

    New memory is not free: the system clears it, page by page, when it is first used.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a tensor with any content; the next of its name overwrites it.

        Args:
            name: What it is for.
            shape: Its shape.
            like: Has its type and is on its device.
        """
        held = self._held.get(name)
        if held is not None and held.dtype == like.dtype:
            if held.shape == shape:
                return held
            size = math.prod(shape)
            if held.numel() >= size:
                return held.view(-1)[:size].view(shape)
        held = self._held[name] = like.new_empty(shape)
        return held

    def shrink(self) -> None:
        """Let the largest tensors go."""
        self._held = {k: held for k, held in self._held.items() if held.numel() <= MOST_HELD}


def count_threads(device: torch.device) -> int:
    """Count the threads that work on a device: as many as torch uses; 1 where it is no CPU."""
    if device.type != "cpu" or is_traced():
        return 1
    return min(torch.get_num_threads(), MOST_THREADS)


def share(
    work: Callable[[Sequence[Item], Scratch], Result], items: Sequence[Item], threads: int
) -> list[Result]:
    """Deal items to the threads, each a run of neighbours, without gradients.

    Args:
        work: What a thread does with its items, in its memory; it may have no effect on another's.
        items: At least one. Which thread gets which depends on the numbers of both alone.
        threads: At most so many.

    Returns:
        What each thread returned, in the order of the items.
    """
    threads = min(threads, len(items))
    if threads <= 1:
        with torch.no_grad():
            return [work(items, Scratch())]

    @torch.no_grad()
    def run(items: Sequence[Item]) -> Result:
        try:
            return work(items, _own.scratch)
        finally:
            _own.scratch.shrink()

    cuts = [len(items) * i // threads for i in range(threads + 1)]
    runs = [items[start:stop] for start, stop in pairwise(cuts)]
    return list(_pool(torch.get_num_threads()).map(run, runs))


_own = local()
"""Of each thread of the pool; goes with it."""


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Start threads in which the operations of torch use one thread each."""
    workers = min(threads, MOST_THREADS)
    all_started = Barrier(workers + 1)

    def start() -> None:
        _own.scratch = Scratch()
        torch.set_num_threads(1)
        torch.get_num_threads()  # makes it this thread's own
        all_started.wait()

    pool = ThreadPoolExecutor(workers, "weince", initializer=start)
    try:
        for _ in range(workers):
            pool.submit(int)
        all_started.wait()
    except BaseException:  # an interrupt, or no more threads: those that wait would wait for ever
        all_started.abort()
        pool.shutdown(wait=True)
        raise
    finally:
        # Threads that start later, as those of a data loader, get what was set last, by any thread.
        torch.set_num_threads(threads)
    return pool
