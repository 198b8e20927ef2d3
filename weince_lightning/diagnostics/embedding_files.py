"""Files of embeddings: one array, or two of positives, with ids or an index of pairs.

Tables are read in :mod:`weince_lightning.diagnostics.embedding_tables`.
"""

import codecs
import re
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.serialization import safe_globals

from weince_lightning.checkpoints import Checkpoint, open_checkpoint
from weince_lightning.checks import did_you_mean
from weince_lightning.diagnostics.embedding_tables import as_ids, read_csv, read_parquet
from weince_lightning.diagnostics.embeddings import (
    Array,
    Embeddings,
    is_float,
    is_integer,
    pair_up,
)
from weince_lightning.functional.layouts import Layout

_OF_NUMPY = (".npy", ".npz")
_TABLES = (".csv", ".parquet")
_TENSORS = (".pt", ".pth", ".safetensors")
FIRST = ("embeddings", "features", "z0", "first")
SECOND = ("positives", "z1", "second")
IDS = ("ids", "labels", "label", "id")
PAIRS = "pairs"
_PLACE = re.compile(r"(arr_|array )\d+")
"""Names of what has none: NumPy's in a ``.npz`` file, and those of the places in a list."""
NO_IDS = Path("none")
"""In the place of a file of ids: those of the source are not looked at."""
_MOST_NAMES = 10
"""Names of arrays that an error lists."""
_SAFE: list[Any] = [
    # By the name of NumPy 2, and by that of the versions before.
    *(
        (getattr(import_module("numpy._core.multiarray"), name), f"numpy.{core}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for core in ("_core", "core")
    ),
    np.ndarray,
    np.dtype,
    codecs.encode,
    *(kind for kind in vars(np.dtypes).values() if isinstance(kind, type)),
]
"""Of what torch's files of NumPy's arrays consist; none of it runs code."""


def open_source(path: Path) -> Path | Checkpoint:
    """Open a checkpoint, or a file of tensors, once; other files stay paths."""
    if path.suffix.lower() in (*_OF_NUMPY, *_TABLES):
        return path
    with safe_globals(_SAFE):
        return open_checkpoint(path)


def holds_embeddings(source: Path | Checkpoint) -> bool:
    """Whether a file is one of embeddings and no checkpoint, by its content where that decides."""
    path = _path_of(source)
    if path.suffix.lower() in (*_OF_NUMPY, *_TABLES):
        return True
    if path.suffix.lower() not in _TENSORS:
        return False
    content = _opened(source).content
    if isinstance(content, (Tensor, np.ndarray, list, tuple)):
        return True
    arrays = _arrays_of(content)
    if set(arrays) & {*FIRST, *SECOND}:
        return True
    # Weights have names with dots, or stand with settings in a mapping of their own.
    has_parts = any(isinstance(value, Mapping) for value in content.values())
    return bool(arrays) and not has_parts and all("." not in name for name in arrays)


def read_embeddings(
    source: Path | Checkpoint,
    layout: Layout,
    positives: Path | None = None,
    pairs: Path | None = None,
    ids: Path | None = None,
    key: str | None = None,
) -> Embeddings:
    """Read embeddings, mapped from the file where its format allows it.

    Whatever else lies in a file is passed over: text, objects, numbers of another shape.

    Args:
        source: A ``.npy``, ``.npz``, ``.pt``, ``.safetensors``, ``.csv`` or ``.parquet`` file, or
            an open one. Of several arrays, those under the names in ``FIRST``, ``SECOND``, ``IDS``
            and ``PAIRS`` are what these say; others are told by their kinds, two of embeddings
            without names by their order.
        layout: Who is compared with whom.
        positives: A file with the positive of each row, if ``source`` does not hold it.
        pairs: A file with an index of the rows that are positives of each other.
        ids: A file with what each row shows; ``NO_IDS`` passes over ids in ``source``.
        key: The name of the array of embeddings in ``source``, where there are several.

    Returns:
        The embeddings, whose rows are not looked at yet.

    Raises:
        ModuleNotFoundError: If a library that the format needs is not installed.
        ValueError: If a file cannot be read, or holds something else.
    """
    path = _path_of(source)
    arrays = _sorted(path, _read(source), key)
    if ids == NO_IDS:
        arrays.pop("ids", None)
        ids = None
    for role, file in (("second", positives), (PAIRS, pairs), ("ids", ids)):
        if file is not None:
            arrays[role] = _only(file, role)
    first, second = arrays["first"], arrays.get("second")
    index, numbers = arrays.get(PAIRS), as_ids(arrays.get("ids"))
    try:
        if index is not None:
            if second is not None:
                raise ValueError("pairs must not be given where positives are.")
            first, second, numbers = pair_up(first, index)
        return Embeddings(first, second, numbers, layout)
    except (ValueError, TypeError) as error:
        text = in_words_of_files(error)
        if text.startswith("ids must") and ids is None:
            text += " --ids none passes over them."
        raise ValueError(f"{path}: {text}") from error


def in_words_of_files(error: BaseException) -> str:
    """Call the arrays in an error's message what files call them."""
    names = {"first": FIRST[0], "second": SECOND[0]}
    text = re.sub(
        r"\b(first|second) must\b", lambda m: f"{names[m[1]]} must", " ".join(str(error).split())
    )
    return text.replace("the shape of first", f"the shape of {FIRST[0]}")


def _path_of(source: Path | Checkpoint) -> Path:
    return source.path if isinstance(source, Checkpoint) else source


def _opened(source: Path | Checkpoint) -> Checkpoint:
    if isinstance(source, Checkpoint):
        return source
    with safe_globals(_SAFE):
        return open_checkpoint(source)


def _read(source: Path | Checkpoint) -> Mapping[str, Array]:
    """Read all arrays of a file by name."""
    path = _path_of(source)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise FileNotFoundError(f"{path} {what}: give a file of embeddings.")
    suffix = path.suffix.lower()
    if suffix in _OF_NUMPY:
        return _read_numpy(path)
    if suffix in _TABLES:
        return read_csv(path, IDS) if suffix == ".csv" else read_parquet(path, IDS)
    content = _opened(source).content
    arrays = _arrays_of(content)
    if not arrays:
        raise ValueError(
            f"{path} must hold tensors, got a {type(content).__name__} of other things."
        )
    return arrays


def _arrays_of(content: Any) -> dict[str, Array]:
    """Keep the arrays of what torch saved, and lists of ids."""
    if isinstance(content, (list, tuple)):
        if len({getattr(row, "shape", None) for row in content}) == 1 and all(
            isinstance(row, Tensor) and row.ndim == 1 and is_float(row) for row in content
        ):
            return {FIRST[0]: torch.stack(list(content))}  # row by row
        content = {f"array {place}": each for place, each in enumerate(content)}
    if not isinstance(content, Mapping):
        content = {FIRST[0]: content}
    return {
        str(name): as_ids(value) if isinstance(value, (list, tuple)) else value
        for name, value in content.items()
        if isinstance(value, (Tensor, np.ndarray))
        or (name in IDS and isinstance(value, (list, tuple)))
    }


def _read_numpy(path: Path) -> dict[str, Array]:
    unreadable = ""
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {FIRST[0]: found}
        arrays = {}
        with found:
            for name in found.files:
                try:
                    arrays[name] = found[name]
                except ValueError as error:  # objects, such as paths; they are never unpickled
                    if name in (*FIRST, *SECOND, PAIRS) or "allow_pickle" not in str(error):
                        raise
                    unreadable = str(error)
        if not arrays and unreadable:
            raise ValueError(unreadable)
        return arrays
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        text = str(error)
        if any(words in text for words in ("Object arrays", "Python objects", "allow_pickle")):
            raise ValueError(
                f"{path} must hold numbers, got Python objects, which are never unpickled, or no "
                "array of NumPy's at all. Save the rows as one array of numbers."
            ) from error
        raise ValueError(
            f"{path} ({path.stat().st_size:,} bytes) must be a whole file of NumPy's, got one that "
            f"is cut off or damaged: {' '.join(text.split())}"
        ) from error


def _sorted(path: Path, arrays: Mapping[str, Array], key: str | None) -> dict[str, Array]:
    """Tell by their names, or else by their kinds, which array is what."""
    names = {"first": FIRST, "second": SECOND, "ids": IDS, PAIRS: (PAIRS,)}
    found = {role: _first_of(arrays, known) for role, known in names.items()}
    if key is not None:
        if key not in arrays:
            hint = did_you_mean(key, arrays)
            raise ValueError(f"{path} must hold {key}, got {_listed(arrays)}.{hint}")
        found = {"first": arrays[key], "ids": found["ids"], PAIRS: found[PAIRS]}
    known_names = {name for known in names.values() for name in known}
    # Where the embeddings have a name, what has none is something else.
    others = arrays if found["first"] is None else {}
    for name, array in others.items():
        if name in known_names:
            continue
        if is_float(array) and array.ndim == 2:
            role = "first" if found["first"] is None else "second"
        elif is_integer(array) and array.ndim in (1, 2) and len(arrays) > 1:
            role = "ids" if array.ndim == 1 else PAIRS
        else:
            continue
        # Two of other names may be anything, such as training and test.
        is_told = role != "second" or _PLACE.fullmatch(name)
        if found[role] is not None or not is_told:
            raise ValueError(
                f"{path} must hold one array of embeddings, or two whose rows are positives, "
                f"named {FIRST[0]} and {SECOND[0]} or in order without names, got "
                f"{_listed(arrays)}. Choose by --key {name}, or another name."
            )
        found[role] = array
    if found["first"] is None and len(arrays) == 1:
        found = {"first": next(iter(arrays.values()))}  # whose kind or shape is refused
    if found["first"] is None:
        raise ValueError(
            f"{path} must hold an array of embeddings, best named {FIRST[0]}, got "
            f"{_listed(arrays) or 'none'}."
        )
    return {role: array for role, array in found.items() if array is not None}


def _first_of(arrays: Mapping[str, Array], names: tuple[str, ...]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _listed(arrays: Mapping[str, Array]) -> str:
    names = list(arrays)
    rest = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + rest


def _only(path: Path, role: str) -> Array:
    """Read the array of a file that was given for one role, whatever lies beside it."""
    arrays = _read(path)
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if role == "second":
        named = _first_of(arrays, SECOND)
        return _sorted(path, arrays, None)["first"] if named is None else named
    named = _first_of(arrays, IDS if role == "ids" else (PAIRS,))
    dimensions = 1 if role == "ids" else 2
    fitting = [each for each in arrays.values() if is_integer(each) and each.ndim == dimensions]
    if named is None and len(fitting) != 1:
        raise ValueError(f"{path} must hold one array, got {_listed(arrays) or 'none'}.")
    return fitting[0] if named is None else named
