"""Files of embeddings: one array, or two of positives, with ids or an index of pairs."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from weince_lightning.checkpoints import Checkpoint, open_checkpoint
from weince_lightning.diagnostics.embeddings import Array, Embeddings, pair_up
from weince_lightning.functional.layouts import Layout

_OF_NUMPY = (".npy", ".npz")
SUFFIXES = (*_OF_NUMPY, ".pt", ".pth", ".safetensors")
FIRST = ("embeddings", "features", "z0", "first")
SECOND = ("positives", "z1", "second")
IDS = ("ids", "labels")
PAIRS = "pairs"
_PLACE = re.compile(r"(arr_|array )\d+")
"""Names of what has none: NumPy's in a ``.npz`` file, and those of the places in a list."""
NO_IDS = Path("none")
"""In the place of a file of ids: those of the source are not looked at."""


def open_source(path: Path) -> Path | Checkpoint:
    """Open a checkpoint, or a file of tensors, once; a file of NumPy's stays a path."""
    return path if path.suffix in _OF_NUMPY else open_checkpoint(path)


def holds_embeddings(source: Path | Checkpoint) -> bool:
    """Whether a file is one of embeddings and no checkpoint, by its content where that decides."""
    path = _path_of(source)
    if path.suffix in _OF_NUMPY:
        return True
    if path.suffix not in SUFFIXES:
        return False
    content = open_checkpoint(source).content
    if isinstance(content, (Tensor, list, tuple)):
        return True
    if not content or not _are_tensors(content):
        return False
    # Weights have names with dots and more than rows and ids.
    return bool(set(content) & {*FIRST, *SECOND}) or all("." not in str(name) for name in content)


def read_embeddings(
    source: Path | Checkpoint,
    layout: Layout,
    positives: Path | None = None,
    pairs: Path | None = None,
    ids: Path | None = None,
) -> Embeddings:
    """Read embeddings, mapped from the file where its format allows it.

    Args:
        source: A ``.npy``, ``.npz``, ``.pt`` or ``.safetensors`` file, or an open one. Of several
            arrays, those under the names in ``FIRST``, ``SECOND``, ``IDS`` and ``PAIRS`` are what
            these say; others are told by their kinds, two of embeddings without names by their
            order.
        layout: Who is compared with whom.
        positives: A file with the positive of each row, if ``source`` does not hold it.
        pairs: A file with an index of the rows that are positives of each other.
        ids: A file with what each row shows; ``NO_IDS`` passes over ids in ``source``.

    Returns:
        The embeddings, whose rows are not looked at yet.

    Raises:
        ValueError: If a file cannot be read, or holds something else.
    """
    path = _path_of(source)
    arrays = _sorted(path, _read(source))
    if ids == NO_IDS:
        arrays.pop("ids", None)
        ids = None
    for role, file in (("second", positives), (PAIRS, pairs), ("ids", ids)):
        if file is not None:
            arrays[role] = _only(file)
    first, second = arrays["first"], arrays.get("second")
    index, numbers = arrays.get(PAIRS), arrays.get("ids")
    try:
        if index is not None:
            if second is not None:
                raise ValueError("pairs must not be given where positives are.")
            first, second, numbers = pair_up(first, index)
        return Embeddings(first, second, numbers, layout)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {in_words_of_files(error)}") from error


def in_words_of_files(error: BaseException) -> str:
    """Call the arrays in an error's message what files call them."""
    names = {"first": FIRST[0], "second": SECOND[0]}
    text = re.sub(
        r"\b(first|second) must\b", lambda m: f"{names[m[1]]} must", " ".join(str(error).split())
    )
    return text.replace("the shape of first", f"the shape of {FIRST[0]}")


def _path_of(source: Path | Checkpoint) -> Path:
    return source.path if isinstance(source, Checkpoint) else source


def _read(source: Path | Checkpoint) -> dict[str, Array]:
    """Read all arrays of a file by name."""
    path = _path_of(source)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise ValueError(f"{path} {what}: give a file of embeddings.")
    if path.suffix in _OF_NUMPY:
        return _read_numpy(path)
    content = open_checkpoint(source).content
    if isinstance(content, Tensor):
        return {"embeddings": content}
    if isinstance(content, (list, tuple)):
        content = {f"array {place}": each for place, each in enumerate(content)}
    if _are_tensors(content):
        return dict(content)
    raise ValueError(f"{path} must hold tensors, got a {type(content).__name__} of other things.")


def _are_tensors(content: Any) -> bool:
    return isinstance(content, Mapping) and all(isinstance(v, Tensor) for v in content.values())


def _read_numpy(path: Path) -> dict[str, Array]:
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {"embeddings": found}
        with found:
            return {name: found[name] for name in found.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        text = str(error)
        if any(words in text for words in ("Object arrays", "Python objects", "allow_pickle")):
            raise ValueError(
                f"{path} must hold numbers, got Python objects, which are never unpickled, or no "
                "array of NumPy's at all."
            ) from error
        raise ValueError(
            f"{path} ({path.stat().st_size:,} bytes) must be a whole file of NumPy's, got one that "
            f"is cut off or damaged: {' '.join(text.split())}"
        ) from error


def _sorted(path: Path, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Tell by their names, or else by their kinds, which array is what."""
    names = {"first": FIRST, "second": SECOND, "ids": IDS, PAIRS: (PAIRS,)}
    known_names = {name for known in names.values() for name in known}
    found = {role: _first_of(arrays, known) for role, known in names.items()}
    # Where the embeddings have a name, what has none is something else.
    others = arrays if found["first"] is None else {}
    for name, array in others.items():
        if name in known_names:
            continue
        is_float = "float" in str(array.dtype)
        if is_float and array.ndim == 2:
            role = "first" if found["first"] is None else "second"
        elif array.ndim in (1, 2) and len(arrays) > 1:
            role = "ids" if array.ndim == 1 else PAIRS
        else:
            continue
        # Two of other names may be anything, such as training and test.
        is_told = role != "second" or _PLACE.fullmatch(name)
        if found[role] is not None or not is_told:
            raise ValueError(
                f"{path} must hold one array of embeddings, or two whose rows are positives, "
                f"named {FIRST[0]} and {SECOND[0]} or in order without names, got "
                f"{', '.join(arrays)}."
            )
        found[role] = array
    if found["first"] is None and len(arrays) == 1:
        found = {"first": next(iter(arrays.values()))}  # whose kind or shape is refused
    if found["first"] is None:
        raise ValueError(
            f"{path} must hold an array of embeddings, best named {FIRST[0]}, got "
            f"{', '.join(arrays) or 'none'}."
        )
    return {role: array for role, array in found.items() if array is not None}


def _first_of(arrays: Mapping[str, Array], names: tuple[str, ...]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _only(path: Path) -> Array:
    """Read the one array of a file."""
    arrays = _read(path)
    if len(arrays) != 1:
        raise ValueError(f"{path} must hold one array, got {', '.join(arrays) or 'none'}.")
    return next(iter(arrays.values()))
