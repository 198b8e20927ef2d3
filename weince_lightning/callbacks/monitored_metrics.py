"""Checkpoints that follow a metric of which it is known before training that it will be absent."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader

from weince_lightning.callbacks.knn_monitor import KNNMonitor
from weince_lightning.callbacks.online_probe import OnlineLinearProbe
from weince_lightning.evaluation.cache import check_labelled
from weince_lightning.functional.neighbours import NoLabelError
from weince_lightning.module import ContrastiveModule

_log = logging.getLogger(__name__)


class MonitoredMetrics(Callback):
    """Let checkpoints follow the validation loss where nothing will log their metric.

    That is so without labels, without loaders for the monitor, or without the monitor. Lightning
    would end the training when the metric is first due. What has no such substitute is refused
    before the first epoch. It must stand before the monitors.

    Args:
        removed: Monitors that the user removed: what stands before the slash in the names of their
            metrics, and their class.

    Raises:
        ValueError: If early stopping or another module needs the metric, or it is logged in other
            epochs than it is read.
    """

    def __init__(self, removed: Mapping[str, str] | None = None) -> None:
        self.removed = dict(removed or {})

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Look at every metric that is followed; the data module is ready, no state is loaded."""
        callbacks = trainer.callbacks if stage == "fit" else []  # type: ignore[attr-defined]
        followers = [
            each for each in callbacks if isinstance(each, ModelCheckpoint | EarlyStopping)
        ]
        for name, kind in self.removed.items():
            for follower in _those_of(name, followers):
                _replace(follower, f"{kind} is removed, so nothing logs it", trainer, pl_module)
        for monitor in callbacks:
            if not isinstance(monitor, KNNMonitor | OnlineLinearProbe):
                continue
            its = _those_of(monitor.name, followers)
            why = _why_absent(trainer, monitor) if its else None
            for follower in its:
                if why is not None:
                    its_reason = f"{why}, so {type(monitor).__name__} does not log it"
                    _replace(follower, its_reason, trainer, pl_module)
                elif isinstance(monitor, KNNMonitor):
                    _check_epochs(follower, monitor, trainer.check_val_every_n_epoch or 1)


def _those_of(name: str, followers: list[Any]) -> list[Any]:
    return [each for each in followers if f"{each.monitor}".startswith(f"{name}/")]


def _why_absent(trainer: Trainer, monitor: KNNMonitor | OnlineLinearProbe) -> str | None:
    """Say why a monitor will log nothing; None where it will."""
    if isinstance(monitor, KNNMonitor) and monitor.lacks_loaders(trainer):
        return "the data have no evaluation_dataloader"
    return "the samples have no labels" if _lacks_labels(trainer, monitor) else None


def _lacks_labels(trainer: Trainer, monitor: KNNMonitor | OnlineLinearProbe) -> bool:
    sources: list[Any] = ["train"]
    if isinstance(monitor, KNNMonitor):
        sources = [monitor.bank, "val" if monitor.queries is None else monitor.queries]
    give = getattr(trainer.datamodule, "evaluation_dataloader", None)  # type: ignore[attr-defined]
    try:
        with isolate_rng():
            for source in sources:
                if isinstance(source, DataLoader):
                    check_labelled("monitored", source)
                elif callable(give):
                    check_labelled(source, give(source))
    except NoLabelError:
        return True
    except ValueError:  # there is no such split
        return False
    return False


def _replace(
    follower: ModelCheckpoint | EarlyStopping,
    why: str,
    trainer: Trainer,
    module: LightningModule,
) -> None:
    name, metric = type(follower).__name__, follower.monitor
    if isinstance(follower, EarlyStopping) or not isinstance(module, ContrastiveModule):
        raise ValueError(
            f"monitor must be a metric that is logged, got {metric!r} for {name}: {why}. Give "
            f"{name} another one, such as val/loss, or remove it."
        )
    instead = "val/loss" if trainer.enable_validation else "train/loss"
    rank_zero_only(_log.warning)("checkpoints follow %s instead of %s: %s.", instead, metric, why)
    follower.monitor, follower.mode = instead, "min"
    follower.kth_value = torch.tensor(math.inf)


def _check_epochs(
    follower: ModelCheckpoint | EarlyStopping, monitor: KNNMonitor, validation: int
) -> None:
    every = follower.every_n_epochs if isinstance(follower, ModelCheckpoint) else 1
    # Without epochs steps or time decide.
    if every and math.lcm(every, validation) % monitor.every_n_epochs:
        name = type(follower).__name__
        raise ValueError(
            f"every_n_epochs of KNNMonitor must divide that of {name}, {every}, which follows "
            f"{follower.monitor}, got {monitor.every_n_epochs}. Set both to the same number."
        )
