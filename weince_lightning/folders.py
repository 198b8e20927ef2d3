"""Listings of folders that people, notebooks and archives share with this package."""

import os
from pathlib import Path


def files_below(folder: str | Path, suffix: str) -> list[Path]:
    """List the files of a folder and of those below it, in alphabetical order.

    Hidden files and folders are left out: editors and notebooks leave copies behind under such
    names, and a killed process what it had half written.

    Args:
        folder: Where to look; one that is not there holds nothing.
        suffix: The end of the names, such as ".ckpt".

    Example:
        >>> files_below("no such folder", ".ckpt")
        []
    """
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = (name for name in names if not name.startswith("."))
        found += [Path(place, name) for name in visible if name.endswith(suffix)]
    return sorted(found)
