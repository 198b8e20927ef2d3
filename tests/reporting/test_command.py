"""``weince report`` as a person types it."""

import re
import shlex

import pytest

from weince_lightning.cli import main
from weince_lightning.reporting import report, write_report


def test_the_command_shows_the_table_and_names_the_files(sweep, capsys):
    sweep.file("infonce", "temperature=0.5", 63).unlink()
    main(["report", str(sweep.path)])
    shown = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("|")] for line in shown.splitlines()]
    assert ["WEINCE", "default", "55.00 ± 6.57", "+3.00 [+0.52, +5.48] *"] in [
        row[1:5] for row in cells
    ]
    assert ["InfoNCE", "temperature=0.1 (of 1 complete, 2 planned)"] in [row[1:3] for row in cells]
    assert "- InfoNCE: temperature=0.1 was chosen without temperature=0.5, where seeds" in shown
    assert "- InfoNCE, temperature=0.5 lacks seed 63." in shown
    assert f"{sweep.path / 'report.png'}." in shown
    page = (sweep.path / "report.md").read_text(encoding="utf-8")
    assert f"Made by `weince report {sweep.path}`" in page


def test_options_reach_the_comparison(sweep, capsys):
    sweep.file("weince", "default", 21).unlink()
    for seed in (7, 21, 63):
        value = {"values": [0.9]}
        sweep.change("infonce", "temperature=0.5", seed, "knn", "val_top1_k50", value)
    main(["report", str(sweep.path), "--select=knn.val_top1_k50", "--allow-incomplete"])
    shown = capsys.readouterr().out
    assert "temperature=0.5 (of 2)" in shown
    assert "**Incomplete**" in shown


def test_the_old_spelling_of_a_flag_is_accepted_and_named_in_one_line(sweep, capsys):
    sweep.file("weince", "default", 21).unlink()
    main(["report", str(sweep.path), "--allow_incomplete"])
    said = capsys.readouterr()
    assert "**Incomplete**" in said.out
    assert said.err == "weince: --allow_incomplete is now spelled --allow-incomplete.\n"


def test_the_command_writes_what_python_writes(sweep, capsys):
    sweep.file("weince", "default", 21).unlink()
    options = {"select": "knn.val_top1_k50", "allow_incomplete": True}
    files = write_report(report(sweep.path, **options))
    written = {file: file.read_bytes() for file in files}
    command = re.search(r"Made by `weince (.+?)`", (sweep.path / "report.md").read_text())[1]
    main(shlex.split(command))
    assert {file: file.read_bytes() for file in files} == written


def test_a_sweep_that_is_still_running_can_be_reported_on_again(sweep, capsys):
    hidden = sweep.file("weince", "default", 21)
    content = hidden.read_bytes()
    hidden.unlink()
    main(["report", str(sweep.path)])
    shown = capsys.readouterr().out
    assert "WEINCE is not compared: 2 of 3 seeds." in shown
    assert "--allow-incomplete compares all arms" in shown
    hidden.write_bytes(content)
    main(["report", str(sweep.path)])
    assert "2 of 3 seeds" not in capsys.readouterr().out
    assert "2 of 3 seeds" not in (sweep.path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["{folder}", "--select", "linear.test_top1"], 2, "--select must name a validation metric"),
        ([], 2, "DIR"),
        (["{folder}", "--metric", "x"], 2, "--metric"),
        (["{folder}/absent"], 1, "there is no folder"),
        (["{folder}/results"], 1, "there are no results in"),
    ],
)
def test_mistakes_are_one_line_and_a_status(sweep, capsys, arguments, status, reason):
    with pytest.raises(SystemExit) as exit_info:
        main(["report", *(argument.format(folder=sweep.path) for argument in arguments)])
    assert exit_info.value.code == status
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_help_names_what_is_read_and_written(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["report", "--help"])
    assert exit_info.value.code == 0
    shown = capsys.readouterr().out
    for word in ("DIR/sweep.yaml", "report.json", "--allow-incomplete", "linear.val_top1"):
        assert word in shown
