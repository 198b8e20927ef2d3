"""TailMonitor in real training runs; TensorBoard files are read back with TensorBoard's reader."""

import csv
import warnings

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from weince_lightning.callbacks import TailMonitor
from weince_lightning.losses import InfoNCELoss

HISTOGRAMS = {"tail/lambda", "tail/beta_hat", "tail/rho", "tail/delta_aic"}
SCALARS = {f"{name}_mean" for name in HISTOGRAMS} | {"tail/lambda_q90"}


class LastTail(Callback):
    """Keeps the tail evidence of the last step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.tail = outputs["terms"].tail


@pytest.fixture
def tensorboard(tmp_path):
    return TensorBoardLogger(tmp_path, name="tensorboard")


def steps(events, histogram):
    return [event.step for event in events.Histograms(histogram)]


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
    assert steps(read_events(tensorboard.log_dir), "tail/rho") == [1, 4, 8]


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


def test_every_tensorboard_logger_gets_the_histograms(
    make_trainer, make_module, make_data, read_events, tmp_path
):
    loggers = [
        TensorBoardLogger(tmp_path, name="a"),
        CSVLogger(tmp_path, name="b"),
        TensorBoardLogger(tmp_path, name="c"),
    ]
    make_trainer(logger=loggers, callbacks=[TailMonitor()]).fit(make_module(), make_data())
    for logger in (loggers[0], loggers[2]):
        assert set(read_events(logger.log_dir).Tags()["histograms"]) == HISTOGRAMS


def test_the_csv_logger_gets_the_scalars(make_trainer, make_module, make_data, tmp_path):
    logger = CSVLogger(tmp_path)
    make_trainer(logger=logger, callbacks=[TailMonitor()]).fit(make_module(), make_data())
    with open(f"{logger.log_dir}/metrics.csv") as file:
        assert set(csv.DictReader(file).fieldnames) >= SCALARS


def test_it_works_without_a_logger(make_trainer, make_module, make_data):
    trainer = make_trainer(callbacks=[TailMonitor()])
    trainer.fit(make_module(), make_data())
    assert set(trainer.callback_metrics) >= SCALARS


@pytest.mark.parametrize(
    "loss", [InfoNCELoss(), torch.nn.MSELoss()], ids=["infonce", "foreign loss"]
)
def test_a_loss_without_tail_gives_one_warning_and_no_metric(
    loss, make_trainer, make_module, make_data
):
    trainer = make_trainer(callbacks=[TailMonitor(1)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(make_module(loss), make_data())
    assert sum("TailMonitor logs nothing" in str(warning.message) for warning in caught) == 1
    assert not [name for name in trainer.callback_metrics if name.startswith("tail/")]


def test_a_diverged_run_does_not_end_in_the_monitor(
    make_trainer, make_module, make_data, tensorboard
):
    module = make_module()
    torch.nn.init.constant_(module.head.weight, float("nan"))
    trainer = make_trainer(logger=tensorboard, callbacks=[TailMonitor(1)])
    trainer.fit(module, make_data())
    assert trainer.global_step == 3


def test_every_n_steps_below_one_is_refused():
    with pytest.raises(ValueError, match="every_n_steps must be at least 1, got 0"):
        TailMonitor(every_n_steps=0)
