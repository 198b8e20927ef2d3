"""A diagnosis as one page that needs nothing else: no network, no script, no font."""

import base64
from collections.abc import Iterable, Mapping
from html import escape
from string import Template

from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.diagnostics.figures import Picture
from weince_lightning.diagnostics.figures.drawing import TOPICS
from weince_lightning.diagnostics.figures.picture import WIDTH
from weince_lightning.diagnostics.tables import Row, main_numbers, settings
from weince_lightning.diagnostics.verdict import Verdict
from weince_lightning.figures import DARK, LIGHT

FIRST = "hardest"
"""The figure of the first screen."""
SECTIONS = {
    "What the losses do with them": ("gradient_shares", "link"),
    "How sure the answer is": ("stability",),
}
"""The other figures in the order in which they are read; the rest are files beside the page."""

_DPI = 96
"""CSS pixels of an inch."""

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>Tail diagnosis of $source</title>
<style>
:root { color-scheme: light dark; --back: $light_back; --ink: $light_ink; --faint: #5A616B;
 --line: $light_line; --mark: $light_mark }
@media (prefers-color-scheme: dark) {
 :root { --back: $dark_back; --ink: $dark_ink; --faint: #A7AEB8; --line: $dark_line;
 --mark: $dark_mark }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem 1rem 3rem; max-width: 44rem; background: var(--back);
 color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0.25rem 0 0.5rem }
header p { margin: 0.5rem 0 }
code { font-size: 0.9em; font-weight: 600; overflow-wrap: anywhere }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.75rem; padding-top: 0.75rem;
 border-top: 1px solid var(--line) }
h3 { font-size: 1.05rem; line-height: 1.3; margin: 2rem 0 0.5rem }
li { margin: 0.5rem 0 }
ul { padding-left: 1.25rem }
li::marker { color: var(--mark) }
figure { margin: 0 }
img { display: block; width: 100%; max-width: 28rem; height: auto }
figcaption { margin-top: 0.5rem }
.source, .note { color: var(--faint); font-size: 0.9rem }
.source { margin: 0 }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
th, td { padding: 0.35rem 0; vertical-align: top; border-bottom: 1px solid var(--line) }
th { text-align: left; font-weight: 600; min-width: 9rem }
th .note { display: block; font-weight: 400 }
td { text-align: right; padding-left: 1rem; font-variant-numeric: tabular-nums }
</style>
</head>
<body>
<header>
<p class="source">Is WEINCE worth trying for $source?</p>
<h1>$answer</h1>
<p>$why</p>
<p>Next: <code>$next</code> <span class="note">($purpose)</span></p>
</header>
<main>
$first
$figures
<section>
<h2>What it rests on</h2>
<ul>
$findings
</ul>
</section>
<section>
<h2>Numbers</h2>
$numbers
</section>
<section>
<h2>How it was computed</h2>
$settings
</section>
</main>
</body>
</html>
""")


def render_page(
    diagnosis: Diagnosis, verdict: Verdict, pictures: Mapping[str, Picture], source: str
) -> str:
    """Write a diagnosis as one HTML document that holds all it needs.

    Args:
        diagnosis: The numbers.
        verdict: The words.
        pictures: The figures by name, as :func:`~weince_lightning.diagnostics.figures.draw` returns
            them.
        source: What to call the embeddings, such as the name of their file.

    Returns:
        The document, light or dark as its reader's device is.
    """
    return _PAGE.substitute(
        source=escape(source),
        light_back=LIGHT.background, light_ink=LIGHT.ink, light_line=LIGHT.faint,
        light_mark=LIGHT.fit,
        dark_back=DARK.background, dark_ink=DARK.ink, dark_line=DARK.faint, dark_mark=DARK.fit,
        answer=escape(verdict.answer.capitalize()), why=escape(_sentence(verdict.why)),
        next=escape(verdict.next), purpose=escape(verdict.purpose),
        first=_figure(FIRST, pictures[FIRST]) if FIRST in pictures else "",
        findings="\n".join(f"<li>{escape(finding)}</li>" for finding in verdict.findings),
        figures="\n".join(
            _section(heading, names, pictures) for heading, names in SECTIONS.items()
        ) + _missing(diagnosis, pictures) + _more(pictures),
        numbers=_table("Numbers", main_numbers(diagnosis)),
        settings=_table("How it was computed", settings(diagnosis)),
    )  # fmt: skip


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _section(heading: str, names: Iterable[str], pictures: Mapping[str, Picture]) -> str:
    """Write some figures under a heading."""
    found = [_figure(name, pictures[name]) for name in names if name in pictures]
    return "\n".join(["<section>", f"<h2>{heading}</h2>", *found, "</section>"]) if found else ""


def _figure(name: str, picture: Picture) -> str:
    """Write a figure for both colour schemes with its caption; the first follows the title."""
    level = "h2" if name == FIRST else "h3"
    size = f'width="{WIDTH * _DPI:.0f}" height="{picture.height * _DPI:.0f}"'
    return (
        f'<figure id="{name}">\n<{level}>{escape(picture.question)}</{level}>\n<picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="{_data(picture, dark=True)}">'
        f'<img src="{_data(picture, dark=False)}" alt="{escape(picture.alt)}" {size}></picture>\n'
        f"<figcaption>{escape(picture.caption)}</figcaption>\n</figure>"
    )


def _data(picture: Picture, dark: bool) -> str:
    content = base64.b64encode(picture.render("svg", dark)).decode("ascii")
    return f"data:image/svg+xml;base64,{content}"


def _more(pictures: Mapping[str, Picture]) -> str:
    """Name the figures that are files alone."""
    shown = [FIRST, *(name for names in SECTIONS.values() for name in names)]
    files = [name for name in pictures if name not in shown]
    return f'\n<p class="note">Also in figures/: {escape(", ".join(files))}.</p>' if files else ""


def _missing(diagnosis: Diagnosis, pictures: Mapping[str, Picture]) -> str:
    """Say which figures there are none of, and why."""
    shown = [FIRST, *(name for names in SECTIONS.values() for name in names)]
    absent = [name.replace("_", " ") for name in TOPICS if name in shown and name not in pictures]
    if not absent:
        return ""
    reasons = []
    if diagnosis.threshold.xi is None:
        reasons.append(f"the tail has no fit ({diagnosis.threshold.note})")
    if "link" in absent:
        link = diagnosis.link
        reasons.append("no positives are known" if link is None else f"{link.note} (link)")
    return (
        f'\n<p class="note">Not drawn: {escape(", ".join(absent))}, as '
        f"{escape('; '.join(reasons))}.</p>"
    )


def _table(label: str, rows: Iterable[Row]) -> str:
    """Write a table that scrolls inside itself."""
    body = "\n".join(
        f'<tr><th scope="row">{escape(row.name)}<span class="note">{escape(row.meaning)}</span>'
        f"</th><td>{escape(row.value)}</td></tr>"
        for row in rows
    )
    # What scrolls must be in reach of keys, and then needs a name.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">\n'
        f"<table>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )
