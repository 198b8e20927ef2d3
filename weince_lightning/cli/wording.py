"""Errors in the words of the command line: options, where functions name arguments."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weince_lightning.checks import nearest_words

_VALUES = {"True": "true", "False": "false", "None": "null"}


def option_keys(config: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """List the settings of a configuration as options name them.

    Args:
        config: Nested settings; what stands in lists has no option of its own.
        above: What stands before each name.

    Example:
        >>> [*option_keys({"data": {"class_path": "X", "init_args": {"download": False}}})]
        ['data', 'data.class_path', 'data.download']
    """
    for name, value in config.items():
        key = above if name == "init_args" else f"{above}{name}"
        if name != "init_args":
            yield key
        if isinstance(value, Mapping):
            yield from option_keys(value, f"{key.rstrip('.')}.")


def in_words_of_options(text: str, keys: Iterable[str]) -> str:
    """Name the arguments in an error as the options that set them.

    These are the argument at its beginning, those with a value to give (``download=True``), and
    those that Lightning puts between backticks.

    Args:
        text: The error.
        keys: Settings with all that stands before their names, such as ``data.download``. A name
            that several of them have is left as it is.

    Example:
        >>> in_words_of_options("k must be 1. Set download=True.", ["knn.k", "data.download"])
        '--knn.k must be 1. Set --data.download true.'
    """
    known = {*keys}

    def option(name: str) -> str | None:
        ends = [key for key in known if key == name or key.endswith(f".{name}")]
        return f"--{ends[0]}" if len(ends) == 1 else None

    def with_value(found: re.Match[str]) -> str:
        name, value = option(found[1]), (found[2] or "").strip("'")
        return f"{name} {_VALUES.get(value, value)}".rstrip() if name else found[0]

    text = re.sub(r"`(\w+)(?:=([^`]*))?`", with_value, text)
    text = re.sub(r"(?<![\w.(-])(\w+)=(True|False|None|\d[\w.]*\b)", with_value, text)
    first = re.match(r"([\w.]+) must ", text)
    name = first and option(first[1])
    return text.replace(first[1], name, 1) if first and name else text


def unknown_option(given: str, known: Iterable[str]) -> str:
    """Say that there is no such option, and which one may have been meant.

    Args:
        given: What a parser did not recognize, and what stands after it.
        known: The options that there are, with their hyphens.

    Example:
        >>> unknown_option("--trainr.max_epochs 3", ["--trainer", "--data"])
        'there is no option --trainr.max_epochs. Did you mean --trainer.max_epochs?'
        >>> unknown_option("digits", [])
        "options must begin with --, got 'digits'. A configuration stands after -c."
    """
    name = re.split(r"[ =]", given, maxsplit=1)[0]
    if not name.startswith("-"):
        return f"options must begin with --, got {name!r}. A configuration stands after -c."
    known = [*known]
    section, dot, rest = name.partition(".")
    is_strange = dot and not any(each.partition(".")[0] == section for each in known)
    near = nearest_words(section, known) if is_strange else nearest_words(name, known)
    meant = f"{near[0]}.{rest}" if near and is_strange else "".join(near)
    return f"there is no option {name}.{f' Did you mean {meant}?' if meant else ''}"
