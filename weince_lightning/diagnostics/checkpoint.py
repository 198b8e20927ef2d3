"""Diagnosis of an encoder, from a checkpoint or built in Python."""

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule
from torch import nn

from weince_lightning.checkpoints import Checkpoint
from weince_lightning.diagnostics.diagnosis import Bar, Diagnosis, diagnose
from weince_lightning.diagnostics.encoders import (
    MAX_IMAGES,
    Encoder,
    embed,
    read_checkpoint_encoder,
)
from weince_lightning.diagnostics.untrained import UNTRAINED, as_untrained
from weince_lightning.evaluation.checkpoint import Device
from weince_lightning.evaluation.encoders import find_encoder, images_of
from weince_lightning.evaluation.saved_run import build_saved_data, warn_of_normalization
from weince_lightning.functional.layouts import Layout


def diagnose_checkpoint(
    checkpoint: str | Path | Checkpoint,
    data: LightningDataModule | None = None,
    *,
    temperature: float | None = None,
    layout: Layout | None = None,
    quantile: float = 0.99,
    seed: int = 0,
    backbone: str | nn.Module | None = None,
    v1_stride: bool | None = None,
    pretrained: bool = True,
    device: Device = "auto",
    max_images: int = MAX_IMAGES,
    progress: Bar | None = None,
    against: str | Path | Checkpoint | None = None,
) -> Diagnosis:
    """Find out whether the tail of an encoder's hard negatives is Weibull.

    This is what ``weince diagnose CHECKPOINT`` computes.
    :func:`~weince_lightning.diagnostics.pronounce` gives the verdict,
    :func:`~weince_lightning.diagnostics.write_report` writes the page.

    Args:
        checkpoint: A file, or a name such as "torchvision:resnet50"; see
            :func:`~weince_lightning.evaluation.encoders.find_encoder`.
        data: A data module whose ``test_dataloader`` gives ``(views, labels)`` with two views of
            each test image; None builds the one that the checkpoint's settings describe.
        temperature: Softmax temperature, above 0; None for that of the checkpoint's loss, else 0.5.
        layout: Which embeddings are compared; None for that of the checkpoint's loss, else "views".
        quantile: Share of the similarities below the threshold, in [0.98, 0.9999].
        seed: Seed of all that is drawn.
        backbone: The backbone where the file does not tell it: a name, or a module for its weights.
        v1_stride: Where the stride of a ResNet-50 is, if the file does not tell.
        pretrained: Whether ``torchvision:NAME`` and ``timm:NAME`` have their published weights.
        device: Where the encoder runs; "auto" takes a GPU if there is one.
        max_images: Images that are embedded; of more, a random part is.
        progress: Makes a progress bar from a description and a number of steps, as tqdm does.
        against: A second checkpoint whose encoder embeds the same images; "untrained" for the same
            encoder with new random weights.

    Returns:
        The numbers.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it cannot be read, or does not hold the backbone.
        ValueError: If the data must be given or do not fit, or a number is out of its range.

    Example:
        ``pronounce(diagnose_checkpoint("last.ckpt")).headline``
    """
    source = find_encoder(checkpoint)
    if data is None:
        if isinstance(source, str):
            raise ValueError(f"data must be given: {source} is a name, without settings of data.")
        data, _ = build_saved_data(source)
    shape: dict[str, Any] = {"pretrained": pretrained, **images_of(data)}
    encoder = read_checkpoint_encoder(source, backbone, v1_stride, **shape)
    warn_of_normalization(source, data)
    second = None
    if against == UNTRAINED:
        second = as_untrained(encoder, seed)
    elif against is not None:
        second = read_checkpoint_encoder(against, **shape)
    return diagnose_encoder(
        encoder,
        data,
        temperature=temperature,
        layout=layout,
        quantile=quantile,
        seed=seed,
        device=device,
        max_images=max_images,
        progress=progress,
        against=second,
    )


def diagnose_encoder(
    encoder: Encoder,
    data: LightningDataModule,
    *,
    temperature: float | None = None,
    layout: Layout | None = None,
    quantile: float = 0.99,
    seed: int = 0,
    device: Device = "auto",
    max_images: int = MAX_IMAGES,
    progress: Bar | None = None,
    against: Encoder | None = None,
) -> Diagnosis:
    """Diagnose an encoder; see :func:`diagnose_checkpoint`.

    Args:
        encoder: An encoder, such as ``read_checkpoint_encoder("timm:resnet10t")`` of
            :mod:`weince_lightning.diagnostics.encoders`.
        data: A data module whose ``test_dataloader`` gives ``(views, labels)``.
        temperature: Softmax temperature; None for that of the encoder's loss, else 0.5.
        layout: Which embeddings are compared; None for that of the encoder's loss, else "views".
        quantile: Share of the similarities below the threshold, in [0.98, 0.9999].
        seed: Seed of all that is drawn.
        device: Where the encoder runs.
        max_images: Images that are embedded; of more, a random part is.
        progress: Makes a progress bar from a description and a number of steps.
        against: A second encoder of the same images, such as the first one untrained.

    Returns:
        The numbers.

    Raises:
        ValueError: If the data do not fit, or a number is out of its range.
    """
    embeddings = embed(encoder, data, device, layout, seed, max_images)
    second = None if against is None else embed(against, data, device, layout, seed, max_images)
    temperature = encoder.temperature if temperature is None else temperature
    return diagnose(
        embeddings, 0.5 if temperature is None else temperature, quantile, seed, progress, second
    )
