"""The plan of a comparison: arms, their configurations, seeds, and the runs these stand for."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

PaperNumber = tuple[float, float | None]
"""Published mean and half-width of its 95 % interval, None if none was published; fractions."""


class SweepError(ValueError):
    """A sweep, or a folder of results, that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Run:
    """One training and its evaluation.

    Attributes:
        arm: Name of the arm.
        point: Option paths and values of the arm's grid, empty without grid.
        seed: Seed of the encoder's training.
        layers: Paths or packaged names of configurations, in order.
        options: Option paths and values of ``weince fit``, those of the point included.
        evaluation: Option paths and values of ``weince evaluate``.
        name: Arm, point and seed as a path, such as ``infonce/temperature=0.1/seed_7``.
    """

    arm: str
    point: Mapping[str, Any]
    seed: int
    layers: Sequence[str]
    options: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    name: str

    @property
    def fit_arguments(self) -> list[str]:
        """What ``weince fit`` must know to train this, wherever its files go."""
        layers = [argument for layer in self.layers for argument in ("-c", layer)]
        return [*layers, *as_arguments({**self.options, "seed_everything": self.seed})]

    @property
    def evaluate_arguments(self) -> list[str]:
        """What ``weince evaluate`` must know beside the checkpoint."""
        return as_arguments({**self.evaluation, "cache": False})


@dataclass(frozen=True)
class Arm:
    """One of the things compared.

    Attributes:
        name: Its name, also that of its folder.
        label: Its name for people.
        layers: Configurations after those of the sweep.
        options: Options over those of the sweep.
        grid: Option paths and the values of each.
        found_points: Names of configurations and their options where only results are there and
            no grid is known; None if ``grid`` says it all.
    """

    name: str
    label: str
    layers: Sequence[str]
    options: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    found_points: Mapping[str, Mapping[str, Any]] | None = None

    def points(self) -> Mapping[str, Mapping[str, Any]]:
        """Map the names of the configurations, such as ``temperature=0.1``, to grid values.

        An arm without grid has one, ``default``.
        """
        if self.found_points is not None:
            return self.found_points
        if not self.grid:
            return {"default": {}}
        endings, points = [*_shortest_endings([*self.grid])], {}
        for values in itertools.product(*self.grid.values()):
            texts = [quote(_typed(value), safe="[] +") for value in values]
            name = ",".join(f"{end}={text}" for end, text in zip(endings, texts, strict=True))
            points[name] = dict(zip(self.grid, values, strict=True))
        return points


@dataclass(frozen=True)
class Sweep:
    """What a sweep file asks for; without a file, what results say was asked for.

    Attributes:
        layers: Configurations of every run.
        options: Options of every run.
        seeds: Seeds of the encoders' trainings.
        baseline: The arm that the others are compared with, None if nothing says.
        arms: The arms by name, in the order of the file.
        evaluation: Options of ``weince evaluate``.
        paper: Published numbers, fractions, by arm and metric.
        source: The text of the sweep file, None if there is none.
    """

    layers: Sequence[str]
    options: Mapping[str, Any]
    seeds: Sequence[int]
    baseline: str | None
    arms: Mapping[str, Arm]
    evaluation: Mapping[str, Any]
    paper: Mapping[str, Mapping[str, PaperNumber]]
    source: str | None = None

    def runs(self) -> list[Run]:
        """List the runs: the first seed of all configurations, then the second, and so on.

        A sweep that is not finished can then compare all arms.
        """
        return [
            Run(
                arm=arm.name,
                point=point,
                seed=seed,
                layers=[*self.layers, *arm.layers],
                options={**self.options, **arm.options, **point},
                evaluation=self.evaluation,
                name=f"{arm.name}/{name}/seed_{seed}",
            )
            for seed in self.seeds
            for arm in self.arms.values()
            for name, point in arm.points().items()
        ]


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Write options as one types them.

    Example:
        >>> as_arguments({"trainer.max_epochs": 2, "linear": None, "knn.seeds": [1, 2]})
        ['--trainer.max_epochs=2', '--linear=null', '--knn.seeds=[1, 2]']
    """
    return [f"--{path}={_typed(value)}" for path, value in options.items()]


def argument_differences(made: Sequence[Any], planned: Sequence[str], plan: str) -> str:
    """Say which arguments were given to a command, and which others a plan has.

    Example:
        >>> argument_differences(["-c", "digits", "--seed=1"], ["-c", "digits"], "the plan")
        '--seed=1 where the plan has nothing'
    """
    others = " ".join(str(argument) for argument in made if argument not in planned)
    missing = " ".join(argument for argument in planned if argument not in made)
    return f"{others or 'nothing'} where {plan} has {missing or 'nothing'}"


def _shortest_endings(paths: Sequence[str]) -> Iterator[str]:
    """Shorten each path to as many of its last components as tell it from the others."""
    for path in paths:
        parts = path.removesuffix("+").split(".")
        endings = [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
        yield next(
            ending
            for ending in endings
            if ending == path
            or not any(f".{other}".endswith(f".{ending}") for other in paths if other != path)
        )


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
