"""Models of torchvision and timm by name, without their classifier."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from torch import nn

from weince_lightning.checks import did_you_mean, import_extra, nearest_words

HUBS = ("torchvision:", "timm:")


class HubModel(NamedTuple):
    """A model without its classifier, and the images that it was made for."""

    module: nn.Module
    image_size: int
    mean: Any
    """Of each channel, of the images that it was trained on; None without published weights."""
    std: Any
    """Likewise."""


def hub_model(name: str, pretrained: bool) -> HubModel:
    """Build a model of torchvision or timm as it was published.

    Args:
        name: ``torchvision:NAME`` or ``timm:NAME``.
        pretrained: Whether to fetch its weights; from its cache if they are there.

    Raises:
        ValueError: If there is no such model, or its weights cannot be fetched.
        ModuleNotFoundError: If timm is needed and not installed.
    """
    if name.startswith("torchvision:"):
        return _published_by_torchvision(name.removeprefix("torchvision:"), pretrained)
    return _published_by_timm(name.removeprefix("timm:"), pretrained)


def torchvision_model(name: str, **options: Any) -> nn.Module:
    """Build a classification model of torchvision without its classifier.

    Args:
        name: Its name, such as "resnet50".
        **options: Arguments of ``torchvision.models.get_model``, such as ``weights``.

    Raises:
        ValueError: If there is no such model.
    """
    models: Any = import_module("torchvision.models")
    known = models.list_models(module=models)
    if name not in known:
        near = ", ".join(nearest_words(name, known, most=3)) or "resnet18"
        raise ValueError(
            f"torchvision:{name} must be a classification model of torchvision. Near: {near}."
        )
    model: nn.Module = models.get_model(name, **options)
    place = last_layer(model)
    # The last linear layer tells classes; what goes into it are the features. SqueezeNet's classes
    # are a convolution's.
    features = nn.Identity() if place else nn.AdaptiveAvgPool2d(1)
    model.set_submodule(place or "classifier", features)
    return model


def last_layer(model: nn.Module) -> str | None:
    """Name the last linear layer of a model; None if it has none."""
    linear = [key for key, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


def timm_model(name: str, in_channels: int, image_size: int, options: dict[str, Any]) -> nn.Module:
    """Build a model of timm, without its classifier, for images of a certain shape.

    Args:
        name: Its name, such as "resnet10t".
        in_channels: Number of color channels of the images.
        image_size: Height and width of the images in pixels.
        options: Arguments of ``timm.create_model``.

    Raises:
        ValueError: If there is no such model.
        ModuleNotFoundError: If timm is not installed.
    """
    timm = import_extra("timm", "timm", f'backbone "timm:{name}"')
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(
            f'backbone must be "timm:NAME" with a model of timm, got "timm:{name}".'
            f"{did_you_mean(name, timm.list_models())}"
        )
    encoder: nn.Module = timm.create_model(
        name, **{"num_classes": 0, "in_chans": in_channels, **options}
    )
    # timm's transformers are built for one image size; its convolutional models take any.
    set_input_size = getattr(encoder, "set_input_size", None)
    if callable(set_input_size) and "img_size" not in options:
        set_input_size(img_size=(image_size, image_size))
    return encoder


def _published_by_torchvision(name: str, pretrained: bool) -> HubModel:
    if not pretrained:
        return HubModel(torchvision_model(name), 224, None, None)
    models: Any = import_module("torchvision.models")
    with _fetching(name):
        model = torchvision_model(name, weights="DEFAULT")
    preset = models.get_model_weights(name).DEFAULT.transforms()
    return HubModel(model, preset.crop_size[0], preset.mean, preset.std)


def _published_by_timm(name: str, pretrained: bool) -> HubModel:
    timm = import_extra("timm", "timm", f"timm:{name}")
    try:
        with _fetching(name):
            model = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except RuntimeError as error:
        raise ValueError(
            f"timm:{name} must be a model of timm: {' '.join(str(error).split())}"
        ) from error
    config = timm.data.resolve_model_data_config(model)
    return HubModel(model, config["input_size"][-1], config["mean"], config["std"])


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
