"""The folder of a sweep: where the files of a run lie, and whether they are the plan's."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from weince_lightning.checkpoints.files import whole_file
from weince_lightning.layers import merged, read_layers
from weince_lightning.sweeps.plan import Run, SweepError, argument_differences

PLAN = "sweep.yaml"


class RunFolder(NamedTuple):
    """Where the files of one run lie."""

    run: Run
    result: Path
    """Small: what the report reads."""

    path: Path
    """Big: checkpoints and logs; may be deleted once there is a result."""

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return self.path / "checkpoints"

    @property
    def record(self) -> Path:
        """What was asked for when the run began."""
        return self.path / "run.json"

    @property
    def log(self) -> Path:
        """What the commands wrote to the screen."""
        return self.path / "log.txt"

    @property
    def is_done(self) -> bool:
        """Whether there is a result."""
        return self.result.is_file()


def run_folder(output: Path, run: Run) -> RunFolder:
    """Return where the files of a run lie in the folder of its sweep."""
    return RunFolder(run, output / "results" / f"{run.name}.json", output / "runs" / run.name)


def describe(run: Run, find_layer: Callable[[str], str]) -> dict[str, Any]:
    """Write down what a run was asked to do, by which another plan is known from it.

    Args:
        run: The run.
        find_layer: Gives the file behind the name of a layer.

    Returns:
        The arguments of both commands, and the digests of the layers' content, that of the layers
        under them included.
    """
    return {
        "fit": run.fit_arguments,
        "evaluate": run.evaluate_arguments,
        "layers": {layer: _digest(find_layer(layer)) for layer in run.layers},
    }


def check_unchanged(folder: RunFolder, planned: dict[str, Any]) -> None:
    """Refuse to take what lies in a folder for the result of another plan.

    Args:
        folder: Where the run's files lie, or will.
        planned: What :func:`describe` says of the run.

    Raises:
        SweepError: If a result, or an unfinished training, was made with other arguments or layers.
    """
    # Evaluation knows itself what it can use again of an unfinished run.
    parts_of = {folder.result: ("fit", "layers", "evaluate"), folder.record: ("fit", "layers")}
    for path, parts in parts_of.items():
        if not path.is_file():
            continue
        made = read_json(path).get("plan")
        if not isinstance(made, dict):
            raise SweepError(f"{path} does not say how it was made. Delete it to run it again.")
        for part in parts:
            if made.get(part) != planned[part]:
                raise SweepError(
                    f"{path} was made with {_difference(made.get(part), planned[part])}. Give "
                    f"another --output, or delete {_to_delete(folder, part)} to run it again."
                )


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of a sweep.

    Raises:
        SweepError: If it is damaged; all of them are written whole at once.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SweepError(f"{path} cannot be read: delete it to run it again.") from error
    if not isinstance(content, dict):
        raise SweepError(f"{path} is no file of a sweep: delete it to run it again.")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of a sweep, whole at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def write_plan(output: Path, source: Path) -> None:
    """Keep a copy of the sweep file as the plan of record."""
    output.mkdir(parents=True, exist_ok=True)
    content = source.read_bytes()
    with whole_file(output / PLAN) as file:
        file.write(content)


@contextmanager
def alone(folder: RunFolder) -> Iterator[bool]:
    """Keep other sweeps, on this machine or on others that share the disk, from the same run.

    Yields:
        Whether nobody else is at work on it. Always so where the system has no such locks.
    """
    if find_spec("fcntl") is None:
        yield True
        return
    fcntl = import_module("fcntl")
    folder.path.mkdir(parents=True, exist_ok=True)
    # The system gives the lock back however the process ends.
    with (folder.path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _digest(path: str) -> str:
    """Tell apart contents of configurations, not their comments."""
    content = merged(read_layers(path))
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()


def _difference(made: Any, planned: Any) -> str:
    if isinstance(planned, dict):
        names = [name for name in planned if (made or {}).get(name) != planned[name]]
        return f"another content of the layer {' and '.join(names) or 'that is gone'}"
    return argument_differences(made or [], planned, "the plan")


def _to_delete(folder: RunFolder, part: str) -> str:
    both = [path for path in (folder.result, folder.path) if path.exists()]
    # A training made with the same arguments is used again.
    return " and ".join(map(str, both[:1] if part == "evaluate" else both))
