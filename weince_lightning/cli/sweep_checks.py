"""Whether the commands would take what a sweep asks for, known before anything is trained."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

from jsonargparse import capture_parser

from weince_lightning.cli.arguments import UsageError, complete_arguments
from weince_lightning.cli.evaluate import evaluation_parser
from weince_lightning.cli.lightning_cli import WeinceCLI
from weince_lightning.evaluation import KNNSettings, LinearSettings
from weince_lightning.sweeps import Sweep, SweepError


def check_options(plan: Sweep) -> dict[str, str]:
    """Let the commands' own parsers read every configuration, before anything is trained.

    Returns:
        For each run's name the file name of its last checkpoint.
    """
    [first, *_] = plan.runs()
    config = _parse(evaluation_parser(), first.evaluate_arguments, "evaluation")
    try:
        for kind, given in ((LinearSettings, config.linear), (KNNSettings, config.knn)):
            if given is not None:
                kind(**given)
    except ValueError as error:
        raise SweepError(f"evaluation: {error}") from error
    parser = capture_parser(lambda: WeinceCLI(["fit"]))
    names: dict[tuple[str, str], str] = {}
    for run in plan.runs():
        key = (run.arm, str(run.point))
        if key not in names:
            where = run.name.rpartition("/")[0]
            try:
                given = complete_arguments(["fit", *run.fit_arguments])
            except UsageError as error:
                raise SweepError(f"{where}: layers: {error}") from None
            config = _parse(parser, given, where)
            names[key] = _last_checkpoint(config.fit.trainer, where)
    return {run.name: names[run.arm, str(run.point)] for run in plan.runs()}


def _parse(parser: Any, arguments: Sequence[str], where: str) -> Any:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser.parse_args([*arguments])
    except SystemExit:
        message = said.getvalue().partition("error: ")[2].partition("\n")[0]
        raise SweepError(f"{where}: {message or said.getvalue()}") from None


def _last_checkpoint(trainer: Any, where: str) -> str:
    """Name the file of the last epoch, which is evaluated: it must be kept."""
    callbacks = trainer.callbacks or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    savers = [item.init_args for item in callbacks if item.class_path.endswith(".ModelCheckpoint")]
    if not savers and trainer.enable_checkpointing is not False:
        return "*.ckpt"  # Lightning's own
    for saver in savers:
        is_each_epoch = saver.every_n_epochs in (None, 1) and saver.save_top_k != 0
        others = (saver.monitor, saver.every_n_train_steps, saver.train_time_interval)
        if is_each_epoch and others == (None, None, None):
            return "*.ckpt" if "{" in (saver.filename or "{") else f"{saver.filename}.ckpt"
    raise SweepError(
        f"{where}: trainer.callbacks must hold a ModelCheckpoint without monitor for every epoch: "
        "the last checkpoint is what is evaluated."
    )
