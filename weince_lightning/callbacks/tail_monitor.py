"""What WEINCE saw in the batch's tails, and how it blended the two links."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn

from weince_lightning.distributed import gather


class TailMonitor(Callback):
    r"""Log the gate, the tail's shape, the hardness and :math:`\Delta` AIC of the anchors.

    It looks at the first step of training and at every step whose number is a multiple of
    ``every_n_steps``, counting optimizer steps from 1, and leaves the device alone on all others.
    It reads the ``terms`` that ``training_step`` returns; a loss without tail evidence (InfoNCE, a
    loss of another library) gives one warning and nothing else.

    Scalars, for every logger and for other callbacks: ``tail/lambda_mean``, ``tail/lambda_q90``
    (0.9-quantile over the anchors), ``tail/beta_hat_mean``, ``tail/rho_mean`` and
    ``tail/delta_aic_mean``. Lightning passes the latest ones on at its own steps, every
    ``log_every_n_steps`` of the Trainer. Histograms, for every TensorBoard logger at once:
    ``tail/lambda``, ``tail/beta_hat``, ``tail/rho`` and ``tail/delta_aic``. All processes' anchors
    count.

    Args:
        every_n_steps: Optimizer steps between two looks, at least 1.

    Raises:
        ValueError: If ``every_n_steps`` is below 1.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps}.")
        self.every_n_steps = every_n_steps
        self._next_step = 1
        self._has_warned = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start with the first step, or go on in the same rhythm after a resume."""
        self._next_step = self._following(trainer.global_step) if trainer.global_step else 1

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the batch's tail evidence if it is this step's turn."""
        step = trainer.global_step
        # Not "step % n": the batches of one accumulated step share its number, and a module with
        # several optimizers counts in larger strides.
        if step < self._next_step:
            return
        self._next_step = self._following(step)
        terms = outputs.get("terms") if isinstance(outputs, Mapping) else None
        tail = getattr(terms, "tail", None)
        if tail is None:
            self._warn_once()
            return
        values = {
            "tail/lambda": gather(tail.gate),
            "tail/beta_hat": gather(tail.beta_hat),
            "tail/rho": gather(tail.rho),
            "tail/delta_aic": gather(tail.delta_aic),
        }
        for name, value in values.items():
            pl_module.log(f"{name}_mean", value.mean(), on_step=True, on_epoch=False)
        q90 = torch.quantile(values["tail/lambda"], 0.9)
        pl_module.log("tail/lambda_q90", q90, on_step=True, on_epoch=False)
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger):
                    for name, value in values.items():
                        # A diverged run must not end in the monitor: TensorBoard refuses NaN.
                        finite = value[value.isfinite()]
                        if finite.numel():
                            logger.experiment.add_histogram(name, finite, step)

    def _following(self, step: int) -> int:
        """The next multiple of ``every_n_steps`` after a step."""
        return (step // self.every_n_steps + 1) * self.every_n_steps

    def _warn_once(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                "TailMonitor logs nothing: training_step returned no terms with tail evidence. "
                "Use WEINCELoss in a ContrastiveModule, or remove the callback."
            )
