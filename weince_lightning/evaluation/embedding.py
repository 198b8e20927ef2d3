"""Features of the images in a folder, with their paths."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler
from torchvision.datasets.folder import IMG_EXTENSIONS, DatasetFolder

from weince_lightning.checkpoints import Checkpoint
from weince_lightning.checks import check_integer
from weince_lightning.data.folders import image_files, warn_of_left_out
from weince_lightning.data.images import ImageFiles, MissingDataError
from weince_lightning.data.order import outlive_signals
from weince_lightning.data.selections import EvaluationImages
from weince_lightning.data.sources import SPLITS, image_folder_classes
from weince_lightning.data.views import EvaluationView, Normalization
from weince_lightning.evaluation.cache import cached_features
from weince_lightning.evaluation.checkpoint import Device, choose_device
from weince_lightning.evaluation.encoders import ImageEncoder, find_encoder, resolve_encoder
from weince_lightning.evaluation.feature_files import (
    ImageFeatures,
    check_feature_file,
    write_features,
)
from weince_lightning.evaluation.saved_run import warn_of_normalization

_log = logging.getLogger(__name__)


def embed_images(
    checkpoint: str | Path | Checkpoint,
    photos: str | Path,
    to: str | Path | None = None,
    *,
    image_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    backbone: str | nn.Module | None = None,
    v1_stride: bool | None = None,
    pretrained: bool = True,
    batch_size: int = 64,
    num_workers: int = 0,
    device: Device = "auto",
    force: bool = False,
) -> ImageFeatures:
    """Compute the features of all images in a folder.

    This is ``weince embed``. Every image counts once, those of folders below too, in the order of
    their paths. It is resized by its shorter side, and the middle is cut out, as in evaluation.

    Args:
        checkpoint: A file or a name such as "torchvision:resnet50"; see
            :func:`~weince_lightning.evaluation.encoders.find_encoder`.
        photos: A folder of images, with folders below it or without.
        to: A file to write the features to, ``.parquet``, ``.npz`` or ``.csv``; see
            :func:`~weince_lightning.evaluation.feature_files.write_features`. None writes none.
        image_size: Height and width that the images get, in pixels; None is that of the encoder.
        mean: Mean of each channel that is subtracted from images in [0, 1], for an encoder of
            normalized images; None is what the settings in the checkpoint say.
        std: Likewise, the standard deviation by which the difference is divided.
        backbone: The backbone where the file does not tell it: a name, or a module for its weights.
        v1_stride: Where the stride of a ResNet-50 is, if the file does not tell.
        pretrained: Whether ``torchvision:NAME`` and ``timm:NAME`` have their published weights.
        batch_size: Images at a time, at least 1.
        num_workers: Processes that read images beside the main one.
        device: Where the encoder runs; "auto" takes a GPU if there is one.
        force: Whether to replace the file ``to`` if it exists.

    Returns:
        Features, shape ``(images, features)``; paths relative to ``photos``; and the number of the
        class folder of each image as ``image_folder`` of :class:`~weince_lightning.data.VisionData`
        counts them, if there are at least two.

    Raises:
        FileNotFoundError: If there is no such encoder or folder, or an image is damaged.
        FileExistsError: If ``to`` exists and ``force`` is not set.
        CheckpointError: If the checkpoint cannot be read, or does not hold the backbone.
        ValueError: If an argument is out of its range or must be given, or the encoder does not
            take the images.
        ModuleNotFoundError: If ``to`` is a Parquet file and pyarrow is not installed.

    Example:
        ``embed_images("last.ckpt", "photos", "features.npz").features.shape``
    """
    target = None if to is None else check_feature_file(to, force)
    place = choose_device(device)
    check_integer("batch_size", batch_size, at_least=1)
    check_integer("num_workers", num_workers, at_least=0)
    if image_size is not None:
        check_integer("image_size", image_size, at_least=1)
    folder = Path(photos).expanduser()
    paths = _paths_in(folder)
    source = find_encoder(checkpoint)
    sizes = {} if image_size is None else {"image_size": image_size}
    encoder = resolve_encoder(source, backbone, v1_stride, pretrained=pretrained, **sizes)
    view = _view(encoder, image_size, str(checkpoint), mean, std)
    warn_of_normalization(source, view)
    module = encoder.module.to(place)
    labels = _labels(folder, paths)
    images = ImageFiles([str(folder / path) for path in paths], labels or [-1] * len(paths))
    loader = DataLoader(
        EvaluationImages(images, np.arange(len(paths)), view),
        batch_size=batch_size,
        num_workers=num_workers,
        pin_memory=place.type == "cuda",
        worker_init_fn=outlive_signals,
    )
    features, found_labels = cached_features(module, loader, None, folder.name or str(folder))
    broken = [path for path, row in zip(paths, features, strict=True) if not row.isfinite().all()]
    if broken:
        _log.warning("the features of %s images are not finite, as %s.", len(broken), broken[0])
    found = ImageFeatures(features, paths, found_labels if labels else None)
    if target is not None:
        write_features(found, target)
    return found


def paths_of(loader: object, folder: Path | None = None) -> list[str] | None:
    """Return the files of a loader's images in the order of its batches.

    Args:
        loader: A loader of images of this package, or of torchvision's ``ImageFolder``.
        folder: Paths of files below it are relative to it.

    Returns:
        Paths with forward slashes; None if the images are in memory, or the loader does not read
        them in order.
    """
    if not (isinstance(loader, DataLoader) and isinstance(loader.sampler, SequentialSampler)):
        return None
    data: Any = loader.dataset
    files = data.paths if isinstance(data, EvaluationImages) else None
    if isinstance(data, DatasetFolder):
        files = [path for path, _ in data.samples]
    if files is None:
        return None
    paths = [Path(path) for path in files]
    return [
        (path.relative_to(folder) if folder and path.is_relative_to(folder) else path).as_posix()
        for path in paths
    ]


def _paths_in(folder: Path) -> list[str]:
    """List all images in a folder and below it."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise FileNotFoundError(f"photos must be a folder of images, got {folder}, {what}.")
    left_out: Counter[str] = Counter()
    found = image_files(folder, left_out)
    paths = sorted(Path(path).relative_to(folder).as_posix() for path in found)
    warn_of_left_out(folder, left_out)
    if not paths:
        raise FileNotFoundError(
            f"photos must hold images ({', '.join(IMG_EXTENSIONS)}), got none in {folder}."
        )
    return paths


def _labels(folder: Path, paths: Sequence[str]) -> list[int] | None:
    """Return the class of each image, -1 beside the class folders; None without two classes."""
    try:
        classes = {name: label for label, name in enumerate(image_folder_classes(folder))}
    except MissingDataError:  # folders that are no classes, such as a test set alone
        return None
    if len(classes) < 2:
        return None
    has_splits = (folder / "train").is_dir()
    parts = [path.split("/")[:-1] for path in paths]
    if has_splits:
        parts = [each[1:] if each and each[0] in ("train", *SPLITS) else [] for each in parts]
    return [classes.get(each[0], -1) if each else -1 for each in parts]


def _view(
    encoder: ImageEncoder,
    image_size: int | None,
    name: str,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> EvaluationView:
    """Return what brings images to the shape and the range that the encoder takes."""
    size = image_size or encoder.image_size
    if size is None:
        raise ValueError(
            f"image_size must be given for {name}, which does not tell it: the size of the images "
            "that it was trained on, in pixels."
        )
    channels = encoder.in_channels or 3
    if channels not in (1, 3):
        raise ValueError(f"checkpoint must take images of 1 or 3 channels, got {channels}.")
    normalization = Normalization.checked(mean, std, channels)
    if normalization is not None and encoder.is_published:
        raise ValueError("mean and std must not be given for a published model, which has its own.")
    if normalization is None and encoder.weights is not None and encoder.weights.normalization:
        normalization = Normalization(**encoder.weights.normalization)
    return EvaluationView(size, "L" if channels == 1 else "RGB", normalization)
