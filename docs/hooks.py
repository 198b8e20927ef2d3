"""What mkdocs does not do by itself: the README as a page, and formulas without a network.

The README stays where it is, and is a page of the site; links that lead out of ``docs/`` to it lead
to that page. Formulas become MathML, which browsers show by themselves.
"""

import html
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGE = "readme.md"
"""Where the README stands in the site."""

_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the README as a page."""
    text = (Path(config.config_file_path).parent / "README.md").read_text(encoding="utf-8")
    page = File.generated(config, PAGE, content=_LINK.sub(_into_the_site, text))
    files.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let links to the README lead to its page."""
    folder = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[2].partition("#")
        if posixpath.normpath(posixpath.join("docs", folder, target)) != "README.md":
            return match[0]
        return f"{match[1]}({posixpath.relpath(PAGE, folder or '.')}{hash_sign}{anchor})"

    return markdown if page.file.src_uri == PAGE else _LINK.sub(lead, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML."""
    return _FORMULA.sub(_mathml, content)


def _into_the_site(match: re.Match[str]) -> str:
    """Rewrite a link of the README: to a page of the site, or, to another file, its text alone."""
    label, target = match[1], match[2]
    if "://" in target or target.startswith("#"):
        return match[0]
    path = os.path.normpath(target.partition("#")[0])
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        inside = f"{inside}/README.md" if "." not in posixpath.basename(inside) else inside
        return f"{label}({inside})"
    return label[1:-1]


def _mathml(match: re.Match[str]) -> str:
    formula = html.unescape(match[2]).strip()
    is_block = formula.startswith(("\\[", "$$"))
    return convert(formula[2:-2].strip(), display="block" if is_block else "inline")
