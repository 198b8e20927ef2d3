"""``weince evaluate``: frozen features of checkpoints by the protocol of the paper."""

import re
import sys
import traceback
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from jsonargparse import ActionConfigFile, DefaultHelpFormatter  # type: ignore[attr-defined]
from lightning.pytorch import LightningDataModule

from weince_lightning.checkpoints import read_checkpoint
from weince_lightning.cli.arguments import UsageError, find_config
from weince_lightning.cli.checkpoint_config import read_checkpoint_config, report_overrides
from weince_lightning.cli.evaluation_job import Job, evaluate_checkpoint
from weince_lightning.cli.parser import ConciseParser, refusal
from weince_lightning.evaluation import KNNSettings, LinearSettings

_DESCRIPTION = """\
Evaluate the frozen features of encoders by the protocol of the paper: a linear probe and nearest
neighbours, for five splits each. The numbers are accuracies on the test images and on a fifth of
the training images, kept for validation; nothing is selected by them.

CKPT is a checkpoint of `weince fit` or of any ContrastiveModule, one of the paper's released code,
one of lightly's SimCLR, or the weights of a model of torchvision or timm. Of all that it holds the
encoder counts, without projection head, and whatever a subclass does in `forward` or `encode`.

Data are those of the checkpoint's settings, under the layers (-c) and options given here. Train and
validation images of the pretraining together train the probe and are the neighbours.
"""
_EPILOG = """\
examples:
  weince evaluate runs/digits/version_0/checkpoints/last.ckpt
  weince evaluate released.pt -c data/cifar100 --data.data_dir ~/data
  weince evaluate a.ckpt b.ckpt --linear.epochs 10 --knn.seeds "[1]"    quicker
  weince evaluate a.ckpt --knn null --linear.converge true              logistic regression

The results lie beside the checkpoint, those of a.ckpt in a/evaluation.json. An evaluation that was
stopped goes on with the same command; one that is complete is not done again.
"""

_OF_LAYERS = ("data", "linear", "knn", "device", "cache", "backbone", "v1_stride")
"""What a layer can say here; the rest of a configuration is of no concern."""

_EXPECTED = (OSError, ValueError, TypeError, RuntimeError, ImportError)


def evaluate_checkpoints(arguments: Sequence[str]) -> None:
    """Run ``weince evaluate``.

    Args:
        arguments: What stands after ``evaluate``.

    Raises:
        UsageError: If the arguments make no sense.
        SystemExit: With status 1 if a checkpoint could not be evaluated; the others were. With 130
            after Ctrl-C.
    """
    parser = _parser()
    for argument in arguments:
        if re.fullmatch(r"-h|--help|--\w+\.help(=.*)?", argument):
            parser.parse_args([argument])
    checkpoints, layers, options = _sort(arguments)
    if not checkpoints:
        raise UsageError("evaluate must know what: give a checkpoint, or several.")
    failed: list[Path] = []
    jobs = []
    # All arguments are read before the first minute is spent.
    for checkpoint in checkpoints:
        with _reported(checkpoint, failed):
            jobs.append(_job(parser, checkpoint, layers, options))
    try:
        for job in jobs:
            with _reported(job.checkpoint, failed):
                evaluate_checkpoint(job)
    except KeyboardInterrupt:
        sys.stderr.write("\nweince: interrupted; the same command goes on from here.\n")
        raise SystemExit(130) from None
    if failed:
        if len(checkpoints) > 1:
            names = ", ".join(map(str, failed))
            sys.stderr.write(f"weince: not evaluated: {names}\n")
        raise SystemExit(1)


def _sort(arguments: Sequence[str]) -> tuple[list[Path], list[dict[str, Any]], list[str]]:
    """Tell checkpoints, layers and options apart; every option has one value."""
    checkpoints, layers, options = list[Path](), list[dict[str, Any]](), list[str]()
    remaining = iter(arguments)
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        if flag in ("-c", "--config"):
            layers.append(_layer(find_config(value if equals else next(remaining, ""))))
        elif flag[:1] != "-":
            checkpoints.append(Path(argument))
        elif equals:
            options.append(argument)
        else:
            options += [argument, *islice(remaining, 1)]
    return checkpoints, layers, options


def _layer(path: str) -> dict[str, Any]:
    """Return what a configuration says of an evaluation."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"-c must name a YAML file, got {path}: {_one_line(error)}") from error
    if not isinstance(content, Mapping):
        raise UsageError(f"-c must name a file of settings, got {path}.")
    return {name: content[name] for name in _OF_LAYERS if name in content}


class _Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the lines of description and examples."""


def _parser() -> ConciseParser:
    parser = ConciseParser(
        prog="weince evaluate",
        usage="weince evaluate CKPT [CKPT ...] [-c LAYER ...] [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Formatter,
    )
    parser.add_argument(
        "-c", "--config", action=ActionConfigFile,
        help="a YAML file, or the name of a packaged one, with settings of the data",
    )  # fmt: skip
    parser.add_argument(
        "--linear", type=LinearSettings | None, default=LinearSettings(),
        help="the linear probe, such as --linear.epochs 10; null leaves it out",
    )  # fmt: skip
    parser.add_argument(
        "--knn", type=KNNSettings | None, default=KNNSettings(),
        help="the nearest neighbours, such as --knn.k 20; null leaves them out",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=LightningDataModule,
        default={"class_path": "weince_lightning.data.VisionData"},
        help="options of the data, such as --data.dataset cifar100 and --data.data_dir, or a data "
        "module of your own by its class path; it needs a method evaluation_dataloader(split)",
    )  # fmt: skip
    parser.add_argument(
        "--device", type=Literal["auto", "cpu", "cuda"], default="auto",
        help="what does the work; auto takes a GPU if there is one",
    )  # fmt: skip
    parser.add_argument(
        "--cache", type=bool, default=True,
        help="whether to keep the features beside the checkpoint, for another evaluation",
    )  # fmt: skip
    parser.add_argument(
        "--backbone", type=str | None, default=None,
        help="the backbone where the file does not tell it, such as timm:vit_tiny_patch16_224",
    )  # fmt: skip
    parser.add_argument(
        "--v1_stride", type=bool | None, default=None,
        help="where the stride of a ResNet-50 stands, if the file does not tell: true for the 1x1 "
        "convolutions, as the paper says, false for the 3x3 ones, as in torchvision",
    )  # fmt: skip
    return parser


def _job(
    parser: ConciseParser,
    checkpoint: Path,
    layers: Sequence[dict[str, Any]],
    options: Sequence[str],
) -> Job:
    """Read the arguments over the settings in the checkpoint, and build its data module."""
    content = read_checkpoint(checkpoint)
    is_of_lightning = isinstance(content, Mapping) and "pytorch-lightning_version" in content
    saved = read_checkpoint_config(["--ckpt_path", str(checkpoint)]) if is_of_lightning else None
    settings = {} if saved is None else {k: v for k, v in saved.settings.items() if k == "data"}
    is_given = any(option.startswith("--data") for option in options)
    if not settings and not is_given and not any("data" in layer for layer in layers):
        raise UsageError(
            f"{checkpoint} must hold the settings of its data, got none: give them, such as "
            "-c data/cifar100."
        )
    given = [yaml.safe_dump(layer, sort_keys=False) for layer in (settings, *layers) if layer]
    config = parser.parse_args([part for layer in given for part in ("-c", layer)] + [*options])
    final = yaml.safe_load(parser.dump(config, "yaml", False))["data"]
    if saved is not None and settings:
        report_overrides(saved._replace(settings=settings), {"data": final})
    if "val_fraction" in config.data.init_args:
        # All training images, in the data set's own order.
        config.data.init_args.val_fraction = 0
    try:
        linear = None if config.linear is None else LinearSettings(**config.linear)
        knn = None if config.knn is None else KNNSettings(**config.knn)
        alone = config.clone()
        alone.linear = alone.knn = None
        data = parser.instantiate(alone).data
    except Exception as error:
        refused = refusal(error)
        if not isinstance(refused, (ValueError, TypeError, ImportError, OSError)):
            raise
        parser.error(str(refused), refused)
    if config.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device must be there, got cuda, of which torch finds none.")
    return Job(
        checkpoint, linear, knn, data, final, config.device, config.cache, config.backbone,
        config.v1_stride,
    )  # fmt: skip


@contextmanager
def _reported(checkpoint: Path, failed: list[Path]) -> Iterator[None]:
    """Name a checkpoint that can not be evaluated, and let the others be."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if not isinstance(error, _EXPECTED):
            traceback.print_exception(error)
        text = _one_line(error)
        named = text if str(checkpoint) in text else f"{checkpoint}: {text}"
        sys.stderr.write(f"weince: error: {named}\n")
        failed.append(checkpoint)


def _one_line(error: BaseException) -> str:
    """Return an error's message in one line."""
    return " ".join(str(error).split()) or type(error).__name__
