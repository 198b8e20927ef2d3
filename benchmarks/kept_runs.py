"""Runs of a benchmark in one JSON file, so that a call goes on where an earlier one was stopped."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weince_lightning.checkpoints.files import whole_file


def read_runs(path: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs that an earlier call finished; it must have had the same settings."""
    if not path.is_file():
        return []
    numbers = json.loads(path.read_text(encoding="utf-8"))
    if numbers["settings"] != settings:
        raise SystemExit(
            f"{path} was made with other settings, {numbers['settings']}. Give another --output."
        )
    return numbers["runs"]


def write_runs(path: Path, numbers: Mapping[str, Any]) -> None:
    """Write the file with its "settings" and "runs" at once: a killed call leaves the last one."""
    with whole_file(path) as file:
        file.write((json.dumps(numbers, indent=1, allow_nan=False) + "\n").encode())
