"""The command ``weince``.

Lightning loads only after the arguments have been read, so that help and misspelt names of
configurations cost no seconds.
"""

import logging
import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name

from weince_lightning.cli.arguments import OWN_ARGUMENTS, UsageError, complete_arguments, help_text
from weince_lightning.cli.version import print_versions


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``weince`` with the given arguments, those of the process by default.

    Args:
        arguments: What stands after ``weince`` on the command line.

    Raises:
        SystemExit: With status 2 if the arguments make no sense, 1 if files are missing or damaged,
            a checkpoint does not fit or a training is no success, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        sys.stdout.write(help_text())
        return
    # As with `python -m`: classes of a project in the working folder can be named.
    sys.path.insert(0, "")
    logger, notes = logging.getLogger("weince_lightning"), _Notes(logging.INFO)
    logger.setLevel(logging.INFO)
    logger.addHandler(notes)
    try:
        if given[0] == "--version":
            print_versions()
        else:
            _run(complete_arguments(given))
    except UsageError as error:
        sys.stderr.write(f"weince: error: {error}\n")
        raise SystemExit(2) from None
    except BrokenPipeError:
        # Who reads the output, such as `head`, has enough; nor is there anything left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(1) from None
    except OSError as error:
        sys.stderr.write(f"weince: error: {error}\n")
        raise SystemExit(1) from error
    except KeyboardInterrupt:
        sys.stderr.write("\nweince: interrupted before training began; nothing was written.\n")
        raise SystemExit(130) from None
    finally:
        logger.removeHandler(notes)


class _Notes(logging.Handler):
    """Shows what functions of this package say while they work."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning to standard error, and other notes among the results."""
        if record.levelno >= logging.WARNING:
            sys.stderr.write(f"weince: {record.getMessage()}\n")
        else:
            sys.stdout.write(f"\n{record.getMessage()}\n")


def _run(arguments: list[str]) -> None:
    """Run a command with complete arguments."""
    from weince_lightning.checkpoints import CheckpointError

    command, *others = arguments
    try:
        if command in OWN_ARGUMENTS:
            resolve_name(f"{__name__}.{command}:{OWN_ARGUMENTS[command]}")(others)
        else:
            from weince_lightning.cli.lightning_cli import WeinceCLI

            WeinceCLI(arguments)
    except CheckpointError as error:
        sys.stderr.write(f"weince: error: {error}\n")
        raise SystemExit(1) from None
