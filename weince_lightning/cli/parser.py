"""Errors of the command line in a line or two, with the nearest known name."""

import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from weince_lightning.checks import did_you_mean

# What jsonargparse reports inside a tree of all types that an argument might have had.
_UNKNOWN_ARGUMENT = re.compile(
    r"Problem with given class_path '([^']+)':\s+Option '([^']+)' is not accepted"
)
_UNKNOWN_OPTION = re.compile(r"does not accept option '([^']+)'")
_WRONG_VALUE = re.compile(r'Parser key "([^"]+)":\s+(Expected a [^\n]+Got value: [^\n]+)')


class ConciseParser(LightningArgumentParser):
    """A parser whose errors name what is wrong, without pages of usage and tried types."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # A misspelt option would otherwise be taken for the longer one that begins with it.
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def format_help(self, *formatter: Any) -> str:
        """Leave out the lists of every imported class that an option of a class could be."""
        return re.sub(r",\s+known\s+subclasses:[^)]*\)", ")", super().format_help(*formatter))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong and exit with status 2.

        With ``JSONARGPARSE_DEBUG`` set, the library's own message and traceback instead.
        """
        if "JSONARGPARSE_DEBUG" in os.environ or not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        program = parser.prog.replace(" [options]", "")
        sys.stderr.write(f"{program}: error: {_essence(message, parser._option_string_actions)}\n")
        sys.stderr.write(f"All options: {program} --help\n")
        self.exit(2)


def refusal(error: BaseException) -> BaseException:
    """Return what a class raised, from under what jsonargparse made of it."""
    while raised_in(error).startswith("jsonargparse") and (
        cause := error.__cause__ or error.__context__
    ):
        error = cause
    return error


def raised_in(error: BaseException) -> str:
    """Name the module whose line raised an error."""
    frames = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1]) if frames else ""


def _essence(message: str, options: Iterable[str]) -> str:
    if unknown := _UNKNOWN_ARGUMENT.findall(message):
        # The innermost class is the one that was meant.
        class_path, name = unknown[-1]
        known = inspect.signature(pkgutil.resolve_name(class_path)).parameters
        return f"{class_path} has no argument {name!r}." + did_you_mean(name, known, "'")
    if option := _UNKNOWN_OPTION.search(message):
        name = option[1]
        keys = [key.removeprefix("--") for key in options]
        section = name.partition(".")[0]
        hint = did_you_mean(name, keys, "'") or did_you_mean(section, keys, "'")
        return f"there is no option {name!r}.{hint}"
    if wrong := _WRONG_VALUE.findall(message):
        key, problem = wrong[-1]
        return f"{key}: {problem}"
    return _innermost(message) or message


def _innermost(message: str) -> str | None:
    """Say in one line what a tree of tried types says at its innermost branch."""
    tree, given, rest = message.partition("Given value: ")
    keys = re.findall(r'Parser key "([^"]+)"', tree)
    if not given or not keys:
        return None
    key, value = ".".join(keys), rest.splitlines()[0]
    if missing := re.findall(
        r"No module named '[^']+'|module '[^']+' has no attribute[^\n]+", tree
    ):
        return f"{key} must be a class that can be imported, got {value!r}: {missing[-1]}."
    types = re.findall(r"Subtypes: \[(.*)\]\n", tree)
    if not types:
        return None
    names = re.sub(r"(\w+\.)*Callable\[\[[^\]]*\], [^\]]*\]", "function", types[-1])
    names = re.sub(r"<class '(?:\w+\.)*(\w+)'>|(?:\w+\.)+(\w+)", r"\1\2", names)
    names = names.replace("NoneType", "null").replace(" | ", " or ")
    hint = " A class is named by its import path." if "import path" in tree else ""
    return f"{key} must be one of {names}, got {value!r}.{hint}"
