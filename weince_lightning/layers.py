"""Layers of settings: what stands behind a path or the name of a packaged configuration."""

from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from weince_lightning.checks import nearest_words
from weince_lightning.folders import files_below
from weince_lightning.yaml_files import YAMLFileError, load_settings, read_text

KEY = "layers"
"""The key by which a file names the layers under it; the same as in a sweep file."""

_SWEEPS = "sweeps/"


class Layer(NamedTuple):
    """Settings of one file."""

    source: Path | None
    """The file, None for settings that were typed."""

    content: dict[str, Any]
    """The settings, without those of the layers under it and without blank sections."""

    lines: dict[str, int]
    """The line of each setting by its keys joined by dots."""

    @property
    def text(self) -> str:
        """The settings as YAML."""
        return as_yaml(self.content)


def packaged_configs() -> dict[str, Path]:
    """Map the names of the packaged configurations, such as ``loss/weince``, to their files."""
    return {name: path for name, path in _packaged().items() if not name.startswith(_SWEEPS)}


def packaged_sweeps() -> dict[str, Path]:
    """Map the names of the packaged sweep files, such as ``sweeps/digits``, to their files."""
    return {name: path for name, path in _packaged().items() if name.startswith(_SWEEPS)}


def find_packaged(name: str, place: str) -> Path:
    """Find a packaged configuration.

    Args:
        name: Its name, with or without ``.yaml``.
        place: Where it stands, for the error: "-c", a file and its line.

    Returns:
        Its file.

    Raises:
        YAMLFileError: If there is none; the message names the nearest one.
    """
    known, wanted = packaged_configs(), name.removesuffix(".yaml")
    if wanted in known:
        return known[wanted]
    if wanted in packaged_sweeps():
        raise YAMLFileError(
            f"{place} must name settings of a run, got {name!r}. "
            f"It is a sweep: weince sweep {wanted}."
        )
    raise YAMLFileError(
        f"{place} must name a YAML file or a packaged configuration, got {name!r}: no such file. "
        f"The nearest packaged one is {nearest_words(wanted, known, cutoff=0)[0]!r}."
    )


def read_layers(path: str | Path) -> list[Layer]:
    """Read a configuration: the layers that it names under ``layers``, in order, then itself.

    Each may name layers in turn. A name is a path, relative to the folder of the file that names
    it, or else a packaged configuration.

    Args:
        path: A YAML file.

    Returns:
        The layers; later ones override earlier ones.

    Raises:
        YAMLFileError: If a file cannot be read, names an unknown layer, or one that contains it.

    Example:
        >>> [layer.source.stem for layer in read_layers(packaged_configs()["loss/weince_rho"])]
        ['weince', 'weince_rho']
    """
    return [*_read(Path(path), (), "")]


def parse_layers(text: str) -> list[Layer]:
    """Read settings that were typed, as :func:`read_layers` reads a file.

    Args:
        text: YAML; paths under ``layers`` are seen from the working folder.

    Returns:
        The layers; later ones override earlier ones.

    Raises:
        YAMLFileError: If it holds no settings, or names a layer that cannot be read.
    """
    return [*_expand(text, None, ())]


def merged(layers: Iterable[Layer]) -> dict[str, Any]:
    """Merge layers into one mapping, sections within sections.

    Args:
        layers: Later ones override earlier ones; lists under a key that ends in ``+`` add up.

    Returns:
        Every setting of all layers.
    """
    content: dict[str, Any] = {}
    for layer in layers:
        _merge(content, layer.content)
    return content


def as_yaml(content: dict[str, Any]) -> str:
    """Write settings as YAML, in their order."""
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return text


def _read(path: Path, above: tuple[Path, ...], where: str) -> Iterator[Layer]:
    place = path.resolve()
    if place in above:
        names = " -> ".join(map(str, (*above, place)))
        raise YAMLFileError(f"{where} must not lead back to a file above, got {names}. Cut one.")
    yield from _expand(read_text(path), path, (*above, place))


def _expand(text: str, source: Path | None, above: tuple[Path, ...]) -> Iterator[Layer]:
    content, lines = load_settings(text, source or "-c")
    names = content.pop(KEY, [])
    where = f"{source or '-c'}, line {lines.pop(KEY, 1)}: {KEY}"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        mend = f" Write {KEY}: [{names}]." if isinstance(names, str) else ""
        raise YAMLFileError(f"{where} must be a list of names or paths, got {names!r}.{mend}")
    for name in names:
        folder = source.parent if source else Path()
        yield from _read(_find(name, folder, where), above, where)
    yield Layer(source, content, lines)


def _find(name: str, folder: Path, where: str) -> Path:
    if (folder / name).is_file():
        return folder / name
    return find_packaged(name, f"{where}, seen from {folder},")


def _merge(under: dict[str, Any], over: dict[str, Any]) -> None:
    for key, value in over.items():
        below = under.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            under[key] = dict(below)
            _merge(under[key], value)
        elif str(key).endswith("+") and isinstance(below, list) and isinstance(value, list):
            under[key] = [*below, *value]
        else:
            under[key] = value


def _packaged() -> dict[str, Path]:
    root = Path(str(files("weince_lightning.configs")))
    return {
        path.relative_to(root).with_suffix("").as_posix(): path
        for path in files_below(root, ".yaml")
    }
