"""``weince report``: the results of a sweep as a comparison."""

import shlex
import sys
from collections.abc import Sequence

from weince_lightning.cli.arguments import CommandParser, UsageError, in_words_of_command
from weince_lightning.reporting import report as compare_arms
from weince_lightning.reporting import write_report
from weince_lightning.reporting.comparison import DEFAULT_SELECT
from weince_lightning.reporting.markdown import missing_lines, summary
from weince_lightning.reporting.wording import strange_lines
from weince_lightning.sweeps import SweepError

_SHOWN = 10
"""How many missing and strange lines the terminal shows."""

_DESCRIPTION = """\
Compare the arms of a sweep: mean and 95 % t-interval over encoder seeds, and the differences to the
baseline, paired by seed. In each arm the configuration is chosen by a validation metric among those
of which all planned seeds are there; what is missing is named.

Reads DIR/sweep.yaml and DIR/results, writes DIR/report.json, .md, .csv, .tex and .png. A sweep that
is still running can be reported on.
"""
_EPILOG = """\
example:
  weince report sweeps/digits
"""


def report(arguments: Sequence[str]) -> None:
    """Run ``weince report``.

    Args:
        arguments: What stands after ``report``.

    Raises:
        UsageError: If the arguments make no sense.
        FileNotFoundError: If the folder is not there.
        SystemExit: With status 1 if its sweep file is damaged or it holds no results.
    """
    options = _parser().read(arguments)
    try:
        comparison = compare_arms(options.folder, options.select, options.allow_incomplete)
    except SweepError as error:
        sys.stderr.write(f"weince: error: {error}\n")
        raise SystemExit(1) from None
    except ValueError as error:
        raise UsageError(in_words_of_command(error, {"select": "--select"})) from error
    files = write_report(comparison, options.folder, shlex.join(["weince", "report", *arguments]))
    blocks = [summary(comparison, width=100)]
    if any(arm.chosen is None for arm in comparison.arms) and not options.allow_incomplete:
        blocks.append("--allow-incomplete compares all arms over the seeds that they share.")
    odd = [*missing_lines(comparison), *strange_lines(comparison)]
    if odd:
        more = [f"{len(odd) - _SHOWN} more, in report.md"] if len(odd) > _SHOWN else []
        shown = [f"- {line}" for line in [*odd[:_SHOWN], *more]]
        blocks.append("\n".join(["Missing and strange:", *shown]))
    blocks.append(f"Wrote {', '.join(map(str, files))}.")
    sys.stdout.write("\n" + "\n\n".join(blocks) + "\n")


def _parser() -> CommandParser:
    parser = CommandParser("report", _DESCRIPTION, _EPILOG)
    parser.add_argument("folder", metavar="DIR", help="the folder of a sweep")
    parser.add_argument(
        "--select",
        metavar="METRIC",
        default=DEFAULT_SELECT,
        help="the validation metric of the choice, such as knn.val_top1_k50 (default: %(default)s)",
    )
    parser.add_argument(
        "--allow-incomplete",
        action="store_true",
        help="compare arms without a complete configuration too, all over the seeds they share",
    )
    return parser
