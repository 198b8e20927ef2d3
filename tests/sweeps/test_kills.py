"""Whatever ends a sweep, the same command goes on to the results of an undisturbed one."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import Python
from sweep_folders import RUNS, SWEEP, WorkingFolder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")


def start(work):
    return Python("-m", "weince_lightning", "sweep", "small.yaml", folder=work.path)


def wait_for(condition, process=None, seconds=120):
    """Wait until something is there."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        assert process is None or process.returncode is None, process.finish(60)
        time.sleep(0.01)


def processes_in(folder):
    """The numbers of the processes whose working folder it is."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            found += [int(link.parent.name)] if link.resolve() == folder else []
        except OSError:
            continue  # it has ended
    return found


def run_again(work):
    process = start(work)
    output = process.finish(timeout=240)
    assert process.returncode == 0, output
    return output


def trains(work, name):
    return (work.run(name) / "checkpoints" / "last.ckpt").is_file


def evaluates(work, name):
    log = work.run(name) / "log.txt"
    # With the time before it: the training proposes an evaluation too.
    begins = re.compile(r"^\d{4}-.*  weince evaluate", re.MULTILINE)
    return lambda: log.is_file() and begins.search(log.read_text()) is not None


def finished_one(work, name):
    return (work.output / "results" / f"{name}.json").is_file


@pytest.mark.slow
def test_a_sweep_that_is_stopped_and_killed_ends_with_the_results_of_an_undisturbed_one(
    finished, tmp_path
):
    work = WorkingFolder(tmp_path)
    work.write("small.yaml", {**SWEEP, "seeds": [7]})
    process = start(work)
    wait_for(trains(work, RUNS[0]), process)
    os.kill(process.pid, signal.SIGTERM)
    output = process.finish(timeout=240)
    assert process.returncode == 143
    assert "Interrupted. Go on with:\n  weince sweep small.yaml\n" in output
    process = start(work)
    wait_for(trains(work, RUNS[1]), process)
    os.kill(process.pid, signal.SIGKILL)
    process.finish(timeout=60)
    run_again(work)
    expected = finished.results()
    assert work.results() == {name: expected[name] for name in RUNS[:2]}
    logs = [(work.run(name) / "log.txt").read_text() for name in RUNS[:2]]
    assert "checkpoints/interrupted.ckpt" in logs[0].partition("--ckpt_path=")[2]
    assert "checkpoints/last.ckpt" in logs[1].partition("--ckpt_path=")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", [trains, evaluates, finished_one], ids=lambda moment: moment.__name__
)
def test_a_killed_sweep_goes_on_and_ends_with_the_same_results(finished, tmp_path, moment):
    work = WorkingFolder(tmp_path)
    process = start(work)
    wait_for(moment(work, RUNS[1]), process)
    # The sweep alone: those who trained for it must notice.
    os.kill(process.pid, signal.SIGKILL)
    process.finish(timeout=60)
    wait_for(lambda: not processes_in(tmp_path), seconds=30)
    assert len(work.results()) == (2 if moment is finished_one else 1)
    output = run_again(work)
    assert f"4 runs in sweeps/small, {2 if moment is finished_one else 1} of them done" in output
    assert work.results() == finished.results()
    log = (work.run(RUNS[1]) / "log.txt").read_text()
    assert log.count("weince fit -c") == (2 if moment is trains else 1)
    assert ("--ckpt_path=" in log) == (moment is trains)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "is_for_all", "status"),
    [(signal.SIGTERM, False, 143), (signal.SIGINT, True, 130)],
    ids=["SIGTERM", "Ctrl-C"],
)
def test_a_signal_saves_the_training_and_the_sweep_goes_on(
    finished, tmp_path, signum, is_for_all, status
):
    work = WorkingFolder(tmp_path)
    process = start(work)
    wait_for(trains(work, RUNS[0]), process)
    (os.killpg if is_for_all else os.kill)(process.pid, signum)
    output = process.finish(timeout=120)
    assert process.returncode == status
    assert "Interrupted. Go on with:\n  weince sweep small.yaml\n" in output
    assert "Traceback" not in output
    assert not work.results()
    assert not processes_in(tmp_path)
    run_again(work)
    assert work.results() == finished.results()


@pytest.mark.slow
def test_training_is_not_resumed_with_other_arguments(finished, tmp_path):
    work = WorkingFolder(tmp_path)
    process = start(work)
    wait_for(trains(work, RUNS[0]), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.finish(timeout=60)
    text = (tmp_path / "small.yaml").read_text()
    (tmp_path / "small.yaml").write_text(f"options: {{model.learning_rate: 0.1}}\n{text}")
    process = start(work)
    said = process.finish(timeout=60)
    assert process.returncode == 2
    assert re.search(r"runs/infonce/default/seed_7/run.json was made with nothing where", said)
