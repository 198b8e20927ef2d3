"""One run: train, evaluate, write the result; and go on where an earlier attempt broke off."""

import json
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from weince_lightning.checkpoints import CheckpointError, open_checkpoint
from weince_lightning.folders import files_below
from weince_lightning.sweeps import history
from weince_lightning.sweeps.commands import Command, Commands
from weince_lightning.sweeps.folder import RunFolder, alone, describe, read_json, write_json
from weince_lightning.sweeps.loggers import run_loggers
from weince_lightning.sweeps.processes import CommandProcesses

_VERSIONS = ("torch", "lightning", "weince-lightning")


class RunFailedError(Exception):
    """A run that did not come to its end; the message is one line.

    Attributes:
        status: Exit status of the command that ended, negative for a signal, None where there was
            no command.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class RunStoppedError(RunFailedError):
    """A run that was told to stop, and can go on."""


def execute(
    folder: RunFolder,
    commands: Commands,
    processes: CommandProcesses,
    keep_checkpoints: bool = True,
) -> dict[str, Any]:
    """Carry out what is left of a run.

    Args:
        folder: Where its files lie.
        commands: What trains and evaluates.
        processes: Where they run.
        keep_checkpoints: Whether the checkpoints stay once there is a result.

    Returns:
        The result, as it was written to ``folder.result``.

    Raises:
        RunStoppedError: If ``processes`` was stopped.
        RunFailedError: If training or evaluation failed.
    """
    run = folder.run
    if processes.is_stopped:
        raise RunStoppedError("stopped")
    with alone(folder) as is_free:
        if not is_free:
            raise RunFailedError("another sweep is at work on it")
        if folder.is_done:  # another sweep was
            return read_json(folder.result)
        planned = describe(run, commands.find_layer)
        seconds = _train(folder, planned, commands, processes)
        checkpoint = _furthest(folder)
        if checkpoint is None:
            raise RunFailedError(f"there is no checkpoint that can be read in {folder.checkpoints}")
        arguments = _evaluate_arguments(folder, checkpoint)
        _run(folder, "evaluate", commands.evaluate, arguments, processes)
        logged = history.read_history(folder.path)
        result = {
            "arm": run.arm,
            "point": dict(run.point),
            "seed": run.seed,
            "evaluation": read_json(checkpoint.with_suffix("") / "evaluation.json"),
            "fit": {
                "arguments": run.fit_arguments,
                "seconds": round(seconds, 1),
                "metrics": logged.metrics,
                "history": logged.epochs,
            },
            "plan": planned,
            "threads": processes.threads,
            "versions": {name.replace("-", "_"): version(name) for name in _VERSIONS},
        }
        write_json(folder.result, result)
        if not keep_checkpoints:
            shutil.rmtree(folder.checkpoints)
        return result


def command_lines(
    folder: RunFolder, checkpoint_name: str, find_layer: Callable[[str], str]
) -> list[str]:
    """Write down what a run does, as one could type it.

    Args:
        folder: Where its files lie.
        checkpoint_name: File name of the training's last checkpoint.
        find_layer: Gives the file behind the name of a layer.
    """
    fit = _fit_arguments(folder, None, find_layer)
    evaluate = _evaluate_arguments(folder, folder.checkpoints / checkpoint_name)
    return [shlex.join(["weince", "fit", *fit]), shlex.join(["weince", "evaluate", *evaluate])]


def _fit_arguments(
    folder: RunFolder, checkpoint: Path | None, find_layer: Callable[[str], str]
) -> list[str]:
    loggers = run_loggers(folder, find_layer)
    arguments = [*folder.run.fit_arguments, f"--trainer.logger={json.dumps(loggers)}"]
    if "trainer.enable_progress_bar" not in folder.run.options:
        arguments.append("--trainer.enable_progress_bar=false")
    if checkpoint is not None:
        arguments.append(f"--ckpt_path={checkpoint}")
    return arguments


def _evaluate_arguments(folder: RunFolder, checkpoint: Path) -> list[str]:
    return [str(checkpoint), *folder.run.evaluate_arguments]


def _train(
    folder: RunFolder, planned: dict[str, Any], commands: Commands, processes: CommandProcesses
) -> float:
    """Train to the end; returns the seconds that it took, lost work aside."""
    record = read_json(folder.record) if folder.record.is_file() else {}
    checkpoint = _furthest(folder)
    if checkpoint is not None and record.get("seconds") is not None:
        return float(record["seconds"])
    resumed = _furthest(folder, is_to_resume=True)
    before = 0.0
    if resumed is None or not record:
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
        for log in (*folder.path.glob("metrics*.csv"), *folder.path.glob("events.out.tfevents*")):
            log.unlink()
        resumed = None
    else:
        history.set_aside(folder.path)
        # What an attempt did after its last checkpoint is done again, and counted then.
        before = record["seconds_before"] + max(0, resumed.stat().st_mtime - record["started"])
    started = time.time()
    record = {"plan": planned, "started": started, "seconds_before": before, "seconds": None}
    write_json(folder.record, record)
    arguments = _fit_arguments(folder, resumed, commands.find_layer)
    _run(folder, "fit", commands.fit, arguments, processes)
    record["seconds"] = before + time.time() - started
    write_json(folder.record, record)
    return float(record["seconds"])


def _run(
    folder: RunFolder,
    name: str,
    command: Command,
    arguments: list[str],
    processes: CommandProcesses,
) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    line = shlex.join(["weince", name, *arguments])
    with folder.log.open("a", encoding="utf-8") as log:
        log.write(f"\n{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
    status = processes.run(command, name, arguments, folder.log)
    if status == 0:
        return
    if processes.is_stopped:
        raise RunStoppedError("stopped", status)
    raise RunFailedError(f"{name} {_what_happened(status, folder.log)}", status)


def _furthest(folder: RunFolder, is_to_resume: bool = False) -> Path | None:
    """Return the checkpoint of the run that has trained most, by steps and never by numbers."""
    found = []
    for path in files_below(folder.checkpoints, ".ckpt"):
        with suppress(CheckpointError):
            progress = open_checkpoint(path).progress
            # Without a number of epochs a training cannot go on from it.
            if progress and not (is_to_resume and progress.epochs is None):
                epochs = -1 if progress.epochs is None else progress.epochs
                is_last = path.stem == "last"
                found.append((progress.steps, epochs, is_last, path.stat().st_mtime, path))
    return max(found)[-1] if found else None


def _what_happened(status: int, log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    # A parser's error is followed by where its help is found.
    errors = [line for line in lines[-5:] if "error:" in line or "Error:" in line]
    last = (errors or lines)[-1]
    if status < 0:
        name = signal.Signals(-status).name
        hint = ": the system may have run out of memory" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    # The commands' own errors have these, and say what is wrong.
    of_what = "" if status in (1, 2) else f" with exit status {status}"
    return f"failed{of_what}: {last}"
