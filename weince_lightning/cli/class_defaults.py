"""Arguments that a class gets from layers for another class."""

import inspect
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from weince_lightning.cli.checkpoint_config import shown_value
from weince_lightning.layers import Layer

_PACKAGE = "weince_lightning."


def overridden_defaults(
    config: Mapping[str, Any], layers: Sequence[Layer], options: Sequence[str]
) -> Iterator[str]:
    """Say which defaults of a class do not hold because of a layer for another class.

    ``-c base --model mine.Module`` is such a case: what ``base`` says of its model holds for any.

    Args:
        config: The settings, read from all layers and options.
        layers: Later ones override earlier ones.
        options: The command line, whose options override all layers.

    Yields:
        One line for each such class.

    Example:
        >>> layer = {"part": {"class_path": "torch.nn.Dropout1d", "init_args": {"p": 0.1}}}
        >>> config = {"part": {"class_path": "torch.nn.Dropout", "init_args": {"p": 0.1}}}
        >>> [*overridden_defaults(config, [Layer(None, layer, {})], [])]
        ['weince: torch.nn.Dropout takes from layers: p 0.1 (its default is 0.5)']
    """
    typed = {f"{option.partition('=')[0].replace('.init_args', '')}." for option in options}
    for keys, class_path, arguments in _classes(config, ()):
        of_layers = [
            name
            for name in _from_layers(keys, class_path, layers)
            if name in arguments
            and not any(each.startswith(f"--{'.'.join((*keys, name))}.") for each in typed)
        ]
        own = _own_defaults(class_path) if of_layers else {}
        changes = [
            f"{name} {shown_value(arguments[name])} (its default is {shown_value(own[name])})"
            for name in of_layers
            if name in own and own[name] != arguments[name]
        ]
        if changes:
            yield f"weince: {class_path} takes from layers: {', '.join(changes)}"


def _classes(
    config: Mapping[str, Any], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, Mapping[str, Any]]]:
    """Find the classes in a configuration: where each stands, its class path and arguments."""
    for name, value in config.items():
        if isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
            arguments = value.get("init_args") or {}
            yield (*above, name), value["class_path"], arguments
            yield from _classes(arguments, (*above, name))


def _from_layers(keys: Sequence[str], class_path: str, layers: Sequence[Layer]) -> list[str]:
    """List the arguments that a layer for another class was the last to set.

    A layer that names no class, such as ``loss/weince``, is for that of the layers before it, or
    for any class of this package.
    """
    found: dict[str, bool] = {}
    current = None
    for layer in layers:
        section: Any = layer.content
        for key in keys:
            section = section.get("init_args", section).get(key)
            if not isinstance(section, Mapping):
                break
        else:
            current = section.get("class_path", current)
            is_named = _is_same(current, class_path) if current else class_path.startswith(_PACKAGE)
            found.update(dict.fromkeys(section.get("init_args", section), is_named))
    return [name for name, is_named in found.items() if not is_named]


def _is_same(name: Any, class_path: str) -> bool:
    """Whether a name in a layer, which may lack the modules, is that of the class."""
    if not isinstance(name, str) or "." not in name:
        return name == class_path.rpartition(".")[2]
    return pkgutil.resolve_name(name) is pkgutil.resolve_name(class_path)


def _own_defaults(class_path: str) -> dict[str, Any]:
    """Return the defaults of a class's arguments; what must be given has none."""
    kind = pkgutil.resolve_name(class_path)
    parser = LightningArgumentParser()
    parser.add_class_arguments(kind, fail_untyped=False)
    defaults: dict[str, Any] = parser.get_defaults().as_dict()
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty:
            defaults.pop(name, None)
    return defaults
