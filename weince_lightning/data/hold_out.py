"""The test part of a folder that has none: a fifth of its images, chosen by their names."""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from weince_lightning.functional.splits import stratified_split

_SMALLEST = 5
"""Images of the smallest class that gives one to the test part in any case."""


def check_pattern(pattern: str) -> str:
    """Return a regular expression, or refuse it."""
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"id_pattern must be a regular expression, got {pattern!r}: {error}."
        ) from error
    return pattern


def name_ids(names: Sequence[str], pattern: str) -> list[str]:
    r"""Return what each image shows: equal ids are near-duplicates of each other.

    Args:
        names: Path of each image in its folder, with ``/`` between its parts.
        pattern: A regular expression that is searched in each. Its first group, or else all that it
            matches, is the id; an image that it does not match has an id of its own.

    Raises:
        ValueError: If it matches none.

    Example:
        >>> name_ids(["cat/7_left.png", "cat/7_right.png", "map.png"], r"(\d+)_")
        ['7', '7', 'path map.png']
    """
    expression = re.compile(pattern)
    group = min(expression.groups, 1)
    found = [match and match[group] for match in map(expression.search, names)]
    if not any(found):
        raise ValueError(
            f"id_pattern must match paths of images, such as {names[0]!r}, got {pattern!r}, which "
            "matches none."
        )
    return [each or f"path {name}" for each, name in zip(found, names, strict=True)]


def held_out(keys: Sequence[str], labels: Sequence[int]) -> list[bool]:
    """Choose a fifth of the images of each class, by a hash of each image's key alone.

    So an image stays in its part whatever else is added. Exceptions are classes of at least five
    images of which the hash chooses none, or those of which it chooses all: one image is exchanged.

    Args:
        keys: Path of each image, or its id; equal keys stay together.
        labels: Class of each image, -1 = unknown.

    Returns:
        Whether each image is held out.
    """
    places = {key: _place(key) for key in keys}
    chosen = {key for key, place in places.items() if place < 2**64 // 5}
    of_classes: defaultdict[int, list[str]] = defaultdict(list)
    for key, label in sorted(set(zip(keys, labels, strict=True)), key=lambda pair: places[pair[0]]):
        of_classes[label].append(key)
    for its in of_classes.values():
        if len(its) >= _SMALLEST and chosen.isdisjoint(its):
            chosen.add(its[0])
    for its in of_classes.values():
        if chosen.issuperset(its):
            chosen.remove(its[-1])
    return [key in chosen for key in keys]


def split_ids(
    labels: NDArray[np.int64], ids: NDArray[np.int64] | None, fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide images as :func:`stratified_split` does; those of equal ids stay together."""
    if ids is None:
        return stratified_split(labels, fraction, seed)
    _, first, group = np.unique(ids, return_index=True, return_inverse=True)
    # A group counts as its first image, whatever its size.
    second = stratified_split(labels[first], fraction, seed)[1]
    if len(second) == 1:
        rank_zero_warn(
            f"val_fraction must leave two different things for validation, got {fraction} of "
            f"{len(first)} by id_pattern: images of one are no negatives, and val/loss is 0."
        )
    in_second = np.isin(group, second)
    return np.flatnonzero(~in_second), np.flatnonzero(in_second)


def _place(key: str) -> int:
    return int.from_bytes(hashlib.sha256(os.fsencode(key)).digest()[:8])
