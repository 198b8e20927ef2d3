"""Embeddings to be diagnosed: checked once, and read row by row from wherever they lie."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from weince_lightning.functional.layouts import Layout

Array: TypeAlias = NDArray[Any] | Tensor
"""Rows in memory, or mapped from a file."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
UNKNOWN = -1
"""Id of a sample of which it is not known what it shows."""
BLOCK_BYTES = 2**25
"""How much of an array is read at once."""


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of samples, each with another one as its positive or without.

    Args:
        first: One embedding a sample, shape ``(samples, features)``, of floating point numbers.
            NumPy's memory maps and tensors mapped from a file are read block by block.
        second: The embedding of each sample's positive, such as another view of the same image or
            the caption's; same shape. None where no positives are known: all pairs are negatives.
        ids: What each sample shows, shape ``(samples,)``, integers. Samples with equal ids are no
            negatives of each other; -1 is unknown, and is taken to differ from all others. None
            where all differ.
        layout: Who is compared with whom where there are positives: "views" (both embeddings of a
            sample with all of the others), "pairs" (``first`` with ``second``, both ways) or
            "queries" (one way).
        what: What they are, for the report, such as "projections".

    Raises:
        TypeError: If ``first`` or ``second`` are no arrays of floating point numbers, or ``ids``
            none of integers.
        ValueError: If shapes do not fit together, there are fewer than two rows, or ``layout`` is
            none of the three.
    """

    first: Array
    second: Array | None = None
    ids: Array | None = None
    layout: Layout = "views"
    what: str = "embeddings"

    def __post_init__(self) -> None:
        """Check what people give."""
        if self.layout not in ("views", "pairs", "queries"):
            raise ValueError(f'layout must be "views", "pairs" or "queries", got {self.layout!r}.')
        _check_array("first", self.first)
        if self.second is not None:
            _check_array("second", self.second)
            if tuple(self.second.shape) != tuple(self.first.shape):
                raise ValueError(
                    f"second must have the shape of first, {tuple(self.first.shape)}, a positive "
                    f"for each row, got {tuple(self.second.shape)}."
                )
        if self.ids is not None:
            _check_ids(self.ids, len(self.first))

    @property
    def sides(self) -> list[Array]:
        """Both arrays, or the first alone."""
        return [self.first] if self.second is None else [self.first, self.second]

    @property
    def num_samples(self) -> int:
        """Samples: rows of each array."""
        return len(self.first)

    @property
    def dimension(self) -> int:
        """Features."""
        return int(self.first.shape[1])


class Census(NamedTuple):
    """What a look at every row has found."""

    labels: Tensor
    """What each sample shows, numbered from 0: equal for equal ids, and for an equal row; int64."""
    is_repeated: Tensor
    """Whether an earlier sample has the same rows on all sides: it tells nothing new."""
    num_duplicates: int
    """Rows that an earlier row of the same array, with another id, equals to the last bit."""
    num_distinct: int
    """Distinct rows of all arrays."""


def directions(array: Array, rows: Tensor) -> Tensor:
    """Read rows scaled so that their largest number is 1: no length is too large or too small."""
    found = take(array, rows)
    return found / found.abs().amax(dim=1, keepdim=True)


def take(array: Array, rows: slice | Tensor) -> Tensor:
    """Read rows as a tensor on the CPU, in float32 at least."""
    if isinstance(array, Tensor):
        found = array[rows].detach().cpu()
    else:
        index = rows.numpy() if isinstance(rows, Tensor) else rows
        part = np.asarray(array[index])
        # Not every float of NumPy's is one of torch's.
        kind = np.float64 if part.dtype.itemsize >= 8 else np.float32
        found = torch.from_numpy(part.astype(kind))
    return found.to(torch.promote_types(found.dtype, torch.float32))


def take_census(embeddings: Embeddings, progress: Any = None) -> Census:
    """Look at every row: are all usable, and which are there more than once?

    Args:
        embeddings: What is looked at, block by block.
        progress: Something with ``update(rows)``, such as a progress bar.

    Returns:
        Labels that join samples with equal ids or equal rows, and counts.

    Raises:
        ValueError: If a row holds NaN or infinity or is zero, or fewer than two rows differ.
    """
    keys = []
    for name, side in zip(("first", "second"), embeddings.sides, strict=False):
        digests = np.empty(len(side), dtype=np.dtype("S16"))
        faults = {"finite": list[int](), "other than 0": list[int]()}
        for start, rows in _blocks(side):
            is_finite = rows.isfinite().all(dim=1)
            is_zero = ~rows.any(dim=1)
            for fault, is_at_fault in zip(faults, (~is_finite, is_zero), strict=True):
                faults[fault] += (start + is_at_fault.nonzero()[:, 0]).tolist()
            # + 0: the two zeros are equal.
            for place, row in enumerate((rows + 0.0).numpy()):
                digest = hashlib.blake2b(row.tobytes(), digest_size=15).digest()
                digests[start + place] = b"r" + digest
            if progress is not None:
                progress.update(len(rows))
        for fault, places in faults.items():
            if places:
                raise ValueError(
                    f"{name} must hold rows that are {fault}, got {len(places)} of {len(side)} "
                    f"that are not, such as row {places[0]}."
                )
        keys.append(digests)
    _, numbers = np.unique(np.concatenate(keys), return_inverse=True)
    groups = numbers.reshape(len(keys), -1)
    num_distinct = int(numbers.max()) + 1
    if num_distinct < 2:
        raise ValueError(
            f"first must hold at least 2 distinct rows, got {embeddings.num_samples} times the "
            "same."
        )
    ids = _number_ids(embeddings)
    num_duplicates = sum(
        len(np.unique(np.stack([group, ids]), axis=1).T) - len(np.unique(group)) for group in groups
    )
    linked = [*groups] if embeddings.ids is None else [*groups, ids]
    _, first = np.unique(groups, axis=1, return_index=True)
    is_repeated = torch.ones(embeddings.num_samples, dtype=torch.bool)
    is_repeated[torch.from_numpy(first)] = False
    return Census(torch.from_numpy(_join(linked)), is_repeated, num_duplicates, num_distinct)


def _number_ids(embeddings: Embeddings) -> NDArray[np.int64]:
    """Number what samples show from 0; each unknown one is a thing of its own."""
    samples = np.arange(embeddings.num_samples)
    if embeddings.ids is None:
        return samples
    given = embeddings.ids
    array = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    numbers = np.unique(array, return_inverse=True)[1].astype(np.int64)
    # Beyond all numbers of known things.
    return np.where(array == UNKNOWN, len(array) + samples, numbers)


def _join(groups: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Give one label to samples that are in one group by any of several groupings."""
    samples = len(groups[0])
    ends, first = [], 0
    for group in groups:
        _, numbers = np.unique(group, return_inverse=True)
        # Each group is a point of its own, tied to its samples.
        ends.append(samples + first + numbers)
        first += int(numbers.max()) + 1
    starts = np.tile(np.arange(samples), len(groups))
    return _components(starts, np.concatenate(ends))[:samples]


def _components(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the connected components of a graph, given its edges; one number for each node."""
    size = int(max(starts.max(), ends.max())) + 1
    graph = coo_array((np.ones(len(starts), dtype=np.int8), (starts, ends)), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def _blocks(array: Array) -> Iterator[tuple[int, Tensor]]:
    """Read an array in order."""
    size = max(1, BLOCK_BYTES // (8 * int(array.shape[1])))
    for start in range(0, len(array), size):
        yield start, take(array, slice(start, start + size))


def _check_array(name: str, array: Array) -> None:
    if not isinstance(array, (np.ndarray, Tensor)) or (
        isinstance(array, Tensor) and array.layout != torch.strided
    ):
        kind_of = array.layout if isinstance(array, Tensor) else type(array).__name__
        raise TypeError(f"{name} must be an array of NumPy's or a dense tensor, got {kind_of}.")
    shape = tuple(array.shape)
    kind = array.dtype
    if not is_float(array):
        raise TypeError(
            f"{name} must hold floating point numbers, got {kind}. If its numbers are embeddings, "
            "convert them: array.astype(numpy.float32), or tensor.float()."
        )
    if len(shape) != 2 or shape[1] < 1:
        raise ValueError(
            f"{name} must have shape (samples, features), got {shape}. Give one row a sample."
        )
    if shape[0] < 2:
        raise ValueError(f"{name} must have at least 2 rows, got {shape[0]}.")


def _check_ids(ids: Array, samples: int) -> None:
    if not is_integer(ids):
        raise TypeError(f"ids must hold integers, got {ids.dtype}.")
    if tuple(ids.shape) != (samples,):
        raise ValueError(
            f"ids must hold one number for each of the {samples} samples, got shape "
            f"{tuple(ids.shape)}."
        )


def is_integer(array: Array) -> bool:
    """Whether an array holds integers, of either byte order."""
    if isinstance(array, Tensor):
        return array.dtype in _INTEGERS
    return array.dtype.kind in "iu"


def is_float(array: Array) -> bool:
    """Whether an array holds floating point numbers that can be read, of either byte order."""
    return array.dtype in _FLOATS if isinstance(array, Tensor) else array.dtype.kind == "f"


def pair_up(rows: Array, pairs: Array) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
    """Turn an index of positive pairs of one array into two arrays.

    Args:
        rows: Embeddings, shape ``(rows, features)``.
        pairs: The two rows of each pair, shape ``(pairs, 2)``, integers.

    Returns:
        First and second embedding of each pair, and ids that are equal for pairs which share a
        row, directly or through others.

    Raises:
        TypeError: If ``pairs`` holds no integers.
        ValueError: If it has another shape, or names rows that are not there.
    """
    _check_array("embeddings", rows)
    index = pairs.numpy() if isinstance(pairs, Tensor) else np.asarray(pairs)
    if index.dtype.kind not in "iu":
        raise TypeError(f"pairs must hold integers, got {index.dtype}.")
    if index.ndim != 2 or index.shape[1] != 2 or len(index) < 2:
        raise ValueError(
            f"pairs must have shape (pairs, 2) with 2 pairs or more, got {index.shape}."
        )
    if index.min() < 0 or index.max() >= len(rows):
        raise ValueError(
            f"pairs must name rows from 0 to {len(rows) - 1}, got {index.min()} to {index.max()}."
        )
    starts, ends = index.T.astype(np.int64)
    first, second = (take(rows, torch.from_numpy(column)) for column in (starts, ends))
    return first, second, _components(starts, ends)[starts]
