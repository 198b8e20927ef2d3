"""A process that is killed while it saves leaves a checkpoint that can be read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from weince_lightning.checkpoints.saving import AtomicCheckpointIO, save_atomically
from weince_lightning.cli.lightning_cli import WeinceCLI

TESTS = Path(__file__).parent
KILLS = 20


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What was left after each of the kills."""
    folder = tmp_path_factory.mktemp("killed")
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    memory = Path("/dev/shm")
    if memory.is_dir():
        # Lightning's own way is atomic only where the temporary folder is on the same disk.
        environment["TMPDIR"] = str(memory)
    finished = subprocess.run(
        [sys.executable, str(TESTS / "saving_process.py"), str(folder), str(KILLS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")


def test_every_checkpoint_left_by_a_kill_is_whole(reports):
    assert len(reports) == KILLS
    for report in reports:
        assert report["files"]
        assert all(isinstance(step, int) for step in report["files"].values()), report


def test_no_completed_save_is_lost_by_a_kill(reports):
    for report in reports:
        assert max(report["files"].values()) in (report["saved"], report["saved"] + 1), report


def test_the_kills_hit_saves_and_leave_one_unfinished_file_at_most(reports):
    hits = [report["parts"] for report in reports if report["parts"]]
    assert len(hits) >= 3
    assert all(len(parts) == 1 and parts[0].endswith(".part") for parts in hits)


def test_the_command_saves_atomically(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = []

    class Command(WeinceCLI):
        def fit(self, **arguments):
            kinds.append(type(self.trainer.strategy.checkpoint_io))

    Command(["fit", "--model.backbone=convnet"])
    assert kinds == [AtomicCheckpointIO]


def test_a_chosen_way_to_save_stays(tmp_path):
    chosen = AsyncCheckpointIO()
    trainer = Trainer(plugins=[chosen], accelerator="cpu", logger=False, default_root_dir=tmp_path)
    save_atomically(trainer)
    assert trainer.strategy.checkpoint_io is chosen
