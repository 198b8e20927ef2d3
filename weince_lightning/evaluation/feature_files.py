"""Files of features with the paths of their images: Parquet, NumPy's .npz and CSV."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from torch import Tensor

from weince_lightning.checkpoints.files import whole_file
from weince_lightning.checks import import_extra


class ImageFeatures(NamedTuple):
    """Features of images, a row each."""

    features: Tensor
    """Shape ``(images, features)``, on the CPU."""
    paths: list[str] | None
    """The file of each image, with forward slashes; None if images are not known by files."""
    labels: Tensor | None
    """The class of each image, int64, shape ``(images,)``, -1 if unknown; None without classes."""


def check_feature_file(to: str | Path, force: bool = False) -> Path:
    """Check a file that is to be written, before anything is computed.

    Args:
        to: The file: ``.parquet``, ``.npz`` or ``.csv``.
        force: Whether to replace it if it exists.

    Returns:
        The path.

    Raises:
        ValueError: If the name has another ending.
        FileNotFoundError: If there is no such folder.
        FileExistsError: If the file exists and ``force`` is not set.
        ModuleNotFoundError: If it is a Parquet file and pyarrow is not installed.
    """
    target = Path(to)
    if target.suffix not in _WRITERS:
        raise ValueError(f"to must end in {', '.join(_WRITERS)}, got {str(target)!r}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"to must lie in a folder that exists, got {target}.")
    if target.is_dir() or (target.exists() and not force):
        hint = "Give another name." if force else "Give another name, or set force to replace it."
        raise FileExistsError(f"to must not exist yet, got {target}. {hint}")
    if target.suffix == ".parquet":
        _pyarrow()
    return target


def write_features(found: ImageFeatures, target: Path) -> None:
    """Write features, all of the file at once.

    A ``.npz`` file holds ``features``, ``paths`` and ``labels``, none of them pickled; Parquet the
    columns ``path``, ``label`` and ``features``, a list of float32; CSV the columns ``path``,
    ``label``, ``0``, ``1`` and so on. What is not known is left out.

    Args:
        found: The features.
        target: The file; one that exists is replaced.

    Raises:
        ValueError: If a path is no text that the format can hold.
    """
    if target.suffix != ".npz":
        _check_texts(found.paths or [])
    with whole_file(target) as file:
        _WRITERS[target.suffix](found, file)


def _write_npz(found: ImageFeatures, file: BinaryIO) -> None:
    arrays: dict[str, Any] = {"features": found.features.float().numpy()}
    if found.paths is not None:
        arrays["paths"] = np.array(found.paths, dtype=np.str_)
    if found.labels is not None:
        arrays["labels"] = found.labels.numpy()
    np.savez(file, **arrays)


def _write_parquet(found: ImageFeatures, file: BinaryIO) -> None:
    arrow = _pyarrow()
    parquet = import_extra("pyarrow.parquet", "parquet", "a .parquet file")
    columns: dict[str, Any] = {}
    if found.paths is not None:
        columns["path"] = arrow.array(found.paths, arrow.string())
    if found.labels is not None:
        columns["label"] = arrow.array(found.labels.numpy(), arrow.int64())
    values = arrow.array(found.features.float().numpy().reshape(-1), arrow.float32())
    width = found.features.shape[1]
    columns["features"] = arrow.FixedSizeListArray.from_arrays(values, width)
    parquet.write_table(arrow.table(columns), file)


def _write_csv(found: ImageFeatures, file: BinaryIO) -> None:
    # NumPy's shortest text of a float32: reading it gives the same number.
    rows = found.features.float().numpy().astype(np.str_)
    names = {"path": found.paths, "label": None if found.labels is None else found.labels.tolist()}
    columns = {name: values for name, values in names.items() if values is not None}
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *range(rows.shape[1])])
    for row, *values in zip(rows, *columns.values(), strict=True):
        writer.writerow([*values, *row])
    text.flush()
    text.detach()  # the file is closed by its owner


_WRITERS: dict[str, Callable[[ImageFeatures, BinaryIO], None]] = {
    ".parquet": _write_parquet,
    ".npz": _write_npz,
    ".csv": _write_csv,
}


def _check_texts(paths: list[str]) -> None:
    """Refuse names of files that are no text, which Unix allows."""
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the names of images must be text, got {path!r}. Rename the file, or write .npz."
            ) from error


def _pyarrow() -> Any:
    return import_extra("pyarrow", "parquet", "a .parquet file")
