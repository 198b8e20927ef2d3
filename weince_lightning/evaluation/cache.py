"""Files of an evaluation beside the checkpoint: features, results, unfinished work."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from weince_lightning.checkpoints import Checkpoint, CheckpointError, read_checkpoint
from weince_lightning.checkpoints.files import whole_file
from weince_lightning.data.selections import EvaluationImages
from weince_lightning.evaluation.encoders import is_encoder_name
from weince_lightning.evaluation.features import (
    extract_features,
    is_read_in_order,
    numbered_batches,
    refuse_views,
)
from weince_lightning.evaluation.progress import progress_bar
from weince_lightning.functional.neighbours import UNKNOWN_LABEL, NoLabelError

_VIEWED_IMAGES = 64
"""Images of this package that show how all of them are prepared for the encoder."""


def folder_of(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint's evaluation, ``last/`` for ``last.ckpt``."""
    if checkpoint.suffix:
        return checkpoint.with_suffix("")
    return checkpoint.with_name(f"{checkpoint.name}.evaluation")


def results_file(source: str | Path | Checkpoint) -> Path:
    """Return where results are written: beside a checkpoint, for a name in the working folder."""
    path = source.path if isinstance(source, Checkpoint) else Path(source)
    if is_encoder_name(str(path)):
        return Path(f"{path}.evaluation".replace(":", "-")) / "evaluation.json"
    return folder_of(path) / "evaluation.json"


def weights_digest(encoder: nn.Module) -> str:
    """Return a SHA-256 over names, types, shapes and bytes of an encoder's weights and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def check_labelled(split: str, loader: Iterable[Any]) -> None:
    """Refuse a split of which it is known, without reading its images, that no label is.

    Raises:
        NoLabelError: If every label is -1.
    """
    labels = _known_labels(getattr(loader, "dataset", None))
    if labels is not None and (labels == UNKNOWN_LABEL).all():
        raise NoLabelError(
            f"the {split} images must have labels, got {len(labels)} without. What features are "
            "worth shows on labelled data: give them, such as -c data/cifar100."
        )


def data_digest(loader: Iterable[Any]) -> str:
    """Return a SHA-256 by which data that have changed are known, in whatever image.

    Images of this package count by all their pixels, or by size and time of change of their files,
    and by how a few of them are prepared for the encoder; those of others as the loader gives them.
    """
    digest = hashlib.sha256()
    data = getattr(loader, "dataset", None)
    if type(data) is not EvaluationImages or not is_read_in_order(loader):
        for _, (images, labels, *_) in numbered_batches(loader):
            refuse_views(images)
            for image, label in zip(images, labels, strict=True):
                _add(digest, image, label)
        return digest.hexdigest()
    _add(digest, data.labels, *data.images.traces(data.positions))
    places = np.unique(np.linspace(0, len(data) - 1, _VIEWED_IMAGES).astype(int))
    for place in places.tolist():
        _add(digest, *data[place])
    return digest.hexdigest()


def _known_labels(data: Any) -> NDArray[Any] | None:
    """Return the labels of a data set that gives them without its images."""
    labels = getattr(data, "labels", getattr(data, "targets", None))
    if labels is None or len(labels) != len(data):
        return None
    return np.asarray(labels)


def _add(digest: Any, *parts: Any) -> None:
    for part in parts:
        array = np.ascontiguousarray(part)
        digest.update(f"{array.dtype} {array.shape}\n".encode())
        digest.update(array)


def cached_features(
    encoder: nn.Module, loader: Iterable[Any], file: Path | None, name: str
) -> tuple[Tensor, Tensor]:
    """Read features and labels from a file, or compute them and write it.

    Args:
        encoder: Maps images to features.
        loader: Batches ``(images, labels)``.
        file: The file, named by all that its content depends on; None: neither read nor written.
            A damaged one is written anew.
        name: What the progress bar calls the data.
    """
    kept = _read(file)
    if {"features", "labels"} <= kept.keys():
        return kept["features"], kept["labels"]
    with progress_bar(f"features of {name}", _count(loader)) as bar:

        def count(encoder: nn.Module, images: Any, features: Tensor) -> None:
            bar.update(len(features))

        try:
            with encoder.register_forward_hook(count):
                features, labels = extract_features(encoder, loader)
        except RuntimeError as error:
            raise ValueError(
                f"the encoder must be one for the {name} images, got an error: {error}"
            ) from error
    if file is not None:
        _write(file, {"features": features, "labels": labels})
    return features, labels


def _count(loader: Iterable[Any]) -> int | None:
    data: Any = getattr(loader, "dataset", None)
    return len(data) if hasattr(data, "__len__") else None


class KeptParts(dict[str, Any]):
    """What an evaluation has reached, written to a file as soon as there is something new.

    Args:
        file: The file.
        of: What the parts depend on; those of something else are passed over.
    """

    def __init__(self, file: Path, of: list[str]):
        self._file, self._of = file, of
        kept = _read(file)
        super().__init__(kept.get("parts", {}) if kept.get("of") == of else {})

    def __setitem__(self, name: str, value: Any) -> None:
        """Keep a part, and write all."""
        super().__setitem__(name, value)
        _write(self._file, {"of": self._of, "parts": dict(self)})

    def remove(self) -> None:
        """Remove the file: the evaluation is complete."""
        self._file.unlink(missing_ok=True)


def read_results(file: Path) -> dict[str, Any]:
    """Read an earlier evaluation; empty if there is none that can be read."""
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return results if isinstance(results, dict) else {}


def write_results(file: Path, results: Mapping[str, Any]) -> None:
    """Write an evaluation, all of it at once."""
    text = json.dumps(results, indent=2) + "\n"
    with whole_file(file) as target:
        target.write(text.encode())


def _read(file: Path | None) -> dict[str, Any]:
    try:
        kept = {} if file is None else read_checkpoint(file)
    except (FileNotFoundError, CheckpointError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file) as target:
        torch.save(content, target)
