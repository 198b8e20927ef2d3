"""A process that is killed while it saves leaves a checkpoint that can be read."""

import json
import sys
from pathlib import Path

import pytest
from cases import few
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from processes import TESTS, run_python

from weince_lightning.checkpoints.saving import AtomicCheckpointIO, save_atomically
from weince_lightning.cli.lightning_cli import WeinceCLI


@pytest.fixture(scope="module", params=few([8, 20]), ids="{} kills".format)
def reports(request, tmp_path_factory):
    """What was left after each of the kills."""
    folder = tmp_path_factory.mktemp("killed")
    environment = {}
    memory = Path("/dev/shm")
    if memory.is_dir():
        # Lightning's own way is atomic only where the temporary folder is on the same disk.
        environment["TMPDIR"] = str(memory)
    command = (TESTS / "saving_process.py", folder, request.param)
    output = run_python(*command, environment=environment, timeout=300)
    found = json.loads(output.splitlines()[-1])
    assert len(found) == request.param
    return found


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")


def test_every_checkpoint_left_by_a_kill_is_whole(reports):
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
