"""What a fit warns of at its start, once; two processes warn in test_trainer_processes.py."""

import warnings

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.utils.data import DataLoader

from weince_lightning import ContrastiveModule


def fit(tmp_path, batch_size=4, schedule="constant", **arguments):
    """Train for two epochs; returns the project's own warnings."""
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=2,
        **arguments,
    )
    pairs = [((torch.rand(1, 8, 8), torch.rand(1, 8, 8)), -1) for _ in range(8)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = ContrastiveModule("convnet", None, 1, 8, schedule=schedule)
        trainer.fit(module, DataLoader(pairs, batch_size))
    return [str(each.message) for each in caught if "weince_lightning" in each.filename]


def test_one_process_with_batch_norm_has_nothing_to_warn_of(tmp_path):
    assert fit(tmp_path) == []


def test_a_schedule_under_a_time_limit_may_not_reach_its_end(tmp_path):
    (message,) = fit(tmp_path, schedule="cosine", max_time="00:01:00:00")
    assert message.startswith("max_time must suffice for 4 steps, got 3600 s")


def test_a_batch_without_a_tail_is_told_once(tmp_path):
    (message,) = fit(tmp_path, batch_size=2)
    assert message.startswith("batch_size must give each anchor at least 3 negatives")
    assert "got 2, which gives 2" in message


@pytest.mark.parametrize(
    "arguments",
    [
        {"accumulate_grad_batches": 4},
        {"callbacks": [GradientAccumulationScheduler({1: 4, 2: 2})]},
    ],
    ids=["trainer", "callback"],
)
def test_accumulated_batches_are_no_larger_batch(tmp_path, arguments):
    (message,) = fit(tmp_path, **arguments)
    assert message.startswith("accumulate_grad_batches must be 1")
    assert "got 4" in message
    assert "micro_batch_size" in message
