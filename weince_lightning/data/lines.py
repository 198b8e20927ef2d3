"""A text file as a sequence of its lines, which stay on disk."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 2**24
"""Bytes searched for ends of lines at once."""

_SPACES = b" \t\r\v\f"
"""What a blank line holds, but for its end."""


class Lines:
    r"""The lines of a UTF-8 file that are not blank; in memory is where each begins and ends.

    A byte order mark, as editors on Windows write it, is left out.

    Sixteen bytes a line, whatever its length. A copy in another process opens the file anew.

    Args:
        path: A file with one text a line, ended by ``\n`` or ``\r\n``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If all its lines are blank.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "lines.txt"
        ...     _ = path.write_text("One.\n\nAnother.", encoding="utf-8")
        ...     lines = Lines(path)
        ...     len(lines), lines[1]
        (2, 'Another.')
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._bytes: NDArray[np.uint8] | None = None
        self._starts, self._ends = self._find()
        if not len(self._starts):
            raise ValueError(f"{self.path} must hold at least one text, got blank lines alone.")

    def __len__(self) -> int:
        """Count the lines."""
        return len(self._starts)

    def __getitem__(self, index: int) -> str:
        """Read a line, without its end."""
        raw = self._contents()[self._starts[index] : self._ends[index]].tobytes()
        try:
            return raw.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError:
            raise wrong_encoding(self.path) from None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the file out, which would be copied whole."""
        return {**self.__dict__, "_bytes": None}

    def _contents(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            self._bytes = np.memmap(self.path, mode="r")
        return self._bytes

    def _find(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find where the lines begin and end, their line feeds aside."""
        size = self.path.stat().st_size
        if size == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found, contents = [], self._contents()
        for first in range(0, size, _CHUNK):
            found.append(np.flatnonzero(contents[first : first + _CHUNK] == ord("\n")) + first)
        ends = np.concatenate([*found, [size]])
        mark = len(BOM_UTF8) if contents[: len(BOM_UTF8)].tobytes() == BOM_UTF8 else 0
        starts = np.concatenate([[mark], ends[:-1] + 1])
        is_filled = ends > starts
        starts, ends = starts[is_filled], ends[is_filled]
        is_text = ~np.isin(contents[starts], np.frombuffer(_SPACES, np.uint8))
        # Few lines begin with a space: whether there is more in them is looked up one by one.
        for line in np.flatnonzero(~is_text):
            is_text[line] = not contents[starts[line] : ends[line]].tobytes().isspace()
        return starts[is_text], ends[is_text]


def wrong_encoding(path: Path) -> ValueError:
    """Return an error that names the first line of a file that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return ValueError(
                    f"{path}, line {number}, must be UTF-8, got the byte 0x{line[error.start]:02x} "
                    f"at its place {error.start + 1}. Save the file as UTF-8."
                )
    return ValueError(f"{path} must be UTF-8. Save the file as UTF-8.")
