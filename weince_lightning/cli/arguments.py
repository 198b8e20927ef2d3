"""What the command line says before Lightning reads it: packaged configurations, defaults, help."""

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from weince_lightning.checks import did_you_mean, nearest_words

DEFAULT_CONFIG = "digits"

_HELP = """\
weince: contrastive pretraining with WEINCE

Start here (bundled images, no download, under three minutes on a laptop):
  weince fit -c digits

Commands:
  fit       train an encoder; ends with its numbers and the command that comes next
  validate  the validation numbers of a checkpoint
  test      loss and kNN on the test images
  predict   write the features and labels of the test images to an .npz file
  evaluate  linear probe and nearest neighbours on the frozen features of checkpoints
  diagnose  is the tail Weibull? of a checkpoint, a backbone or an array of embeddings
  export    write the encoder of a checkpoint under torchvision's or timm's names
  sweep     train and evaluate the runs of a comparison: losses x settings x seeds
  report    compare the arms of a sweep: tables, intervals and a figure

Checkpoints hold the settings they were written with, wherever they lie:
  weince validate --ckpt_path CHECKPOINT    (test and predict likewise)
  weince fit --ckpt_path CHECKPOINT --trainer.max_epochs 40    goes on

Configurations are layers: the checkpoint's settings, then each -c in turn, then options. What comes
later wins; what differs from the checkpoint's settings is named.
  weince fit -c base -c data/cifar100 -c loss/weince --trainer.max_epochs 10
-c takes the path of a YAML file or the name of a packaged one:
{configs}

More:
  weince fit -c digits --print_config    the whole configuration, to save and edit
  weince fit --help                      every option
  --model MyModule --data MyData         classes of your own, by class path
  weince --version                       versions and devices, for a bug report
"""


OWN_ARGUMENTS = ("evaluate", "diagnose", "export", "sweep", "report")
"""Commands that read their arguments themselves."""
COMMANDS = ("fit", "validate", "test", "predict", *OWN_ARGUMENTS)


class UsageError(Exception):
    """A command line that makes no sense."""


class CommandParser(argparse.ArgumentParser):
    """Reads the arguments of a command without configuration; its errors are UsageErrors.

    Args:
        command: What stands after ``weince``.
        description: What it does, as its help says.
        epilog: Examples.
    """

    def __init__(self, command: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=f"weince {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where the help is."""
        raise UsageError(f"{message}. See {self.prog} --help.")


def packaged_configs() -> dict[str, Path]:
    """Map the names of the packaged configurations, such as ``loss/weince``, to their files."""
    return {name: path for name, path in _packaged().items() if not _is_sweep(name)}


def packaged_sweeps() -> dict[str, Path]:
    """Map the names of the packaged sweep files, such as ``sweeps/digits``, to their files."""
    return {name: path for name, path in _packaged().items() if _is_sweep(name)}


def _packaged() -> dict[str, Path]:
    root = Path(str(files("weince_lightning.configs")))
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in sorted(root.rglob("*.yaml"))
    }


def _is_sweep(name: str) -> bool:
    return name.startswith("sweeps/")


def find_config(name: str) -> str:
    """Turn what stands after ``-c`` into the path of a file.

    Args:
        name: A path, which wins if the file exists, or a packaged name with or without ``.yaml``.

    Returns:
        The path; a name that is neither of the two kinds (a URL, inline YAML) as it is.

    Raises:
        UsageError: If there is no such file and no such packaged configuration.
    """
    if Path(name).is_file() or not re.fullmatch(r"[\w./~-]+", name):
        return name
    known = packaged_configs()
    wanted = name.removesuffix(".yaml")
    if wanted in known:
        return str(known[wanted])
    near = nearest_words(wanted, known, cutoff=0.0)[0]
    raise UsageError(
        f"-c must name a YAML file or a packaged configuration, got {name!r}. "
        f"The nearest packaged one is {near!r}."
    )


def complete_arguments(arguments: Sequence[str]) -> list[str]:
    """Resolve the names of configurations, and add one where the command line says none.

    Args:
        arguments: What stands after ``weince``.

    Returns:
        Arguments in which every ``-c`` is followed by a path. ``fit`` without checkpoint,
        configuration, model or data gets the digits.

    Raises:
        UsageError: If there is no such command or configuration, or nothing says what to evaluate.
    """
    command, layers, options = arguments[0], list[str](), list[str]()
    if command not in COMMANDS:
        hint = did_you_mean(command, COMMANDS, quote="'")
        raise UsageError(
            f"the command must be one of {', '.join(COMMANDS)}, got {command!r}.{hint} "
            "See weince --help."
        )
    if command in OWN_ARGUMENTS:
        return [*arguments]
    remaining = iter(arguments[1:])
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        if flag in ("-c", "--config"):
            layers += ["-c", find_config(value if equals else next(remaining, ""))]
        else:
            options.append(argument)
    # The parser takes them in turn: a layer after an option would undo it.
    complete = [command, *layers, *options]
    says_what = any(re.match(r"(--model|--data)\b|-h$|--help$", option) for option in options)
    if layers or says_what or checkpoint_argument(options):
        return complete
    if command == "fit":
        sys.stderr.write(f"weince: no -c given, using the packaged {DEFAULT_CONFIG!r}.\n")
        return [command, "-c", find_config(DEFAULT_CONFIG), *options]
    raise UsageError(
        f"{command} must know what: give --ckpt_path CHECKPOINT, as weince fit prints it at its "
        "end."
    )


def checkpoint_argument(arguments: Sequence[str]) -> str | None:
    """Return what stands after ``--ckpt_path``, None if nothing does."""
    found = None
    for argument, following in pairwise([*arguments, ""]):
        flag, equals, value = argument.partition("=")
        if flag == "--ckpt_path":
            found = value if equals else following
    return None if found in ("", "null") else found


def help_text() -> str:
    """Say what to type, and list the packaged configurations by folder."""
    folders: dict[str, list[str]] = {}
    for name in packaged_configs():
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    lines = ["  " + "  ".join(names) for names in folders.values()]
    return _HELP.format(configs="\n".join(lines))
