"""Splits that depend on labels, fraction and seed alone, never on how the images are loaded."""

import numpy as np
from numpy.typing import NDArray


def stratified_split(
    labels: NDArray[np.int64], fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide the positions of ``labels`` in two, so that every class is divided in the same ratio.

    The second part holds ``round(fraction * n)`` positions, and each class gives about its share;
    where many classes have few images, larger ones may give more. Equal labels everywhere (unknown
    labels, -1) make it a plain random split.

    Args:
        labels: Class of each image, shape ``(n,)``; -1 (unknown) counts as a class of its own.
        fraction: Share of the second part, in ``[0, 1]``.
        seed: Fixes the split; in ``[0, 2**32 - 1]``.

    Returns:
        The positions of the first and of the second part, each in ascending order.

    Example:
        >>> import numpy as np
        >>> rest, part = stratified_split(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 0.5, seed=0)
        >>> len(rest), len(part), int(sum(part < 4))
        (4, 4, 2)
    """
    # RandomState: NumPy promises that its stream never changes, so a split outlives a release.
    shuffled = np.random.RandomState(seed).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    sizes = np.unique(labels, return_counts=True)[1]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    quantile = np.empty(len(labels))  # of each image within its class, in the shuffled order
    quantile[by_class] = (rank + 0.5) / np.repeat(sizes, sizes)
    # The lowest quantiles overall are the same share of each class; ties keep the shuffled order.
    ordered = shuffled[np.argsort(quantile[shuffled], kind="stable")]
    size = round(fraction * len(labels))
    return np.sort(ordered[size:]), np.sort(ordered[:size])
