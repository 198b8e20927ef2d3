"""The end of a training, judged by its weights, numbers and files."""

import math
from collections.abc import Collection, Iterable, Mapping, Sized
from contextlib import suppress
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from weince_lightning.callbacks.run_files import written_checkpoints
from weince_lightning.checkpoints import Checkpoint, CheckpointError, open_checkpoint


def readable_checkpoint(path: str | Path) -> Checkpoint | None:
    """Open a checkpoint; None where it is not on this machine or holds objects of other classes."""
    with suppress(CheckpointError, OSError):
        return None if "://" in str(path) else open_checkpoint(path)
    return None


def why_no_success(trainer: Trainer, steps_before: int = 0) -> str | None:
    """Say why a training that came to its end is not a success; None if it is one.

    Args:
        trainer: The trainer, in every process.
        steps_before: Steps of the checkpoint from which the training went on.
    """
    if trainer.global_step <= steps_before:
        loader = trainer.train_dataloader
        size, data = getattr(loader, "batch_size", None), getattr(loader, "dataset", None)
        if trainer.num_training_batches == 0 and getattr(loader, "drop_last", False) and size:
            return (
                f"batch_size must be at most the number of training samples, {_length(data)}, "
                f"where drop_last is true, got {size}: there is no whole batch. Lower it."
            )
        return (
            "the training must take at least one step, got none. Look at trainer.max_epochs, "
            "max_steps, max_time and limit_train_batches, and at the number of training samples."
        )
    module = trainer.lightning_module
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    tensors = {**parameters, **buffers}
    metrics = trainer.callback_metrics
    losses = _not_finite({name: metrics[name] for name in metrics if name.endswith("loss")})
    savers = [each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint)]
    # What ModelCheckpoint makes of NaN: an infinity that is worse than every number.
    worst = [each.monitor for each in savers if _is_worst(each.best_model_score, each.mode)]
    if weights := _not_finite(tensors, buffers):
        what = f"weights must be finite, got others in {len(weights)} of {len(tensors)} tensors"
    elif losses:
        what = f"loss must be finite, got {metrics[losses[0]].item()} as {losses[0]}"
    elif worst:
        what = f"metric of a best checkpoint must be finite, got NaN for {worst[0]} each time"
    else:
        return None
    kept = _last_finite([*written_checkpoints(trainer), trainer.ckpt_path], parameters)
    return (
        f"the {what}. {kept} Lower the learning rate, set trainer.gradient_clip_val, or try "
        f"another trainer.precision than {trainer.precision}."
    )


def _length(data: object) -> int | str:
    return len(data) if isinstance(data, Sized) else "which is not known"


def _last_finite(paths: Iterable[str | Path | None], parameters: Collection[str]) -> str:
    for path in paths:
        checkpoint = path and readable_checkpoint(path)
        state = checkpoint.state if checkpoint else {}
        if checkpoint and state and not _not_finite(state, state.keys() - {*parameters}):
            return f"The last checkpoint with finite weights is {checkpoint.path}."
    return "No checkpoint with finite weights was found."


def _not_finite(tensors: Mapping[str, Tensor], buffers: Collection[str] = ()) -> list[str]:
    # A buffer may be infinite, as the mask of an attention is, but not NaN.
    floating = {name: each for name, each in tensors.items() if each.is_floating_point()}
    return [
        name
        for name, tensor in floating.items()
        if (tensor.isnan().any() if name in buffers else not tensor.isfinite().all())
    ]


def _is_worst(score: Tensor | None, mode: str) -> bool:
    return score is not None and score.item() == (math.inf if mode == "min" else -math.inf)
