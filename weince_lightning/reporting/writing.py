"""All files of a report."""

import json
from pathlib import Path

from weince_lightning.checkpoints.files import whole_file
from weince_lightning.figures import encode
from weince_lightning.reporting.comparison import Comparison
from weince_lightning.reporting.figure import draw
from weince_lightning.reporting.latex import table
from weince_lightning.reporting.markdown import page
from weince_lightning.reporting.records import as_csv, as_record


def write_report(comparison: Comparison, folder: str | Path, command: str) -> list[Path]:
    """Write ``report.json``, ``.md``, ``.csv``, ``.tex`` and ``.png``, each whole or not at all.

    The same comparison gives the same bytes.

    Args:
        comparison: What to write.
        folder: Where; reports there are replaced.
        command: The command that made it, which the files name.

    Returns:
        The files.
    """
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
