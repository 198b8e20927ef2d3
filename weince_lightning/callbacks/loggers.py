"""Histograms and pictures, which ``self.log`` cannot take, for whatever loggers there are.

To be called on the process that writes; nothing here waits for another.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from matplotlib.image import imsave
from numpy.typing import NDArray

QUANTILES = {"min": 0.0, "q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "max": 1.0}
"""What a logger without histograms gets, by the end of its name."""
_LARGEST = 1e20
"""The bins of TensorBoard end here."""


def log_histograms(
    loggers: Iterable[Logger], values: Mapping[str, NDArray[Any]], step: int
) -> None:
    """Hand values over to each logger, as a histogram or else as quantiles.

    TensorBoard and Weights & Biases get a histogram, every other logger seven numbers, such as
    ``tail/lambda_q05`` for ``tail/lambda``. NaN, infinity and what is beyond 1e20 is left out.

    Args:
        loggers: Any of Lightning's.
        values: Numbers of any type and shape by their name.
        step: Where the logger files them.
    """
    finite = {}
    for name, numbers in values.items():
        numbers = numbers[np.abs(numbers) < _LARGEST]
        if numbers.size:
            # By way of float32, so that float64 can tell apart the edges of bins between any two.
            finite[name] = numbers.astype(np.float32).astype(np.float64)
    if not finite:
        return
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            for name, numbers in finite.items():
                logger.experiment.add_histogram(name, numbers, step)
        elif isinstance(logger, WandbLogger):
            import wandb  # there is such a logger, so it is installed

            # By Lightning's own way: its number of the step goes with the numbers, whereas a step
            # given to W&B itself would drop what has an earlier one.
            histograms: dict[str, Any] = {n: wandb.Histogram(v) for n, v in finite.items()}
            logger.log_metrics(histograms, step)
        else:
            logger.log_metrics(_quantiles(finite), step)


def _quantiles(values: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Seven quantiles of each."""
    found = {}
    for name, numbers in values.items():
        quantiles = np.quantile(numbers, list(QUANTILES.values())).tolist()
        found.update({f"{name}_{end}": x for end, x in zip(QUANTILES, quantiles, strict=True)})
    return found


def log_picture(trainer: Trainer, name: str, pixels: NDArray[np.uint8], step: int) -> None:
    """Hand a picture over to each logger, as an image or else as a file beside its logs.

    TensorBoard and Weights & Biases get an image. Every other logger that has a folder of its own
    for the run gets ``NAME/epoch=E-step=S.png`` in it; if nothing was written anywhere, that of a
    training goes to the trainer's ``default_root_dir``.

    Args:
        trainer: Has the loggers. A ``fast_dev_run`` writes nothing.
        name: What it is called, a path with slashes.
        pixels: Shape ``(height, width, 4)``.
        step: Where the logger files it.
    """
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return
    folders, is_held = [], False
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_image(name, pixels, step, dataformats="HWC")
            is_held = True
        elif isinstance(logger, WandbLogger):
            logger.log_image(name, [pixels], step)
            is_held = True
        elif logger.log_dir is not None:
            folders.append(Path(logger.log_dir))
    if not folders and not is_held and trainer.state.fn == "fit":
        folders.append(Path(trainer.default_root_dir))
    for folder in folders:
        path = folder / name / f"epoch={trainer.current_epoch}-step={step}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        imsave(path, pixels)
