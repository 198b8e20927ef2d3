"""YAML files, read in one place: encodings, duplicate keys, errors with file, line and mend."""

import codecs
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before that of UTF-16, which is its first half
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_MENDS = {
    r"'\t'": "Indent with spaces, not with tabs.",
    "mapping values are not allowed": "Put each key in a line of its own; quote a value with ': '.",
    "could not find expected ':'": "Write each setting as key: value.",
    "undefined alias": "Quote a value that begins with '*'.",
    "could not determine a constructor": "Quote a value that begins with '!'.",
    "expected a single document": "Put what follows '---' into a file of its own.",
    "special characters": "Save the file as UTF-8.",
}
_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"


class YAMLFileError(ValueError):
    """A YAML file that cannot be read; the message is one line with file, line and mend."""


def read_text(path: str | Path) -> str:
    """Read a text file in UTF-8, or in the encoding that its byte order mark names.

    Args:
        path: The file.

    Returns:
        The text without the mark.

    Raises:
        FileNotFoundError: If there is no such file.
        YAMLFileError: If it cannot be read or decoded.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise YAMLFileError(f"{path} must be a file that can be read: {reason}.") from error
    marks = (encoding for mark, encoding in _ENCODINGS.items() if content.startswith(mark))
    encoding = next(marks, "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YAMLFileError(
            f"{path}, line {line}: the text must be {encoding.removesuffix('-sig').upper()}, got "
            f"the byte 0x{content[error.start]:02x}. Save the file as UTF-8."
        ) from error


def load(text: str, source: str | Path) -> Any:
    r"""Load YAML and refuse keys given twice.

    Args:
        text: One document.
        source: Name of the file, for errors.

    Returns:
        Its content, of any kind.

    Raises:
        YAMLFileError: If it is no YAML, or a mapping has a key twice.

    Example:
        >>> load("[1, a: null]", "my.yaml")
        [1, {'a': None}]
    """
    return _construct(text, source, keeps_blanks=True)[0]


def load_settings(text: str, source: str | Path) -> tuple[dict[str, Any], dict[str, int]]:
    r"""Load YAML that must hold settings; a key or section that is left blank sets nothing.

    An explicit ``null`` is a value.

    Args:
        text: One document.
        source: Name of the file, for errors.

    Returns:
        The settings, and the line of each by its keys joined by dots.

    Raises:
        YAMLFileError: If it is no YAML, a mapping has a key twice, or there are no settings.

    Example:
        >>> load_settings("trainer:\n#  max_epochs: 3\nmodel:\n  loss: null", "my.yaml")
        ({'model': {'loss': None}}, {'model': 3, 'model.loss': 4})
    """
    content, lines = _construct(text, source, keeps_blanks=False)
    is_blank = content == {} and bool(load(text, source))
    if isinstance(content, dict) and not is_blank:
        for place, key in _names(content):
            if not isinstance(key, str):
                line = lines.get(f"{place}{key}", 1)
                raise YAMLFileError(
                    f"{source}, line {line}: keys must be words, got {key!r}. Quote it."
                )
        return content, lines
    kinds = {type(None): "nothing but comments", list: "a list", dict: "blank keys alone"}
    kind = kinds.get(type(content), repr(content))
    raise YAMLFileError(
        f"{source} must hold settings, such as seed_everything: 7, got "
        f"{kind if text.strip() else 'an empty file'}."
    )


def _names(
    content: dict[Any, Any], place: str = "", are_names: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yield the names of sections, settings and arguments; keys of a value may be of any kind."""
    for key, value in content.items():
        if are_names:
            yield place, key
        if isinstance(value, dict):
            yield from _names(value, f"{place}{key}.", not place or key == "init_args")


def _construct(text: str, source: str | Path, keeps_blanks: bool) -> tuple[Any, dict[str, int]]:
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        lines: dict[str, int] = {}
        _check(root, source, "", lines, (), keeps_blanks)
        return None if root is None else loader.construct_document(root), lines
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _refusal(
            f"{source}, line {line}", f"{error.reason}, got {chr(error.character)!r}"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        parts = (error.context, error.problem) if error.problem[:3] == "but" else (error.problem,)
        raise _refusal(f"{source}, {_place(mark)}", " ".join(parts)) from error
    except (ValueError, OverflowError) as error:
        if isinstance(error, YAMLFileError):
            raise
        raise _refusal(str(source), f"{error}") from error  # such as the date 2026-13-01


def _check(
    node: Any,
    source: str | Path,
    path: str,
    lines: dict[str, int],
    parents: tuple[Any, ...],
    keeps_blanks: bool,
) -> None:
    """Refuse what would be lost in silence, note the lines of keys, and drop blank values."""
    if not isinstance(node, yaml.CollectionNode):
        return
    if any(node is parent for parent in parents):
        raise YAMLFileError(
            f"{source}, {_place(node.start_mark)}: an anchor must not contain its own alias."
        )
    parents = (*parents, node)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _check(item, source, f"{path}{number}.", lines, parents, keeps_blanks)
        return
    first: dict[Hashable, int] = {}
    for key, _ in node.value:
        name, line = (key.tag, key.value), key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:  # `<<` may be overridden
            if name in first:
                raise YAMLFileError(
                    f"{source}, line {first[name]}: {key.value!r} is given twice, again in line "
                    f"{line}. Leave one."
                )
            first[name] = line
    if not keeps_blanks:
        node.value = [(key, value) for key, value in node.value if not _is_blank(value)]
    for key, value in node.value:
        lines[f"{path}{key.value}"] = key.start_mark.line + 1
        _check(value, source, f"{path}{key.value}.", lines, parents, keeps_blanks)


def _is_blank(node: Any) -> bool:
    """Tell ``key:`` from ``key: null``."""
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL and not node.value


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _refusal(place: str, problem: str) -> YAMLFileError:
    mend = next((mend for part, mend in _MENDS.items() if part in problem), "")
    return YAMLFileError(f"{place}: this is no YAML: {' '.join(problem.split())}. {mend}".rstrip())
