"""Checks of a whole sweep by the commands' own parsers, before anything is trained."""

from typing import Any

from weince_lightning.sweeps.commands import Commands
from weince_lightning.sweeps.plan import Sweep, SweepError


def check_runs(plan: Sweep, commands: Commands) -> dict[str, str]:
    """Let the commands read every configuration of a sweep.

    Args:
        plan: The sweep.
        commands: The commands that will train and evaluate.

    Returns:
        For each run's name the file name of its last checkpoint.

    Raises:
        SweepError: If a command would refuse its arguments, or a run would not keep its last
            checkpoint, which is evaluated.
    """
    runs = plan.runs()
    try:
        commands.check_evaluate(runs[0].evaluate_arguments)
    except ValueError as error:
        raise SweepError(f"evaluation: {error}") from error
    names: dict[str, str] = {}
    for run in runs:
        configuration = run.name.rpartition("/")[0]
        if configuration not in names:
            try:
                trainer = commands.parse_fit(run.fit_arguments)
                names[configuration] = _last_checkpoint(trainer)
            except ValueError as error:
                raise SweepError(f"{configuration}: {error}") from None
    return {run.name: names[run.name.rpartition("/")[0]] for run in runs}


def _last_checkpoint(trainer: Any) -> str:
    """Name the file of the last epoch, which is evaluated: it must be kept."""
    callbacks = trainer.callbacks or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    savers = [item.init_args for item in callbacks if item.class_path.endswith(".ModelCheckpoint")]
    if not savers and trainer.enable_checkpointing is not False:
        return "*.ckpt"  # Lightning's own
    for saver in savers:
        is_each_epoch = saver.every_n_epochs in (None, 1) and saver.save_top_k != 0
        rarer = (saver.monitor, saver.every_n_train_steps, saver.train_time_interval)
        if is_each_epoch and rarer == (None, None, None):
            return "*.ckpt" if "{" in (saver.filename or "{") else f"{saver.filename}.ckpt"
    raise ValueError(
        "trainer.callbacks must hold a ModelCheckpoint without monitor for every epoch: the last "
        "checkpoint is what is evaluated."
    )
