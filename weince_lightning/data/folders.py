"""Entries of image folders: which are images, which are classes, and what is left out."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_warn
from torchvision.datasets.folder import IMG_EXTENSIONS


def class_folders(folder: Path) -> list[str]:
    """List the folders that may be classes, in alphabetical order: neither hidden nor a cycle."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return _each_entered(str(folder), names, _above(folder), Counter())


def image_files(folder: Path, left_out: Counter[str], nested: bool = True) -> list[str]:
    """List the images of a folder in a fixed order, each real folder once.

    Hidden entries are no images: notebooks, file managers and archives leave copies, thumbnails
    and metadata behind under such names.

    Args:
        folder: Where to look.
        left_out: Counts by kind what is no image; added to.
        nested: Whether to look into the folders below, too.

    Raises:
        OSError: If a folder cannot be read.
    """
    found = sorted(_walk(folder, left_out, nested))
    return [os.path.join(place, name) for place, names in found for name in names]


def has_images(folder: Path) -> bool:
    """Whether an image lies in a folder or below it; looks no further than the first."""
    return any(names for _, names in _walk(folder, Counter(), nested=True))


def warn_of_left_out(folder: Path, left_out: Counter[str]) -> None:
    """Say what of a folder is not used, if anything."""
    if left_out:
        counts = ", ".join(f"{count} {kind}" for kind, count in left_out.most_common(5))
        more = " and others" if len(left_out) > 5 else ""
        rank_zero_warn(
            f"{folder.resolve()} holds entries that are not used: {counts}{more}. Images are files "
            f"of {', '.join(IMG_EXTENSIONS)} whose name does not begin with a dot."
        )


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden by its name."""
    return name.startswith(".")


def _walk(folder: Path, left_out: Counter[str], nested: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder with the sorted names of its images."""
    met = _above(folder)
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        if nested:
            folders[:] = _entered(place, folders, met, left_out)
        else:
            _each_entered(place, folders, met, left_out)
            folders.clear()
        names = []
        for name in sorted(files):
            if is_hidden(name):
                left_out["hidden"] += 1
            elif name.lower().endswith(IMG_EXTENSIONS):
                names.append(name)
            else:
                left_out[os.path.splitext(name)[1].lower() or "without suffix"] += 1
        yield place, names


def _entered(
    place: str, names: list[str], met: set[tuple[int, int]], left_out: Counter[str]
) -> list[str]:
    """Choose the folders to look into; those that links lead back to were met before."""
    chosen = []
    # Links last: of a folder and a link to it beside it, the folder keeps its name.
    for name in sorted(names, key=lambda name: (os.path.islink(os.path.join(place, name)), name)):
        if is_hidden(name):
            left_out["hidden"] += 1
            continue
        identity = _identity(os.path.join(place, name))
        if identity in met:
            left_out["links to folders met before"] += 1
        else:
            met.add(identity)
            chosen.append(name)
    return chosen


def _each_entered(
    place: str, names: list[str], met: set[tuple[int, int]], left_out: Counter[str]
) -> list[str]:
    """Choose folders side by side: two names of one folder may be two classes."""
    return [name for name in sorted(names) if _entered(place, [name], set(met), left_out)]


def _above(folder: Path) -> set[tuple[int, int]]:
    """Identify a folder and those above it, by its name and by what links in it stand for."""
    return {
        _identity(path)
        for start in (folder.absolute(), folder.resolve())
        for path in (start, *start.parents)
    }


def _identity(path: str | Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _refuse(error: OSError) -> None:
    raise error
