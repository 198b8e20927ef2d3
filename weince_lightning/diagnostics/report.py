"""Report of a diagnosis as a folder: a page, the numbers, the figures."""

import json
import os
import re
from pathlib import Path
from typing import Literal

from weince_lightning.checkpoints.files import whole_file
from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.diagnostics.figures import draw
from weince_lightning.diagnostics.page import render_page
from weince_lightning.diagnostics.verdict import pronounce

KINDS: tuple[Literal["png", "svg"], ...] = ("png", "svg")
"""Formats of the figures."""

_NUMBERS = "diagnosis.json"


def default_folder(source: str) -> Path:
    """Return the folder of a report beside its input: ``a.npy.diagnosis`` for ``a.npy``.

    Args:
        source: A file, or the name of an encoder, whose report goes to the working directory.
    """
    if Path(source).exists():
        return Path(f"{source}.diagnosis")
    return Path(re.sub(r"[^\w.-]+", "-", source) + ".diagnosis")


def report_folder(output: str | Path | None, source: str) -> Path:
    """Return the folder of a report.

    Args:
        output: A new folder, an empty one or that of an earlier diagnosis of the same source; None
            for the one beside the source.
        source: What is diagnosed.

    Raises:
        ValueError: If it cannot be written to, holds files of other kinds, or the diagnosis of
            something else.
    """
    beside = default_folder(source)
    folder = beside if output is None else Path(output)
    there = next(each for each in (folder, *folder.parents) if each.exists() or each.is_symlink())
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "cannot be written to" if there.is_dir() else "is no folder"
        raise ValueError(
            f"output must be a folder that can be written to, got {folder}: {there} {what}. Give "
            "another output."
        )
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _NUMBERS).is_file():
        raise ValueError(
            f"output must be a new folder, an empty one or that of an earlier diagnosis, got "
            f"{folder}, which holds other files."
        )
    earlier = _earlier_source(folder / _NUMBERS)
    # By its name the folder beside a file is that file's, from wherever the file was named.
    is_own = folder.resolve() == beside.resolve()
    if earlier is not None and not is_own and not _is_same(earlier, source):
        raise ValueError(
            f"output must not be the folder of another diagnosis, got {folder}, which holds that "
            f"of {earlier}. Give another output, or remove the folder."
        )
    return folder


def _earlier_source(file: Path) -> str | None:
    """Read what an earlier diagnosis was of; None if there is none, or it does not say."""
    try:
        return str(json.loads(file.read_bytes())["source"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _is_same(earlier: str, source: str) -> bool:
    return earlier == source or Path(earlier).resolve() == Path(source).resolve()


def write_report(diagnosis: Diagnosis, folder: str | Path, source: str) -> Path:
    """Write a diagnosis to a folder, in the place of an earlier one.

    Args:
        diagnosis: The numbers.
        folder: A new folder, an empty one or that of an earlier diagnosis of the same source.
        source: What was diagnosed, for the title and the next command.

    Returns:
        The page, ``report.html``. Beside it are ``diagnosis.json`` and ``figures/``.

    Raises:
        ValueError: If the folder holds other files, or cannot be written to.
    """
    folder = report_folder(folder, source)
    verdict = pronounce(diagnosis, source)
    pictures = draw(diagnosis)
    numbers = {
        "source": source,
        **diagnosis.numbers(),
        "verdict": {"headline": verdict.headline, **verdict._asdict()},
    }
    files = {
        # First: by it the folder is known as that of a diagnosis.
        _NUMBERS: json.dumps(numbers, indent=2, allow_nan=False).encode() + b"\n",
        **{
            f"figures/{name}.{kind}": picture.render(kind)
            for name, picture in pictures.items()
            for kind in KINDS
        },
        "report.html": render_page(diagnosis, verdict, pictures, source).encode(),
    }
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        # An earlier report may have figures that this one has not.
        for earlier in (folder / "figures").iterdir():
            if f"figures/{earlier.name}" not in files and earlier.suffix[1:] in KINDS:
                earlier.unlink()
        for name, content in files.items():
            with whole_file(folder / name) as file:
                file.write(content)
    except OSError as error:
        raise ValueError(
            f"output must be a folder that can be written to, got {folder}: {error.strerror}."
        ) from error
    return folder / "report.html"
