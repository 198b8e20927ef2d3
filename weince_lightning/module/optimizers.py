"""Optimizers and learning-rate schedules by name."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from lightly.utils.lars import LARS
from torch import nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

OptimizerName = Literal["adam", "adamw", "lars"]
Schedule = Literal["constant", "cosine", "linear"]

_OPTIMIZERS: dict[OptimizerName, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "lars": partial(LARS, momentum=0.9),
}


def build_optimizer(
    name: OptimizerName,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    weight_decay: float,
) -> Optimizer:
    """Return an optimizer that leaves frozen parameters out and biases undecayed."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained}]
    if weight_decay > 0.0:
        groups = [
            {"params": [each for each in trained if each.ndim > 1]},
            {"params": [each for each in trained if each.ndim <= 1], "weight_decay": 0.0},
        ]
    return _OPTIMIZERS[name](groups, lr=learning_rate, weight_decay=weight_decay)


def build_scheduler(
    optimizer: Optimizer, schedule: Schedule, num_steps: float, warmup_fraction: float
) -> LambdaLR:
    """Return the learning rate by step, for a training of known length.

    Args:
        optimizer: Its learning rate is the highest one.
        schedule: Learning rate after warm-up.
        num_steps: Lightning's estimate: infinite without an end or with one by time alone, -1 where
            the end is an epoch and the training data have no length.
        warmup_fraction: Share of the steps over which the learning rate rises.

    Raises:
        ValueError: If the number of steps is not known.
    """
    if math.isinf(num_steps) or num_steps < 0:
        found, mend = (
            ("a trainer without a last step", "max_epochs or max_steps, also beside max_time")
            if num_steps > 0
            else ("training data without a length", "max_steps, or limit_train_batches to a number")
        )
        raise ValueError(
            "schedule and warmup_fraction must have a training of known length, got "
            f"{found}; set the trainer's {mend}."
        )
    warmup_steps = round(warmup_fraction * num_steps)
    # A plain function is not part of the scheduler's saved state: a training that is resumed
    # with more epochs follows the longer schedule.
    return LambdaLR(
        optimizer, lambda step: _rate_factor(step, int(num_steps), warmup_steps, schedule)
    )


def _rate_factor(step: int, num_steps: int, warmup_steps: int, schedule: Schedule) -> float:
    """Return the learning rate of a step as a share of the highest one."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return max(0.0, (num_steps - step) / max(1, num_steps - warmup_steps))
    progress = min(1.0, (step - warmup_steps) / max(1, num_steps - 1 - warmup_steps))
    return 0.001 + 0.999 * (1.0 + math.cos(math.pi * progress)) / 2.0
