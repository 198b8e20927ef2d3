"""What CSV logs hold, across attempts, as one training's numbers."""

import pytest
from lightning.pytorch.loggers import CSVLogger

from weince_lightning.sweeps.history import read_history, set_aside

pytestmark = pytest.mark.filterwarnings("ignore:Experiment logs directory")


def write(folder, rows):
    """Write what Lightning would log: (step, numbers), each at once."""
    logger = CSVLogger(folder, name="", version="")
    for step, numbers in rows:
        logger.log_metrics(numbers, step)
        logger.save()


def epoch(number, loss):
    """Two steps, of which the monitor writes past Lightning, and a validation."""
    first = 2 * number
    return [
        (first + 1, {"tail/lambda_q50": 0.1 * (first + 1)}),
        (first, {"epoch": number, "tail/lambda_mean": float(first)}),
        (first + 2, {"tail/lambda_q50": 0.1 * (first + 2)}),
        (first + 1, {"epoch": number, "tail/lambda_mean": float(first + 1)}),
        (first + 1, {"epoch": number, "val/loss": loss}),
    ]


WHOLE = [*epoch(0, 3.0), *epoch(1, 2.0), *epoch(2, 1.0)]


def test_history_has_a_number_per_epoch_and_means_of_what_was_logged_in_it(tmp_path):
    write(tmp_path, WHOLE)
    history = read_history(tmp_path)
    assert history.epochs["val/loss"] == [3.0, 2.0, 1.0]
    assert history.epochs["tail/lambda_mean"] == [0.5, 2.5, 4.5]
    assert history.epochs["tail/lambda_q50"] == pytest.approx([0.15, 0.35, 0.55])
    assert history.metrics == {
        "val/loss": 1.0,
        "tail/lambda_mean": 5.0,
        "tail/lambda_q50": pytest.approx(0.6),
    }


@pytest.mark.parametrize("breaks", [(3,), (5,), (7,), (2, 8), (4, 9)])
def test_history_across_resumes_is_that_of_one_training(tmp_path, breaks):
    write(tmp_path / "whole", WHOLE)
    resumed = tmp_path / "resumed"
    start = 0
    for end in (*breaks, len(WHOLE)):
        if start:
            set_aside(resumed)
        # One row is written twice: an attempt dies after its last checkpoint.
        write(resumed, WHOLE[max(0, start - 1) : end])
        start = end
    assert read_history(resumed) == read_history(tmp_path / "whole")


def test_a_line_that_a_kill_cut_off_is_passed_over(tmp_path):
    write(tmp_path, WHOLE)
    log = tmp_path / "metrics.csv"
    log.write_bytes(log.read_bytes()[:-3])
    assert read_history(tmp_path).epochs["val/loss"] == [3.0, 2.0, None]


def test_epochs_without_a_number_and_numbers_that_are_not_finite_are_none(tmp_path):
    rows = [(0, {"epoch": 0, "knn/top1": 0.5}), (1, {"epoch": 1, "val/loss": float("nan")})]
    write(tmp_path, rows)
    assert read_history(tmp_path) == (
        {"knn/top1": 0.5, "val/loss": None},
        {"knn/top1": [0.5, None], "val/loss": [None, None]},
    )


def test_a_run_without_logs_has_no_history(tmp_path):
    assert read_history(tmp_path) == ({}, {})
