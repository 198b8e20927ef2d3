"""Logging of the tail evidence and of the gate of WEINCE."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from weince_lightning.callbacks.loggers import log_histograms, log_picture
from weince_lightning.callbacks.tail.evidence import WatchedLosses
from weince_lightning.callbacks.tail.figure import draw_tails
from weince_lightning.callbacks.tail.pareto import TailShapeLog
from weince_lightning.callbacks.tail.summary import is_readable, read_picture
from weince_lightning.checks import check_integer
from weince_lightning.distributed import gather, row_counts
from weince_lightning.figures import render_pixels


class TailMonitor(Callback):
    r"""Log the gate, the tail's shape, the hardness and :math:`\Delta` AIC of the anchors.

    It looks at the first step of training and at every step whose number is a multiple of
    ``every_n_steps``, counting optimizer steps from 1, and leaves the device alone on all others.
    It reads the ``terms`` that ``training_step`` returns, or else watches the losses of this
    package in the module at those steps, so any LightningModule may hold them. Under
    :class:`InfoNCELoss` it shows what WEINCE would see with its default gate. Another library's
    loss gives one warning and nothing else. All processes' anchors count.

    Scalars, for every logger and for other callbacks: ``tail/lambda_mean``, ``tail/lambda_q90``
    (0.9-quantile over the anchors), ``tail/beta_hat_mean``, ``tail/rho_mean`` and
    ``tail/delta_aic_mean``. Lightning passes the latest ones on at its own steps, every
    ``log_every_n_steps`` of the Trainer, and counts those from 0.

    Histograms, for every TensorBoard and Weights & Biases logger at once: ``tail/lambda``,
    ``tail/beta_hat``, ``tail/rho`` and ``tail/delta_aic``. Every other logger, such as CSV, gets
    their quantiles: ``tail/lambda_min``, ``_q05``, ``_q25``, ``_q50``, ``_q75``, ``_q95`` and
    ``_max``. Values that are not finite are left out there.

    The figure, ``tail/figure``, shows the first validation batch, the same samples at every look
    where the loader does not shuffle: :math:`\lambda` against :math:`\rho`, the fitted tails of a
    hard, a median and an easy anchor, and the mean part of the gradient of the blended logits that
    falls on the hardest 1, 5 and 10 % of the negatives, under softmax and under WEINCE. It goes to
    TensorBoard and Weights & Biases as an image, else into a PNG file in the folder of the logs. It
    needs a ``validation_step`` that returns ``terms`` and ``projections``, and the loss as
    ``loss`` of the module, called with the two projections alone, as :class:`ContrastiveModule`
    does; no figure without.

    With ``fit_threshold``, for any loss, ``tail/xi`` is the shape of a generalised Pareto
    distribution fitted to the largest 1 % of the similarities of different samples of validation,
    the first 1000 of them, each once, and ``tail/xi_low`` and ``tail/xi_high`` its 95 % interval,
    see :func:`~weince_lightning.extremes.threshold.fit_threshold`; below 0 the tail has an end.
    Each is NaN where it cannot be had, such as the interval at -1/2 and below. It needs
    ``projections`` from ``validation_step``.

    Args:
        every_n_steps: Optimizer steps between two looks, at least 1.
        figure: Whether to draw the figure at the end of every validation epoch.
        fit_threshold: Whether to fit the tail at the end of every validation epoch.

    Raises:
        ValueError: If ``every_n_steps`` is below 1.
    """

    def __init__(
        self, every_n_steps: int = 50, figure: bool = False, fit_threshold: bool = False
    ) -> None:
        self.every_n_steps = check_integer("every_n_steps", every_n_steps, at_least=1)
        self.figure = figure
        self.fit_threshold = fit_threshold
        self._next_step = 1
        self._last_step = 0
        self._stride = 1
        self._watched = WatchedLosses()
        self._validated: tuple[Any, Any] | None = None
        self._shape = TailShapeLog()
        self._has_warned = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin a run that has not warned yet."""
        self._has_warned = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start with the first step, or go on in the same rhythm after a resume."""
        self._next_step = self._following(trainer.global_step) if trainer.global_step else 1
        self._stride = 1

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Watch the losses if this batch may end the step to be logged."""
        self._last_step = trainer.global_step
        if self._last_step + self._stride >= self._next_step:
            self._watched.start(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the batch's tail evidence if it is this step's turn."""
        step, seen = trainer.global_step, self._watched.stop()
        self._stride = max(self._stride, step - self._last_step)
        # Not "step % n": the batches of one accumulated step share its number, and a module with
        # several optimizers counts in larger strides.
        if step < self._next_step:
            return
        self._next_step = self._following(step)
        tail = _tail(outputs)
        if tail is not None:
            seen = torch.stack([tail.gate, tail.beta_hat, tail.rho, tail.delta_aic], dim=1)
        if seen is None:
            self._warn_once(
                "TailMonitor logs nothing: the module called no WEINCELoss or InfoNCELoss, and "
                "training_step returned no terms with tail evidence. Use one of them, or remove "
                "the callback."
            )
            return
        names = ("tail/lambda", "tail/beta_hat", "tail/rho", "tail/delta_aic")
        everyone = gather(seen).unbind(dim=1)
        values = dict(zip(names, everyone, strict=True))
        for name, value in values.items():
            pl_module.log(f"{name}_mean", value.mean(), on_step=True, on_epoch=False)
        q90 = torch.quantile(values["tail/lambda"], 0.9)
        pl_module.log("tail/lambda_q90", q90, on_step=True, on_epoch=False)
        if trainer.is_global_zero and trainer.loggers:
            numbers = {name: value.cpu().numpy() for name, value in values.items()}
            log_histograms(trainer.loggers, numbers, step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch nothing any more."""
        self._watched.stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Watch nothing any more."""
        self._watched.stop()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with nothing kept."""
        self._validated = None
        if self.fit_threshold:
            self._shape.start(trainer.val_dataloaders)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep what the figure shows, and what the tail is fitted to."""
        if self.fit_threshold and dataloader_idx == 0 and not trainer.sanity_checking:
            self._shape.keep(outputs)
        if self.figure and batch_idx == dataloader_idx == 0 and not trainer.sanity_checking:
            projections = outputs.get("projections", ()) if _tail(outputs) is not None else ()
            self._validated = (projections, outputs["terms"]) if len(projections) == 2 else None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit the tail, and draw the figure."""
        if trainer.sanity_checking:
            return
        if self.fit_threshold and not self._shape.log(trainer, pl_module):
            self._warn_once(
                "TailMonitor fits no tail: validation_step must return projections, a pair with "
                "one tensor per view, as ContrastiveModule does."
            )
        if not self.figure:
            return
        validated, self._validated = self._validated, None
        loss = getattr(pl_module, "loss", None)
        num_samples = len(validated[0][0]) if validated and is_readable(loss) else 0
        # On all processes or none: those that read wait for each other.
        fewest = min(row_counts(num_samples, pl_module.device))
        if validated is None or fewest == 0:
            self._warn_once(
                "TailMonitor draws no figure: validation_step must return projections, and terms "
                "with tail evidence from the loss of the module. Use WEINCELoss in a "
                "ContrastiveModule, or leave figure off."
            )
            return
        (z0, z1), terms = validated
        picture = read_picture(z0, z1, terms, loss)
        if picture is None:
            self._warn_once(
                "TailMonitor draws no figure: the first validation batch has no anchor with "
                "negatives and finite numbers, or the loss was called with more than projections."
            )
        elif trainer.is_global_zero:
            epoch, step, anchors = trainer.current_epoch, trainer.global_step, len(picture.rho)
            title = f"first validation batch, {anchors} anchors; epoch {epoch}, step {step}"
            log_picture(trainer, "tail/figure", render_pixels(draw_tails(picture, title)), step)

    def _following(self, step: int) -> int:
        """The next multiple of ``every_n_steps`` after a step."""
        return (step // self.every_n_steps + 1) * self.every_n_steps

    def _warn_once(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            rank_zero_warn(message)


def _tail(outputs: Any) -> Any:
    """The tail evidence in what a step returned; None if there is none."""
    terms = outputs.get("terms") if isinstance(outputs, Mapping) else None
    return getattr(terms, "tail", None)
