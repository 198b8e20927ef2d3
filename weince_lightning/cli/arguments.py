"""Arguments read before Lightning loads: packaged configurations, defaults, help."""

import argparse
import re
import sys
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from os.path import isdir, isfile
from typing import NoReturn

from weince_lightning.checks import did_you_mean
from weince_lightning.cli.wording import unknown_option
from weince_lightning.layers import (
    Layer,
    find_packaged,
    packaged_configs,
    parse_layers,
    read_layers,
)
from weince_lightning.yaml_files import YAMLFileError

DEFAULT_CONFIG = "digits"

_HELP = """\
weince: contrastive pretraining with WEINCE

Start here (bundled images, no download, under three minutes on a laptop):
  weince fit -c digits

Commands:
  fit       train an encoder; ends with its numbers and the command that comes next
  validate  the validation numbers of a checkpoint
  test      loss and kNN on the test images
  predict   write the features, labels and paths of the test images to an .npz file
  embed     write the features of the images in any folder, with their paths
  evaluate  linear probe and nearest neighbours on the frozen features of checkpoints
  diagnose  is WEINCE worth trying for a checkpoint, a backbone or an array of embeddings?
  export    write the encoder of a checkpoint under torchvision's or timm's names
  sweep     train and evaluate the runs of a comparison: losses x settings x seeds
  report    compare the arms of a sweep: tables, intervals and a figure

Checkpoints hold the settings they were written with, wherever they lie:
  weince validate --ckpt_path CHECKPOINT    (test and predict likewise)
  weince fit --ckpt_path CHECKPOINT --trainer.max_epochs 40    goes on

Each -c adds a config over the checkpoint's settings; later ones override earlier ones, and options
override all of them. Every setting that differs from the checkpoint's is printed.
  weince fit -c base -c data/cifar100 -c loss/weince --trainer.max_epochs 10
-c takes the path of a YAML file, which may name others under it (layers: [base, data/cifar100]), or
the name of a packaged one:
{configs}

More:
  weince fit -c digits --print_config    the whole configuration, to save and edit
  weince fit --help                      every option
  --model MyModule --data MyData         classes of your own, by class path
  --without KNNMonitor                   leaves a callback of the layers out
  weince --version                       versions and devices, for a bug report
"""


OWN_ARGUMENTS = {
    "evaluate": "evaluate_checkpoints",
    "diagnose": "diagnose_source",
    "embed": "embed",
    "export": "export",
    "sweep": "sweep",
    "report": "report",
}
"""Commands that read their arguments themselves, each by a function in the file of its name."""
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

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Read the arguments after the command; flags may have their old spelling."""
        return self.parse_args(with_hyphens(arguments, self._option_string_actions))

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where the help is."""
        what, colon, given = message.partition("unrecognized arguments: ")
        if colon and not what:
            message = unknown_option(given, self._option_string_actions).removesuffix(".")
        end = "" if message.endswith("?") else "."
        raise UsageError(f"{message}{end} See {self.prog} --help.")


def with_hyphens(arguments: Sequence[str], flags: Container[str]) -> list[str]:
    """Spell flags as they are documented: earlier versions wrote them with underscores.

    Args:
        arguments: What stands after the command.
        flags: The flags of the command, such as ``--dry-run``; others stay as they are.

    Returns:
        The arguments; each flag that was changed is named in one line on standard error.

    Example:
        >>> with_hyphens(["--dry_run", "--linear.batch_size=2"], ["--dry-run"])
        ['--dry-run', '--linear.batch_size=2']
    """
    spelled = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        now = flag.replace("_", "-")
        if now != flag and flag.startswith("--") and flag not in flags and now in flags:
            sys.stderr.write(f"weince: {flag} is now spelled {now}.\n")
            argument = f"{now}{equals}{value}"
        spelled.append(argument)
    return spelled


def in_words_of_command(error: BaseException, names: Mapping[str, str]) -> str:
    """Return a function's error in one line that names its argument as the command line does.

    Args:
        error: Its message begins with the name of an argument, or is about something else.
        names: What stands on the command line by the names of arguments.

    Example:
        >>> in_words_of_command(ValueError("to must end in .pt."), {"to": "--to"})
        '--to must end in .pt.'
    """
    name, *words = str(error).split() or [type(error).__name__]
    return " ".join([names.get(name, name), *words])


def find_config(name: str) -> str:
    """Turn what stands after ``-c`` into the path of a file.

    Args:
        name: A path, which wins if the file exists, or a packaged name with or without ``.yaml``.

    Returns:
        The path; a name that is neither of the two kinds (a URL, inline YAML) as it is.

    Raises:
        UsageError: If there is no such file and no such packaged configuration.
    """
    if not name:
        raise UsageError("-c must be followed by a YAML file or a packaged configuration.")
    if isfile(name) or not re.fullmatch(r"[\w./~-]*", name):
        return name
    if isdir(name) and name.removesuffix(".yaml") not in packaged_configs():
        raise UsageError(f"-c must name a YAML file, got the folder {name!r}. Name a file in it.")
    try:
        return str(find_packaged(name, "-c"))
    except YAMLFileError as error:
        raise UsageError(str(error)) from error


def read_config(name: str) -> list[Layer]:
    """Read what stands after ``-c``.

    Args:
        name: A path, a packaged name, or YAML itself.

    Returns:
        The layers that it stands for; later ones override earlier ones.

    Raises:
        UsageError: If there is no such configuration, or it cannot be read; the message names file
            and line.
    """
    found = find_config(name)
    try:
        return read_layers(found) if isfile(found) else parse_layers(found)
    except YAMLFileError as error:
        raise UsageError(str(error)) from error


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
            name = value if equals else next(remaining, "")
            read_config(name)  # an error costs no seconds yet
            layers += ["-c", find_config(name)]
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
