"""Ctrl-C and SIGTERM during training: finish the step, save, and come back later."""

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from weince_lightning.callbacks.run_files import checkpoint_folder, log_folder

CHECKPOINT_NAME = "interrupted.ckpt"
SECONDS_BETWEEN_QUESTIONS = 1.0
"""How often several processes ask each other; in between a step costs them nothing."""


class InterruptCheckpoint(Callback):
    """Save a checkpoint when Ctrl-C is pressed or SIGTERM arrives, then end the training.

    Weights and optimizer state belong together at the end of a training step only, so a signal
    takes effect there: the checkpoint is written, and the training ends before the next step. Where
    a validation or the end of the epoch comes first, it runs, and one more step, after which the
    checkpoint is written again: Lightning cannot resume between them without losing metrics. The
    earlier one is there in case the process is killed meanwhile.

    The second Ctrl-C ends the training at once. A second SIGTERM does not: clusters may send
    several, and SIGKILL is theirs. Before the first step there is nothing to save, and either ends
    the training at once.

    Several processes must stop after the same step, so they tell each other of signals about once a
    second; it is enough that one of them receives it.

    It makes itself the last callback: what others do at the end of a step belongs to it.

    ``Trainer.fit`` then ends with Lightning's ``SIGTERMException``, which is a ``SystemExit``. With
    the same number of processes and threads, ``trainer.fit(module, data, ckpt_path=path)`` goes on
    to the weights of a training without a stop, to the last bit; in the middle of an epoch too, if
    the data module is one of this package.

    Attributes:
        path: The checkpoint that was saved, if any.
        signum: The signal that arrived first, if any, in this process or, since they agreed, in
            another one.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Know of no signal."""
        self.path: Path | None = None
        self.signum: int | None = None
        self._is_training = False
        self._is_saving = False
        self._is_agreed = False
        self._is_between_steps = False
        self._is_overdue = False
        self._presses = 0
        self._steps_to_question = self._steps_between_questions = 1
        self._last_question = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Become the last callback; a signal that ended an earlier training is not for this one."""
        if stage == "fit":
            self._forget()
        # A new list: Lightning is going through the old one.
        others = [callback for callback in trainer.callbacks if callback is not self]  # type: ignore[attr-defined]
        trainer.callbacks = [*others, self]  # type: ignore[attr-defined]

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over both signals from Lightning, which gives them back at the end."""
        # Lightning's own handler talks to the other processes at once, in the middle of a step.
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                signal.signal(signum, self._receive)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over where there was no sanity check."""
        self.on_sanity_check_start(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """End the training before a new step if the last one was saved."""
        self._is_training = True
        if not self._is_agreed:
            return
        if self._is_between_steps or self._is_overdue:
            raise SIGTERMException
        # Once: a validation may follow every step.
        self._is_overdue = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save the step if a signal has arrived."""
        accumulated = (batch_idx + 1) % trainer.accumulate_grad_batches
        if accumulated and not trainer.is_last_batch:
            return  # checkpoints hold no gradients
        if trainer.received_sigterm and self.signum is None:
            self.signum = signal.SIGTERM  # before this callback took over
        self._is_agreed = self._is_agreed or self._agree(trainer)
        if self._is_agreed:
            self._save(trainer)
            self._is_between_steps = not trainer.is_last_batch

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See that this validation is followed by a step."""
        self._is_between_steps = False

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Save the last step if a signal has arrived since: the validation may be long."""
        # Several processes may have different numbers of batches here.
        if self.signum and self._is_training and self.path is None and trainer.world_size == 1:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the checkpoint if the signal came with the last step: training is complete."""
        self._is_training = False
        if self.path is not None:
            trainer.strategy.remove_checkpoint(self.path)
            self.path = None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Know of signals that arrived before this callback took over."""
        if isinstance(exception, KeyboardInterrupt):
            self.signum = self.signum or signal.SIGINT
        elif isinstance(exception, SIGTERMException):
            self.signum = self.signum or signal.SIGTERM

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self._presses += signum == signal.SIGINT
        self.signum = self.signum or signum
        if self._presses > 1 or not self._is_training:
            if not self._is_saving:
                _end_at_once()
        elif signum == signal.SIGINT:
            # Python's own streams cannot be written to while they are being written to.
            os.write(2, b"\nweince: stopping after this step; Ctrl-C again stops at once.\n")

    def _agree(self, trainer: Trainer) -> bool:
        """Whether any process has received a signal; all get the same answer."""
        if trainer.world_size == 1:
            return self.signum is not None
        self._steps_to_question -= 1
        if self._steps_to_question > 0:
            return False
        now = time.monotonic()
        seconds = (now - self._last_question) / self._steps_between_questions
        self._last_question = now
        question = torch.tensor([self.signum or 0.0, seconds], dtype=torch.float32)
        question = question.to(trainer.strategy.root_device)
        answer = trainer.strategy.reduce(question, reduce_op="max")
        signum, seconds = map(float, answer.tolist())
        self._steps_between_questions = max(1, int(SECONDS_BETWEEN_QUESTIONS / seconds))
        self._steps_to_question = self._steps_between_questions
        # A signal may have arrived since the question: it is for the next one.
        self.signum = self.signum or int(signum) or None
        return signum > 0

    def _save(self, trainer: Trainer) -> None:
        folder = checkpoint_folder(trainer) or log_folder(trainer)
        path = (folder or Path(trainer.default_root_dir)) / CHECKPOINT_NAME
        self._is_saving = True
        trainer.save_checkpoint(path, weights_only=False)
        self.path = path
        self._is_saving = False
        if self._presses > 1:
            _end_at_once()


def _end_at_once() -> None:
    # Lightning ignores Ctrl-C too, but only once it has caught this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
