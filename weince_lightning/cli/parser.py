"""Errors of the command line in a line or two, with the nearest known name."""

import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from jsonargparse import Namespace, Path  # type: ignore[attr-defined]
from lightning.pytorch.cli import LightningArgumentParser

from weince_lightning.checks import did_you_mean
from weince_lightning.cli.arguments import UsageError, read_config
from weince_lightning.cli.checkpoint_config import tell
from weince_lightning.cli.class_defaults import overridden_defaults
from weince_lightning.layers import Layer, read_layers

# What jsonargparse reports inside a tree of all types that an argument might have had.
_UNKNOWN_ARGUMENT = re.compile(
    r"Problem with given class_path '([^']+)':\s+Option '([^']+)' is not accepted"
)
_UNKNOWN_OPTION = re.compile(r"does not accept option '([^']+)'")
_WRONG_VALUE = re.compile(r'Parser key "([^"]+)":\s+(Expected a [^\n]+Got value: [^\n]+)')


class _Problem(NamedTuple):
    text: str
    key: str | None = None
    """The setting that is wrong, or the last part of its name."""


class ConciseParser(LightningArgumentParser):
    """A parser of packaged configurations and layers, with short errors.

    Errors name what is wrong and the line of the file that says so, without pages of usage and
    tried types. ``LightningCLI(..., parser_class=ConciseParser)`` reads configurations in the same
    way.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # A misspelt option would otherwise be taken for the longer one that begins with it.
        super().__init__(*arguments, **{"allow_abbrev": False, **options})
        self._layers: list[Layer] = []
        self._options: list[str] = []

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *others: Any, **options: Any
    ) -> Namespace:
        """Parse arguments in which a configuration may be a path, a packaged name or YAML."""
        given = [*(sys.argv[1:] if args is None else args)]
        self._layers, self._options = [], given
        try:
            given = [*self._with_layers(given)]
        except UsageError as error:
            self.error(str(error), error)
        parsed: Namespace = super().parse_args(given, *others, **options)
        if "subcommand" not in parsed:  # whose own parser says it
            for line in overridden_defaults(parsed.as_dict(), self._layers, self._options):
                tell(line)
        return parsed

    def get_defaults(self, *others: Any, **options: Any) -> Namespace:
        """Return the defaults, of a class its name alone.

        With the arguments that the class has by default, they would be taken for settings when
        another class is named, and override the defaults of that. They are filled in at the end.
        """
        defaults: Namespace = super().get_defaults(*others, **options)
        for action in self._actions:
            if isinstance(action.default, Namespace) and "class_path" in action.default:
                defaults[action.dest] = action.default.clone()
        return defaults

    def parse_path(self, path: Any, *others: Any, **options: Any) -> Namespace:
        """Parse one file alone: :meth:`parse_args` has put those under it before it."""
        text = read_layers(path)[-1].text
        with Path(path, mode="fr").relative_path_context():
            parsed: Namespace = self.parse_string(text, *others, **options)
        return parsed

    def _with_layers(self, arguments: Sequence[str]) -> Iterator[str]:
        remaining = iter(arguments)
        for argument in remaining:
            flag, equals, value = argument.partition("=")
            if flag not in ("-c", "--config"):
                yield argument
                continue
            layers = read_config(value if equals else next(remaining, ""))
            self._layers += layers
            for layer in layers:
                yield from ("-c", layer.text if layer.source is None else str(layer.source))

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
        problem = _essence(message, parser._option_string_actions)
        place = "" if problem.key is None else self._place(problem.key)
        sys.stderr.write(f"{program}: error: {problem.text}{place}\n")
        sys.stderr.write(f"All options: {program} --help\n")
        self.exit(2)

    def _place(self, key: str) -> str:
        """Name the file and line of a setting, unless an option overrides it."""
        root: Any = self
        while hasattr(root, "parent_parser"):
            root = root.parent_parser
        key = f".{key}".replace(".init_args", "")
        options = (option.partition("=")[0][2:] for option in root._options)
        if any(f".{option}".endswith(key) for option in options):
            return ""
        for layer in reversed(root._layers):
            for name, line in layer.lines.items():
                if f".{name}".replace(".init_args", "").endswith(key) and layer.source is not None:
                    return f" See {layer.source}, line {line}."
        return ""


@contextmanager
def refusals_reported(parser: LightningArgumentParser) -> Iterator[None]:
    """Make values that a class refuses, as the parser builds it, errors of the user."""
    try:
        yield
    except Exception as error:
        refusal: BaseException = error  # as the class raised it, from under jsonargparse's own
        while raised_in(refusal).startswith("jsonargparse") and (
            cause := refusal.__cause__ or refusal.__context__
        ):
            refusal = cause
        if not isinstance(refusal, (ValueError, TypeError, ImportError, OSError)):
            raise
        parser.error(str(refusal), refusal)


def raised_in(error: BaseException) -> str:
    """Name the module whose line raised an error."""
    frames = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1]) if frames else ""


def _essence(message: str, options: Iterable[str]) -> _Problem:
    if unknown := _UNKNOWN_ARGUMENT.findall(message):
        # The innermost class is the one that was meant.
        class_path, name = unknown[-1]
        known = inspect.signature(pkgutil.resolve_name(class_path)).parameters
        hint = did_you_mean(name, known, "'")
        return _Problem(f"{class_path} has no argument {name!r}.{hint}", name)
    if option := _UNKNOWN_OPTION.search(message):
        name = option[1]
        keys = [key.removeprefix("--") for key in options]
        section = name.partition(".")[0]
        hint = did_you_mean(name, keys, "'") or did_you_mean(section, keys, "'")
        return _Problem(f"there is no option {name!r}.{hint}", name)
    if wrong := _WRONG_VALUE.findall(message):
        key, problem = wrong[-1]
        return _Problem(f"{key}: {problem}", key)
    return _innermost(message) or _Problem(message)


def _innermost(message: str) -> _Problem | None:
    """Say in one line what a tree of tried types says at its innermost branch."""
    tree, given, rest = message.partition("Given value: ")
    keys = re.findall(r'Parser key "([^"]+)"', tree)
    if not given or not keys:
        return None
    key, value = ".".join(keys), rest.splitlines()[0]
    if missing := re.findall(
        r"No module named '[^']+'|module '[^']+' has no attribute[^\n]+", tree
    ):
        text = f"{key} must be a class that can be imported, got {value!r}: {missing[-1]}."
        return _Problem(text, key)
    types = re.findall(r"Subtypes: \[(.*)\]\n", tree)
    if not types:
        return None
    names = re.sub(r"(\w+\.)*Callable\[\[[^\]]*\], [^\]]*\]", "function", types[-1])
    names = re.sub(r"<class '(?:\w+\.)*(\w+)'>|(?:\w+\.)+(\w+)", r"\1\2", names)
    names = names.replace("NoneType", "null").replace(" | ", " or ")
    hint = " A class is named by its import path." if "import path" in tree else ""
    return _Problem(f"{key} must be one of {names}, got {value!r}.{hint}", key)
