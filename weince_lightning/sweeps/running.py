"""A sweep from its file to its results: listed, carried out here, or submitted to a cluster."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weince_lightning.sweeps.commands import Commands
from weince_lightning.sweeps.plan import Sweep
from weince_lightning.sweeps.processes import CommandProcesses, threads_of_runs
from weince_lightning.sweeps.reading import read_sweep

if TYPE_CHECKING:  # these import torch, which run_sweep lets another process import meanwhile
    from weince_lightning.sweeps.folder import RunFolder
    from weince_lightning.sweeps.scheduling import Outcome


class CheckedSweep(NamedTuple):
    """A sweep whose runs the commands accept, and whose files belong to it."""

    source: Path
    """The sweep file."""
    output: Path
    """The folder of ``results/`` and ``runs/``."""
    folders: Sequence["RunFolder"]
    """Where the files of each run lie, in the order of the runs."""
    checkpoints: Mapping[str, str]
    """For each run's name the file name of its last checkpoint."""

    @property
    def unfinished(self) -> list["RunFolder"]:
        """Those of the runs without a result."""
        return [folder for folder in self.folders if not folder.is_done]


def default_output(path: str | Path) -> Path:
    """Return the folder of a sweep: ``sweeps/`` and the name of its file."""
    return Path("sweeps") / Path(path).stem


def list_runs(path: str | Path, commands: Commands, output: str | Path | None = None) -> list[str]:
    """List the runs of a sweep and their commands, as one could type them; nothing is written.

    Args:
        path: The sweep file.
        commands: The commands that would train and evaluate.
        output: The folder of ``results/`` and ``runs/``; ``sweeps/`` and the name of the file by
            default.

    Returns:
        Three lines for each run: number, name and whether it is done; training; evaluation.

    Raises:
        FileNotFoundError: If there is no such file.
        SweepError: As :func:`run_sweep` does.
    """
    from weince_lightning.sweeps.execution import command_lines

    sweep = _check(path, read_sweep(path), commands, output)
    lines = []
    for number, folder in enumerate(sweep.folders, 1):
        name = folder.run.name
        lines.append(f"{number}. {name}{' (done)' if folder.is_done else ''}")
        lines += [
            f"   {line}"
            for line in command_lines(folder, sweep.checkpoints[name], commands.find_layer)
        ]
    return lines


def run_sweep(
    path: str | Path,
    commands: Commands,
    output: str | Path | None = None,
    jobs: int = 1,
    keep_checkpoints: bool = True,
    say: Callable[[str], None] = print,
    threads: int | None = None,
) -> "Outcome":
    """Train and evaluate all runs of a sweep that have no result yet.

    Started again, it skips what is done and resumes what was interrupted, whatever ended it. Each
    command runs in a process of its own, so a script calls this under
    ``if __name__ == "__main__":``, as :mod:`multiprocessing` demands.

    Args:
        path: The sweep file.
        commands: The commands that train and evaluate: ``COMMANDS`` of
            ``weince_lightning.cli.sweep_commands``, or your own.
        output: The folder of ``results/`` and ``runs/``; ``sweeps/`` and the name of the file by
            default.
        jobs: Runs side by side.
        keep_checkpoints: Whether checkpoints stay once a run has its result.
        say: Is called with a line at the start, and for each run as it begins and ends.
        threads: Threads of each run, at least 1; None is what ``OMP_NUM_THREADS`` says, or else an
            equal share of the processors.

    Returns:
        The failures by the runs' names; a failed run does not stop the others. Also the signal that
        stopped the sweep, if one did.

    Raises:
        FileNotFoundError: If there is no such file.
        SweepError: If it is no sweep, if a command would refuse what it asks for, or if the folder
            holds results of another plan. Nothing is trained then.
    """
    plan = read_sweep(path)
    # First: its server imports what the runs need while this process does the same.
    processes = CommandProcesses(commands, threads_of_runs(jobs, threads))
    from weince_lightning.sweeps.scheduling import carry_out

    sweep = _check(path, plan, commands, output)
    _begin(sweep, say)
    return carry_out(sweep.unfinished, commands, processes, jobs, keep_checkpoints, say)


def submit_sweep(
    path: str | Path,
    commands: Commands,
    settings: Mapping[str, Any],
    output: str | Path | None = None,
    keep_checkpoints: bool = True,
    say: Callable[[str], None] = print,
    cluster: str = "slurm",
    threads: int | None = None,
) -> dict[str, str]:
    """Submit all runs of a sweep that have no result yet as jobs of a cluster.

    Args:
        path: The sweep file.
        commands: The commands that train and evaluate; pickled with each job.
        settings: What a job asks for, by submitit's names: ``timeout_min``, ``partition``, ...
        output: The folder of ``results/`` and ``runs/``, which the cluster must see; ``sweeps/``
            and the name of the file by default.
        keep_checkpoints: Whether checkpoints stay once a run has its result.
        say: Is called with a line at the start.
        cluster: submitit's name of the cluster; ``"local"`` and ``"debug"`` need none.
        threads: Threads of each run, as :func:`run_sweep` takes them.

    Returns:
        The cluster's name of the job by the run's name.

    Raises:
        FileNotFoundError: If there is no such file.
        SweepError: As :func:`run_sweep` does, or if submitit or the cluster is missing or does not
            know a setting.
    """
    from weince_lightning.sweeps.cluster import ClusterJob, connect, submit

    sweep = _check(path, read_sweep(path), commands, output)
    executor = connect(sweep.output / "slurm", settings, cluster)
    _begin(sweep, say)
    if threads is not None:
        threads = threads_of_runs(1, threads)
    jobs = [ClusterJob(folder, commands, keep_checkpoints, threads) for folder in sweep.unfinished]
    names = [job.folder.run.name for job in jobs]
    return dict(zip(names, submit(executor, jobs), strict=True))


def _check(
    path: str | Path, plan: Sweep, commands: Commands, output: str | Path | None
) -> CheckedSweep:
    from weince_lightning.sweeps.checks import check_runs
    from weince_lightning.sweeps.folder import check_unchanged, describe, run_folder

    output = default_output(path) if output is None else Path(output)
    checkpoints = check_runs(plan, commands)
    folders = [run_folder(output, run) for run in plan.runs()]
    for folder in folders:
        check_unchanged(folder, describe(folder.run, commands.find_layer))
    return CheckedSweep(Path(path), output, folders, checkpoints)


def _begin(sweep: CheckedSweep, say: Callable[[str], None]) -> None:
    from weince_lightning.sweeps.folder import write_plan

    write_plan(sweep.output, sweep.source)
    done = len(sweep.folders) - len(sweep.unfinished)
    say(f"{len(sweep.folders)} runs in {sweep.output}, {done} of them done.")
