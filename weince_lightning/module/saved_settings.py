"""Settings of a module in its checkpoints, and a module built again from them."""

import inspect
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, Self, cast

from lightning.pytorch import LightningModule
from lightning.pytorch.core.saving import _load_state
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from lightning.pytorch.utilities.parsing import AttributeDict, collect_init_args
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

from weince_lightning.checkpoints.record import (
    HYPER_PARAMETERS,
    Checkpoint,
    note_in_checkpoint,
    open_module_checkpoint,
)
from weince_lightning.losses.descriptions import (
    build,
    classes_built_in_python,
    describe,
    flatten,
    import_path,
    is_ours,
)
from weince_lightning.losses.queue import own_keys
from weince_lightning.module.initial_weights import weights_follow
from weince_lightning.module.mismatch import CheckpointMismatchError, explain_mismatch

_PACKAGE = "weince_lightning."
_OF_THE_COMMAND_LINE = ("_instantiator", "_class_path")
_in_file: ContextVar[Mapping[str, Any] | None] = ContextVar("_in_file", default=None)


class RebuildableModule(LightningModule):
    """A module with a ``loss``, whose checkpoints hold all that it was built from as plain values.

    Losses and parts of this package are described by class and arguments, objects of other classes
    by their class alone: those must be given again. What LightningCLI built is described as it was
    configured, other classes included.
    """

    backbone: nn.Module
    loss: Any
    _decided_by_subclass: frozenset[str] = frozenset()
    _saved_settings: Mapping[str, Any] | None = None

    def _save_settings(self) -> None:
        """Keep what the constructors were given; the last line of a constructor."""
        given, decided = _constructor_arguments(self)
        # With nothing left, this keeps only what LightningCLI says, if it is that which builds.
        self.save_hyperparameters(ignore=[*given, *decided])
        if "_instantiator" in self.hparams:
            self.save_hyperparameters()
        else:
            plain = {name: describe(value) for name, value in decided.items()}
            self.hparams.update({k: v for k, v in plain.items() if not classes_built_in_python(v)})
            self.hparams.update({name: describe(value) for name, value in given.items()})
            self._decided_by_subclass = frozenset(decided.keys() - given.keys())
        default = describe(self.loss)
        if self.hparams.get("loss", "") is None and not classes_built_in_python(default):
            self.hparams["loss"] = default

    @property
    def hparams_initial(self) -> AttributeDict:
        """The settings as loggers get them: scalars and strings, such as ``loss/temperature``.

        Those of a data module that keeps its own stand under ``data/``.
        """
        settings = self._settings()
        settings.setdefault("backbone", describe(self.backbone))
        settings["loss"] = settings.get("loss") or describe(self.loss)
        data = getattr(self._trainer, "datamodule", None)
        if data is not None and not data._log_hyperparams:
            settings.update({f"data/{k}": describe(v) for k, v in data.hparams.items()})
        flat: dict[str, Any] = {}
        for name, value in settings.items():
            if name.split("/")[-1] not in _OF_THE_COMMAND_LINE:
                flat.update(flatten(value, name))
        return AttributeDict(flat)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the settings into the checkpoint as they are now, and the classes' names.

        Callbacks that average weights have replaced the state by that of a copy: the keys of a
        queue are put back.
        """
        checkpoint["state_dict"].update(own_keys(self, checkpoint["state_dict"]))
        settings, decided = self._settings(), self._decided_by_subclass
        data = getattr(self._trainer, "datamodule", None)
        note_in_checkpoint(
            checkpoint,
            model=import_path(self),
            data=None if data is None else import_path(data),
            decided_by_subclass={k: v for k, v in settings.items() if k in decided},
        )
        # What the constructor can be called with.
        checkpoint[HYPER_PARAMETERS] = {
            name: value for name, value in settings.items() if name not in decided
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember what was saved, for errors."""
        # Lightning has put the arguments of load_from_checkpoint over those in the checkpoint.
        self._saved_settings = _in_file.get() or checkpoint.get(HYPER_PARAMETERS)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Load weights and the state of the loss, as torch does.

        Raises:
            CheckpointMismatchError: A RuntimeError that says in words what differs.
        """
        saved, self._saved_settings = self._saved_settings, None
        try:
            keys: _IncompatibleKeys = super().load_state_dict(state_dict, strict, assign)
            return keys
        except RuntimeError as error:
            own = self.state_dict()
            text = explain_mismatch(str(error), state_dict, own, saved, self._settings())
            raise CheckpointMismatchError(text) from error

    # Lightning's decorator: called on an instance it would silently load into another one.
    @_restricted_classmethod
    def load_from_checkpoint(
        cls,  # noqa: N805
        checkpoint_path: str | Path | IO[bytes] | Checkpoint,
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build the module that wrote a checkpoint, with its weights and the state of its loss.

        Args:
            checkpoint_path: Path, address, open binary file, or what
                :func:`~weince_lightning.checkpoints.open_checkpoint` returned, which is not read
                again.
            map_location: Where tensors go, as for :func:`torch.load`; a device for a checkpoint
                that is open already, by default the CPU.
            hparams_file: See Lightning.
            strict: Whether the weights must fit exactly; None: as ``strict_loading`` of the module.
            weights_only: See :func:`torch.load`.
            **kwargs: Arguments of the constructor that win over the saved ones. Those that were
                objects of other classes than this package's, built in Python, must be given.

        Returns:
            The module; a subclass where that wrote the checkpoint.

        Raises:
            ValueError: If an argument must be given, or the class that was saved is not imported.
            CheckpointError: If the file is damaged, or no checkpoint of Lightning.
            CheckpointMismatchError: If the weights do not fit.

        Example:
            ``ContrastiveModule.load_from_checkpoint("last.ckpt", loss=MyLoss())``
        """
        checkpoint = open_module_checkpoint(checkpoint_path, weights_only)
        settings = dict(checkpoint.hyper_parameters)
        kind = cast("type[Self]", _class_to_build(checkpoint.module_class, cls))
        if kind is not cls:
            return kind.load_from_checkpoint(
                checkpoint_path, map_location, hparams_file, strict, weights_only, **kwargs
            )
        arguments = kwargs
        if hparams_file is None:
            kept = {name: value for name, value in settings.items() if name not in kwargs}
            _check_given(kept, cls.__name__)
            if "_instantiator" not in settings:  # LightningCLI's are rebuilt by its own parser
                arguments = {**kwargs, **build(kept)}
        token = _in_file.set(settings)
        try:
            with weights_follow():
                if isinstance(checkpoint_path, Checkpoint):
                    content = {**checkpoint.content, HYPER_PARAMETERS: {**settings, **arguments}}
                    module = cast("Self", _load_state(cls, content, strict, **arguments))
                    module.to(map_location or "cpu")
                else:
                    # Again from the file: where its tensors go is Lightning's to decide.
                    module = super().load_from_checkpoint(
                        checkpoint_path,
                        map_location,
                        hparams_file,
                        strict,
                        weights_only,
                        **arguments,
                    )
        finally:
            _in_file.reset(token)
        if "_instantiator" in settings:
            module.hparams.update({k: v for k, v in settings.items() if k not in kwargs})
        return module

    def _settings(self) -> dict[str, Any]:
        """The settings as plain values, also of objects that were put among them."""
        settings = {name: describe(value) for name, value in self.hparams.items()}
        if "loss" in settings:
            settings["loss"] = self._loss_now(settings["loss"])
        return settings

    def _loss_now(self, saved: Any) -> Any:
        """Describe the loss with what was changed since it was built.

        A foreign one is described as it was configured. A subclass that builds its loss itself
        would build it from what it was given.
        """
        now = describe(self.loss)
        if not isinstance(saved, Mapping) or saved.get("class_path") == now.get("class_path"):
            return saved and now
        has_own_constructor = not type(self).__init__.__module__.startswith(_PACKAGE)
        return saved if has_own_constructor or not is_ours(saved) else now


def _constructor_arguments(module: LightningModule) -> tuple[dict[str, Any], dict[str, Any]]:
    """Collect constructor arguments as Lightning does, but those of the outermost one apart.

    ``save_hyperparameters`` would merge them, and a checkpoint could not tell the arguments that
    the module's class takes from those that a subclass decides for its base.

    Returns:
        What the outermost constructor was given, and what the inner ones were besides.
    """
    calls = collect_init_args(sys._getframe(), [], classes=(type(module),))
    constructors = [kind for kind in type(module).__mro__ if "__init__" in vars(kind)]
    given: dict[str, Any] = {}
    decided: dict[str, Any] = {}
    target = given
    for arguments, kind in zip(reversed(calls), constructors, strict=False):
        target.update({k: v for k, v in arguments.items() if k not in given})
        # Without names of its own for them, a constructor hands its positional arguments on.
        parameters = inspect.signature(kind).parameters.values()
        if not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            target = decided
    return given, decided


def _class_to_build(name: str | None, cls: type) -> type:
    """Find the class that a checkpoint was written with, among those that are imported."""
    if name is None or name == import_path(cls):
        return cls
    home, _, last = name.rpartition(".")
    saved = getattr(sys.modules.get(home), last, None)
    if isinstance(saved, type):
        return saved if issubclass(saved, cls) else cls
    if import_path(cls).startswith(_PACKAGE):
        raise ValueError(
            f"load_from_checkpoint must be called on {name}, which wrote the checkpoint, or after "
            f"its module is imported, got {cls.__name__}. To take the weights alone, build a "
            'module and call load_state_dict(torch.load(path)["state_dict"]).'
        )
    return cls


def _check_given(settings: Mapping[str, Any], class_name: str) -> None:
    """Refuse to guess what the checkpoint cannot hold."""
    missing = {name: classes_built_in_python(value) for name, value in settings.items()}
    missing = {name: classes for name, classes in missing.items() if classes}
    if missing:
        found = " and ".join(f"{', '.join(classes)} as {k}" for k, classes in missing.items())
        example = ", ".join(f"{name}=..." for name in missing)
        raise ValueError(
            f"{' and '.join(missing)} must be given to load_from_checkpoint: the checkpoint was "
            f"written with {found}, built in Python, which cannot be rebuilt from it. Call "
            f"{class_name}.load_from_checkpoint(path, {example})."
        )
