"""``weince sweep``: carry out a comparison, or go on with it."""

import argparse
import contextlib
import io
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from weince_lightning.cli.arguments import (
    UsageError,
    complete_arguments,
    find_config,
    packaged_sweeps,
)
from weince_lightning.sweeps import Sweep, SweepError, read_sweep

_DESCRIPTION = """\
Train and evaluate every run that a sweep file stands for: arms x their grids x seeds.

SWEEP is the path of a YAML file or the name of a packaged one: {packaged}.
Runs go in turns, the first seed of everything, then the second, so that a sweep that is not
finished compares all arms. Started again, the same command skips what is done and goes on with what
was interrupted, whatever ended it.
"""
_EPILOG = """\
examples:
  weince sweep sweeps/digits --dry-run
  weince sweep sweeps/digits && weince report sweeps/digits
  weince sweep my.yaml --engine slurm --slurm.partition gpu --slurm.timeout_min 240

A sweep file:
  layers: [digits]                     # -c of every run
  options: {trainer.max_epochs: 2}     # options of every run
  seeds: [7, 21]
  baseline: infonce                    # one of the arms
  arms:
    infonce:
      layers: [loss/infonce]           # after those of every run
      grid: {model.loss.temperature: [0.1, 0.5]}
    weince: {layers: [loss/weince]}
  evaluation: {linear.epochs: 20}      # options of weince evaluate
"""
_PRELOAD = ("weince_lightning.cli.command", "weince_lightning.data", "weince_lightning.callbacks")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See weince sweep --help.")


def sweep(arguments: Sequence[str]) -> None:
    """Run ``weince sweep``.

    Args:
        arguments: What stands after ``sweep``.

    Raises:
        UsageError: If the arguments or the sweep file make no sense.
        FileNotFoundError: If there is no such file.
        SystemExit: With status 1 if runs failed, 130 or 143 if a signal stopped the sweep.
    """
    options = _parser().parse_args(arguments)
    try:
        _sweep(options, shlex.join(["weince", "sweep", *arguments]))
    except SweepError as error:
        raise UsageError(str(error)) from error


def _sweep(options: argparse.Namespace, command: str) -> None:
    from weince_lightning.sweeps.execution import Commands, command_lines
    from weince_lightning.sweeps.folder import check_unchanged, describe, run_folder, write_plan
    from weince_lightning.sweeps.processes import Processes, available_threads
    from weince_lightning.sweeps.scheduling import carry_out

    source = Path(find_sweep(options.sweep))
    output = Path(options.output or Path("sweeps") / source.stem)
    plan = read_sweep(source)
    names = _check_options(plan)
    folders = [run_folder(output, run) for run in plan.runs()]
    for folder in folders:
        check_unchanged(folder, describe(folder.run, find_config))
    todo = [folder for folder in folders if not folder.is_done]
    if options.dry_run:
        for number, folder in enumerate(folders, 1):
            _say(f"{number}. {folder.run.name}{' (done)' if folder.is_done else ''}")
            for line in command_lines(folder, names[folder.run.name]):
                _say(f"   {line}")
        return
    write_plan(output, source)
    _say(f"{len(folders)} runs in {output}, {len(folders) - len(todo)} of them done.")
    outcome = carry_out(
        todo,
        Commands(fit, evaluate, find_config),
        Processes(_PRELOAD, available_threads(options.jobs)),
        options.jobs,
        options.keep_checkpoints,
        _say,
    )
    if outcome.signum is not None:
        _say(f"Interrupted. Go on with:\n  {command}")
        raise SystemExit(128 + outcome.signum)
    if outcome.failures:
        _say(f"{len(outcome.failures)} of {len(folders)} runs failed:")
        for name, what in outcome.failures.items():
            _say(f"  {name}: {what}\n    {output / 'runs' / name / 'log.txt'}")
        raise SystemExit(1)
    _say(f"All {len(folders)} runs are done. Next:\n  weince report {shlex.quote(str(output))}")


def find_sweep(name: str) -> str:
    """Return the path of a sweep file, given by a path or a packaged name."""
    if Path(name).is_file():
        return name
    known = packaged_sweeps()
    wanted = name.removesuffix(".yaml")
    for candidate in (wanted, f"sweeps/{wanted}"):
        if candidate in known:
            return str(known[candidate])
    raise FileNotFoundError(
        f"SWEEP must be a YAML file or one of {', '.join(known)}, got {name!r}."
    )


def fit(arguments: Sequence[str]) -> None:
    """Run ``weince fit``; it is no error if there is nothing left to train."""
    from weince_lightning.cli.checkpoint_config import TrainingFinishedError
    from weince_lightning.cli.command import WeinceCLI

    with contextlib.suppress(TrainingFinishedError):
        WeinceCLI(complete_arguments(["fit", *arguments]))


def evaluate(arguments: Sequence[str]) -> None:
    """Run ``weince evaluate``."""
    from weince_lightning.cli import main

    main(["evaluate", *arguments])


def _check_options(plan: Sweep) -> dict[str, str]:
    """Let the commands' own parsers read every configuration, before anything is trained.

    Returns:
        For each run's name the file name of its last checkpoint.
    """
    from jsonargparse import capture_parser

    from weince_lightning.cli.command import WeinceCLI

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


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="weince sweep",
        description=_DESCRIPTION.format(packaged=", ".join(packaged_sweeps())),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("sweep", metavar="SWEEP", help="the sweep file")
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="the folder of results/ and runs/ (default: sweeps/ and the name of the file)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and their commands, and do nothing"
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=_positive,
        default=1,
        help="runs side by side, each with its share of the processors (default: 1)",
    )
    parser.add_argument(
        "--keep_checkpoints",
        metavar="BOOL",
        type=_boolean,
        default=True,
        help="whether checkpoints stay once a run has its result (default: true)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be an integer above 0, got {text!r}")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return text.lower() == "true"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
