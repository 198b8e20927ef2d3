"""Warnings about Trainer settings that degrade a contrastive loss."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, Timer
from lightning.pytorch.utilities import rank_zero_warn
from torch.nn import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm

from weince_lightning.losses import TailGate, WEINCELoss

_FEWEST_NEGATIVES = 3
"""With fewer no line can be fitted to a tail."""


def warn_of_local_batch_norm(trainer: Trainer, module: LightningModule) -> None:
    """Warn where BatchNorm takes the statistics of each process's own share of the batch."""
    is_local = any(
        isinstance(layer, _BatchNorm) and not isinstance(layer, SyncBatchNorm) and layer.training
        for layer in module.modules()
    )
    if trainer.world_size > 1 and is_local:
        rank_zero_warn(
            f"sync_batchnorm must be True for BatchNorm to see the batch of all "
            f"{trainer.world_size} processes, got False: each normalises by its own images. "
            "The network differs from that of one process with the whole batch, and the loss can "
            "fall by what gives a process's images away. On GPUs set Trainer(sync_batchnorm=True)."
        )


def warn_of_accumulated_batches(trainer: Trainer) -> None:
    """Warn where accumulated gradients may be meant to stand for a larger batch."""
    accumulated = [trainer.accumulate_grad_batches]
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GradientAccumulationScheduler):
            accumulated += callback.scheduling.values()
    if max(accumulated) > 1:
        rank_zero_warn(
            "accumulate_grad_batches must be 1 for a contrastive batch to grow, got "
            f"{max(accumulated)}: the loss finds its negatives within each accumulated batch, as "
            "many as without. Raise the data's batch size instead, and set "
            "ContrastiveModule(micro_batch_size=...) so that it fits in memory."
        )


def warn_of_time_limit(trainer: Trainer) -> None:
    """Warn where a time limit can end the training in the middle of its schedule."""
    if not trainer.lr_scheduler_configs:
        return
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Timer):
            rank_zero_warn(
                f"max_time must suffice for {trainer.estimated_stepping_batches} steps, got "
                f"{callback.time_remaining():.0f} s: the schedule follows max_epochs and "
                "max_steps, and a training that time ends earlier stops at a higher learning "
                "rate. Set max_steps to what fits into the time."
            )


def warn_of_missing_tail(trainer: Trainer, loss: object) -> None:
    """Warn where batches are so small that no anchor has a tail; known once there is a loader."""
    size = getattr(trainer.train_dataloader, "batch_size", None)
    is_gated = isinstance(loss, WEINCELoss) and isinstance(loss.gate, TailGate)
    if not isinstance(loss, WEINCELoss) or not is_gated or loss.queue is not None or size is None:
        return
    anchors = size * (trainer.world_size if loss.gather_distributed else 1)
    negatives = 2 * anchors - 2 if loss.layout == "views" else anchors - 1
    if 1 <= negatives < _FEWEST_NEGATIVES:  # the loss itself refuses none
        rank_zero_warn(
            f"batch_size must give each anchor at least {_FEWEST_NEGATIVES} negatives for WEINCE "
            f"to see a tail, got {size}, which gives {negatives}: the loss is InfoNCE's. Raise it."
        )
