"""N steps, a stop, N more steps: to the last bit what 2N steps without a stop give."""

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
import torch
from cases import few
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from processes import WITH_TQDM, Python, run_ranks
from resumed_runs import assert_same, differences, logged, make_module, train
from torch.utils.data import DataLoader, Subset

from weince_lightning.callbacks import InterruptCheckpoint
from weince_lightning.checkpoints import open_checkpoint
from weince_lightning.cli import main
from weince_lightning.cli.resumed_logs import keep_rows, why_new_logs
from weince_lightning.data import VisionData

TESTS = Path(__file__).parent
SHORT = [
    "fit",
    f"-c={TESTS.parent / 'configs' / 'digits.yaml'}",
    f"-c={TESTS / 'few_callbacks.yaml'}",
    "--trainer.max_epochs=2",
    "--trainer.limit_train_batches=6",
]


# With a Trainer in Python


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory):
    """A training that nothing stopped, and its folder of checkpoints."""
    folder = tmp_path_factory.mktemp("unstopped")
    return train(folder), folder


@pytest.fixture(scope="module", params=few([0, 2]), ids=["in the main process", "in two workers"])
def whole(request, unstopped, tmp_path_factory):
    """A training that nothing stopped, its folder of checkpoints and its number of workers."""
    if not request.param:
        return *unstopped, 0
    folder = tmp_path_factory.mktemp("whole")
    return train(folder, num_workers=request.param), folder, request.param


@pytest.mark.parametrize("place", few(["2 batch", "3 validation", "3 epoch", "4 batch"], 0, 1, 2))
def test_training_resumed_anywhere_ends_as_if_nothing_had_stopped_it(whole, place):
    expected, folder, num_workers = whole
    if num_workers and place not in ("2 batch", "3 epoch"):
        pytest.skip("workers start at these two in the two ways there are")
    resumed = train(folder, folder / f"{place}.ckpt", num_workers=num_workers)
    assert_same(resumed, expected, step=int(place[0]))


@pytest.mark.parametrize(
    ("options", "place"),
    few(
        [
            ({"max_epochs": -1, "max_steps": 5}, "3 validation"),
            ({"val_check_interval": 2}, "2 validation"),
            ({"reload_dataloaders_every_n_epochs": 1}, "4 batch"),
        ],
        1,
    ),
    ids=str,
)
def test_other_ways_to_count_resume_exactly(options, place, tmp_path):
    expected = train(tmp_path, **options)
    resumed = train(tmp_path, tmp_path / f"{place}.ckpt", **options)
    assert_same(resumed, expected, step=int(place[0]))


class OwnData(LightningDataModule):
    """Data of a user's own: a plain loader that shuffles by the global random numbers."""

    def train_dataloader(self):
        views = VisionData("digits").val_dataloader().dataset
        return DataLoader(Subset(views, range(96)), batch_size=32, shuffle=True)

    def val_dataloader(self):
        return VisionData("digits", batch_size=32).val_dataloader()

    def evaluation_dataloader(self, split):
        return VisionData("digits").evaluation_dataloader("val")


@pytest.mark.slow
def test_a_plain_loader_resumes_exactly_at_the_end_of_an_epoch(tmp_path):
    expected = train(tmp_path, data=OwnData())
    for place in ("3 validation", "3 epoch"):
        assert_same(train(tmp_path, tmp_path / f"{place}.ckpt", data=OwnData()), expected, step=3)


def test_lightnings_checkpoint_on_sigterm_resumes_exactly(unstopped, tmp_path):
    class Terminate(Callback):
        def on_train_batch_start(self, trainer, *rest):
            if trainer.global_step == 1:
                signal.raise_signal(signal.SIGTERM)

    expected, _ = unstopped
    folder = tmp_path / "terminated"
    with pytest.raises(SIGTERMException):
        train(folder, extra=[Terminate(), OnExceptionCheckpoint(folder, "terminated")])
    resumed = train(tmp_path, folder / "terminated.ckpt")
    assert_same(resumed, expected, step=2)


@pytest.mark.parametrize("signum", few([signal.SIGINT, signal.SIGTERM]))
def test_a_plain_trainer_saves_at_a_signal_and_resumes_exactly(signum, unstopped, tmp_path):
    class Interrupt(Callback):
        def on_train_batch_start(self, trainer, *rest):
            if trainer.global_step == 1:
                signal.raise_signal(signum)

    expected, _ = unstopped
    # Not the last that is given: it makes itself the last.
    interrupt = InterruptCheckpoint()
    with pytest.raises(SIGTERMException):
        train(tmp_path / "stopped", extra=[interrupt, Interrupt()])
    assert interrupt.path.name == "interrupted.ckpt"
    assert interrupt.path.is_relative_to(tmp_path / "stopped")
    assert interrupt.signum == signum
    # The same callback goes on, as where a notebook's cell runs again.
    assert_same(train(tmp_path, interrupt.path, extra=[interrupt]), expected, step=2)
    assert interrupt.signum is None


def test_loading_a_model_leaves_the_random_numbers_alone(unstopped):
    _, folder = unstopped
    module = make_module()
    before = torch.get_rng_state()
    module.on_load_checkpoint(torch.load(folder / "2 batch.ckpt", weights_only=True))
    assert torch.equal(torch.get_rng_state(), before)


# Two processes


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(2, TESTS / "resumed_runs.py", folder, timeout=240)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def test_training_of_two_processes_resumes_exactly_on_both(ranks):
    for rank in ranks:
        assert_same(rank["resumed"], rank["whole"], step=2)
    assert differences(*(rank["resumed"]["end"]["state_dict"] for rank in ranks)) == []


def test_processes_share_the_images_of_an_epoch_without_a_common_seed(ranks):
    first, second = (rank["seen"] for rank in ranks)
    assert len(first) == len(second) == 640
    assert not set(first) & set(second)


# The command, with real signals


def run(folder, arguments):
    output, before, threads = io.StringIO(), Path.cwd(), torch.get_num_threads()
    os.chdir(folder)
    torch.set_num_threads(1)  # as in such a process: sums of two threads are rounded otherwise
    try:
        with contextlib.redirect_stdout(output):
            main(arguments)
    finally:
        os.chdir(before)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    return output.getvalue()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The folder of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    run(folder, SHORT)
    return folder / "runs" / "digits" / "version_0"


def interrupt(folder, pattern, signals, *options):
    """Send signals as soon as the command has written the pattern; returns status and output."""
    command = ["-m", "weince_lightning", *SHORT, WITH_TQDM, *options]
    process = Python(*command, folder=folder)
    process.read_until(pattern)
    for signum in signals:
        process.send(signum)
    output = process.finish(timeout=180)
    assert "Traceback" not in output, output
    return process.returncode, output


def suggested(output):
    return shlex.split(re.search(r"Resume with:\n  weince (.+)", output)[1])


@pytest.mark.parametrize(
    ("pattern", "signals", "status", "steps"),
    [
        pytest.param(
            rb"Epoch 0: +83%", [signal.SIGTERM] * 2, 143, range(5, 12), marks=pytest.mark.slow
        ),
        (rb"Epoch 1: +33%", [signal.SIGINT], 130, range(8, 12)),
        pytest.param(
            rb"Validation DataLoader 0: +0%",
            [signal.SIGTERM],
            143,
            range(7, 12),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["SIGTERM twice", "Ctrl-C", "SIGTERM in the validation"],
)
def test_an_interrupted_run_resumes_as_if_nothing_had_stopped_it(
    pattern, signals, status, steps, expected, tmp_path
):
    found, output = interrupt(tmp_path, pattern, signals, "--data.num_workers=1")
    assert found == status
    resumed = suggested(output)
    assert torch.load(tmp_path / resumed[-1], weights_only=True)["global_step"] in steps
    assert resumed[-1].endswith("interrupted.ckpt")
    run(tmp_path, resumed)
    (own,) = (tmp_path / "runs" / "digits").iterdir()
    ends = [
        torch.load(part / "checkpoints" / "last.ckpt", weights_only=True)
        for part in (own, expected)
    ]
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "loops", "random_states"):
        assert differences(*(end[part] for end in ends)) == []
    assert logged(own / "metrics.csv") == logged(expected / "metrics.csv")
    assert [path.name for path in own.glob("metrics*")] == ["metrics.csv"]


@pytest.fixture
def finished(expected, tmp_path, monkeypatch):
    """A copy of the run, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(expected.parents[1], tmp_path / "runs")
    return Path("runs", "digits", "version_0", "checkpoints", "last.ckpt")


def refusal_of_logs(path, saved=None):
    checkpoint = open_checkpoint(path)
    settings = checkpoint.run_settings.settings["trainer"]["logger"]
    return why_new_logs(checkpoint, settings, settings if saved is None else saved)


def test_only_the_newest_checkpoint_in_its_folder_goes_on_in_the_logs_of_its_run(finished):
    assert refusal_of_logs(finished) is None
    shutil.copy(finished, "elsewhere.ckpt")
    assert "lies outside of the folder" in refusal_of_logs("elsewhere.ckpt")
    assert refusal_of_logs(finished, saved=[]) == "its loggers have other settings"
    later = torch.load(finished, weights_only=True)
    later["global_step"] += 1
    torch.save(later, finished.with_name("later.ckpt"))
    assert "later.ckpt is newer than runs/" in refusal_of_logs(finished)
    del later["weince_lightning"]["logs"]
    torch.save(later, finished.with_name("old.ckpt"))
    assert "does not say" in refusal_of_logs(finished.with_name("old.ckpt"))


@pytest.mark.slow
def test_another_checkpoint_starts_a_new_version_and_says_so(finished, capsys):
    shutil.copy(finished, "elsewhere.ckpt")
    before = Path("runs/digits/version_0/metrics.csv").read_bytes()
    options = ["--trainer.max_epochs=3", "--trainer.limit_train_batches=1"]
    output = run(Path.cwd(), ["fit", "--ckpt_path=elsewhere.ckpt", *options])
    assert "goes on in runs/digits/version_1." in capsys.readouterr().err
    assert "runs/digits/version_1/" in output
    assert Path("runs/digits/version_0/metrics.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "cut"), [("metrics.csv", "1,0.125,3\n1,0.0"), ("metrics.csv.kept", "")]
)
def test_rows_up_to_the_checkpoint_are_kept_even_of_a_killed_process(name, cut, tmp_path):
    folder = tmp_path / "name" / "version_0"
    folder.mkdir(parents=True)
    (folder / name).write_text(f"epoch,loss,step\n0,0.5,1\n0,0.25,2\n{cut}")
    logger = CSVLogger(tmp_path, "name", version=0)
    keep_rows(logger, 2)
    logger.log_metrics({"loss": 1.0, "new": 2.0}, 5)
    logger.save()
    assert logged(folder / "metrics.csv") == {
        ("loss", 1): "0.5", ("loss", 2): "0.25", ("loss", 5): "1.0", ("new", 5): "2.0",
    }  # fmt: skip


def test_sigterm_before_the_first_step_ends_the_run_and_leaves_nothing(tmp_path):
    status, output = interrupt(tmp_path, rb"Sanity Checking", [signal.SIGTERM])
    assert status == 143
    assert "nothing to resume" in output
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.slow
def test_sigterm_stops_two_processes_after_the_same_step(tmp_path):
    options = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu"]
    options += ["--data.batch_size=64", "--trainer.max_epochs=100"]
    status, output = interrupt(tmp_path, rb"Epoch 1: +33%", [signal.SIGTERM], *options)
    assert status == 143
    saved = torch.load(tmp_path / suggested(output)[-1], weights_only=True)
    assert saved["global_step"] > 6
