"""Encoders to be diagnosed: embeddings of two views of each test image."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from weince_lightning.checkpoints import Checkpoint
from weince_lightning.checks import check_integer
from weince_lightning.diagnostics.embeddings import Embeddings
from weince_lightning.evaluation.checkpoint import Device, choose_device
from weince_lightning.evaluation.encoders import find_encoder, resolve_encoder
from weince_lightning.evaluation.progress import progress_bar
from weince_lightning.functional.layouts import Layout
from weince_lightning.module import ContrastiveModule

MAX_IMAGES = 10_000
"""Images that the command embeds."""


class Encoder(NamedTuple):
    """Something that maps images to embeddings."""

    module: nn.Module
    what: str
    """"projections" or "features"."""
    temperature: float | None
    """That of the loss it was trained with, if that is known."""
    layout: Layout | None
    """Likewise."""


def read_checkpoint_encoder(
    source: str | Path | Checkpoint,
    backbone: str | nn.Module | None = None,
    v1_stride: bool | None = None,
    **options: Any,
) -> Encoder:
    """Build the encoder of a checkpoint, with its projection head where it has one, or of a name.

    Args:
        source: See :func:`~weince_lightning.evaluation.encoders.find_encoder`.
        backbone: The backbone where the file does not tell it.
        v1_stride: Where the stride of a ResNet-50 is, if the file does not tell.
        **options: For names; see :func:`~weince_lightning.evaluation.encoders.resolve_encoder`.

    Raises:
        FileNotFoundError: If there is neither such a file nor such a name.
        CheckpointError: If the file cannot be read, or its weights are not those of the backbone.
        ValueError: If it does not tell what is needed to build the encoder, there is no such model,
            or its weights cannot be fetched.
    """
    found = find_encoder(source)
    resolved = resolve_encoder(found, backbone, v1_stride, **options)
    head = None if resolved.weights is None else _rebuild_head(resolved.weights.projection_head)
    temperature, layout = None, None
    if isinstance(found, Checkpoint) and resolved.is_ours:
        temperature, layout = _settings_of_loss(found, resolved.backbone)
    if head is None:
        return Encoder(resolved.module, "features", temperature, layout)
    return Encoder(nn.Sequential(resolved.module, head).eval(), "projections", temperature, layout)


def _rebuild_head(weights: dict[str, Tensor]) -> nn.Module | None:
    """Build a head of linear layers, batch norms and ReLUs again from the names of its weights.

    lightly's ``ProjectionHead`` numbers its layers; what has no weights is a ReLU.
    """
    layers: dict[int, dict[str, Tensor]] = {}
    for name, tensor in weights.items():
        prefix, _, rest = name.partition(".")
        digits, _, kind = rest.partition(".")
        if prefix != "layers" or not digits.isdigit():
            return None
        layers.setdefault(int(digits), {})[kind] = tensor
    if not layers:
        return None
    modules: list[nn.Module] = []
    for number in range(max(layers) + 1):
        found = layers.get(number)
        module: nn.Module
        if found is None:
            module = nn.ReLU()
        elif "running_mean" in found:
            module = nn.BatchNorm1d(len(found["running_mean"]), affine="weight" in found)
        elif "weight" in found and found["weight"].ndim == 2:
            outputs, inputs = found["weight"].shape
            module = nn.Linear(inputs, outputs, bias="bias" in found)
        else:
            return None
        if found is not None:
            module.load_state_dict(found)
        modules.append(module)
    return nn.Sequential(*modules)


def _settings_of_loss(
    checkpoint: Checkpoint, backbone: str | nn.Module | None
) -> tuple[float | None, Layout | None]:
    """Return temperature and layout of the loss in a checkpoint of a module, if it has such."""
    given: dict[str, Any] = {"backbone": backbone} if isinstance(backbone, nn.Module) else {}
    try:
        loss = ContrastiveModule.load_from_checkpoint(checkpoint, **given).loss
    except Exception:
        # Whatever a foreign loss raises: the embeddings do not need it.
        return None, None
    temperature = getattr(loss, "temperature", None)
    layout = getattr(loss, "layout", None)
    return None if temperature is None else float(temperature), layout


def embed(
    encoder: Encoder,
    data: LightningDataModule,
    device: Device,
    layout: Layout | None,
    seed: int,
    max_images: int = MAX_IMAGES,
) -> Embeddings:
    """Embed two views of each test image.

    Args:
        encoder: What embeds.
        data: Whose ``test_dataloader`` gives ``(views, labels)`` with two views.
        device: "auto", "cpu" or "cuda".
        layout: Who is compared with whom; None for that of the encoder's loss, else "views".
        seed: Of the random part of the images, where there are many.
        max_images: Images that are embedded; of more, a random part is.

    Returns:
        The embeddings, on the CPU.

    Raises:
        ValueError: If the loader gives something else, there is no such device, or a number is out
            of its range.
        TypeError: If ``data`` has no ``test_dataloader``.
    """
    place = choose_device(device)
    check_integer("max_images", max_images, at_least=2)
    if not callable(getattr(data, "test_dataloader", None)) or isinstance(data, type):
        raise TypeError(
            f"data must be a data module with a test_dataloader, got {type(data).__name__}."
        )
    data.prepare_data()
    data.setup("test")
    loader = _part(data.test_dataloader(), max_images, seed)
    module = encoder.module.to(place)
    views: list[tuple[Tensor, ...]] = []
    with torch.inference_mode(), progress_bar("embeddings", len(loader)) as bar:
        for batch in loader:
            images = batch[0]
            if not (isinstance(images, (list, tuple)) and len(images) == 2):
                raise ValueError(
                    "data must give (views, labels) with two views of each test image, got "
                    f"{type(images).__name__}."
                )
            try:
                views.append(tuple(module(view.to(place)).flatten(1).cpu() for view in images))
            except RuntimeError as error:
                raise ValueError(
                    "data must give images that the encoder takes, got "
                    f"{tuple(images[0].shape[1:])} (channels, height, width): {error} See "
                    "--data.in_channels and --data.image_size."
                ) from error
            bar.update()
    first, second = (torch.cat(parts) for parts in zip(*views, strict=True))
    return Embeddings(first, second, None, layout or encoder.layout or "views", encoder.what)


def _part(loader: Any, size: int, seed: int) -> Any:
    """Take a random part of many images."""
    if not isinstance(loader, DataLoader) or len(loader.dataset) <= size:  # type: ignore[arg-type]
        return loader
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(loader.dataset), generator=generator)[:size]  # type: ignore[arg-type]
    return DataLoader(
        Subset(loader.dataset, chosen.tolist()),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        generator=torch.Generator(),
    )
