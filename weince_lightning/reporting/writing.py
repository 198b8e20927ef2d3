"""All files of a report."""

import json
import shlex
from pathlib import Path

from weince_lightning.checkpoints.files import whole_file
from weince_lightning.figures import encode
from weince_lightning.reporting.comparison import DEFAULT_SELECT, Comparison
from weince_lightning.reporting.figure import draw
from weince_lightning.reporting.latex import table
from weince_lightning.reporting.markdown import page
from weince_lightning.reporting.records import as_csv, as_record


def write_report(
    comparison: Comparison, folder: str | Path | None = None, command: str = ""
) -> list[Path]:
    """Write ``report.json``, ``.md``, ``.csv``, ``.tex`` and ``.png``, each whole or not at all.

    The same comparison gives the same bytes.

    Args:
        comparison: What to write.
        folder: Where; reports there are replaced. By default the folder of the sweep.
        command: The command that made it, which the files name. By default the ``weince report``
            that makes the same comparison.

    Returns:
        The files.
    """
    folder = comparison.results.folder if folder is None else folder
    command = command or _command(comparison)
    record = as_record(comparison, command)
    contents = {
        "json": (json.dumps(record, indent=1, allow_nan=False) + "\n").encode(),
        "md": page(comparison, command).encode(),
        "csv": as_csv(comparison).encode(),
        "tex": table(comparison, command).encode(),
        "png": encode(draw(comparison), "png"),
    }
    files = [Path(folder) / f"report.{suffix}" for suffix in contents]
    for file, content in zip(files, contents.values(), strict=True):
        with whole_file(file) as target:
            target.write(content)
    return files


def _command(comparison: Comparison) -> str:
    options = [] if comparison.select == DEFAULT_SELECT else ["--select", comparison.select]
    options += ["--allow-incomplete"] if comparison.allow_incomplete else []
    return shlex.join(["weince", "report", comparison.results.folder, *options])
