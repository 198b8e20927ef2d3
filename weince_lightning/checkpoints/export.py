"""Export of the encoder in a checkpoint, for use without this package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torchvision.models import ResNet, VisionTransformer, get_model
from torchvision.models.resnet import Bottleneck

from weince_lightning.checkpoints.encoders import EncoderWeights, build, read_encoder
from weince_lightning.checkpoints.files import CheckpointError, write_tensors
from weince_lightning.checkpoints.record import Checkpoint
from weince_lightning.networks.hubs import last_layer

_OF_IMAGES = ("backbone", "in_channels", "image_size")
SUFFIXES = (".pt", ".pth", ".safetensors")


def export_encoder(
    checkpoint: str | Path | Checkpoint,
    to: str | Path,
    backbone: str | None = None,
    force: bool = False,
) -> EncoderWeights:
    """Write the encoder of a checkpoint, without projection head and loss.

    This is ``weince export``. Weights have the names that torchvision or timm give them;
    :func:`loading_code` says how to load them, and how images are normalized for them, which the
    metadata of a ``.safetensors`` file say too (``mean`` and ``std``, as JSON).

    Args:
        checkpoint: See :func:`~weince_lightning.checkpoints.read_encoder`.
        to: The file to write: ``.pt`` or ``.pth`` for :func:`torch.load`, ``.safetensors``.
        backbone: The name of the backbone where the file does not tell it.
        force: Whether to replace the file if it exists.

    Returns:
        The weights, and what is known of the encoder.

    Raises:
        FileNotFoundError: If the checkpoint, or the folder to write to, does not exist.
        FileExistsError: If the file exists, and ``force`` is not set or it is the checkpoint.
        CheckpointError: If the checkpoint cannot be read, or does not hold the given backbone.
        ValueError: If the name of the file has another ending, or there is no such backbone.

    Example:
        >>> import tempfile, torch
        >>> from weince_lightning.networks import resnet18
        >>> folder = tempfile.TemporaryDirectory()
        >>> torch.save(resnet18().state_dict(), f"{folder.name}/all.pt")
        >>> weights = export_encoder(f"{folder.name}/all.pt", f"{folder.name}/backbone.pt")
        >>> weights.arguments["backbone"], len(torch.load(f"{folder.name}/backbone.pt"))
        ('resnet18', 120)
    """
    target = Path(to)
    source = checkpoint.path if isinstance(checkpoint, Checkpoint) else Path(checkpoint)
    if target.suffix not in SUFFIXES:
        raise ValueError(f"to must end in {', '.join(SUFFIXES)}, got {str(target)!r}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"to must lie in a folder that exists, got {target}.")
    if target.exists() and (not force or (source.exists() and target.samefile(source))):
        hint = "Give another name." if force else "Give another name, or set force to replace it."
        raise FileExistsError(f"to must not exist yet, got {target}. {hint}")
    weights = read_encoder(checkpoint, backbone=backbone)
    if backbone is not None:
        build(weights)  # which proves that the weights are its own
    write_tensors(weights.encoder, target, weights.normalization)
    return weights


def loading_code(weights: EncoderWeights, to: str | Path) -> tuple[str, list[str]]:
    """Say whose names the weights have, and with which lines they are loaded.

    Args:
        weights: What :func:`export_encoder` returned.
        to: The file that it wrote.

    Returns:
        A sentence or two, and lines of Python that end with the loaded ``model``.
    """
    path = Path(to).as_posix()
    imports, load = [], f'torch.load("{path}", weights_only=True)'
    if Path(to).suffix == ".safetensors":
        imports, load = ["from safetensors.torch import load_file"], f'load_file("{path}")'
    about, lines = _model(weights, _build(weights))
    load_lines = [*imports, *lines, f"model.load_state_dict({load})"]
    if normalization := weights.normalization:
        mean, std = normalization["mean"], normalization["std"]
        about += " It learnt from normalized images, as the first layer makes them of [0, 1]."
        load_lines = [
            "from torchvision.transforms import Normalize",
            *load_lines,
            f"model = torch.nn.Sequential(Normalize({mean}, {std}), model)",
        ]
    return about, ["import torch", *load_lines]


def _build(weights: EncoderWeights) -> nn.Module | None:
    """Build the encoder; None if it is not known."""
    if "backbone" not in weights.arguments:
        return None
    try:
        return build(weights)
    except CheckpointError:
        # A subclass may have set another backbone than its settings name.
        return None


def _model(weights: EncoderWeights, encoder: nn.Module | None) -> tuple[str, list[str]]:
    """Say whose names the weights have, and with which lines the model for them is built."""
    if encoder is None:
        return (
            "The weights keep their own names: the file names no encoder that weince builds. They "
            "load into the module\nthat was trained:",
            ["model = ...  # your encoder"],
        )
    backbone = str(weights.arguments["backbone"])
    if backbone.startswith("timm:"):
        return "The names are timm's, and the weights load into its model:", _timm(weights, encoder)
    if backbone.startswith("torchvision:"):
        name = backbone.removeprefix("torchvision:")
        return (
            "The names are torchvision's, and the weights load into its model without the last "
            "layer:",
            ["import torchvision", *_torchvision_by_name(name, weights.arguments)],
        )
    own = _own_parts(weights, encoder)
    if not own:
        return (
            "Names and shapes are torchvision's, and the weights load into its model without the "
            "classifier:",
            _torchvision(backbone, encoder),
        )
    about = f"The weights load into weince_lightning's {backbone}: {' and '.join(own)}."
    if not isinstance(encoder, nn.Sequential):
        about = f"The names are torchvision's. {about}"
    call = ", ".join(
        f"{name}={value!r}" for name, value in weights.arguments.items() if name != "backbone"
    )
    if weights.unknown == "v1_stride":
        about += (
            "\nWhere the stride stands cannot be seen in them: v1_stride=True on the 1x1 "
            "convolutions, as the paper says;\nFalse on the 3x3 ones, as in torchvision, whose "
            "model the paper's released code takes."
        )
        call += ", v1_stride=True"
    return about, [
        "from weince_lightning.networks import build_encoder",
        f'model = build_encoder("{backbone}", {call})',
    ]


def _own_parts(weights: EncoderWeights, encoder: nn.Module) -> list[str]:
    """Name what keeps an encoder's weights from torchvision's model of that name."""
    if isinstance(encoder, ResNet):
        stem, last = encoder.conv1, encoder.layer4[0]
        parts = {
            "its stem is that for small images": stem.kernel_size != (7, 7),
            f"it takes {stem.in_channels} channels": stem.in_channels != 3,
            "it has fewer channels": stem.out_channels != 64,
            "its stride stands on the 1x1 convolutions": last.conv1.stride != (1, 1)
            and isinstance(last, Bottleneck)
            and weights.unknown is None,
            "its stride is not known": weights.unknown == "v1_stride",
        }
    elif isinstance(encoder, VisionTransformer):
        channels = encoder.conv_proj.in_channels
        parts = {
            f"it takes {channels} channels": channels != 3,
            "it pads the images": bool(encoder.padding),
        }
    else:
        parts = {"torchvision has no such model": True}
    return [part for part, is_so in parts.items() if is_so]


def _torchvision(backbone: str, encoder: nn.Module) -> list[str]:
    if isinstance(encoder, VisionTransformer):
        sizes = f"image_size={encoder.image_size}, patch_size={encoder.patch_size}"
        return [
            "from torchvision.models import VisionTransformer",
            f"model = VisionTransformer({sizes}, num_layers=12,",
            "    num_heads=6, hidden_dim=384, mlp_dim=1536)",
            "model.heads = torch.nn.Identity()",
        ]
    return [
        "import torchvision",
        f"model = torchvision.models.{backbone}()",
        "model.fc = torch.nn.Identity()",
    ]


def _torchvision_by_name(name: str, arguments: Mapping[str, Any]) -> list[str]:
    options = [f"{key}={value!r}" for key, value in arguments.items() if key not in _OF_IMAGES]
    place = last_layer(get_model(name))
    features = "Identity()" if place else "AdaptiveAvgPool2d(1)"
    return [
        f"model = torchvision.models.{name}({', '.join(options)})",
        f'model.set_submodule("{place or "classifier"}", torch.nn.{features})',
    ]


def _timm(weights: EncoderWeights, encoder: nn.Module) -> list[str]:
    options = dict(weights.arguments)
    name = options.pop("backbone").removeprefix("timm:")
    channels, size = options.pop("in_channels", 3), options.pop("image_size", 32)
    call = "".join(f", {key}={value!r}" for key, value in options.items())
    lines = [
        "import timm",
        f'model = timm.create_model("{name}", num_classes=0, in_chans={channels}{call})',
    ]
    if hasattr(encoder, "set_input_size") and "img_size" not in options:
        lines.append(f"model.set_input_size(img_size=({size}, {size}))")
    return lines
