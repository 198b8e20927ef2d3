"""The commands that a sweep is given; run as a module, the one named by its first argument."""

import contextlib
import io
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from weince_lightning.cli.arguments import UsageError, complete_arguments, find_config
from weince_lightning.sweeps import Commands


def fit(arguments: Sequence[str]) -> None:
    """Run ``weince fit``; it is no error if there is nothing left to train."""
    from weince_lightning.cli.checkpoint_config import TrainingFinishedError
    from weince_lightning.cli.lightning_cli import WeinceCLI

    with contextlib.suppress(TrainingFinishedError):
        WeinceCLI(complete_arguments(["fit", *arguments]))


def evaluate(arguments: Sequence[str]) -> None:
    """Run ``weince evaluate``."""
    from weince_lightning.cli.evaluate import evaluate_checkpoints

    evaluate_checkpoints(arguments)


def parse_fit(arguments: Sequence[str]) -> Any:
    """Read the arguments of ``weince fit`` as it does, and train nothing.

    Args:
        arguments: What stands after ``fit``.

    Returns:
        The settings of the trainer.

    Raises:
        ValueError: If ``fit`` would refuse them; the message is one line.
    """
    try:
        complete = complete_arguments(["fit", *arguments])
    except UsageError as error:
        raise ValueError(f"layers: {error}") from None
    return _parse(_fit_parser(), complete).fit.trainer


def check_evaluate(arguments: Sequence[str]) -> None:
    """Read the arguments of ``weince evaluate`` as it does, and evaluate nothing.

    Args:
        arguments: Its options, without checkpoint.

    Raises:
        ValueError: If ``evaluate`` would refuse them; the message is one line.
    """
    from weince_lightning.cli.evaluate import build_parts, evaluation_parser

    build_parts(_parse(evaluation_parser(), arguments))


@cache
def _fit_parser() -> Any:
    from jsonargparse import capture_parser

    from weince_lightning.cli.lightning_cli import WeinceCLI

    return capture_parser(lambda: WeinceCLI(["fit"]))


def _parse(parser: Any, arguments: Sequence[str]) -> Any:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser.parse_args([*arguments])
    except SystemExit:
        message = said.getvalue().partition("error: ")[2].partition("\n")[0]
        raise ValueError(message or said.getvalue()) from None


COMMANDS = Commands(
    fit,
    evaluate,
    parse_fit,
    check_evaluate,
    find_config,
    entry=fit.__module__,
    preload=(
        "weince_lightning.cli.lightning_cli",
        "weince_lightning.cli.evaluate",
        "weince_lightning.callbacks",
        "weince_lightning.data",
        # What these import when it is first needed.
        "lightly.models.modules",
        "sklearn.datasets",
    ),
)
"""``weince fit`` and ``weince evaluate``, for :func:`weince_lightning.sweeps.run_sweep`."""

if __name__ == "__main__":
    {"fit": fit, "evaluate": evaluate}[sys.argv[1]](sys.argv[2:])
