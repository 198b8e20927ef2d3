"""One door to a checkpoint: the file is opened once, and its keys are known here alone."""

from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
import yaml
from torch import Tensor

from weince_lightning.checkpoints.files import CheckpointError, read_checkpoint, read_notes
from weince_lightning.checkpoints.layouts import find_state
from weince_lightning.losses.descriptions import classes_built_in_python
from weince_lightning.yaml_files import YAMLFileError, load_settings, read_text

HYPER_PARAMETERS = "hyper_parameters"
"""Where Lightning keeps the arguments of a module."""

_OWN = "weince_lightning"
"""Where this package keeps what Lightning has no place for: classes and the configuration."""

_DATA_HYPER_PARAMETERS = "datamodule_hyper_parameters"
_OF_LIGHTNING = "pytorch-lightning_version"

# Arguments of one call, which describe neither the model nor its data or their training.
_OF_THE_CALL = ("ckpt_path", "config", "return_predictions", "verbose", "weights_only")


class RunSettings(NamedTuple):
    """The settings of the run that wrote a checkpoint."""

    settings: dict[str, Any]
    """As in a configuration file."""

    built_in_python: dict[str, str]
    """Arguments of model and data that cannot be rebuilt, such as ``model.loss``: their classes."""

    source: str
    """The file that holds the settings."""


class Progress(NamedTuple):
    """The training behind a checkpoint."""

    steps: int
    """Optimizer steps."""

    epochs: int | None
    """Complete epochs; None if the file holds weights alone and cannot be resumed."""


class Checkpoint:
    """The content of a checkpoint file.

    Args:
        source: The file, or its address, for people.
        content: What was saved in it.
    """

    def __init__(self, source: str, content: Any) -> None:
        self.source = source
        self.content = content

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.source)

    @property
    def is_lightning(self) -> bool:
        """Whether Lightning wrote it."""
        return isinstance(self.content, Mapping) and _OF_LIGHTNING in self.content

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """Weights by name, without the prefixes of wrappers; empty if there are none."""
        return find_state(self.content)

    @property
    def module_class(self) -> str | None:
        """Import path of the module's class; None if the file does not name it."""
        name: str | None = self._own.get("model")
        return name

    @property
    def logs(self) -> Mapping[str, Any]:
        """``versions`` of the loggers and ``folders`` of the run; empty if it does not say."""
        found = self._own.get("logs")
        return found if isinstance(found, Mapping) else {}

    @property
    def hyper_parameters(self) -> Mapping[str, Any]:
        """The arguments with which the module can be built again."""
        return self._mapping(HYPER_PARAMETERS)

    @property
    def module_settings(self) -> dict[str, Any]:
        """All settings of the module, those included that a subclass decides."""
        return {**(self._own.get("decided_by_subclass") or {}), **self.hyper_parameters}

    @property
    def holds_sentence_encoder(self) -> bool:
        """Whether a :class:`~weince_lightning.module.SentenceModule` wrote it."""
        return {"encoder", "encoder_options", "pooling"} <= set(self.hyper_parameters)

    @property
    def progress(self) -> Progress | None:
        """How far the training had come; None if the file does not say."""
        try:
            steps, loops = int(self.content["global_step"]), self.content.get("loops")
            epochs = loops and int(loops["fit_loop"]["epoch_progress"]["current"]["processed"])
        except (LookupError, TypeError, ValueError, AttributeError):
            return None
        return Progress(steps, epochs)

    @cached_property
    def run_settings(self) -> RunSettings | None:
        """The settings of the run that wrote it; None if they are not known or there was no run.

        They are in the checkpoint itself: the configuration that the command wrote, or the
        arguments of module and data module. A checkpoint of weights alone, as
        ``ModelCheckpoint(save_weights_only=True)`` writes it, may have a ``config.yaml`` beside it.

        Like a configuration file, settings name classes that the command imports and calls: reading
        them is safe whoever wrote the checkpoint, running what they name is not.

        Raises:
            CheckpointError: If the file beside it cannot be read.
        """
        if not self.is_lightning:
            return None
        if "config" in self._own:
            return _run_settings(self._own["config"], self.source)
        of_module, of_data = self.hyper_parameters, self._mapping(_DATA_HYPER_PARAMETERS)
        beside = _file_beside(self.path)
        if beside is not None and ("_instantiator" in of_module or not of_module):
            try:
                content, _ = load_settings(read_text(beside), beside)
            except YAMLFileError as error:
                raise CheckpointError(str(error)) from error
            return _run_settings(content, str(beside))
        settings = {}
        for key, arguments in (("model", of_module), ("data", of_data)):
            class_path = arguments.get("_class_path") or self._own.get(key)
            if class_path is not None and arguments:
                init_args = {name: value for name, value in arguments.items() if name[:1] != "_"}
                settings[key] = {"class_path": class_path, "init_args": init_args}
        if "data" in settings and "model" in settings:
            # The command takes them from the data.
            for name in ("in_channels", "image_size"):
                settings["model"]["init_args"].pop(name, None)
        return _run_settings(settings, self.source) if settings else None

    @property
    def normalization(self) -> dict[str, list[float]]:
        """``mean`` and ``std`` of each channel of its images; empty without or where unknown."""
        found: Mapping[str, Any] = {}
        with suppress(CheckpointError):  # settings that cannot be read, whose weights can
            run = self.run_settings
            found = {} if run is None else (run.settings.get("data") or {}).get("init_args") or {}
        if self.path.suffix == ".safetensors":
            found = read_notes(self.path)
        known = {name: found[name] for name in ("mean", "std") if found.get(name)}
        return known if len(known) == 2 else {}

    @property
    def _own(self) -> Mapping[str, Any]:
        return self._mapping(_OWN)

    def _mapping(self, key: str) -> Mapping[str, Any]:
        found = self.content.get(key) if isinstance(self.content, Mapping) else None
        return found if isinstance(found, Mapping) else {}


def open_checkpoint(
    source: str | Path | IO[bytes] | Checkpoint, weights_only: bool | None = True
) -> Checkpoint:
    """Open a checkpoint once, for all that is to be known of it.

    Args:
        source: Path, address or open binary file, which is put back to where it was. What is open
            already is returned as it is.
        weights_only: False allows pickled classes, which can run code.

    Returns:
        The checkpoint. Tensors of a local file are mapped from it: see
        :func:`~weince_lightning.checkpoints.read_checkpoint`.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it is damaged, or holds objects of other classes.
        TypeError: If the source is of another kind.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> torch.save({"state_dict": {"weight": torch.ones(2)}}, f"{folder.name}/small.ckpt")
        >>> checkpoint = open_checkpoint(f"{folder.name}/small.ckpt")
        >>> checkpoint.is_lightning, checkpoint.state["weight"]
        (False, tensor([1., 1.]))
    """
    if isinstance(source, Checkpoint):
        return source
    is_safe = weights_only is not False
    if not isinstance(source, (str, Path)):
        if not callable(getattr(source, "read", None)):
            raise TypeError(f"a checkpoint must be a path or an open file, got {source!r}.")
        place = source.tell()
        content = torch.load(source, map_location="cpu", weights_only=is_safe)
        source.seek(place)
        return Checkpoint("the open file", content)
    if "://" in str(source):
        from lightning.fabric.utilities.cloud_io import get_filesystem

        with get_filesystem(source).open(str(source), "rb") as file:
            content = torch.load(file, map_location="cpu", weights_only=is_safe)
        return Checkpoint(str(source), content)
    return Checkpoint(str(source), read_checkpoint(source, is_safe))


def open_module_checkpoint(
    source: str | Path | IO[bytes] | Checkpoint, weights_only: bool | None = True
) -> Checkpoint:
    """Open a checkpoint that Lightning wrote; see :func:`open_checkpoint`.

    Raises:
        CheckpointError: If something else wrote it.
    """
    checkpoint = open_checkpoint(source, weights_only)
    if not checkpoint.is_lightning:
        raise CheckpointError(
            f"{checkpoint.source} must be a checkpoint that Lightning wrote, got other contents. "
            "The encoder of plain weights is read by load_encoder of the checkpoints package."
        )
    return checkpoint


def note_in_checkpoint(checkpoint: MutableMapping[str, Any], **notes: Any) -> None:
    """Put what Lightning has no place for into a checkpoint that is being written.

    Args:
        checkpoint: Its content.
        **notes: Plain values: ``model`` and ``data``, import paths of classes;
            ``decided_by_subclass``, settings of the module; ``config``, the run's configuration;
            ``logs``, versions of its loggers and its folders.
    """
    checkpoint.setdefault(_OWN, {}).update(notes)


def _run_settings(settings: Mapping[str, Any], source: str) -> RunSettings:
    of_the_run = {key: value for key, value in settings.items() if key not in _OF_THE_CALL}
    # A copy, in which tuples and the like have become what a configuration file holds.
    plain = yaml.safe_load(yaml.safe_dump(of_the_run, sort_keys=False))
    built_in_python = {}
    for key in ("model", "data"):
        init_args = (plain.get(key) or {}).get("init_args") or {}
        for name, value in [*init_args.items()]:
            if classes := classes_built_in_python(value):
                built_in_python[f"{key}.{name}"] = ", ".join(classes)
                del init_args[name]
    return RunSettings(plain, built_in_python, source)


def _file_beside(checkpoint: Path) -> Path | None:
    folder = checkpoint.parent
    places = (folder / "config.yaml", folder.parent / "config.yaml")
    return next((place for place in places if place.is_file()), None)
