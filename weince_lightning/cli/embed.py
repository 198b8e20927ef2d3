"""``weince embed``: features of the images in a folder, with their paths."""

import sys
from collections.abc import Sequence

from weince_lightning.checkpoints import CheckpointError
from weince_lightning.cli.arguments import CommandParser, UsageError, in_words_of_command
from weince_lightning.cli.messages import say
from weince_lightning.cli.run_files import shown
from weince_lightning.evaluation import embed_images
from weince_lightning.functional.neighbours import UNKNOWN_LABEL

_DESCRIPTION = """\
Write the features of all images in a folder, with their paths: flat, nested, or with class folders,
whose numbers are written too. Every image counts once, in the order of its path.

CHECKPOINT is one of `weince fit` or of any ContrastiveModule, one of the paper's released code, one
of lightly's SimCLR, the weights of a model of torchvision or timm, or the name of a published
model, torchvision:NAME or timm:NAME.
"""
_EPILOG = """\
examples:
  weince embed runs/digits/version_0/checkpoints/last.ckpt photos --to features.parquet
  weince embed torchvision:resnet50 photos --to features.npz && weince diagnose features.npz
  weince embed backbone.pt photos --to features.csv --image-size 32

.parquet has the columns path, label and features (a list), .npz the arrays features, paths and
labels, and .csv the columns path, label, 0, 1, ... Parquet needs pip install
"weince-lightning[parquet]".
"""
_ARGUMENTS = {
    "to": "--to",
    "backbone": "--backbone",
    "image_size": "--image-size",
    "batch_size": "--batch-size",
    "num_workers": "--num-workers",
    "mean": "--mean",
    "std": "--std",
    "v1_stride": "--v1-stride",
    "photos": "PHOTOS",
    "checkpoint": "CHECKPOINT",
}
"""Names of the function's arguments, and the names that people gave them by."""


def embed(arguments: Sequence[str]) -> None:
    """Run ``weince embed``.

    Args:
        arguments: What stands after ``embed``.

    Raises:
        UsageError: If the arguments make no sense.
        FileNotFoundError: If the checkpoint or the folder is not there, or an image is damaged.
        CheckpointError: If the checkpoint cannot be read, or does not hold the given backbone.
    """
    given = vars(_parser().read(arguments))
    source, photos, to = (given.pop(name) for name in ("checkpoint", "photos", "to"))
    try:
        found = embed_images(source, photos, to, **given)
    except CheckpointError:
        raise
    except KeyboardInterrupt:
        sys.stderr.write("\nweince: interrupted; nothing was written.\n")
        raise SystemExit(130) from None
    except (ValueError, TypeError, OSError, ImportError) as error:
        text = in_words_of_command(error, _ARGUMENTS)
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else UsageError
        raise kind(text.replace("set force", "set --force")) from error
    about, option = "and paths", ""
    if found.labels is not None:
        classes = {*found.labels.tolist()} - {UNKNOWN_LABEL}
        about = f"paths and labels ({len(classes)} class folders)"
        option = " --ids none"  # a training without labels takes all for negatives
    say(
        f"\nWrote features {tuple(found.features.shape)}, {about} to {shown(to)}\n"
        f"Is WEINCE worth trying?\n  weince diagnose {shown(to)}{option}\n"
    )


def _parser() -> CommandParser:
    parser = CommandParser("embed", _DESCRIPTION, _EPILOG)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the encoder: a file or a name")
    parser.add_argument("photos", metavar="PHOTOS", help="the folder of images")
    parser.add_argument(
        "--to", metavar="FILE", required=True, help="the file to write: .parquet, .npz or .csv"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--image-size", type=int, metavar="PIXELS",
        help="height and width that the images get; default: those of the encoder",
    )  # fmt: skip
    for name, what in (("mean", "mean"), ("std", "standard deviation")):
        parser.add_argument(
            f"--{name}", type=float, nargs="+", metavar="NUMBER",
            help=f"{what} of each channel, for an encoder of normalized images; default: what the "
            "checkpoint says, else images in [0, 1]",
        )  # fmt: skip
    parser.add_argument(
        "--backbone", metavar="NAME",
        help="the backbone where the file does not tell it, such as timm:vit_tiny_patch16_224, or "
        "a class path",
    )  # fmt: skip
    parser.add_argument(
        "--v1-stride", type=true_or_false, metavar="{true,false}",
        help="where the stride of a ResNet-50 stands, if the file does not tell: true for the 1x1 "
        "convolutions, as the paper says, false for the 3x3 ones, as in torchvision",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=64, help="images at a time")
    parser.add_argument(
        "--num-workers", type=int, default=0, help="processes that read images beside the main one"
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="what does the work; auto takes a GPU if there is one",
    )  # fmt: skip
    parser.add_argument(
        "--pretrained", type=true_or_false, default=True, metavar="{true,false}",
        help="whether torchvision:NAME and timm:NAME have their published weights",
    )  # fmt: skip
    return parser


def true_or_false(text: str) -> bool:
    """Read a word as the other commands do."""
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"
