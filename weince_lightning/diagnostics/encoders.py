"""Encoders to be diagnosed: embeddings of two views of each test image."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset
from torchvision.transforms import v2

from weince_lightning.checkpoints import Checkpoint, open_checkpoint, read_encoder
from weince_lightning.checkpoints.encoders import build_known
from weince_lightning.checks import check_integer, nearest_words
from weince_lightning.diagnostics.embeddings import Embeddings
from weince_lightning.evaluation.checkpoint import Device, choose_device
from weince_lightning.evaluation.progress import progress_bar
from weince_lightning.evaluation.saved_run import build_saved_backbone
from weince_lightning.functional.layouts import Layout
from weince_lightning.module import ContrastiveModule

MAX_IMAGES = 10_000
"""Images that the command embeds."""
HUBS = ("torchvision:", "timm:")


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
) -> Encoder:
    """Read the encoder of a checkpoint, with its projection head where the file has one.

    Args:
        source: See :func:`~weince_lightning.checkpoints.read_encoder`.
        backbone: The backbone where the file does not tell it.
        v1_stride: Where the stride of a ResNet-50 is, if the file does not tell.

    Raises:
        CheckpointError: If the file cannot be read, or its weights are not those of the backbone.
        ValueError: If it does not tell what is needed to build the encoder.
    """
    checkpoint = open_checkpoint(source)
    if backbone is None:
        backbone = build_saved_backbone(checkpoint)
    weights = read_encoder(checkpoint, backbone=backbone, v1_stride=v1_stride)
    encoder = build_known(weights)
    head = _rebuild_head(weights.projection_head)
    temperature, layout = None, None
    if weights.layout == "weince_lightning":
        temperature, layout = _settings_of_loss(checkpoint, backbone)
    if head is None:
        return Encoder(encoder, "features", temperature, layout)
    return Encoder(nn.Sequential(encoder, head).eval(), "projections", temperature, layout)


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


def build_hub_encoder(name: str, pretrained: bool) -> Encoder:
    """Build a model of torchvision's or timm's, which takes the images it was made for.

    Args:
        name: ``torchvision:NAME`` or ``timm:NAME``.
        pretrained: Whether to fetch its weights.

    Raises:
        ValueError: If there is no such model, or its weights cannot be fetched.
        ModuleNotFoundError: If timm is needed and not installed.
    """
    build = _torchvision if name.startswith("torchvision:") else _timm
    module, size, mean, std = build(name.partition(":")[2], pretrained)
    # Images in [0, 1] of any size, gray or in color, become what a pretrained model takes.
    prepare = v2.Compose(
        [
            v2.Resize((size, size), v2.InterpolationMode.BICUBIC),
            v2.Lambda(lambda images: images.expand(-1, 3, -1, -1)),
            v2.Normalize(mean or [0.0, 0.0, 0.0], std or [1.0, 1.0, 1.0]),
        ]
    )
    return Encoder(nn.Sequential(prepare, module).eval(), "features", None, None)


def _torchvision(name: str, pretrained: bool) -> tuple[nn.Module, int, Any, Any]:
    models = import_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        near = ", ".join(nearest_words(name, known, most=3)) or "resnet18"
        raise ValueError(
            f"name must be a classification model of torchvision, got {name!r}. Near: {near}."
        )
    weights = models.get_model_weights(name).DEFAULT if pretrained else None
    with _fetching(name):
        model = models.get_model(name, weights=weights)
    # The last linear layer tells classes; what goes into it are the features.
    linear = [key for key, module in model.named_modules() if isinstance(module, nn.Linear)]
    if linear:
        parent, _, own = linear[-1].rpartition(".")
        setattr(model.get_submodule(parent), own, nn.Identity())
    else:  # SqueezeNet's classes are a convolution's
        model.classifier = nn.AdaptiveAvgPool2d(1)
    preset = weights.transforms() if weights is not None else None
    size = preset.crop_size[0] if preset is not None else 224
    return model, size, preset and preset.mean, preset and preset.std


def _timm(name: str, pretrained: bool) -> tuple[nn.Module, int, Any, Any]:
    try:
        timm = import_module("timm")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("timm: needs timm: pip install weince-lightning[timm]") from error
    try:
        with _fetching(name):
            model = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except RuntimeError as error:
        raise ValueError(f"name must be a model of timm: {' '.join(str(error).split())}") from error
    config = timm.data.resolve_model_data_config(model)
    return model, config["input_size"][-1], config["mean"], config["std"]


@contextmanager
def _fetching(name: str) -> Iterator[None]:
    """Say what helps where weights cannot be fetched."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"the weights of {name} cannot be fetched ({' '.join(str(error).split())}). Fetch them "
            "where there is a network and copy the cache, or set pretrained to false."
        ) from error


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
