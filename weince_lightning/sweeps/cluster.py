"""The same runs as the jobs of a SLURM cluster, submitted through submitit."""

import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from weince_lightning.sweeps.commands import Commands
from weince_lightning.sweeps.execution import RunFailedError, execute
from weince_lightning.sweeps.folder import RunFolder
from weince_lightning.sweeps.plan import SweepError
from weince_lightning.sweeps.processes import CommandProcesses, threads_of_runs

_ENDED_BY_SIGTERM = (-signal.SIGTERM, 128 + signal.SIGTERM)


@dataclass
class ClusterJob:
    """One run as a job; submitit calls it, and asks for a checkpoint before the job's time is up.

    Attributes:
        folder: Where the run's files lie.
        commands: What trains and evaluates.
        keep_checkpoints: Whether the checkpoints stay once there is a result.
        threads: Threads of the run, None for all that the job has.
    """

    folder: RunFolder
    commands: Commands
    keep_checkpoints: bool
    threads: int | None = None
    _processes: CommandProcesses | None = None

    def __call__(self) -> None:
        """Carry out what is left of the run."""
        self._processes = CommandProcesses(self.commands, threads_of_runs(1, self.threads))
        while True:
            try:
                execute(self.folder, self.commands, self._processes, self.keep_checkpoints)
                return
            except RunFailedError as error:
                # SIGTERM goes to all processes of a job that is about to be preempted. Until the
                # cluster ends this one too there is nothing better to do than to go on.
                if self._processes.is_stopped or error.status not in _ENDED_BY_SIGTERM:
                    raise

    def checkpoint(self) -> Any:
        """Let the training save itself; returns the job that goes on with it."""
        if self._processes is not None:
            self._processes.stop()
            self._processes.wait()
        return import_module("submitit").helpers.DelayedSubmission(replace(self, _processes=None))


def connect(folder: Path, settings: Mapping[str, Any], cluster: str = "slurm") -> Any:
    """Make ready to submit.

    Args:
        folder: Where submitit keeps its files; the cluster must see it.
        settings: Options of sbatch under submitit's names, such as ``partition``, ``timeout_min``,
            ``gpus_per_node``, ``array_parallelism``; ``max_num_timeout`` says how often a job that
            ran out of time goes on.
        cluster: submitit's name of the executor; ``"local"`` and ``"debug"`` need no cluster.

    Returns:
        submitit's executor.

    Raises:
        SweepError: If submitit or the cluster is not there, or does not know a setting.
    """
    try:
        submitit = import_module("submitit")
    except ModuleNotFoundError as error:
        raise SweepError(
            "--engine slurm needs submitit: pip install weince-lightning[slurm]"
        ) from error
    if cluster == "slurm" and shutil.which("srun") is None:
        raise SweepError("--engine slurm must run where srun is: on a machine of the cluster.")
    if not {"timeout_min", "time"} & {*settings}:
        raise SweepError("--slurm.timeout_min must be given, such as 240: submitit would take 5.")
    settings, of_executor = dict(settings), {}
    if "max_num_timeout" in settings:
        of_executor["slurm_max_num_timeout"] = settings.pop("max_num_timeout")
    try:
        executor = submitit.AutoExecutor(folder, cluster=cluster, **of_executor)
        for name, value in settings.items():
            is_shared = name in executor._typed_parameters()
            executor.update_parameters(**{name if is_shared else f"slurm_{name}": value})
    except (NameError, AssertionError, ValueError, TypeError) as error:
        raise SweepError(f"--slurm: {str(error).splitlines()[0]}") from error
    return executor


def submit(executor: Any, jobs: Sequence[ClusterJob]) -> list[str]:
    """Submit jobs, as one array.

    Returns:
        The cluster's names of the jobs.
    """
    if not jobs:
        return []
    with executor.batch():
        submitted = [executor.submit(job) for job in jobs]
    return [job.job_id for job in submitted]
