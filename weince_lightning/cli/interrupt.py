"""Ctrl-C during training: finish the step, save, and come back later."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from weince_lightning.cli.run_files import checkpoint_folder, log_folder

CHECKPOINT_NAME = "interrupted.ckpt"


class InterruptCheckpoint(Callback):
    """Save a checkpoint when the user presses Ctrl-C.

    Python raises KeyboardInterrupt between any two instructions, in the middle of an optimizer step
    too, where weights and optimizer state do not belong together. So the first Ctrl-C in a training
    step takes effect at its end; elsewhere, and the second time, at once. A step that was torn
    apart is not saved: the checkpoint of the last epoch stays the newest.

    With several processes the signal reaches each at another step, and saving waits for all of
    them: there Ctrl-C ends the run at once and the last epoch's checkpoint is the newest.

    Attributes:
        path: The checkpoint that was saved, if any.
        requested: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.requested = False
        self._in_step = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over Ctrl-C; Lightning gives every signal back at the end."""
        if trainer.world_size == 1 and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._receive)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """From here on weights and optimizer state change."""
        self._in_step = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop here if Ctrl-C was pressed during the step."""
        self._in_step = False
        if self.requested:
            _stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Save, if the state is whole; Ctrl-C is ignored from here on."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        # A worker that loads data dies of the same Ctrl-C: then the exception is a RuntimeError.
        self.requested |= isinstance(exception, KeyboardInterrupt)
        is_whole = trainer.global_step > 0 and not self._in_step
        if not self.requested or not is_whole or trainer.world_size > 1:
            return
        folder = checkpoint_folder(trainer) or log_folder(trainer)
        path = (folder or Path(trainer.default_root_dir)) / CHECKPOINT_NAME
        trainer.save_checkpoint(path, weights_only=False)
        self.path = path

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        first, self.requested = not self.requested, True
        if not (first and self._in_step):
            _stop()


def _stop() -> NoReturn:
    # Lightning ignores Ctrl-C too, but only once it has caught this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
