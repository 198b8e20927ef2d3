"""Fit, validate, test and predict: LightningCLI that reads checkpoints' configuration."""

import logging
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from weince_lightning.callbacks.interrupt import InterruptCheckpoint
from weince_lightning.callbacks.monitored_metrics import MonitoredMetrics
from weince_lightning.callbacks.run_end import why_no_success
from weince_lightning.callbacks.run_files import log_folder
from weince_lightning.checkpoints import check_checkpoint, open_checkpoint
from weince_lightning.checkpoints.files import KEYWORDS
from weince_lightning.checkpoints.saving import save_atomically
from weince_lightning.checks import check_integer
from weince_lightning.cli.arguments import checkpoint_argument
from weince_lightning.cli.checkpoint_config import (
    open_given_checkpoint,
    refuse_finished,
    report_overrides,
    tell,
    with_checkpoint_config,
)
from weince_lightning.cli.left_out import remove_callbacks
from weince_lightning.cli.messages import evaluation_report, fit_report, interruption_report, say
from weince_lightning.cli.parser import ConciseParser, raised_in, refusals_reported
from weince_lightning.cli.resumed_logs import keep_rows, versions_given, why_new_logs
from weince_lightning.cli.run_files import SaveRunConfig, shown
from weince_lightning.cli.trainer_checks import check_trainer
from weince_lightning.cli.wording import in_words_of_options
from weince_lightning.evaluation.embedding import paths_of
from weince_lightning.evaluation.feature_files import ImageFeatures, write_features
from weince_lightning.module.initial_weights import weights_follow
from weince_lightning.module.mismatch import CheckpointMismatchError

_PACKAGE = "weince_lightning."
_NOISE = ("💡", "TPU available", "HPU available", "Loading `train_dataloader`")


class WeinceCLI(LightningCLI):
    """Run one subcommand.

    Model and data may be any class, given by ``class_path``; left out they are
    :class:`~weince_lightning.ContrastiveModule` and :class:`~weince_lightning.data.VisionData`.

    Args:
        args: The arguments, subcommand first; names of configurations already resolved.
    """

    def __init__(self, args: list[str]) -> None:
        self._arguments = args
        self._interrupt = InterruptCheckpoint()
        # Why a training that is resumed has logs of its own; None if it has those of its run.
        self._new_logs: str | None = "its settings are not those of the checkpoint"
        _quieten()
        super().__init__(
            LightningModule,
            LightningDataModule,
            save_config_callback=SaveRunConfig,
            parser_class=ConciseParser,
            parser_kwargs={"prog": "weince"},
            subclass_mode_model=True,
            subclass_mode_data=True,
            # Our modules build their own optimizer; two ways to say it would contradict.
            auto_configure_optimizers=False,
            args=args,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Set the default classes, and give the model the shape of the images.

        A link is passed over where the data module lacks the attribute or the model the argument.
        """
        parser.add_argument(
            "--without", type=str, action="append", default=None, metavar="CALLBACK",
            help="the class of a callback in the layers to leave out, such as KNNMonitor; may be "
            "given again",
        )  # fmt: skip
        parser.set_defaults({"model": {"class_path": "weince_lightning.ContrastiveModule"}})
        parser.set_defaults({"data": {"class_path": "weince_lightning.data.VisionData"}})
        for name in ("in_channels", "image_size"):
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")
        for action in parser._actions:
            # The trainer's Optional[Union[int, float]] may come out of typing's cache as float
            # first, by which 1 batch would be read as 1.0, all of them.
            if action.dest.startswith("trainer.limit_") and hasattr(action, "_typehint"):
                action._typehint = int | float | None

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Read the arguments, over the settings in the checkpoint that they name.

        The parent would also warn of a process that has arguments of its own.
        """
        self._checkpoint = open_given_checkpoint(self._arguments)
        saved = None if self._checkpoint is None else self._checkpoint.run_settings
        if checkpoint_argument(self._arguments) is None:
            self.config = parser.parse_args(self._arguments)
            return
        self.config = parser.parse_args(with_checkpoint_config(self._arguments, saved))
        if saved is not None:
            final = yaml.safe_load(parser.dump(self.config, skip_unset=False))
            final = final[self.config.subcommand]
            report_overrides(saved.settings, final)
            if self.config.subcommand == "fit" and self._checkpoint is not None:
                loggers = [
                    (each.get("trainer") or {}).get("logger") for each in (final, saved.settings)
                ]
                self._new_logs = why_new_logs(self._checkpoint, *loggers)

    def _parse_ckpt_path(self) -> None:
        """Refuse a damaged checkpoint at once, and leave the configuration as it is.

        The parent merges the checkpoint's hyperparameters over it, so that what the user typed is
        silently lost. Here they lie under it, and loading is strict: weights of another model are
        refused.
        """
        arguments = self.config[self.config.subcommand]
        path, checkpoint = arguments.ckpt_path, self._checkpoint
        if not (checkpoint and checkpoint.content and checkpoint.source == str(path)):
            # A layer names it, or it holds objects of other classes.
            check_checkpoint(path, arguments.weights_only)
            is_readable = arguments.weights_only is not False and Path(path or "").is_file()
            self._checkpoint = checkpoint = open_checkpoint(path) if is_readable else None
        if self.config.subcommand == "fit" and checkpoint is not None:
            refuse_finished(checkpoint, arguments.trainer)

    def _set_seed(self) -> None:
        """Refuse a seed that NumPy would."""
        seed = self.config[self.config.subcommand].seed_everything
        with refusals_reported(self._parser(self.config.subcommand)):
            if seed is not None and not isinstance(seed, bool):
                check_integer("seed_everything", seed, at_least=0, at_most=2**32 - 1)
        super()._set_seed()

    def before_instantiate_classes(self) -> None:
        """Leave callbacks out; only fit starts a log, and predict has one process."""
        with refusals_reported(self._parser(self.subcommand)):
            self._removed = remove_callbacks(self.config[self.subcommand])
        # A resumed run may have a folder of its own, and a record of its own of the best
        # checkpoint, as its report says; evaluation has no use for either.
        warnings.filterwarnings("ignore", message="The dirpath has changed")
        if self._checkpoint is not None:
            warnings.filterwarnings("ignore", message="Checkpoint directory .* is not empty")
        if self.subcommand == "fit":
            return
        trainer = self.config[self.subcommand].trainer
        trainer.logger = False
        self.save_config_callback = None
        if self.subcommand == "predict":
            trainer.devices = 1

    def instantiate_classes(self) -> None:
        """Build model, data and trainer; values that a class refuses are errors of the user."""
        path = str(self.config[self.subcommand].ckpt_path or "")
        # A keyword may find no checkpoint, and the training begins then.
        is_reloaded = path != "" and path.partition(":")[0] not in KEYWORDS
        known = self._checkpoint if not self._new_logs else None
        versions = [] if known is None else known.logs["versions"]
        trainer = self.config[self.subcommand].trainer
        with (
            refusals_reported(self._parser(self.subcommand)),
            weights_follow() if is_reloaded else nullcontext(),
            versions_given(trainer.logger, versions),
        ):
            check_trainer(trainer)
            super().instantiate_classes()
        # The first: a monitor refuses to log nothing where a checkpoint follows its metric.
        self.trainer.callbacks.insert(0, MonitoredMetrics(self._removed))  # type: ignore[attr-defined]
        self.trainer.callbacks.append(self._interrupt)  # type: ignore[attr-defined]
        if getattr(self.datamodule, "dataset", None) == "digits":
            # Half a second of work per epoch: processes to share it would cost more.
            warnings.filterwarnings("ignore", message=".*does not have many workers")
        save_atomically(self.trainer)
        for logger in self.trainer.loggers:
            # A logger takes the next free version when first asked: asked now, before any of them
            # makes its folder, all that share a folder agree.
            _ = logger.version
        folder = log_folder(self.trainer)
        if self.subcommand == "fit" and self._checkpoint and self._new_logs and folder:
            tell(f"weince: {self._new_logs}: the training goes on in {shown(folder)}.")

    def fit(self, **arguments: Any) -> None:
        """Train, then report; what came to no use ends with status 1."""
        before = self._checkpoint.progress if self._checkpoint else None
        if before and self.trainer.is_global_zero:
            for logger in self.trainer.loggers:
                keep_rows(logger, before.steps)
        try:
            self.trainer.fit(**arguments)
        except (Exception, SystemExit) as error:
            self._refuse(error)
            if self._interrupt.signum is None:
                raise
            if not self.trainer.is_global_zero:
                # Lightning kills the first process, still reporting, if another one fails.
                raise SystemExit(0) from None
            say(interruption_report(self.trainer, self._interrupt.path))
            raise SystemExit(128 + self._interrupt.signum) from None
        fault = why_no_success(self.trainer, before.steps if before else 0)
        if self.trainer.is_global_zero:
            is_new = arguments.get("ckpt_path") is not None and self._new_logs is not None
            say(fit_report(self.trainer, is_new, is_success=fault is None))
            if fault:
                text = in_words_of_options(fault, _keys(self.parser))
                raise SystemExit(f"weince: error: {text}")

    def validate(self, **arguments: Any) -> None:
        """Give the validation numbers."""
        self._evaluate("validate", arguments)

    def test(self, **arguments: Any) -> None:
        """Give the numbers on the test images."""
        self._evaluate("test", arguments)

    def predict(self, **arguments: Any) -> None:
        """Write features, labels and paths beside the checkpoint, or into the working folder."""
        batches = self._call("predict", {**arguments, "return_predictions": True}) or []
        if not batches or not all(
            isinstance(batch, tuple) and len(batch) == 2 for batch in batches
        ):
            raise SystemExit("weince: error: predict_step must return (features, labels).")
        features, labels = (torch.cat(parts).cpu() for parts in zip(*batches, strict=True))
        checkpoint = arguments["ckpt_path"]
        target = Path(checkpoint or "untrained").with_suffix(".features.npz")
        folder = getattr(self.datamodule, "data_dir", None)
        paths = paths_of(self.trainer.predict_dataloaders, folder)
        # Fewer batches than there are may have been asked for.
        paths = None if paths is None else paths[: len(features)]
        write_features(ImageFeatures(features, paths, labels), target)
        say(
            f"\nWrote features {tuple(features.shape)}{'' if paths is None else ', paths'} and "
            f"labels {tuple(labels.shape)} to {shown(target)}\n"
        )

    def _evaluate(self, subcommand: str, arguments: dict[str, Any]) -> None:
        # Lightning's table and ours would say the same.
        self._call(subcommand, {**arguments, "verbose": False})
        if self.trainer.is_global_zero and arguments["verbose"]:
            say(evaluation_report(self.trainer, arguments["ckpt_path"]))

    def _call(self, subcommand: str, arguments: dict[str, Any]) -> Any:
        try:
            return getattr(self.trainer, subcommand)(**arguments)
        except Exception as error:
            self._refuse(error)
            raise

    def _refuse(self, error: BaseException) -> None:
        """End with one line where the message says it all.

        That is so where a checkpoint does not fit the model, of what this package itself refuses,
        and of settings that Lightning refuses once it knows the data.
        """
        text = in_words_of_options(" ".join(str(error).split()), _keys(self.parser))
        place = raised_in(error)
        is_value = isinstance(error, ValueError) and place.startswith("lightning.")
        if is_value or isinstance(error, MisconfigurationException):
            self._parser(self.subcommand).error(text)
        is_mismatch = isinstance(error, CheckpointMismatchError)
        is_ours = isinstance(error, (OSError, ValueError, TypeError)) and place.startswith(_PACKAGE)
        if is_mismatch or is_ours or text.startswith("Error(s) in loading state_"):
            raise SystemExit(f"weince: error: {text}") from None


def _keys(parser: Any) -> list[str]:
    """The settings that a parser has read, as options name them."""
    keys: list[str] = parser.root.keys
    return keys


def _quieten() -> None:
    """Keep off screen what is addressed to Lightning's developers or advertises for it."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero"):
        logging.getLogger(name).addFilter(_is_news)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.")


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_NOISE)
