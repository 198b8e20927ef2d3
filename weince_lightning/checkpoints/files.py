"""Files of weights: whether they are whole, what they hold, and how to write them in one piece."""

import json
import os
import pickle
import re
import secrets
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from weince_lightning.checks import import_extra

_REFUSED_CLASS = re.compile(r"GLOBAL (\S+) was not an allowed global")
KEYWORDS = ("best", "last", "hpc", "registry")
"""Keywords that Lightning takes in place of a checkpoint's path."""

# What reading damaged bytes has been seen to raise: those of a pickle are instructions.
_DAMAGE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class CheckpointError(ValueError):
    """A file that cannot be used as a checkpoint; the message is one line."""


class ForeignClassError(CheckpointError):
    """A checkpoint with objects of other classes than tensors and plain values."""


def read_checkpoint(path: str | Path, weights_only: bool = True) -> Any:
    """Read a checkpoint, by default without running code that it may hold.

    Tensors are mapped from the file where its format allows it: what is not used is not read into
    memory. So the file must stay as it is for as long as they are in use.

    Args:
        path: A file of ``torch.save`` or, ending in ``.safetensors``, of safetensors.
        weights_only: False allows objects of other classes, which can run code.

    Returns:
        What was saved, on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is a folder or damaged.
        ForeignClassError: A CheckpointError, if it holds objects of other classes than tensors and
            plain values.
        ModuleNotFoundError: If it is a safetensors file and safetensors is not installed.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> torch.save({"epoch": 3}, f"{folder.name}/small.ckpt")
        >>> read_checkpoint(f"{folder.name}/small.ckpt")
        {'epoch': 3}
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    is_zip = _check_bytes(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=weights_only, mmap=is_zip)
    except _DAMAGE as error:
        if refused := _REFUSED_CLASS.search(str(error)):
            raise ForeignClassError(
                f"{_named(path)} holds an object of the class {refused[1]}, which could run code "
                "when it is loaded. Save it again as a state_dict (tensors and plain values)."
            ) from error
        what = "is no checkpoint of torch" if is_zip else "is damaged, or no checkpoint of torch"
        raise CheckpointError(f"{_named(path)} {what}. {_MEND}") from error


def check_checkpoint(path: object, weights_only: bool | None = True) -> None:
    """Refuse a file that cannot be loaded, before anything else is done.

    The weights' checksums are compared, which torch itself does not do: reading them takes about
    0.05 s per 100 MB. The files of torch's format before 1.6 have none.

    Args:
        path: What is to be loaded. What does not lie on this machine (URLs, open files, Lightning's
            "best", "last", "hpc" and "registry:..."), and the folders of a sharded checkpoint are
            passed over.
        weights_only: Whether the file is going to be loaded as tensors and plain values alone; only
            False lets other classes pass.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it cannot be loaded; see :func:`read_checkpoint`.
    """
    if not isinstance(path, (str, Path)) or "://" in str(path):
        return
    path = Path(path)
    if not path.exists() and str(path).partition(":")[0] in KEYWORDS:
        return
    if (path / "meta.pt").is_file() or (path / "checkpoint").is_dir():  # FSDP, DeepSpeed
        return
    if weights_only is False:
        _check_bytes(path)
    else:
        read_checkpoint(path)


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, notes: Mapping[str, Any] | None = None
) -> None:
    """Write named tensors, as safetensors if the path ends so, and by ``torch.save`` otherwise.

    Args:
        tensors: Tensors by name.
        path: The file.
        notes: Plain values by name for the metadata of safetensors; torch's files have none.
    """
    # Clones: what was a part of a larger tensor would bring all of it along.
    own = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    with whole_file(path) as file:
        if path.suffix == ".safetensors":
            texts = {name: json.dumps(value) for name, value in (notes or {}).items()}
            file.write(_safetensors().save(own, metadata={"format": "pt", **texts}))
        else:
            torch.save(own, file)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` at the end of the block, all of it at once.

    Whoever reads ``path`` finds either what was there or all of the new, whenever this process is
    killed. A killed process leaves ``.NAME.*.part`` behind in the same folder: only a move within
    one file system is done at once.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            # Or the machine's crash could leave the new name and none of the content.
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


_MEND = "Take another checkpoint, or copy the file again from where it is whole."


def _check_bytes(path: Path) -> bool:
    """Refuse what is no whole file of ``torch.save``; tell whether it is a zip archive."""
    if not path.exists():
        raise FileNotFoundError(f"there is no checkpoint {path}.")
    if not path.is_file():
        raise CheckpointError(f"{path} is a folder; a checkpoint is a file in it.")
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if not start:
                raise CheckpointError(f"{path} is empty: nothing was saved in it. {_MEND}")
            if start.startswith(b"PK"):
                _check_archive(file, path)
            elif not start.startswith(b"\x80"):  # every pickle of torch.save begins so
                raise CheckpointError(f"{_named(path)} is no checkpoint: torch did not save it.")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    return start.startswith(b"PK")


def _check_archive(file: BinaryIO, path: Path) -> None:
    """Compare the checksums of a zip archive, which torch writes but does not read."""
    try:
        with zipfile.ZipFile(file) as archive:
            # torch.serialization.set_crc32_options(False) saves without them.
            has_checksums = any(member.CRC for member in archive.infolist())
            damaged = archive.testzip() if has_checksums else None
    except _DAMAGE as error:
        raise CheckpointError(
            f"{_named(path)} is cut off or damaged: its table of contents cannot be read. {_MEND}"
        ) from error
    if damaged is not None:
        raise CheckpointError(
            f"{_named(path)} is damaged: {damaged!r} in it is not what was saved. {_MEND}"
        )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}.")
    safetensors = _safetensors()
    try:
        tensors: dict[str, Tensor] = safetensors.load_file(path)
    except import_module("safetensors").SafetensorError as error:
        raise CheckpointError(
            f"{_named(path)} is cut off or damaged, or no safetensors file. {_MEND}"
        ) from error
    return tensors


def read_notes(path: Path) -> dict[str, Any]:
    """Read the metadata of a safetensors file, as far as they are what we write."""
    with import_module("safetensors").safe_open(path, "pt") as file:
        texts = file.metadata() or {}
    notes = {}
    for name, text in texts.items():
        with suppress(ValueError):
            notes[name] = json.loads(text)
    return notes


def _safetensors() -> Any:
    return import_extra("safetensors.torch", "safetensors", "a .safetensors file")


def _named(path: Path) -> str:
    """Name a file with its size, by which a copy that broke off is known."""
    return f"{path} ({path.stat().st_size:,} bytes)"
