"""``weince evaluate``: frozen features of checkpoints by the protocol of the paper."""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from weince_lightning.checkpoints import Checkpoint
from weince_lightning.cli.arguments import UsageError, in_words_of_command
from weince_lightning.cli.encoder_arguments import (
    EXPECTED,
    Given,
    build,
    encoder_parser,
    read_encoder_options,
    show_help_if_asked,
    sort_arguments,
)
from weince_lightning.cli.messages import say, table
from weince_lightning.cli.parser import ConciseParser, refusals_reported
from weince_lightning.cli.run_files import shown
from weince_lightning.cli.wording import in_words_of_options
from weince_lightning.evaluation import KNNSettings, LinearSettings, evaluate_checkpoint
from weince_lightning.evaluation.cache import results_file
from weince_lightning.evaluation.encoders import find_encoder
from weince_lightning.evaluation.loss_profile import BATCH_SIZE

_DESCRIPTION = """\
Evaluate the frozen features of encoders by the protocol of the paper: a linear probe and nearest
neighbours, for five splits each. The numbers are accuracies on the test images and on a fifth of
the training images, kept for validation; nothing is selected by them.

CKPT is a checkpoint of `weince fit` or of any ContrastiveModule, one of the paper's released code,
one of lightly's SimCLR, or the weights of a model of torchvision or timm. Of all that it holds the
encoder counts, without projection head, and whatever a subclass does in `forward` or `encode`.
torchvision:NAME and timm:NAME are published encoders; resnet18 and other names of ours, or a class
path, are encoders without weights.

Data are those of the checkpoint's settings, under the layers (-c) and options given here. Train and
validation images of the pretraining together train the probe and are the neighbours.
"""
_EPILOG = """\
examples:
  weince evaluate runs/digits/version_0/checkpoints/last.ckpt
  weince evaluate released.pt -c data/cifar100 --data.data_dir ~/data
  weince evaluate a.ckpt b.ckpt --linear.epochs 10 --knn.seeds "[1]"    quicker
  weince evaluate a.ckpt --knn null --linear.converge true              logistic regression

The results lie beside the checkpoint, those of a.ckpt in a/evaluation.json, and those of a name in
the working folder. An evaluation that was
stopped goes on with the same command; one that is complete is not done again.
"""

_TITLES = {"linear": "linear probe", "knn": "kNN"}
_OF_LAYERS = ("data", "linear", "knn", "device", "cache", "backbone", "v1_stride", "pretrained")


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
    show_help_if_asked(parser, arguments)
    given = sort_arguments(arguments, _OF_LAYERS)
    checkpoints = [Path(each) for each in given.positionals]
    if not checkpoints:
        raise UsageError("evaluate must know what: give a checkpoint, or several.")
    _check_names(checkpoints)
    failed: list[Path] = []
    jobs = []
    # All arguments are read before the first minute is spent.
    for checkpoint in checkpoints:
        with _reported(checkpoint, failed, parser):
            jobs.append((checkpoint, _job(parser, checkpoint, given)))
    try:
        while jobs:
            checkpoint, evaluate = jobs.pop(0)  # with the images that it loads
            with _reported(checkpoint, failed, parser):
                say(_report(checkpoint, evaluate()))
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
    folders = [results_file(checkpoint).parent for checkpoint in checkpoints]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(
                "checkpoints must have names of their own without the suffix, got several whose "
                f"results would lie in {folder}. Rename one."
            )


def evaluation_parser() -> ConciseParser:
    """Build the parser of the options."""
    parser = encoder_parser(
        "evaluate", "CKPT [CKPT ...] [-c LAYER ...] [options]", _DESCRIPTION, _EPILOG,
        data_needs="a method evaluation_dataloader(split)",
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
        "--cache", type=bool, default=True,
        help="whether to keep the features beside the checkpoint, for another evaluation",
    )  # fmt: skip
    return parser


def _job(parser: ConciseParser, path: Path, given: Given) -> Callable[[], dict[str, Any]]:
    """Read the arguments over the settings in the checkpoint, and build its data module."""
    source = find_encoder(str(path))
    checkpoint = source if isinstance(source, Checkpoint) else None
    config, final = read_encoder_options(parser, given, path, checkpoint)
    with refusals_reported(parser):
        parts = build_parts(config)
    config.linear = config.knn = None  # they have been built
    built = build(parser, config)
    return partial(
        evaluate_checkpoint,
        source,
        built.data,
        **parts,
        backbone=built.backbone,
        v1_stride=built.v1_stride,
        pretrained=built.pretrained,
        device=built.device,
        cache=built.cache,
        data_settings=final["data"],
    )


def build_parts(config: Any) -> dict[str, Any]:
    """Build the settings of the probe and of the neighbours; None leaves one out.

    Raises:
        TypeError: If a value is of the wrong kind.
        ValueError: If a number is out of its range, or both are left out.
    """
    parts: dict[str, Any] = {}
    for name, kind in (("linear", LinearSettings), ("knn", KNNSettings)):
        try:
            parts[name] = None if config[name] is None else kind(**config[name])
        except (ValueError, TypeError) as error:
            raise type(error)(f"{name}.{error}") from error
    if parts == {"linear": None, "knn": None}:
        raise ValueError("linear and knn must not both be null: nothing would be left.")
    return parts


@contextmanager
def _reported(checkpoint: Path, failed: list[Path], parser: ConciseParser) -> Iterator[None]:
    """Name a checkpoint that cannot be evaluated, and let the others be."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if not isinstance(error, EXPECTED):
            traceback.print_exception(error)
        text = in_words_of_options(in_words_of_command(error, {}), parser.keys)
        named = text if str(checkpoint) in text else f"{checkpoint}: {text}"
        sys.stderr.write(f"weince: error: {named}\n")
        failed.append(checkpoint)


def _report(checkpoint: Path, results: Mapping[str, Any]) -> str:
    """Say the numbers, and how they came about."""
    rows = [["", "test", "validation"]]
    for part, title in _TITLES.items():
        for name in results.get(part, {}):
            if name.startswith("test_"):
                metric = name.removeprefix("test_")
                cells = [_cell(results[part][f"{split}_{metric}"]) for split in ("test", "val")]
                rows.append([f"{title} {metric.replace('_', ' ')}", *cells])
    note = ""
    linear = results["settings"].get("linear", {})
    if linear.get("converge"):
        note = "The linear probe is logistic regression (C = 1), converged.\n"
    elif linear:
        is_papers = (linear["epochs"], linear["learning_rate"]) == (100, 3e-4)
        paper = "as in the paper" if is_papers else "the paper: 100 at 0.0003"
        note = (
            f"The linear probe had {linear['epochs']} epochs of Adam at "
            f"{linear['learning_rate']:g} ({paper}), which stop well short of\n"
            "convergence; --linear.converge true goes on to it.\n"
        )
    if "loss" in results:
        note += (
            f"Effective InfoNCE temperature: {results['loss']['effective_temperature']:.3g} (test "
            f"images, batches of {BATCH_SIZE}).\n"
        )
    return (
        f"\nFrozen features of {shown(checkpoint)}, mean over the seeds (lowest-highest):\n"
        f"{table(rows)}{note}Results: {shown(results_file(checkpoint))}\n"
    )


def _cell(metric: Mapping[str, Any]) -> str:
    values = metric["values"]
    return f"{metric['mean']:.4f} ({min(values):.4f}-{max(values):.4f})"
