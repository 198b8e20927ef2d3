"""``weince evaluate``: frozen features of checkpoints by the protocol of the paper."""

import re
import sys
import traceback
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import yaml
from jsonargparse import ActionConfigFile, DefaultHelpFormatter  # type: ignore[attr-defined]
from lightning.pytorch import LightningDataModule
from torch import nn

from weince_lightning.checkpoints import read_checkpoint
from weince_lightning.cli.arguments import UsageError, find_config
from weince_lightning.cli.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
    report_overrides,
)
from weince_lightning.cli.evaluation_files import folder_of
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

Settings = TypeVar("Settings", LinearSettings, KNNSettings)

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
    parser = evaluation_parser()
    for argument in arguments:
        if re.fullmatch(r"-h|--help|--\w+\.help(=.*)?", argument):
            parser.parse_args([argument])
    checkpoints, layers, options = _sort(arguments)
    if not checkpoints:
        raise UsageError("evaluate must know what: give a checkpoint, or several.")
    _check_names(checkpoints)
    failed: list[Path] = []
    jobs = []
    # All arguments are read before the first minute is spent.
    for checkpoint in checkpoints:
        with _reported(checkpoint, failed):
            jobs.append(_job(parser, checkpoint, layers, options))
    try:
        while jobs:
            job = jobs.pop(0)  # with the images that it loads
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


def _check_names(checkpoints: Sequence[Path]) -> None:
    """Refuse checkpoints whose results would lie in one place."""
    folders = [folder_of(checkpoint) for checkpoint in checkpoints]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(
                "checkpoints must have names of their own without the suffix, got several whose "
                f"results would lie in {folder}. Rename one."
            )


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


def evaluation_parser() -> ConciseParser:
    """Build the parser of the options."""
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
        "--backbone", type=str | nn.Module | None, default=None,
        help="the backbone where the file does not tell it, such as timm:vit_tiny_patch16_224, or "
        "a module by its class path",
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
    saved, settings = _saved_settings(checkpoint)
    is_given = any(option.startswith("--data") for option in options)
    if "data" not in settings and not is_given and not any("data" in layer for layer in layers):
        raise UsageError(
            f"{checkpoint} must hold the settings of its data, got none: give them, such as "
            "-c data/cifar100."
        )
    for key, name in saved.built_in_python.items() if saved else ():
        is_image = key.startswith("data.") and key != "data.transforms"  # which are for training
        if is_image and not any(option.startswith(f"--{key}") for option in options):
            raise UsageError(
                f"--{key} must be given, by a class path: {checkpoint} was written with {name}, "
                "built in Python, which can not be rebuilt from it."
            )
    given = [yaml.safe_dump(layer, sort_keys=False) for layer in (settings, *layers) if layer]
    config = parser.parse_args([part for layer in given for part in ("-c", layer)] + [*options])
    final = yaml.safe_load(parser.dump(config, "yaml", False))
    if saved is not None:
        report_overrides(saved._replace(settings=settings), final)
    linear = _settings(parser, "linear", LinearSettings, config.linear)
    knn = _settings(parser, "knn", KNNSettings, config.knn)
    if linear is None and knn is None:
        parser.error("linear and knn must not both be null: nothing would be left.")
    if config.device == "cuda" and not torch.cuda.is_available():
        parser.error("device must be one that torch finds, got cuda.")
    if "val_fraction" in config.data.init_args:
        # All training images, in the data set's own order.
        config.data.init_args.val_fraction = 0
    config.linear = config.knn = None  # they have been built
    # Its name since jsonargparse 4.49.
    instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes
    try:
        built = instantiate(config)
    except Exception as error:
        refused = refusal(error)
        if not isinstance(refused, (ValueError, TypeError, ImportError, OSError)):
            raise
        parser.error(str(refused), refused)
    return Job(
        checkpoint, linear, knn, built.data, final["data"], built.device, built.cache,
        built.backbone, built.v1_stride,
    )  # fmt: skip


def _saved_settings(checkpoint: Path) -> tuple[CheckpointConfig | None, dict[str, Any]]:
    """Return what a checkpoint says of the run that wrote it, and what matters here."""
    content = read_checkpoint(checkpoint)
    if not isinstance(content, Mapping) or "pytorch-lightning_version" not in content:
        return None, {}
    saved = read_checkpoint_config(["--ckpt_path", str(checkpoint)])
    if saved is None:
        return None, {}
    settings = {name: saved.settings[name] for name in ("data",) if name in saved.settings}
    backbone = ((saved.settings.get("model") or {}).get("init_args") or {}).get("backbone")
    if isinstance(backbone, Mapping):  # a class with arguments: not known to load_encoder
        settings["backbone"] = backbone
    return saved, settings


def _settings(
    parser: ConciseParser, name: str, kind: type[Settings], given: Any
) -> Settings | None:
    """Build the settings of a part; None leaves it out."""
    try:
        return None if given is None else kind(**given)
    except (ValueError, TypeError) as error:
        parser.error(f"{name}.{error}")


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
