"""``weince export``: the encoder of a checkpoint, for use without this project."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch import nn
from torchvision.models import ResNet, VisionTransformer
from torchvision.models.resnet import Bottleneck

from weince_lightning.checkpoints import CheckpointError, read_encoder
from weince_lightning.checkpoints.encoders import EncoderWeights, build
from weince_lightning.checkpoints.files import write_tensors
from weince_lightning.cli.arguments import CommandParser, UsageError

_SUFFIXES = (".pt", ".pth", ".safetensors")

_DESCRIPTION = """\
Write the encoder of a checkpoint, without projection head and loss, under the names that
torchvision or timm give its weights, and say how to load it.

CHECKPOINT is one of `weince fit` or of any ContrastiveModule, one of the paper's released code
(encoder.*, projector.*), one of lightly's SimCLR, or the weights of a model of torchvision or timm.
"""
_EPILOG = """\
example:
  weince export runs/digits/version_0/checkpoints/last.ckpt --to backbone.pt
"""


def export(arguments: Sequence[str]) -> None:
    """Run ``weince export``.

    Args:
        arguments: What stands after ``export``.

    Raises:
        UsageError: If the arguments make no sense.
        FileNotFoundError: If the checkpoint, or the folder to write to, is not there.
        CheckpointError: If the checkpoint can not be read, or does not hold the given backbone.
    """
    options = _parser().parse_args(arguments)
    source, target = Path(options.checkpoint), Path(options.to)
    _check_target(source, target, options.force)
    try:
        weights = read_encoder(source, backbone=options.backbone)
        encoder = _build(weights, is_told=options.backbone is not None)
        write_tensors(weights.encoder, target)
    except CheckpointError:
        raise
    except (ValueError, ModuleNotFoundError) as error:
        raise UsageError(str(error)) from error
    sys.stdout.write(_report(weights, encoder, target))


def _parser() -> CommandParser:
    parser = CommandParser("export", _DESCRIPTION, _EPILOG)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the file to read")
    parser.add_argument(
        "--to",
        metavar="FILE",
        required=True,
        help="the file to write: .pt or .pth for torch.load, .safetensors for safetensors",
    )
    parser.add_argument(
        "--backbone",
        metavar="NAME",
        help="the backbone where the file does not tell it, such as timm:vit_tiny_patch16_224",
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    return parser


def _check_target(source: Path, target: Path, force: bool) -> None:
    if target.suffix not in _SUFFIXES:
        raise UsageError(f"--to must end in {', '.join(_SUFFIXES)}, got {str(target)!r}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"--to must lie in a folder that exists, got {target}.")
    if target.exists() and (not force or target.samefile(source)):
        hint = "Give another name." if force else "Give another name, or --force to replace it."
        raise UsageError(f"--to must not exist yet, got {target}. {hint}")


def _build(weights: EncoderWeights, is_told: bool) -> nn.Module | None:
    """Build the encoder, which proves that the weights are its own; None if it is not known."""
    if "backbone" not in weights.arguments:
        return None
    try:
        return build(weights)
    except CheckpointError:
        if is_told:
            raise
        # A subclass may have set another backbone than its settings name.
        return None


def _report(weights: EncoderWeights, encoder: nn.Module | None, target: Path) -> str:
    size = sum(tensor.nbytes for tensor in weights.encoder.values()) / 2**20
    parts = Counter(name.partition(".")[0] for name in weights.left_out)
    parts["projection head"] = len(weights.projection_head)
    left_out = ", ".join(f"{part} ({number} tensors)" for part, number in (+parts).items())
    imports, load = [], f'torch.load("{target.as_posix()}", weights_only=True)'
    if target.suffix == ".safetensors":
        imports = ["from safetensors.torch import load_file"]
        load = f'load_file("{target.as_posix()}")'
    about, lines = _model(weights, encoder)
    lines = [*lines[:1], *imports, *lines[1:], f"model.load_state_dict({load})"]
    return (
        f"\nWrote {len(weights.encoder)} tensors ({size:.1f} MiB), the encoder of "
        f"{weights.path}, to {target}.\n"
        f"Left out: {left_out or 'nothing'}.\n"
        f"{about}\n\n" + "".join(f"  {line}\n" for line in lines)
    )


def _model(weights: EncoderWeights, encoder: nn.Module | None) -> tuple[str, list[str]]:
    """Say whose names the weights have, and with which lines the model for them is built."""
    if encoder is None:
        return (
            "The weights keep their own names: the file names no encoder that weince builds. They "
            "load into the module\nthat was trained:",
            ["import torch", "model = ...  # your encoder"],
        )
    backbone = str(weights.arguments["backbone"])
    if backbone.startswith("timm:"):
        return "The names are timm's, and the weights load into its model:", _timm(weights, encoder)
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
            "\nWhere the stride stands can not be seen in them: v1_stride=True on the 1x1 "
            "convolutions, as the paper says;\nFalse on the 3x3 ones, as in torchvision, whose "
            "model the paper's released code takes."
        )
        call += ", v1_stride=True"
    return about, [
        "import torch",
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
            "import torch",
            "from torchvision.models import VisionTransformer",
            f"model = VisionTransformer({sizes}, num_layers=12,",
            "    num_heads=6, hidden_dim=384, mlp_dim=1536)",
            "model.heads = torch.nn.Identity()",
        ]
    return [
        "import torch",
        "import torchvision",
        f"model = torchvision.models.{backbone}()",
        "model.fc = torch.nn.Identity()",
    ]


def _timm(weights: EncoderWeights, encoder: nn.Module) -> list[str]:
    options = dict(weights.arguments)
    name = options.pop("backbone").removeprefix("timm:")
    channels, size = options.pop("in_channels", 3), options.pop("image_size", 32)
    call = "".join(f", {key}={value!r}" for key, value in options.items())
    lines = [
        "import torch",
        "import timm",
        f'model = timm.create_model("{name}", num_classes=0, in_chans={channels}{call})',
    ]
    if hasattr(encoder, "set_input_size") and "img_size" not in options:
        lines.append(f"model.set_input_size(img_size=({size}, {size}))")
    return lines
