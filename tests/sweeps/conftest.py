"""A working folder for a sweep, and the command."""

import os

import pytest
from sweep_folders import RUNS, WorkingFolder

from weince_lightning.cli import main
from weince_lightning.cli.sweep_commands import COMMANDS
from weince_lightning.sweeps import run_sweep


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return WorkingFolder(tmp_path)


@pytest.fixture
def sweep(capsys):
    """Run ``weince sweep`` in this process, its runs in theirs; gives status and output."""

    def run(*arguments):
        try:
            main(["sweep", *map(str, arguments)])
        except SystemExit as end:
            return end.code, "".join(capsys.readouterr())
        return 0, "".join(capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The working folder of a sweep run from Python to its end; nobody may change it."""
    work, before = WorkingFolder(tmp_path_factory.mktemp("finished")), os.getcwd()
    os.chdir(work.path)
    try:
        outcome = run_sweep("small.yaml", COMMANDS)
    finally:
        os.chdir(before)
    assert outcome == ({}, None, len(RUNS))
    return work
