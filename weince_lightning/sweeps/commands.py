"""The commands of a run, as a sweep is given them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Command = Callable[[Sequence[str]], None]
"""Runs a command with the arguments after its name."""


class Commands(NamedTuple):
    """What a sweep is made of. All are functions of a module, so that other processes find them.

    ``weince sweep`` uses those of the command line,
    ``weince_lightning.cli.sweep_commands.COMMANDS``.
    """

    fit: Command
    """Trains, with the arguments after ``weince fit``; a finished training is no error."""

    evaluate: Command
    """Evaluates, with the arguments after ``weince evaluate``."""

    parse_fit: Callable[[Sequence[str]], Any]
    """Reads the arguments of ``fit`` and trains nothing; returns the settings of the trainer.
    Raises ``ValueError`` with one line if ``fit`` would refuse them."""

    check_evaluate: Callable[[Sequence[str]], None]
    """Raises ``ValueError`` with one line if ``evaluate`` would refuse the arguments."""

    find_layer: Callable[[str], str]
    """Gives the file behind the name of a layer."""

    entry: str
    """The module that runs both commands when it is started by ``python -m``, with the name of the
    command before its arguments: a training on several devices starts it for each of them."""

    preload: Sequence[str] = ()
    """Modules that the commands need, imported once for all runs."""
