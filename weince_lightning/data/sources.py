"""Readers of the data sets: each takes the data folder and a split, and returns the images.

A reader knows one format on disk. Where files are absent, cut off or damaged it raises
:class:`~weince_lightning.data.images.MissingDataError`, which says what was looked for, where, and
what is there instead.
"""

import gzip
import math
import pickle
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchvision import datasets
from torchvision.datasets.folder import IMG_EXTENSIONS

from weince_lightning.data.folders import (
    class_folders,
    has_images,
    image_files,
    is_hidden,
    warn_of_left_out,
)
from weince_lightning.data.hold_out import held_out, name_ids
from weince_lightning.data.images import ImageFiles, Images, MissingDataError, StoredImages

PICKLE_ERRORS = (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError)
"""What a cut-off or foreign file raises while it is unpickled and taken apart."""


SPLITS = ("training", "test", "testing", "val", "valid", "validation")
"""Folders that stand beside ``train``: without it they are no classes."""


def read_digits(data_dir: Path, split: str) -> Images:
    """Read the 1,797 handwritten digits bundled with scikit-learn: 8x8, 17 grey levels."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    grey = np.rint(pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return StoredImages([grey], labels)


def read_fashion_mnist(data_dir: Path, split: str) -> Images:
    """Read the four idx files, plain or gzipped, from torchvision's folder or from ``data_dir``."""
    folder = _folder(data_dir, "FashionMNIST/raw")
    prefix = "train" if split == "train" else "t10k"
    images = _read_idx(folder, f"{prefix}-images-idx3-ubyte", num_axes=3)
    labels = _read_idx(folder, f"{prefix}-labels-idx1-ubyte", num_axes=1)
    return StoredImages([images], labels)


def read_cifar(kind: Any, data_dir: Path, split: str) -> Images:
    """Read CIFAR-10 or CIFAR-100 (its 100 fine labels) by the class that torchvision has for it."""
    stored = _read_torchvision(kind, data_dir, train=split == "train")
    return StoredImages([stored.data], stored.targets)


def read_stl10(data_dir: Path, split: str) -> Images:
    """Read a split of STL-10 (``train``, ``unlabeled`` or ``test``) through torchvision."""
    stored = _read_torchvision(datasets.STL10, data_dir, split=split)
    return StoredImages([stored.data.transpose(0, 2, 3, 1)], stored.labels)


def read_imagenet32(data_dir: Path, split: str) -> Images:
    """Read the pickled batches of downsampled ImageNet: labels 1-1000 become 0-999.

    Unpickling runs whatever code a file holds: read only files from their publisher.
    """
    folder = _folder(data_dir, "imagenet32")
    names = [f"train_data_batch_{i}" for i in range(1, 11)] if split == "train" else ["val_data"]
    _require(folder, names)
    blocks, labels = [], []
    for name in names:
        try:
            with (folder / name).open("rb") as file:
                batch = pickle.load(file, encoding="latin1")
            block = batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # a view, no copy
            classes = np.asarray(batch["labels"], dtype=np.int64) - 1
        except PICKLE_ERRORS as error:
            raise _broken(folder / name, "hold a whole batch", error) from error
        if len(classes) != len(block) or classes.min() < 0 or classes.max() > 999:
            found = f"{len(block)} images, {len(classes)} labels"
            raise _broken(folder / name, "hold one label in 1-1000 per image", found)
        blocks.append(block)
        labels.append(classes)
    return StoredImages(blocks, np.concatenate(labels))


def read_tiny_imagenet(data_dir: Path, split: str) -> Images:
    """Read Tiny ImageNet's files; its labelled ``val`` folder is the test set.

    A class's number is its line in ``wnids.txt``.
    """
    folder = _folder(data_dir, "tiny-imagenet-200")
    _require(folder, ["wnids.txt"])
    names = (folder / "wnids.txt").read_text("utf-8-sig").split()
    classes = {name: i for i, name in enumerate(names)}
    if split == "train":
        _require(folder, [f"train/{name}/images" for name in classes])
        found = [
            (str(path), label)
            for name, label in classes.items()
            for path in sorted((folder / "train" / name / "images").glob("*.JPEG"))
            if not is_hidden(path.name)
        ]
        filled = {label for _, label in found}
        empty = [f"{name}/images/*.JPEG" for name, i in classes.items() if i not in filled]
        _refuse_missing(folder / "train", empty)
    else:
        _require(folder, ["val/val_annotations.txt", "val/images"])
        lines = (folder / "val" / "val_annotations.txt").read_text("utf-8-sig").strip().split("\n")
        named = [line.split("\t")[:2] for line in lines]
        found = [(str(folder / "val" / "images" / name), classes[wnid]) for name, wnid in named]
        present = {path.name for path in (folder / "val" / "images").iterdir()}
        _refuse_missing(folder / "val" / "images", [n for n, _ in named if n not in present])
    return ImageFiles(*zip(*found, strict=True))


def read_image_folder(data_dir: Path, split: str, id_pattern: str | None = None) -> Images:
    r"""Read image files: ``train/<class>/...``, and ``test/`` or else ``val/`` as the test set.

    The class folders of ``train`` count, in alphabetical order, with the folders below them.
    Without any, the images lie directly in the folder and their labels are unknown (-1).

    A folder without ``train`` is read in the same way, and a fifth of the images of each class is
    the test set. A hash of an image's path in the folder chooses them: they stay the same where
    images are added and wherever the folder lies. A class with five images or more gives at least
    one of them, and one of every class stays for training.

    ``id_pattern`` tells near-duplicates: a regular expression whose first group, or else all that
    it matches in an image's path in the folder, is an id. Images of one id stay in one part.
    ``r"(\d+)_(left|right)"`` makes ``7_left.png`` and ``7_right.png`` one.

    Hidden entries, files of other suffixes, images beside class folders and links that lead back
    are not used; a warning counts them.
    """
    classes = image_folder_classes(data_dir)
    has_splits = (data_dir / "train").is_dir()
    folder = data_dir / "train" if has_splits else data_dir
    if has_splits and split == "test":
        folder = next((data_dir / name for name in ("test", "val") if (data_dir / name).is_dir()),
                      data_dir / "test")  # fmt: skip
        _require(data_dir, [folder.name])
    left_out: Counter[str] = Counter()
    files = [(path, -1) for path in image_files(folder, left_out, nested=False)]
    if classes:
        if files:
            left_out["beside the class folders"] += len(files)
        unexpected_classes = set(class_folders(folder)) - set(classes)
        if has_splits and unexpected_classes:
            found = f"also {', '.join(sorted(unexpected_classes))}"
            raise _broken(folder, "hold class folders of train only", found)
        files = [
            (path, label)
            for label, name in enumerate(classes)
            if (folder / name).is_dir()
            for path in image_files(folder / name, left_out)
        ]
    warn_of_left_out(folder, left_out)
    if not files:
        raise _broken(folder, f"hold images ({', '.join(IMG_EXTENSIONS)})", "none")
    paths, labels = zip(*files, strict=True)
    names = [Path(path).relative_to(folder).as_posix() for path in paths]
    ids = None if id_pattern is None else name_ids(names, id_pattern)
    images = ImageFiles(paths, labels, ids)
    if has_splits:
        return images
    is_test = held_out(ids or names, labels)
    part = [index for index, held in enumerate(is_test) if held == (split == "test")]
    if not part:
        found = f"none for {split} of {len(files)}"
        raise _broken(folder, "hold images for training and, about a fifth, for test", found)
    return images.part(part)


def image_folder_classes(data_dir: Path) -> list[str]:
    """List the classes of an image folder: the folders in ``train``, or else those with images."""
    if not data_dir.is_dir():
        found = "a file" if data_dir.exists() else "no such folder"
        raise MissingDataError(
            f"{data_dir.resolve()} must hold images, as data_dir says, got {found}."
        )
    if (data_dir / "train").is_dir():
        return class_folders(data_dir / "train")
    folders = class_folders(data_dir)
    classes = [name for name in folders if has_images(data_dir / name)]
    # A test set is no class: a folder that holds one lacks its training images.
    has_split = any(name.lower() in SPLITS for name in folders)
    if has_split or not has_images(data_dir):
        _require(data_dir, ["train"])
    return classes


def _read_torchvision(kind: Any, data_dir: Path, **split: Any) -> Any:
    """Let torchvision check and read a set; say which files it misses."""
    try:
        return kind(data_dir, **split)
    except RuntimeError as error:
        folder = data_dir / kind.base_folder
        _require(folder, [name for name, _ in kind.train_list + kind.test_list])
        raise _broken(folder, "hold the files as published", error) from error


def _read_idx(folder: Path, name: str, num_axes: int) -> NDArray[np.uint8]:
    """Read one idx file (big-endian header: magic number, sizes of the axes; then bytes)."""
    path = folder / name
    try:
        if path.is_file():
            content = path.read_bytes()
        else:
            _require(folder, [f"{name}.gz"])
            path = folder / f"{name}.gz"
            content = gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _broken(path, "be a whole gzip file", error) from error
    start = 4 * (1 + num_axes)
    magic, *sizes = np.frombuffer(content[:start].ljust(start, b"\0"), dtype=">u4").tolist()
    if magic != 0x0800 + num_axes or math.prod(sizes) != len(content) - start:
        expected = f"be an idx file of {num_axes} axes and of the length in its header"
        raise _broken(path, expected, f"{len(content)} bytes")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes)


def _folder(data_dir: Path, name: str) -> Path:
    """Return the set's own folder in ``data_dir``, or ``data_dir`` where it is that folder."""
    return data_dir / name if (data_dir / name).is_dir() else data_dir


def _require(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder that lacks one of the named files or folders."""
    _refuse_missing(folder, [name for name in names if not (folder / name).exists()])


def _refuse_missing(folder: Path, missing: list[str]) -> None:
    """Say what a folder lacks, if anything."""
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
        state = "no such file" if folder.is_dir() else "no such folder"
        raise MissingDataError(f"{folder.resolve()} must hold {shown}, got {state}.")


def _broken(path: Path, condition: str, found: object) -> MissingDataError:
    """Return the error for a file or folder that is there but not as it must be."""
    return MissingDataError(f"{path.resolve()} must {condition}, got {found}.")
