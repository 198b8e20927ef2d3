"""``weince sweep``: carry out a comparison, or go on with it."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weince_lightning.cli.arguments import CommandParser, UsageError
from weince_lightning.cli.sweep_commands import COMMANDS
from weince_lightning.layers import packaged_sweeps
from weince_lightning.sweeps import SweepError, list_runs, run_sweep, submit_sweep
from weince_lightning.sweeps.running import default_output

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


def sweep(arguments: Sequence[str], cluster: str = "slurm") -> None:
    """Run ``weince sweep``.

    Args:
        arguments: What stands after ``sweep``.
        cluster: What ``--engine slurm`` submits to, by submitit's name: ``"local"`` and
            ``"debug"`` need no cluster.

    Raises:
        UsageError: If the arguments or the sweep file make no sense.
        FileNotFoundError: If there is no such file.
        SystemExit: With status 1 if runs failed, 130 or 143 if a signal stopped the sweep.
    """
    settings, others = _cluster_settings(arguments)
    options = _parser().read(others)
    if settings and options.engine != "slurm":
        raise UsageError("--slurm options must stand with --engine slurm.")
    options.path = find_sweep(options.sweep)
    options.output = options.output or default_output(options.path)
    try:
        if options.dry_run:
            _say("\n".join(list_runs(options.path, COMMANDS, options.output)))
        elif options.engine == "local":
            _run(options, shlex.join(["weince", "sweep", *arguments]))
        else:
            _submit(options, settings, cluster)
    except SweepError as error:
        raise UsageError(str(error)) from error


def _run(options: argparse.Namespace, command: str) -> None:
    outcome = run_sweep(
        options.path, COMMANDS, options.output, options.jobs, options.keep_checkpoints, _say,
        options.threads,
    )  # fmt: skip
    if outcome.signum is not None:
        _say(f"Interrupted. Go on with:\n  {command}")
        raise SystemExit(128 + outcome.signum)
    if outcome.failures:
        _say(f"{len(outcome.failures)} of {outcome.num_runs} runs failed:")
        for name, what in outcome.failures.items():
            _say(f"  {name}: {what}\n    {options.output / 'runs' / name / 'log.txt'}")
        raise SystemExit(1)
    _say(f"All runs are done. Next:\n  {_report_command(options)}")


def _submit(options: argparse.Namespace, settings: dict[str, Any], cluster: str) -> None:
    jobs = submit_sweep(
        options.path, COMMANDS, settings, options.output, options.keep_checkpoints, _say, cluster,
        options.threads,
    )  # fmt: skip
    for name, job in jobs.items():
        _say(f"job {job}: {name}")
    _say(
        "The same command submits again what failed, and with --dry-run lists what is done. At the "
        f"end:\n  {_report_command(options)}"
    )


def _report_command(options: argparse.Namespace) -> str:
    return f"weince report {shlex.quote(str(options.output))}"


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


def _parser() -> CommandParser:
    parser = CommandParser(
        "sweep", _DESCRIPTION.format(packaged=", ".join(packaged_sweeps())), _EPILOG
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
        help="runs side by side (default: 1)",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=_positive,
        help="threads of each run (default: OMP_NUM_THREADS, or else a share of the processors)",
    )
    parser.add_argument(
        "--keep-checkpoints",
        metavar="BOOL",
        type=_boolean,
        default=True,
        help="whether checkpoints stay once a run has its result (default: true)",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "slurm"),
        default="local",
        help="where the runs are carried out: here, or as jobs of a SLURM cluster",
    )
    parser.add_argument(
        "--slurm.NAME",
        metavar="VALUE",
        help="what a job asks for, by submitit's names: partition, timeout_min, gpus_per_node, "
        "cpus_per_task, mem_gb, array_parallelism, max_num_timeout, ...",
    )
    return parser


def _cluster_settings(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split off ``--slurm.NAME VALUE``."""
    settings, others, remaining = dict[str, Any](), list[str](), iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name.startswith("--slurm."):
            value = value if equals else next(remaining, "")
            try:
                settings[name.removeprefix("--slurm.")] = json.loads(value)
            except ValueError:
                settings[name.removeprefix("--slurm.")] = value
        else:
            others.append(argument)
    return settings, others


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
