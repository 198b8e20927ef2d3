"""The loggers of a run: the sweep's own, and those of TensorBoard and W&B in its layers."""

from collections.abc import Callable
from typing import Any

from weince_lightning.layers import merged, read_layers
from weince_lightning.sweeps.folder import RunFolder

_CSV = "lightning.pytorch.loggers.CSVLogger"


def run_loggers(folder: RunFolder, find_layer: Callable[[str], str]) -> list[dict[str, Any]]:
    """List the loggers of a run as settings of the trainer.

    Each writes to the folder of the run. W&B gets the name of the run; project and what else a
    layer says of it stay.

    Args:
        folder: Where the run's files lie.
        find_layer: Gives the file behind the name of a layer.
    """
    own = {"save_dir": str(folder.path), "name": "", "version": ""}
    layers = (each for name in folder.run.layers for each in read_layers(find_layer(name)))
    trainer = merged(layers).get("trainer") or {}
    loggers: list[dict[str, Any]] = [{"class_path": _CSV, "init_args": own}]
    for key in ("logger", "logger+"):
        given = trainer.get(key)
        for each in given if isinstance(given, list) else [given]:
            logger: Any = {"class_path": each} if isinstance(each, str) else each
            path = logger.get("class_path", "") if isinstance(logger, dict) else ""
            if path.endswith("TensorBoardLogger"):
                settings = own
            elif path.endswith("WandbLogger"):
                settings = {"save_dir": own["save_dir"], "name": folder.run.name}
            else:  # none, or one whose folder is not known
                continue
            init_args = {**(logger.get("init_args") or {}), **settings}
            loggers.append({"class_path": path, "init_args": init_args})
    return loggers
