"""``weince export``: the encoder of a checkpoint, for use without this project."""

import sys
from collections import Counter
from collections.abc import Sequence

from weince_lightning.checkpoints import CheckpointError
from weince_lightning.checkpoints.export import export_encoder, loading_code
from weince_lightning.cli.arguments import CommandParser, UsageError, in_words_of_command

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
        CheckpointError: If the checkpoint cannot be read, or does not hold the given backbone.
    """
    options = _parser().parse_args(arguments)
    try:
        weights = export_encoder(
            options.checkpoint, options.to, options.backbone, force=options.force
        )
    except CheckpointError:
        raise
    except (ValueError, OSError, ModuleNotFoundError) as error:
        text = in_words_of_command(error, {"to": "--to", "backbone": "--backbone"})
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else UsageError
        raise kind(text.replace("set force", "set --force")) from error
    size = sum(tensor.nbytes for tensor in weights.encoder.values()) / 2**20
    parts = Counter(name.partition(".")[0] for name in weights.left_out)
    parts["projection head"] = len(weights.projection_head)
    left_out = ", ".join(f"{part} ({number} tensors)" for part, number in (+parts).items())
    about, lines = loading_code(weights, options.to)
    sys.stdout.write(
        f"\nWrote {len(weights.encoder)} tensors ({size:.1f} MiB), the encoder of "
        f"{weights.path}, to {options.to}.\n"
        f"Left out: {left_out or 'nothing'}.\n"
        f"{about}\n\n" + "".join(f"  {line}\n" for line in lines)
    )


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
