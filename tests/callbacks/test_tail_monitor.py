"""TailMonitor in real training runs; what it wrote is read back from the files."""

import csv
import gc
import json
import random
import struct
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tail_processes
import torch
from cases import few
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.image import imread
from processes import run_ranks
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader
from two_processes import SIZE, network, pairs

from weince_lightning import ContrastiveModule
from weince_lightning.callbacks import TailMonitor
from weince_lightning.callbacks.loggers import log_histograms
from weince_lightning.extremes.pareto import fit_pareto
from weince_lightning.losses import InfoNCELoss

HISTOGRAMS = {"tail/lambda", "tail/beta_hat", "tail/rho", "tail/delta_aic"}
SCALARS = {f"{name}_mean" for name in HISTOGRAMS} | {"tail/lambda_q90"}
ENDS = {"min": 0, "q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "max": 1}
QUANTILES = {f"{name}_{end}" for name in HISTOGRAMS for end in ENDS}
FIGURE_SHAPE = (540, 1500, 4)


class LastTail(Callback):
    """Keeps the tail evidence of the last step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.tail = outputs["terms"].tail


@pytest.fixture
def tensorboard(tmp_path):
    return TensorBoardLogger(tmp_path, name="tensorboard")


@pytest.fixture
def make_encoder():
    """The project's module, whose validation_step returns what the figure needs."""

    def make(loss=None):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = torch.nn.Sequential(
                torch.nn.Flatten(), torch.nn.Linear(36, 16), torch.nn.Dropout(0.1)
            )
            return ContrastiveModule(network, loss, in_channels=1, image_size=6)

    return make


class Memory(Logger):
    """A logger of one's own, without histograms or files."""

    name = "memory"
    version = 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params, *args, **kwargs):
        pass


def steps(events, histogram):
    return [event.step for event in events.Histograms(histogram)]


def read_csv(logger):
    with open(f"{logger.log_dir}/metrics.csv") as file:
        return list(csv.DictReader(file))


def read_wandb(folder):
    """The logged rows of the one offline run in a folder: nested keys joined by slashes.

    The file is a log of records in blocks of 32 KiB after seven bytes: checksum, length and kind
    (whole, first, middle, last) of a part, then the part.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
    data, position, parts, rows = path.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record, parts = Record.FromString(parts), b""
            if record.WhichOneof("record_type") == "history":
                rows.append(
                    {
                        item.key or "/".join(item.nested_key): json.loads(item.value_json)
                        for item in record.history.item
                    }
                )
    return rows


def test_tensorboard_holds_the_histograms_and_scalars(
    make_trainer, make_module, make_data, tensorboard, read_events
):
    make_trainer(logger=tensorboard, callbacks=[TailMonitor()]).fit(make_module(), make_data())
    events = read_events(tensorboard.log_dir)
    assert set(events.Tags()["histograms"]) == HISTOGRAMS
    assert set(events.Tags()["scalars"]) >= SCALARS


def test_a_histogram_counts_every_anchor(
    make_trainer, make_module, make_data, tensorboard, read_events
):
    make_trainer(logger=tensorboard, callbacks=[TailMonitor()]).fit(make_module(), make_data())
    for name in HISTOGRAMS:
        assert read_events(tensorboard.log_dir).Histograms(name)[0].histogram_value.num == 32


def test_scalars_summarise_the_anchors(make_trainer, make_module, make_data):
    last = LastTail()
    trainer = make_trainer(callbacks=[TailMonitor(every_n_steps=1), last])
    trainer.fit(make_module(), make_data())
    metrics = trainer.callback_metrics
    torch.testing.assert_close(metrics["tail/lambda_mean"], last.tail.gate.mean())
    torch.testing.assert_close(metrics["tail/lambda_q90"], last.tail.gate.quantile(0.9))
    torch.testing.assert_close(metrics["tail/beta_hat_mean"], last.tail.beta_hat.mean())
    torch.testing.assert_close(metrics["tail/rho_mean"], last.tail.rho.mean())
    torch.testing.assert_close(metrics["tail/delta_aic_mean"], last.tail.delta_aic.mean())


def test_it_looks_at_the_first_step_and_at_every_nth(
    make_trainer, make_module, make_data, tensorboard, read_events
):
    trainer = make_trainer(logger=tensorboard, callbacks=[TailMonitor(4)], max_epochs=3)
    trainer.fit(make_module(), make_data())
    assert steps(read_events(tensorboard.log_dir), "tail/rho") == [1, 4, 8]


def test_a_resumed_run_looks_at_the_same_steps(
    make_trainer, make_module, make_data, tensorboard, read_events, tmp_path
):
    options = {"logger": tensorboard, "enable_checkpointing": True}
    callbacks = [TailMonitor(4), ModelCheckpoint(tmp_path, save_last=True)]
    make_trainer(**options, callbacks=callbacks, max_epochs=2).fit(make_module(), make_data())
    trainer = make_trainer(logger=tensorboard, callbacks=[TailMonitor(4)], max_epochs=3)
    trainer.fit(make_module(), make_data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    # Two runs, two files, which are read in the order of their names: the tenth before the ninth.
    assert sorted(steps(read_events(tensorboard.log_dir), "tail/rho")) == [1, 4, 8]


def test_batches_of_one_accumulated_step_are_looked_at_once(
    make_trainer, make_module, make_data, tensorboard, read_events
):
    trainer = make_trainer(
        logger=tensorboard, callbacks=[TailMonitor(1)], max_epochs=2, accumulate_grad_batches=3
    )
    trainer.fit(make_module(), make_data())
    assert steps(read_events(tensorboard.log_dir), "tail/rho") == [1, 2]


def test_on_other_steps_the_evidence_is_not_read(make_trainer, make_module, make_data):
    class CountingLoss(torch.nn.Module):
        reads = 0

        def terms(self, z0, z1):
            return self._Terms(self, (z0 - z1).square().mean())

        class _Terms:
            def __init__(self, owner, loss):
                self.owner, self.loss = owner, loss

            @property
            def tail(self):
                self.owner.reads += 1

    loss = CountingLoss()
    trainer = make_trainer(callbacks=[TailMonitor(5)], max_epochs=3)
    with pytest.warns(UserWarning, match="TailMonitor logs nothing"):
        trainer.fit(make_module(loss), make_data())
    assert loss.reads == 2  # steps 1 and 5 of 9


class Evidence(Callback):
    """Keeps the tail evidence of every step."""

    def __init__(self):
        self.tails = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.tails[trainer.global_step] = outputs["terms"].tail


class Run:
    """Two epochs of four steps, looked at in steps 1, 3 and 6, with every kind of logger at once.

    Weights & Biases is offline.
    """

    def __init__(self, folder):
        self.folder = folder
        self.tensorboards = [TensorBoardLogger(folder, name=name) for name in ("a", "b")]
        self.csv = CSVLogger(folder, name="csv")
        self.memory = Memory()
        self.wandb = WandbLogger(save_dir=folder, offline=True)
        evidence = Evidence()
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=2,
            logger=[*self.tensorboards, self.csv, self.memory, self.wandb],
            callbacks=[TailMonitor(3, figure=True), evidence],
            default_root_dir=folder,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = DataLoader(pairs(), batch_size=8)
        trainer.fit(ContrastiveModule(network(), None, 1, SIZE), loader, loader)
        self.values = {
            step: {
                "tail/lambda": tail.gate.numpy(),
                "tail/beta_hat": tail.beta_hat.numpy(),
                "tail/rho": tail.rho.numpy(),
                "tail/delta_aic": tail.delta_aic.numpy(),
            }
            for step, tail in evidence.tails.items()
        }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    wandb = pytest.importorskip("wandb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("WANDB_MODE", "offline")  # so that what the logger sets is undone
        result = Run(tmp_path_factory.mktemp("run"))
        wandb.finish()
    return result


LOOKS = [1, 3, 6]


def assert_quantiles(row, values):
    for name, numbers in values.items():
        for end, part in ENDS.items():
            expected = np.quantile(numbers.astype(float), part)
            assert float(row[f"{name}_{end}"]) == pytest.approx(expected, rel=1e-6), name


def test_every_tensorboard_logger_gets_the_histograms_and_the_figures(run, read_events):
    for logger in run.tensorboards:
        events = read_events(logger.log_dir)
        assert set(events.Tags()["histograms"]) == HISTOGRAMS
        assert {step for name in HISTOGRAMS for step in steps(events, name)} == set(LOOKS)
        assert [event.step for event in events.Images("tail/figure")] == [4, 8]
        image = events.Images("tail/figure")[0]
        assert (image.height, image.width) == FIGURE_SHAPE[:2]


def test_weights_and_biases_gets_the_histograms_at_lightnings_step(run):
    rows = [row for row in read_wandb(run.folder) if "tail/rho/values" in row]
    assert [row["trainer/global_step"] for row in rows] == LOOKS
    for row in rows:
        for name, numbers in run.values[row["trainer/global_step"]].items():
            assert row[f"{name}/_type"] == "histogram"
            counts, edges = row[f"{name}/values"], row[f"{name}/bins"]
            assert sum(counts) == 16
            assert (edges[0], edges[-1]) == pytest.approx((numbers.min(), numbers.max()), rel=1e-6)
            expected, _ = np.histogram(numbers.astype(float), 64)
            assert counts == expected.tolist()


def test_weights_and_biases_gets_the_scalars_and_drops_no_row(run):
    rows = read_wandb(run.folder)
    assert set().union(*rows) >= SCALARS
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    # What Lightning logs is all there too: eight steps and two validations.
    assert sum("train/loss" in row for row in rows) == 8
    assert sum("val/loss" in row for row in rows) == 2


def test_weights_and_biases_gets_the_figures(run):
    rows = [row for row in read_wandb(run.folder) if "tail/figure/filenames" in row]
    assert [row["trainer/global_step"] for row in rows] == [4, 8]
    (folder,) = (run.folder / "wandb").glob("offline-run-*")
    for row in rows:
        (name,) = row["tail/figure/filenames"]
        assert imread(folder / "files" / name).shape == FIGURE_SHAPE


def test_csv_gets_the_quantiles_and_the_scalars(run):
    rows = read_csv(run.csv)
    assert set(rows[0]) >= QUANTILES | SCALARS
    looked = [row for row in rows if row["tail/rho_q50"]]
    assert [int(row["step"]) for row in looked] == LOOKS
    for row in looked:
        assert_quantiles(row, run.values[int(row["step"])])


def test_the_figures_stand_beside_the_csv_file(run):
    folder = Path(run.csv.log_dir) / "tail" / "figure"
    names = ["epoch=0-step=4.png", "epoch=1-step=8.png"]
    assert sorted(path.name for path in folder.iterdir()) == names
    pixels = imread(folder / names[0])
    assert pixels.shape == FIGURE_SHAPE
    assert pixels.std() > 0.05  # something is drawn


def test_a_logger_without_histograms_or_files_gets_the_quantiles(run):
    looked = [(step, row) for step, row in run.memory.rows if "tail/rho_q50" in row]
    assert [step for step, _ in looked] == LOOKS
    for step, row in looked:
        assert set(row) == QUANTILES
        assert_quantiles(row, run.values[step])


def test_no_file_is_written_elsewhere(run):
    found = {path.name for path in run.folder.iterdir()}
    assert found == {"a", "b", "csv", "wandb"}


def test_it_works_without_a_logger(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[TailMonitor()])
    trainer.fit(make_module(), make_data())
    assert set(trainer.callback_metrics) >= SCALARS


def test_a_loss_without_tail_gives_one_warning_and_no_metric(make_trainer, make_module, make_data):
    loss = torch.nn.MSELoss()
    trainer = make_trainer(callbacks=[TailMonitor(1)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(make_module(loss), make_data())
    assert sum("TailMonitor logs nothing" in str(warning.message) for warning in caught) == 1
    assert not [name for name in trainer.callback_metrics if name.startswith("tail/")]


def test_a_diverged_run_does_not_end_in_the_monitor(
    make_trainer, make_encoder, make_data, tensorboard, tmp_path
):
    module = make_encoder()
    torch.nn.init.constant_(next(module.projection_head.parameters()), float("nan"))
    loggers = [tensorboard, CSVLogger(tmp_path), Memory()]
    trainer = make_trainer(logger=loggers, callbacks=[TailMonitor(1, figure=True)])
    with pytest.warns(UserWarning, match="TailMonitor draws no figure: the first validation batch"):
        trainer.fit(module, make_data())
    assert trainer.global_step == 3


@pytest.fixture
def disabled_run():
    """A run of W&B that keeps nothing; the next one must not find it."""
    wandb = pytest.importorskip("wandb")
    yield wandb.init(mode="disabled")
    wandb.finish()
    wandb.teardown()


@pytest.mark.parametrize(
    "numbers",
    [
        [np.nan, np.inf, -np.inf, 0.25],
        [0.25],
        [0.25, 1e30, -1e300],
        [0.25, 0.25 + 1e-16, 0.25 - 1e-16],
        [0.25, np.nextafter(np.float32(0.25), np.float32(1))],
    ],
    ids=["not finite", "one", "beyond every bin", "alike in float32", "next in float32"],
)
def test_no_values_break_a_logger(numbers, disabled_run, tmp_path, read_events):
    tensorboard, memory = TensorBoardLogger(tmp_path), Memory()
    loggers = [tensorboard, memory, WandbLogger(experiment=disabled_run)]
    log_histograms(loggers, {"all": np.array(numbers), "none": np.array([np.nan])}, 7)
    log_histograms(loggers, {"none": np.empty(0)}, 8)
    tensorboard.experiment.flush()
    events = read_events(tensorboard.log_dir)
    assert events.Tags()["histograms"] == ["all"]
    assert events.Histograms("all")[0].histogram_value.num in (1, 2, 3)
    ((step, row),) = memory.rows
    assert step == 7
    assert row["all_q50"] == pytest.approx(0.25)


class Reads(TorchFunctionMode):
    """Notes every use of a tensor, also where nothing is computed, as by ``tolist``."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Watch(Callback):
    """Watches the callback that stands between two of them."""

    def __init__(self, reads, by_step, is_first):
        self.reads, self.by_step, self.is_first = reads, by_step, is_first

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.is_first:
            self.reads.names = []
            self.reads.__enter__()
        else:
            self.reads.__exit__(None, None, None)
            self.by_step[trainer.global_step] = self.reads.names


@pytest.mark.parametrize(
    "read",
    [bool, float, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.numpy],
    ids=lambda read: read.__name__,
)
def test_the_watch_sees_every_way_to_read_a_tensor(read):
    value, reads = torch.ones(()), Reads()
    with reads:
        read(value)
    assert reads.names


def test_on_other_steps_no_tensor_is_touched(make_trainer, make_module, make_data, tmp_path):
    reads, by_step = Reads(), {}
    trainer = make_trainer(
        logger=[TensorBoardLogger(tmp_path), CSVLogger(tmp_path)],
        callbacks=[
            Watch(reads, by_step, is_first=True),
            TailMonitor(4),
            Watch(reads, by_step, is_first=False),
        ],
        max_epochs=3,
    )
    trainer.fit(make_module(), make_data())
    assert [step for step, names in by_step.items() if names] == [1, 4, 8]
    assert len(by_step) == 9


@pytest.mark.slow
def test_training_with_the_figure_is_bit_identical(make_trainer, make_encoder, make_data, tmp_path):
    def train(callbacks):
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        module = make_encoder()
        trainer = make_trainer(callbacks=callbacks, logger=CSVLogger(tmp_path), max_epochs=2)
        trainer.fit(module, make_data())
        state = trainer.optimizers[0].state_dict()["state"]
        moments = [value for each in state.values() for value in each.values()]
        streams = torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())
        modes = [each.training for each in module.modules()]
        return [*module.state_dict().values(), *moments], (streams, modes, trainer.global_step)

    tensors, others = train([])
    watched_tensors, watched_others = train([TailMonitor(2, figure=True)])
    assert all(map(torch.equal, tensors, watched_tensors))
    assert watched_others == others


def figures_below(folder):
    return sorted(path.name for path in folder.rglob("*.png"))


def test_without_a_logger_the_figure_goes_to_the_root_folder(
    make_trainer, make_encoder, make_data, tmp_path
):
    trainer = make_trainer(callbacks=[TailMonitor(figure=True)], max_epochs=2)
    trainer.fit(make_encoder(), make_data())
    folder = tmp_path / "tail" / "figure"
    assert figures_below(folder) == ["epoch=0-step=3.png", "epoch=1-step=6.png"]


@pytest.mark.parametrize("has_logger", few([True, False]))
def test_a_validation_alone_draws_the_figure_where_there_are_logs(
    has_logger, make_trainer, make_encoder, make_data, tmp_path
):
    logger = CSVLogger(tmp_path) if has_logger else False
    trainer = make_trainer(callbacks=[TailMonitor(figure=True)], logger=logger)
    trainer.validate(make_encoder(), make_data())
    assert figures_below(tmp_path) == ["epoch=0-step=0.png"] * has_logger


def test_the_figure_shows_the_same_samples_every_time(
    make_trainer, make_encoder, make_data, tmp_path
):
    module = make_encoder()
    for name in ("first", "second"):
        logger = CSVLogger(tmp_path, name)
        trainer = make_trainer(callbacks=[TailMonitor(figure=True)], logger=logger)
        trainer.validate(module, make_data())
    first, second = map(imread, tmp_path.rglob("*.png"))
    assert np.array_equal(first, second)


def test_no_figure_is_drawn_by_default(make_trainer, make_encoder, make_data, tmp_path):
    make_trainer(callbacks=[TailMonitor(1)]).fit(make_encoder(), make_data())
    assert figures_below(tmp_path) == []


def test_a_fast_dev_run_writes_nothing(make_trainer, make_encoder, make_data, tmp_path):
    trainer = make_trainer(callbacks=[TailMonitor(1, figure=True)], fast_dev_run=True)
    trainer.fit(make_encoder(), make_data())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_figures_do_not_pile_up(make_trainer, make_encoder, make_data, tensorboard):
    trainer = make_trainer(logger=tensorboard, callbacks=[TailMonitor(figure=True)], max_epochs=3)
    trainer.fit(make_encoder(), make_data())
    gc.collect()
    assert not pyplot.get_fignums()
    assert not [each for each in gc.get_objects() if type(each) is Figure]


@pytest.mark.parametrize("loss", [InfoNCELoss(), torch.nn.MSELoss()], ids=["infonce", "foreign"])
def test_a_loss_without_tail_gives_one_warning_with_the_figure_too(
    loss, make_trainer, make_encoder, make_data, tmp_path
):
    trainer = make_trainer(callbacks=[TailMonitor(1, figure=True)], max_epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(make_encoder(loss), make_data())
    assert sum("TailMonitor" in str(warning.message) for warning in caught) == 1
    assert figures_below(tmp_path) == []


def test_a_module_whose_validation_returns_no_terms_gets_one_warning(
    make_trainer, make_module, make_data, tmp_path
):
    trainer = make_trainer(callbacks=[TailMonitor(1, figure=True)], max_epochs=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(make_module(), make_data())
    (message,) = [str(each.message) for each in caught if "TailMonitor" in str(each.message)]
    assert message.startswith("TailMonitor draws no figure: validation_step must return")
    assert figures_below(tmp_path) == []


class Ranks:
    """What two processes found, and what they wrote."""

    def __init__(self, folder):
        self.folder = folder
        run_ranks(2, Path(tail_processes.__file__), folder, timeout=240)
        self.found = [
            torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)
        ]  # NumPy arrays of our own

    def gates(self, step):
        """Of both processes' anchors."""
        return torch.cat([rank["gates"][step - 1] for rank in self.found])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if not torch.distributed.is_available() or sys.platform == "win32":
        pytest.skip("needs gloo processes")
    return Ranks(tmp_path_factory.mktemp("ranks"))


def test_two_processes_write_one_file_with_the_anchors_of_both(ranks, read_events):
    (version,) = (ranks.folder / "tensorboard").iterdir()
    assert len(list(version.glob("events*"))) == 1
    (event, *_) = read_events(version).Histograms("tail/lambda")
    assert event.step == 1
    assert event.histogram_value.num == 32
    assert event.histogram_value.sum == pytest.approx(ranks.gates(1).sum().item(), rel=1e-6)


def test_two_processes_log_the_same_scalars_over_the_anchors_of_both(ranks):
    first, second = ({n: rank["metrics"][n] for n in SCALARS} for rank in ranks.found)
    assert first == second
    gates = ranks.gates(2)
    torch.testing.assert_close(first["tail/lambda_mean"], gates.mean())
    torch.testing.assert_close(first["tail/lambda_q90"], gates.quantile(0.9))


def test_two_processes_write_the_quantiles_and_the_figure_once(ranks):
    (version,) = (ranks.folder / "csv").iterdir()
    with open(version / "metrics.csv") as file:
        looked = [row for row in csv.DictReader(file) if row["tail/lambda_q50"]]
    assert [int(row["step"]) for row in looked] == [1, 2]
    for row in looked:
        expected = ranks.gates(int(row["step"])).quantile(0.5).item()
        assert float(row["tail/lambda_q50"]) == pytest.approx(expected, rel=1e-5)
    assert figures_below(ranks.folder) == ["epoch=0-step=2.png"]


@pytest.mark.parametrize("name", [n for n in tail_processes.LOSSES if n != "each for itself"])
def test_the_figure_of_two_unequal_processes_is_that_of_one(ranks, name):
    expected = tail_processes.picture(name, slice(None))
    for rank in ranks.found:
        found = rank["pictures"][name]
        for field in ("rho", "gate"):
            np.testing.assert_allclose(np.sort(found[field]), np.sort(expected[field]), rtol=1e-9)
        for field in ("rho0", "softmax_shares", "weince_shares"):
            np.testing.assert_allclose(found[field], expected[field], rtol=1e-9)
        for tail, whole in zip(found["tails"], expected["tails"], strict=True):
            np.testing.assert_allclose(tail["shortfalls"], whole["shortfalls"], rtol=1e-9)
            assert tail["num_points"] == whole["num_points"]
            for field in ("rho", "gate", "beta_hat", "delta_aic"):
                assert tail[field] == pytest.approx(whole[field], rel=1e-9)


def test_processes_that_do_not_gather_draw_the_anchors_of_both(ranks):
    alone = [
        tail_processes.picture("each for itself", rows)
        for rows in (slice(tail_processes.SPLIT), slice(tail_processes.SPLIT, None))
    ]
    expected = np.concatenate([picture["rho"] for picture in alone])
    for rank in ranks.found:
        np.testing.assert_allclose(rank["pictures"]["each for itself"]["rho"], expected, rtol=1e-9)


def test_every_n_steps_below_one_is_refused():
    with pytest.raises(ValueError, match="every_n_steps must be at least 1, got 0"):
        TailMonitor(every_n_steps=0)


@pytest.mark.parametrize("layout", few(["views", "pairs"]))
def test_the_tail_of_the_validation_samples_is_fitted_once_per_epoch(
    make_trainer, make_module, make_data, layout
):
    """What is logged is the fit to all projections of the epoch, compared as the loss does."""

    class Keep(Callback):
        def __init__(self):
            self.views, self.logged = [], []

        def on_validation_epoch_start(self, trainer, pl_module):
            self.views = []

        def on_validation_batch_end(self, trainer, pl_module, outputs, *rest):
            self.views.append(torch.stack(outputs["projections"], dim=1))

        def on_validation_end(self, trainer, pl_module):
            self.logged.append({n: float(v) for n, v in trainer.callback_metrics.items()})

    keep = Keep()
    module = make_module(InfoNCELoss(layout=layout))
    module.validates_loss = True
    trainer = make_trainer(callbacks=[TailMonitor(fit_threshold=True), keep], max_epochs=2)
    trainer.fit(module, make_data(num_val_images=80))
    assert keep.logged.pop(0) == {}  # of the sanity check
    assert len(keep.logged) == 2
    unit = torch.nn.functional.normalize(torch.cat(keep.views), dim=2).numpy()
    if layout == "views":
        rows = np.concatenate([unit[:, 0], unit[:, 1]])
        first, second = np.triu_indices(160, 1)
        different = first % 80 != second % 80
        scores = (rows @ rows.T)[first[different], second[different]]
    else:
        scores = (unit[:, 0] @ unit[:, 1].T)[~np.eye(80, dtype=bool)]
    exceedances = scores[scores > np.quantile(scores, 0.99)] - np.quantile(scores, 0.99)
    fit = fit_pareto(exceedances)
    last = keep.logged[-1]
    assert last["tail/xi"] == pytest.approx(fit.xi, abs=1e-3)
    if fit.xi > -0.5:
        assert last["tail/xi_low"] < last["tail/xi"] < last["tail/xi_high"]
    else:
        assert np.isnan([last["tail/xi_low"], last["tail/xi_high"]]).all()
    assert keep.logged[0]["tail/xi"] != last["tail/xi"]


def test_without_projections_the_tail_is_not_fitted_and_says_so(
    make_trainer, make_module, make_data
):
    trainer = make_trainer(callbacks=[TailMonitor(1, fit_threshold=True)], max_epochs=2)
    with pytest.warns(UserWarning, match="TailMonitor fits no tail: validation_step must return"):
        trainer.fit(make_module(), make_data())
    assert "tail/xi" not in trainer.callback_metrics


def test_too_few_samples_give_no_shape(make_trainer, make_module, make_data):
    module = make_module()
    module.validates_loss = True
    trainer = make_trainer(callbacks=[TailMonitor(1, fit_threshold=True)], max_epochs=1)
    trainer.fit(module, make_data())  # 21 samples, 8 exceedances
    assert trainer.callback_metrics["tail/xi"].isnan()
