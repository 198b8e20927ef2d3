"""Evaluation of one checkpoint: what is known of it already, and the rest."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn

from weince_lightning.checkpoints import Checkpoint
from weince_lightning.checks import check_choice
from weince_lightning.data import VisionData
from weince_lightning.evaluation.cache import (
    KeptParts,
    cached_features,
    check_labelled,
    data_digest,
    read_results,
    results_file,
    weights_digest,
    write_results,
)
from weince_lightning.evaluation.encoders import (
    find_encoder,
    images_of,
    resolve_encoder,
)
from weince_lightning.evaluation.given_loaders import GivenLoaders
from weince_lightning.evaluation.loss_profile import loss_profile
from weince_lightning.evaluation.protocol import evaluate
from weince_lightning.evaluation.saved_run import build_saved_data, warn_of_normalization
from weince_lightning.evaluation.settings import KNNSettings, LinearSettings
from weince_lightning.losses.descriptions import describe, import_path
from weince_lightning.module import ContrastiveModule

Device = Literal["auto", "cpu", "cuda"]

_NEUTRAL = ("batch_size", "num_workers", "data_dir", "download", "transforms", "val_fraction")
"""Arguments of a data module that do not change its evaluation images."""

_PARTS = ("linear", "knn")
_LINEAR, _KNN = LinearSettings(), KNNSettings()
_log = logging.getLogger(__name__)


def choose_device(device: Device) -> torch.device:
    """Return where an encoder runs; "auto" is a GPU if there is one.

    Raises:
        ValueError: If it is another word, or there is no GPU.
    """
    check_choice("device", device, get_args(Device))
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device must be one that torch finds, got cuda.")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def evaluate_checkpoint(
    checkpoint: str | Path | Checkpoint,
    data: LightningDataModule | Mapping[str, Iterable[Any]] | None = None,
    linear: LinearSettings | None = _LINEAR,
    knn: KNNSettings | None = _KNN,
    *,
    backbone: str | nn.Module | None = None,
    v1_stride: bool | None = None,
    pretrained: bool = True,
    device: Device = "auto",
    cache: bool = True,
    data_settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate the frozen features of a checkpoint by the protocol of the paper.

    This is ``weince evaluate``. The results are written beside the checkpoint, those of ``a.ckpt``
    to ``a/evaluation.json``, and those of a name into the working folder. What is there already is
    not computed again, and an evaluation that was interrupted goes on where it was. Features count
    as those of the encoder, without projection head, and whatever a subclass does in ``forward`` or
    ``encode``. Training and validation images together train the probe and are the bank of the
    neighbours.

    Args:
        checkpoint: A checkpoint of a :class:`~weince_lightning.ContrastiveModule`, of the paper's
            released code or of lightly's SimCLR, the weights of a torchvision or timm model, or a
            name such as "torchvision:resnet50"; see
            :func:`~weince_lightning.evaluation.encoders.find_encoder`.
        data: A data module with a method ``evaluation_dataloader(split)`` that gives ``(images,
            labels)`` of the split "train", "val" or "test" in a fixed order, or such loaders by
            split: fresh ones, without shuffling and augmentation, not those of a training ("val"
            may be missing). None builds the data module that the checkpoint's settings describe.
        linear: Settings of the linear probe; None leaves it out.
        knn: Settings of the k-NN classifier; None leaves it out.
        backbone: The backbone where the file does not tell it: a name, or a module for its weights.
        v1_stride: Where the stride of a ResNet-50 is, if the file does not tell; see
            :func:`~weince_lightning.checkpoints.load_encoder`.
        pretrained: Whether ``torchvision:NAME`` and ``timm:NAME`` have their published weights.
        device: Where the encoder runs; "auto" takes a GPU if there is one.
        cache: Whether to keep the features beside the checkpoint for another evaluation.
        data_settings: Class path and arguments of ``data``, as the results name them; None takes
            them from its ``hparams``.

    Returns:
        The content of ``evaluation.json``: under "linear" and "knn" what
        :func:`~weince_lightning.evaluation.evaluate` returns, under "loss" the sharpness of the
        checkpoint's loss where it has one, and the settings.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it cannot be read, or does not hold the backbone.
        ValueError: If both parts are left out, the data must be given, images are not labelled,
            a loader shuffles or is missing, or there is no such device.
        TypeError: If a part is not of its class, or the data module has no
            ``evaluation_dataloader``.

    Example:
        ``evaluate_checkpoint("last.ckpt", knn=None)["linear"]["test_top1"]["mean"]``
    """
    _check_parts(linear, knn)
    place = choose_device(device)
    if isinstance(data, Mapping):
        data = GivenLoaders(data)
    elif data is not None:
        _check_data(data)
    source = find_encoder(checkpoint)
    if data is None:
        if isinstance(source, str):
            raise ValueError(f"data must be given: {source} is a name, without settings of data.")
        data, found_settings = build_saved_data(source)
        data_settings = data_settings or found_settings
    elif data_settings is None:
        data_settings = {"class_path": import_path(data), "init_args": describe({**data.hparams})}
    if isinstance(data, VisionData):
        # All training images in the data set's own order, on which the seeds' splits depend.
        data = copy(data)
        data.val_fraction = 0
    resolved = resolve_encoder(
        source, backbone, v1_stride, pretrained=pretrained, **images_of(data)
    )
    encoder = resolved.module.to(place)
    name = source if isinstance(source, str) else source.path.name
    warn_of_normalization(source, data)
    loaders = _loaders(data)
    for split, loader in loaders.items():
        check_labelled(split, loader)
    digest = weights_digest(encoder)
    names = {
        split: _feature_name(data_settings, digest, encoder, place, loader)
        for split, loader in loaders.items()
    }
    asked = {
        part: {**asdict(settings), "seeds": [*settings.seeds]}
        for part, settings in (("linear", linear), ("knn", knn))
        if settings is not None
    }
    file = results_file(source)
    previous = read_results(file)
    known_settings = _settings_of_parts(previous, names)
    settings = {**known_settings, **asked}
    known = {part: previous[part] for part, was in known_settings.items() if was == settings[part]}
    if known.keys() >= asked.keys() and previous["checkpoint"] == name:
        _log.info("%s has these numbers already; remove it to compute them anew.", file)
        return previous
    kept = KeptParts(file.with_name("unfinished.pt"), [*names.values()])
    found = evaluate(
        *_features(encoder, loaders, names, file.parent if cache else None, place),
        linear=None if "linear" in known else linear,
        knn=None if "knn" in known else knn,
        kept=kept,
    )
    profile = {}
    if isinstance(source, Checkpoint) and resolved.is_ours:
        profile = _loss_profile(source, resolved.backbone, data, place)
    results = {
        "checkpoint": name,
        "weights": digest,
        **known,
        **found,
        **profile,
        "settings": {**settings, "data": data_settings, "device": place.type},
        "features": names,
    }
    _keep_what_is_replaced(file, previous, results)
    write_results(file, results)
    kept.remove()
    return results


def _settings_of_parts(results: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the parts that an earlier evaluation of the same features has."""
    if results.get("features") != names:
        return {}
    settings = results.get("settings", {})
    return {name: settings[name] for name in _PARTS if name in results and name in settings}


def _keep_what_is_replaced(
    file: Path, earlier: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """Put an earlier evaluation aside if numbers of it are not in the new one."""
    if all(earlier.get(part) == results.get(part) for part in _PARTS if part in earlier):
        return
    aside = file.with_name("evaluation.previous.json")
    write_results(aside, earlier)
    _log.warning(
        "%s had numbers of another checkpoint, of other data or settings; they are in %s now.",
        file,
        aside,
    )


def _loss_profile(
    checkpoint: Checkpoint,
    backbone: str | nn.Module | None,
    data: LightningDataModule,
    device: torch.device,
) -> dict[str, Any]:
    """Describe, under "loss", the loss of a module of ours on fixed views of the test images."""
    given: dict[str, Any] = {"backbone": backbone} if isinstance(backbone, nn.Module) else {}
    try:
        module = ContrastiveModule.load_from_checkpoint(checkpoint, map_location=device, **given)
        profile = loss_profile(
            module.loss,
            lambda images: module.encode(images.to(device))[1],
            data.test_dataloader(),
        )
        return {"loss": profile}
    except Exception as error:
        # Whatever a foreign loss, module or data module raises: the accuracies do not need it.
        why = " ".join(str(error).split())
        _log.warning("the sharpness of the loss of %s is left out: %s", checkpoint.source, why)
        return {}


def _loaders(data: LightningDataModule) -> dict[str, Iterable[Any]]:
    """Return the loaders of the training images, in one or two parts, and of the test images."""
    give = _check_data(data)
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    loaders = {"train": give("train")}
    with suppress(ValueError):  # there is no such split
        loaders["val"] = give("val")
    loaders["test"] = give("test")
    return loaders


def _check_parts(linear: Any, knn: Any) -> None:
    if linear is None and knn is None:
        raise ValueError("linear and knn must not both be None: nothing would be left.")
    for name, given, kind in (("linear", linear, LinearSettings), ("knn", knn, KNNSettings)):
        if not isinstance(given, kind | None):
            raise TypeError(f"{name} must be {kind.__name__}(...) or None, got {given!r}.")


def _check_data(data: Any) -> Any:
    """Return the method that gives the loaders."""
    give = getattr(data, "evaluation_dataloader", None)
    if isinstance(data, type) or not callable(give):
        raise TypeError(
            "data must have a method evaluation_dataloader(split) that gives (images, labels) of "
            f'the split "train", "val" or "test" in a fixed order, got {_kind(data)}. In Python, '
            '{"train": loader, "test": loader} does as well.'
        )
    return give


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _feature_name(
    data_settings: Mapping[str, Any],
    weights: str,
    encoder: nn.Module,
    device: torch.device,
    loader: Iterable[Any],
) -> str:
    """Name features by all that decides about them: other weights or data get another name."""
    settings = {**data_settings, "init_args": {**(data_settings.get("init_args") or {})}}
    for name in _NEUTRAL:
        settings["init_args"].pop(name, None)
    # The text of a network shows its layers, with what leaves no trace in the weights.
    parts = [weights, str(encoder), device.type, settings, data_digest(loader)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _features(
    encoder: nn.Module,
    loaders: Mapping[str, Iterable[Any]],
    names: Mapping[str, str],
    folder: Path | None,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features and labels of the training images and of the test images, on the device."""
    found = {}
    for split, loader in loaders.items():
        file = folder and folder / f"features-{names[split]}.pt"
        found[split] = cached_features(encoder, loader, file, split)
    test_features, test_labels = found.pop("test")
    train_features, train_labels = (torch.cat(parts) for parts in zip(*found.values(), strict=True))
    return train_features.to(device), train_labels, test_features.to(device), test_labels
