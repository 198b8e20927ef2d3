"""Image files that cannot be read: found before the training, and refused or left out."""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from weince_lightning.data.images import ImageFiles, MissingDataError

_FILES_AT_ONCE = 64
_SHOWN = 3


def check_headers(images: ImageFiles, folder: Path) -> None:
    """Refuse files that are no images as their first bytes tell, which is quick.

    Raises:
        MissingDataError: If there are such files.
    """
    if faults := _find_faults(images, folder, decode=False):
        shown = _listed([f"{name} ({why})" for name, why in faults.items()])
        raise MissingDataError(
            f"{folder.resolve()} must hold images that can be read, got {len(faults)} of "
            f"{len(images)} files that cannot: {shown}. Replace or remove them, or leave them out: "
            "skip_unreadable=True."
        )


class UnreadableFiles:
    """Files that are left out, the same ones for as long as a training is resumed.

    Args:
        folder: The folder of the data.

    Attributes:
        names: The paths in the folder of the files that are left out, by split.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.names: dict[str, list[str]] = {}

    def find(self, images: ImageFiles, split: str, trainer: Trainer | None = None) -> None:
        """Decode all files of a split, unless that was done.

        Args:
            images: The files.
            split: The name of the split.
            trainer: Of the processes that all call this; the first one searches for them. None if
                each is on its own.
        """
        if split in self.names:
            return
        names: list[str] = []
        if trainer is None or trainer.is_global_zero:
            names = [*_find_faults(images, self.folder, decode=True)]
        self.names[split] = names if trainer is None else trainer.strategy.broadcast(names)
        rank_zero_warn(
            f"{self.folder.resolve()}: {len(self.names[split])} of {len(images)} images cannot be "
            f"read and are left out{': ' if names else ''}{_listed(names)}."
        )

    def without(self, images: ImageFiles, split: str) -> ImageFiles:
        """Return the others.

        Raises:
            MissingDataError: If there are no others.
        """
        self.find(images, split)
        left_out = {*self.names[split]}
        kept = [i for i, name in enumerate(_names(images, self.folder)) if name not in left_out]
        if not kept:
            raise MissingDataError(
                f"{self.folder.resolve()} must hold images that can be read, got {len(images)} "
                "files that cannot."
            )
        return images.part(kept)


def _find_faults(images: ImageFiles, folder: Path, decode: bool) -> dict[str, str]:
    """Return the faults of files that cannot be read, by their paths in the folder."""
    read = images.__getitem__ if decode else images.check_header
    names = _names(images, folder)

    def look(start: int) -> list[tuple[str, str]]:
        found = []
        for index in range(start, min(start + _FILES_AT_ONCE, len(names))):
            try:
                read(index)
            except MissingDataError as error:
                # Pillow puts the open file itself into its message.
                text = re.sub(r" ?<[^>]*>", "", str(error.__cause__))
                found.append((names[index], " ".join(text.split()).removesuffix(".")))
        return found

    # Threads: Pillow decodes, and the system reads, without Python's lock.
    with ThreadPoolExecutor() as pool:
        parts = pool.map(look, range(0, len(names), _FILES_AT_ONCE))
        return dict(fault for part in parts for fault in part)


def _names(images: ImageFiles, folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in images.paths]


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if texts[_SHOWN:] else ""
    return ", ".join(texts[:_SHOWN]) + more
