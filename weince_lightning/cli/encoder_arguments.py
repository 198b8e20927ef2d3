"""Options shared by the commands that run an encoder over images: data, device, backbone."""

import re
from argparse import RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import yaml
from jsonargparse import ActionConfigFile, DefaultHelpFormatter  # type: ignore[attr-defined]
from lightning.pytorch import LightningDataModule
from torch import nn

from weince_lightning.checkpoints.record import Checkpoint
from weince_lightning.cli.arguments import UsageError, read_config, with_hyphens
from weince_lightning.cli.checkpoint_config import refuse_built_in_python, report_overrides
from weince_lightning.cli.parser import ConciseParser, refusals_reported
from weince_lightning.evaluation.checkpoint import choose_device
from weince_lightning.evaluation.saved_run import built_data_arguments, saved_backbone
from weince_lightning.layers import as_yaml

EXPECTED = (OSError, ValueError, TypeError, RuntimeError, ImportError)
"""Errors of checkpoints, data and backbones that cannot be used; others are faults of ours."""

_V1_STRIDE = "--v1-stride"


class _Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Keeps the lines of description and examples."""


class Given(NamedTuple):
    """A command line, sorted."""

    positionals: list[str]
    layers: list[dict[str, Any]]
    options: list[str]

    def sets(self, key: str) -> bool:
        """Whether a layer or an option says something of a setting, such as ``data``."""
        is_option = any(option.startswith(f"--{key}") for option in self.options)
        return is_option or any(key in layer for layer in self.layers)


def sort_arguments(arguments: Sequence[str], of_layers: Sequence[str]) -> Given:
    """Tell positional arguments, layers and options apart; every option has one value.

    Args:
        arguments: What stands after the command.
        of_layers: What a layer can say here; the rest of a configuration is of no concern.

    Returns:
        All three; layers as their content.

    Raises:
        UsageError: If a layer cannot be read.
    """
    positionals, layers, options = list[str](), list[dict[str, Any]](), list[str]()
    remaining = iter(with_hyphens(arguments, [_V1_STRIDE]))
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        if flag in ("-c", "--config"):
            for layer in read_config(value if equals else next(remaining, "")):
                content = layer.content
                layers.append({name: content[name] for name in of_layers if name in content})
        elif flag[:1] != "-":
            positionals.append(argument)
        elif equals:
            options.append(argument)
        else:
            options += [argument, *islice(remaining, 1)]
    return Given(positionals, layers, options)


def encoder_parser(
    command: str, usage: str, description: str, epilog: str, data_needs: str
) -> ConciseParser:
    """Build the parser of such a command, with the options that all have.

    Args:
        command: What stands after ``weince``.
        usage: What stands after that.
        description: What it does.
        epilog: Examples.
        data_needs: What the data module must have.
    """
    parser = ConciseParser(
        prog=f"weince {command}",
        usage=f"weince {command} {usage}",
        description=description,
        epilog=epilog,
        formatter_class=_Formatter,
    )
    parser.add_argument(
        "-c", "--config", action=ActionConfigFile,
        help="a YAML file, or the name of a packaged one, with settings of the data",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=LightningDataModule,
        default={"class_path": "weince_lightning.data.VisionData"},
        help="options of the data, such as --data.dataset cifar100 and --data.data_dir, or a data "
        f"module of your own by its class path; it needs {data_needs}",
    )  # fmt: skip
    parser.add_argument(
        "--device", type=Literal["auto", "cpu", "cuda"], default="auto",
        help="what does the work; auto takes a GPU if there is one",
    )  # fmt: skip
    parser.add_argument(
        "--backbone", type=nn.Module | str | None, default=None,
        help="the backbone where the file does not tell it, such as timm:vit_tiny_patch16_224, or "
        "a module by its class path",
    )  # fmt: skip
    parser.add_argument(
        _V1_STRIDE, type=bool | None, default=None,
        help="where the stride of a ResNet-50 stands, if the file does not tell: true for the 1x1 "
        "convolutions, as the paper says, false for the 3x3 ones, as in torchvision",
    )  # fmt: skip
    parser.add_argument(
        "--pretrained", type=bool, default=True,
        help="whether torchvision:NAME and timm:NAME have their published weights",
    )  # fmt: skip
    return parser


def show_help_if_asked(parser: ConciseParser, arguments: Sequence[str]) -> None:
    """Print the help, or that of an option, and exit, whatever else stands there."""
    for argument in arguments:
        if re.fullmatch(r"-h|--help|--\w+\.help(=.*)?", argument):
            parser.parse_args([argument])


def read_options(
    parser: ConciseParser, given: Given, known: Mapping[str, Any] | None = None
) -> Any:
    """Read layers and options over the settings that are known otherwise."""
    layers = [as_yaml(each) for each in (dict(known or {}), *given.layers) if each]
    config = parser.parse_args(
        [part for layer in layers for part in ("-c", layer)] + [*given.options]
    )
    with refusals_reported(parser):
        choose_device(config.device)
    return config


def read_encoder_options(
    parser: ConciseParser, given: Given, source: object, checkpoint: Checkpoint | None
) -> tuple[Any, dict[str, Any]]:
    """Read layers and options over the settings of a checkpoint, and name what overrides them.

    Args:
        parser: Of the command.
        given: The command line.
        source: What the encoder comes from, for the error.
        checkpoint: That file, opened; None where it is none.

    Returns:
        The configuration, and the same as in a file.

    Raises:
        UsageError: If neither the checkpoint nor the command line says what the data are.
    """
    run = None if checkpoint is None else checkpoint.run_settings
    known: dict[str, Any] = {}
    if run is not None:
        refuse_built_in_python(built_data_arguments(run), given.sets, str(source))
        saved = {"data": run.settings.get("data"), "backbone": saved_backbone(run)}
        known = {name: value for name, value in saved.items() if value is not None}
    if "data" not in known and not given.sets("data"):
        raise UsageError(
            f"{source} must hold the settings of its data, got none: give them, such as "
            "-c data/cifar100."
        )
    config = read_options(parser, given, known)
    final = yaml.safe_load(parser.dump(config, skip_unset=False))
    report_overrides(known, final)
    return config, final


def build(parser: ConciseParser, config: Any) -> Any:
    """Build the objects that a configuration names."""
    with refusals_reported(parser):
        return parser.instantiate(config)
