"""Tables of embeddings, ``.csv`` and ``.parquet``, as arrays by name.

Columns of numbers that are counted, such as ``0``, ``1``, ... or ``f0``, ``f1``, ..., are one
array; so is a column of lists. Text, such as paths, is kept only where it names classes.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weince_lightning.checks import import_extra

_COUNTED = re.compile(r"(.*?)[ _.-]?(\d+)")
_SEPARATORS = ",;\t"
_OF_AN_INDEX = ("", "index", "unnamed: 0")
"""Names of the column with which pandas numbers the rows."""


def read_csv(path: Path, known: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read a table of text, whose first line may name the columns.

    Args:
        path: The file: UTF-8 with or without a byte order mark, separated by commas, semicolons or
            tabs.
        known: Names of columns with ids or classes, which are numbered where they are text.

    Returns:
        Arrays by name; unnamed columns are "features".

    Raises:
        ValueError: If it is no such table.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            separator = max(_SEPARATORS, key=file.readline().count)
            file.seek(0)
            rows = [row for row in csv.reader(file, delimiter=separator) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a table of text in UTF-8, got {error}.") from error
    if not rows:
        raise ValueError(f"{path} must hold a table, got an empty file.")
    head = [name.strip() for name in rows[0]]
    numbers = [_number(cell) for cell in head]
    # Names may be whole numbers, such as those of pandas, but no fractions.
    has_fractions = any(
        number is not None and math.isfinite(number) and number % 1 for number in numbers
    )
    is_counted = numbers == list(range(len(head)))
    if is_counted or (None in numbers and not has_fractions):
        del rows[0]
    else:
        head = [str(place) for place in range(len(head))]
    for place, row in enumerate(rows):
        if len(row) != len(head):
            raise ValueError(
                f"{path} must have {len(head)} cells in every line, got {len(row)} in row {place}."
            )
    columns: dict[str, Any] = {}
    for place, name in enumerate(head if rows else ()):
        if name.lower() in known:
            columns[name] = np.array([row[place].strip() for row in rows])
        elif name.lower() not in _OF_AN_INDEX and _number(rows[0][place]) is not None:
            columns[name] = _numbers(path, name, [row[place] for row in rows])
    return _gather(columns, known)


def read_parquet(path: Path, known: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read a table of Parquet.

    Args:
        path: The file.
        known: Names of columns with ids or classes.

    Returns:
        Arrays by name; a column of lists is one of them.

    Raises:
        ModuleNotFoundError: If pyarrow is not installed.
        ValueError: If it cannot be read, or lists have different lengths.
    """
    parquet = import_extra("pyarrow.parquet", "parquet", "a .parquet file")
    types = import_extra("pyarrow.types", "parquet", "a .parquet file")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise ValueError(
            f"{path} ({path.stat().st_size:,} bytes) must be a whole Parquet file, got one that is "
            f"cut off or damaged: {' '.join(str(error).split())}"
        ) from error
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        kind = column.type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            if types.is_floating(kind.value_type) or types.is_integer(kind.value_type):
                columns[name] = _lists(path, name, column)
        elif name.lower() in known or types.is_integer(kind) or types.is_floating(kind):
            columns[name] = column.to_numpy(zero_copy_only=False)
    return _gather(columns, known)


def as_ids(array: Any) -> Any:
    """Turn what people keep as classes into integers; what is missing is -1, unknown.

    Args:
        array: Integers, text, or floating point numbers that are whole or NaN; others are returned
            as they are, to be refused.
    """
    if isinstance(array, (list, tuple)):
        array = np.array(array)
    if not isinstance(array, np.ndarray):
        return array
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind == "O":  # a column of pyarrow's with text or missing numbers
        array = np.array(["" if value is None else str(value) for value in array])
    if array.dtype.kind in "US":
        with suppress(ValueError):
            return np.where(array == "", "-1", array).astype(np.float64).astype(np.int64)
        names, numbers = np.unique(array, return_inverse=True)
        return np.where(names[numbers] == names.dtype.type(), -1, numbers)
    if array.dtype.kind == "f" and array.ndim == 1:
        filled = np.where(np.isnan(array), -1, array)
        return filled.astype(np.int64) if (filled == np.floor(filled)).all() else array
    return array


def _gather(columns: Mapping[str, Any], known: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Join counted columns of one name into one array; of the others keep rows and ids."""
    groups: dict[str, list[tuple[int, Any]]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    alone: list[NDArray[Any]] = []
    for name, column in columns.items():
        counted = _COUNTED.fullmatch(name)
        if name.lower() in known:
            arrays[name.lower()] = as_ids(column)
        elif column.ndim == 2:
            arrays[name] = column
        elif counted:
            groups.setdefault(counted[1] or "features", []).append((int(counted[2]), column))
        else:
            alone.append(column)
    for name, members in groups.items():
        if len(members) > 1:
            members.sort(key=lambda member: member[0])
            arrays[name] = np.stack([column for _, column in members], axis=1)
    if alone and not any(column.ndim == 2 for column in arrays.values()):
        # Named one by one, as "x" and "y".
        arrays["features"] = np.stack(alone, axis=1)
    return arrays


def _lists(path: Path, name: str, column: Any) -> NDArray[Any]:
    """Turn a column of lists of one length into an array of rows."""
    compute = import_extra("pyarrow.compute", "parquet", "a .parquet file")
    lengths = {length.as_py() for length in compute.unique(compute.list_value_length(column))}
    if len(lengths) != 1 or None in lengths:
        shown = ", ".join(map(str, sorted(lengths, key=str)[:3]))
        raise ValueError(
            f"{path} must hold lists of one length in {name}, got lengths such as {shown}."
        )
    return np.asarray(column.flatten()).reshape(len(column), -1)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _numbers(path: Path, name: str, cells: Sequence[str]) -> NDArray[np.float64]:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError as error:
        place = next(i for i, cell in enumerate(cells) if _number(cell) is None)
        raise ValueError(
            f"{path} must hold numbers in the column {name}, got {cells[place]!r} in row {place}."
        ) from error
