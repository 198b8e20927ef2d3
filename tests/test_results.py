"""The committed results: reports are what the commands make of them, and the README quotes them."""

import re
import shutil
from pathlib import Path

import pytest

from weince_lightning.cli import main

ROOT = Path(__file__).parents[1]
NUMBER = r"(-?\d+(?:\.\d+)?(?:e[+-]\d+)?)"
FOLDERS = sorted(file.parent for file in (ROOT / "docs" / "results").glob("*/report.md"))


def test_there_are_results():
    assert "fashion_mnist_convnet" in [folder.name for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_report_is_what_the_command_makes_of_the_results(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    again = folder.relative_to(ROOT)
    shutil.copytree(folder, again, ignore=shutil.ignore_patterns("report.*", "runs"))
    main(["report", str(again)])
    for name in ("report.md", "report.tex"):
        assert (again / name).read_text(encoding="utf-8") == (folder / name).read_text(
            encoding="utf-8"
        )
    # Quantiles of t differ in their last digits between versions of scipy.
    for name in ("report.csv", "report.json"):
        found, kept = (
            re.split(NUMBER, (place / name).read_text(encoding="utf-8"))
            for place in (again, folder)
        )
        assert found[::2] == kept[::2]
        numbers, others = ([*map(float, texts[1::2])] for texts in (found, kept))
        assert numbers == pytest.approx(others, rel=1e-9, abs=1e-15)


def test_the_table_of_the_readme_is_that_of_the_report():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## Results\n(.*?)^## ", text, flags=re.DOTALL | re.MULTILINE).group(1)
    shown = [line for line in section.splitlines() if line.startswith("|")]
    report = (ROOT / "docs/results/fashion_mnist_convnet/report.md").read_text(encoding="utf-8")
    lines = report.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("|"))
    last = next(place for place in range(first, len(lines)) if not lines[place].startswith("|"))
    assert shown == lines[first:last]
    for command in ("weince sweep sweeps/fashion_mnist_convnet", "weince report docs/results/fash"):
        assert command in section
