"""The comparison as a page of Markdown."""

import re
import textwrap
from collections.abc import Iterable, Sequence

from weince_lightning.reporting.comparison import Comparison
from weince_lightning.reporting.main_table import caption, main_table
from weince_lightning.reporting.settings import LAYERS, probe_note, read_settings
from weince_lightning.reporting.wording import (
    headline_metrics,
    mean_text,
    metric_label,
    paper_text,
    seeds_of,
    strange_lines,
    validation_of,
    without_number,
)

_COLUMNS = 6
"""Metrics side by side in a table."""
_METHOD = (
    "Seeds of probes and splits are averaged within each encoder, so an interval speaks of "
    "encoders. In each arm the configuration with the largest mean `{select}` was taken among "
    "those with all planned seeds; test numbers had no part in the choice. Where there is no "
    "difference at all, about one interval in twenty excludes 0 all the same."
)


def page(comparison: Comparison, command: str) -> str:
    """Write everything that a reader of the comparison may ask for.

    Args:
        comparison: What to write.
        command: The command that made it.

    Returns:
        Markdown: main table, all configurations, further metrics, what is missing, settings.
    """
    parts = [
        f"# Comparison of {_plain(comparison.results.folder)}",
        summary(comparison),
        _METHOD.format(select=comparison.select),
        "## All configurations",
        "Each over its own seeds; the chosen ones in bold.",
        _all_configurations(comparison),
        *_further_metrics(comparison),
        "## Missing and strange",
        _list([*missing_lines(comparison), *map(_plain, strange_lines(comparison))]) or "Nothing.",
        "## Settings",
        *_settings(comparison),
        f"Made by `{command}`. All numbers: `report.json`, `report.csv`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(comparison: Comparison, width: int = 0) -> str:
    """Write the main table and what must be known to read it.

    Args:
        comparison: What to write.
        width: Break the sentences after so many characters; 0 leaves them whole.
    """
    lines = [_plain(caption(comparison))]
    if "linear.test_top1" in headline_metrics(comparison):
        lines.append(probe_note(read_settings(comparison.results)))
    if width:
        lines = [textwrap.fill(line, width) for line in lines]
    header, rows = main_table(comparison)
    table = _table(header, [[_plain(cell) for cell in row] for row in rows], num_texts=2)
    parts = [table, _list(choice_lines(comparison)), *lines]
    return "\n\n".join(part for part in parts if part)


def choice_lines(comparison: Comparison) -> list[str]:
    """Say which arms have no number and where the choice was not the only one possible."""
    lines = []
    if comparison.is_incomplete:
        seeds = ", ".join(map(str, comparison.seeds)) or "none"
        lines.append(
            "**Incomplete**: compared over the seeds that all chosen configurations share, "
            f"{seeds} ({len(comparison.seeds)} of {len(comparison.results.plan.seeds)})."
        )
    for arm in comparison.arms:
        label, has_choice = _plain(arm.label), len(arm.configurations) > 1
        seeds = without_number(arm) + (" in its fullest configuration" if has_choice else "")
        if arm.chosen is None:
            lines.append(f"{label} is not compared: {seeds}.")
            continue
        point = _plain(arm.chosen.point)
        if not arm.chosen.is_complete:
            how = f"; {point} was chosen by the seeds that its configurations share"
            lines.append(f"{label} is incomplete: {seeds}{how if has_choice else ''}.")
        if arm.tied:
            others = ", ".join(map(_plain, arm.tied))
            lines.append(
                f"{label}: {others} did as well as {point} on `{comparison.select}`; the first in "
                "the order of the sweep was taken."
            )
    return lines


def missing_lines(comparison: Comparison) -> list[str]:
    """Name the seeds that configurations lack."""
    lines = []
    for arm in comparison.arms:
        for configuration in arm.configurations:
            name = f"{_plain(arm.label)}, {_plain(configuration.point)}"
            if configuration.missing:
                lines.append(f"{name} lacks {_seeds(configuration.missing)}.")
            if configuration.missing_metric:
                seeds = _seeds(configuration.missing_metric)
                lines.append(f"{name} has no `{comparison.select}` for {seeds}.")
    return lines


def _seeds(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _all_configurations(comparison: Comparison) -> str:
    metrics = []
    for metric in headline_metrics(comparison):
        metrics += [validation_of(metric), metric]
    if comparison.select not in metrics and comparison.select in comparison.metrics:
        metrics.insert(0, comparison.select)
    planned = len(comparison.results.plan.seeds)
    rows = [
        [
            _plain(arm.label),
            f"**{_plain(each.point)}**" if each is arm.chosen else _plain(each.point),
            seeds_of(each),
            *(mean_text(metric, each.summary(metric), planned) for metric in metrics),
        ]
        for arm in comparison.arms
        for each in arm.configurations
    ]
    return _table(["arm", "configuration", "seeds", *map(metric_label, metrics)], rows, num_texts=2)


def _further_metrics(comparison: Comparison) -> list[str]:
    """The chosen configurations' other metrics; validation ones stand in the files of numbers."""
    shown = headline_metrics(comparison)
    others = [
        metric for metric in comparison.metrics if metric not in shown and ".val_" not in metric
    ]
    if not others:
        return []
    parts = [
        "## Further metrics",
        "Of the chosen configurations; the paper's number after a slash where there is one.",
    ]
    stems = [name.removesuffix(".q50") for name in others if name.endswith(".q50")]
    others = [name for name in others if name.rpartition(".")[0] not in stems]
    for name in dict.fromkeys(metric.partition(".")[0] for metric in others):
        own = [metric for metric in others if metric.partition(".")[0] == name]
        for first in range(0, len(own), _COLUMNS):
            parts.append(_further_table(comparison, own[first : first + _COLUMNS]))
    if stems:
        parts.append("Medians, and the 5 and 95 % quantiles; means over the encoder seeds.")
        parts.append(_quantile_table(comparison, stems))
    return parts


def _quantile_table(comparison: Comparison, stems: Sequence[str]) -> str:
    """Give what was summarised by quantiles, without the arms that have nothing of it."""
    rows = []
    for arm in comparison.arms:
        cells = []
        for stem in stems:
            found = [arm.summaries.get(f"{stem}.{name}") for name in ("q50", "q05", "q95")]
            texts = [f"{summary.mean:.3g}" for summary in found if summary]
            cells.append("{} ({} to {})".format(*texts) if len(texts) == len(found) else "-")
        if any(cell != "-" for cell in cells):
            rows.append([_plain(arm.label), *cells])
    return _table(["arm", *(stem.rpartition(".")[2] for stem in stems)], rows, num_texts=1)


def _further_table(comparison: Comparison, metrics: Sequence[str]) -> str:
    rows = []
    for arm in comparison.arms:
        row = [_plain(arm.label)]
        for metric in metrics:
            text = mean_text(metric, arm.summaries.get(metric), len(comparison.seeds))
            if metric in arm.paper:
                text += f" / {paper_text(metric, arm.paper[metric])}"
            row.append(text)
        rows.append(row)
    return _table(["arm", *map(metric_label, metrics)], rows, num_texts=1)


def _settings(comparison: Comparison) -> list[str]:
    results = comparison.results
    parts = [f"Encoder seeds: {', '.join(map(str, results.plan.seeds))}."]
    lines = [
        _plain(f"{name}: {value}")
        for name, value in read_settings(results).shared.items()
        if not name.startswith(LAYERS)
    ]
    if lines:
        parts += ["The same in all runs:", _list(lines)]
    if results.plan.source is not None:
        parts += ["The sweep file:", f"```yaml\n{results.plan.source.strip()}\n```"]
    return parts


def _plain(text: str) -> str:
    """Take the meaning from what Markdown would read as its own."""
    # An underscore within a word, as in names of options, and a star alone mean nothing to it.
    signs = r"[\\|`<$]|\*(?=\S)|(?<=\S)\*|(?<!\w)_|_(?!\w)|(?<=\])\("
    marked = re.sub(signs, r"\\\g<0>", text)
    return " ".join(marked.split())


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], num_texts: int) -> str:
    """Set a table that can be read as it is; the columns after the first ones hold numbers."""
    columns = []
    for place, (name, *cells) in enumerate(zip(header, *rows, strict=True)):
        width = max(3, len(name), *map(len, cells))
        if place < num_texts:
            columns.append([cell.ljust(width) for cell in (name, "-" * width, *cells)])
        else:
            columns.append([cell.rjust(width) for cell in (name, "-" * (width - 1) + ":", *cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
