"""Sweep files, read and checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weince_lightning.sweeps.plan import Arm, PaperNumber, Sweep, SweepError
from weince_lightning.yaml_files import YAMLFileError, load, read_text

_KEYS = ("layers", "options", "seeds", "baseline", "arms", "evaluation", "paper")
_ARM_KEYS = ("label", "layers", "options", "grid")
_OF_THE_SWEEP = ("seed_everything", "trainer.logger", "ckpt_path", "config", "c", "cache")
"""Options that the sweep itself sets: one seed, log and checkpoint for each run."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*\+?")


def read_sweep(path: str | Path) -> Sweep:
    """Read a sweep file and refuse what makes no sense in it.

    Whether ``weince fit`` accepts its layers and options is not validated here.

    Args:
        path: The YAML file.

    Raises:
        FileNotFoundError: If there is no such file.
        SweepError: If it is no sweep; the message is one line and names the key.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name) / "temperatures.yaml"
        >>> _ = file.write_text('''
        ... layers: [digits]
        ... seeds: [7, 21]
        ... baseline: infonce
        ... arms:
        ...   infonce: {layers: [loss/infonce], grid: {model.loss.temperature: [0.1, 0.5]}}
        ...   weince: {layers: [loss/weince]}
        ... ''')
        >>> sweep = read_sweep(file)
        >>> [run.name for run in sweep.runs()][1:3]
        ['infonce/temperature=0.5/seed_7', 'weince/default/seed_7']
        >>> sweep.runs()[2].fit_arguments
        ['-c', 'digits', '-c', 'loss/weince', '--seed_everything=7']
    """
    path = Path(path)
    try:
        source = read_text(path)
        content = load(source, path)
    except YAMLFileError as error:
        raise SweepError(str(error)) from error
    try:
        return replace(_sweep(content), source=source)
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from None


def _sweep(content: Any) -> Sweep:
    _check_keys("a sweep file", content, _KEYS)
    for key in ("seeds", "baseline", "arms"):
        if key not in content:
            raise SweepError(f"{key} must be given.")
    if not isinstance(content["arms"], dict) or not content["arms"]:
        raise SweepError(f"arms must map names to arms, got {content['arms']!r}.")
    arms = {name: _arm(name, arm) for name, arm in content["arms"].items()}
    if content["baseline"] not in arms:
        raise SweepError(
            f"baseline must be one of the arms ({', '.join(arms)}), got {content['baseline']!r}."
        )
    return Sweep(
        layers=_layers("layers", content.get("layers")),
        options=_options("options", content.get("options")),
        seeds=_seeds(content["seeds"]),
        baseline=content["baseline"],
        arms=arms,
        evaluation=_options("evaluation", content.get("evaluation")),
        paper=_paper(content.get("paper") or {}, arms),
    )


def _arm(name: Any, content: Any) -> Arm:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SweepError(
            f"the name of an arm must be made of letters, digits, '_', '-' and '.', got {name!r}."
        )
    where = f"arms.{name}"
    content = {} if content is None else content
    _check_keys(where, content, _ARM_KEYS)
    grid = content.get("grid") or {}
    _options(f"{where}.grid", grid)
    for path, values in grid.items():
        if not isinstance(values, list) or not values:
            raise SweepError(f"{where}.grid.{path} must be a list of values, got {values!r}.")
        if repeated := _repeated(values):
            raise SweepError(f"{where}.grid.{path} must hold no value twice, got {repeated[0]!r}.")
    arm = Arm(
        name=name,
        label=" ".join(str(content.get("label", name)).split()),
        layers=_layers(f"{where}.layers", content.get("layers")),
        options=_options(f"{where}.options", content.get("options")),
        grid=grid,
    )
    longest = max(arm.points(), key=len)
    if len(longest.encode()) > 200:
        raise SweepError(
            f"{where}.grid must give names of at most 200 characters, got {longest!r}. Put long "
            "values into layers, an arm for each."
        )
    return arm


def _check_keys(where: str, content: Any, known: Sequence[str]) -> None:
    if not isinstance(content, dict):
        raise SweepError(f"{where} must be a mapping of {', '.join(known)}, got {content!r}.")
    for key in content:
        if key not in known:
            raise SweepError(f"{where} must have the keys {', '.join(known)} alone, got {key!r}.")


def _layers(where: str, content: Any) -> list[str]:
    layers = [] if content is None else content
    if not isinstance(layers, list) or not all(isinstance(layer, str) for layer in layers):
        raise SweepError(f"{where} must be a list of names or paths, got {content!r}.")
    return layers


def _options(where: str, content: Any) -> dict[str, Any]:
    options = {} if content is None else content
    if not isinstance(options, dict):
        raise SweepError(f"{where} must map option paths to values, got {content!r}.")
    for path in options:
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            raise SweepError(
                f"{where} must map option paths such as trainer.max_epochs to values, got {path!r}."
            )
        if path in _OF_THE_SWEEP or path.startswith("trainer.logger."):
            raise SweepError(f"{where} must leave {path} to the sweep, which sets it for each run.")
    return options


def _seeds(content: Any) -> tuple[int, ...]:
    is_list = isinstance(content, list) and content
    if not is_list or not all(type(seed) is int and 0 <= seed < 2**32 for seed in content):
        raise SweepError(f"seeds must be a list of integers in [0, 2**32), got {content!r}.")
    if repeated := _repeated(content):
        raise SweepError(f"seeds must hold no seed twice, got {repeated[0]}.")
    return tuple(content)


def _paper(content: Any, arms: Mapping[str, Arm]) -> dict[str, dict[str, PaperNumber]]:
    if not isinstance(content, dict):
        raise SweepError(f"paper must map arms to metrics, got {content!r}.")
    for arm, metrics in content.items():
        if arm not in arms:
            raise SweepError(f"paper must name arms ({', '.join(arms)}), got {arm!r}.")
        if not isinstance(metrics, dict):
            raise SweepError(f"paper.{arm} must map metrics to numbers, got {metrics!r}.")
        for metric, pair in metrics.items():
            if not _is_pair(pair):
                raise SweepError(
                    f"paper.{arm}.{metric} must be [mean, half-width of the interval or null] "
                    f"in fractions, got {pair!r}."
                )
    return {
        arm: {metric: (mean, half) for metric, (mean, half) in metrics.items()}
        for arm, metrics in content.items()
    }


def _is_pair(pair: Any) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], (int, float))
        and (pair[1] is None or isinstance(pair[1], (int, float)))
        and all(value is None or 0 <= value <= 1 for value in pair)
    )


def _repeated(values: Sequence[Any]) -> list[Any]:
    return [value for number, value in enumerate(values) if value in values[:number]]
