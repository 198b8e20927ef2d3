"""The configuration of a run, saved beside its logs and in its checkpoints."""

import os
import shlex
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from weince_lightning.callbacks.run_files import config_path
from weince_lightning.checkpoints.record import note_in_checkpoint
from weince_lightning.cli.resumed_logs import note_of_logs


def shown(path: str | Path) -> str:
    """Write a path as one types it: relative below the working folder, quoted where needed."""
    relative = os.path.relpath(path)
    return shlex.quote(str(path) if relative.startswith(os.pardir) else relative)


class SaveRunConfig(SaveConfigCallback):
    """Save the whole configuration in every checkpoint of a run and beside its logs.

    Without logs it lies beside the checkpoints.

    Those folders are new for every run (``version_0``, ``version_1``, ...), so a second run neither
    stops nor overwrites the configuration of the first.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Wait: the folder of the checkpoints is not known before :meth:`on_fit_start`."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, in the main process."""
        path = config_path(trainer)
        if path is None or not trainer.is_global_zero:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self.parser.save(self.config, path, skip_unset=False, overwrite=True, multifile=False)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the configuration into the checkpoint, and where the logs are."""
        note_in_checkpoint(checkpoint, config=self._plain_config, logs=note_of_logs(trainer))

    @cached_property
    def _plain_config(self) -> Any:
        # Once: the parser checks every class again.
        return yaml.safe_load(self.parser.dump(self.config, skip_unset=False))
