"""What mkdocs does not do by itself: pages from the root, and formulas without a network.

The files of :data:`PAGES` stay where they are, and are pages of the site; links that lead out of
``docs/`` to them lead to those pages. Formulas become MathML, which browsers show by themselves.
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

PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files of the root, and where they stand in the site."""

_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files of the root as pages."""
    root = Path(config.config_file_path).parent
    for name, page in PAGES.items():
        content = _LINK.sub(_into_the_site, (root / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let links to files of the root lead to their pages."""
    folder = posixpath.dirname(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[2].partition("#")
        name = posixpath.normpath(posixpath.join("docs", folder, target))
        if name not in PAGES:
            return match[0]
        return f"{match[1]}({posixpath.relpath(PAGES[name], folder or '.')}{hash_sign}{anchor})"

    return markdown if page.file.src_uri in PAGES.values() else _LINK.sub(lead, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML."""
    return _FORMULA.sub(_mathml, content)


def _into_the_site(match: re.Match[str]) -> str:
    """Rewrite a link of a root file: to a page of the site, or, to another file, its text alone."""
    label, target = match[1], match[2]
    if "://" in target or target.startswith("#"):
        return match[0]
    path = os.path.normpath(target.partition("#")[0])
    if path in PAGES:
        return f"{label}({PAGES[path]})"
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        inside = f"{inside}/README.md" if "." not in posixpath.basename(inside) else inside
        return f"{label}({inside})"
    return label[1:-1]


def _mathml(match: re.Match[str]) -> str:
    formula = html.unescape(match[2]).strip()
    is_block = formula.startswith(("\\[", "$$"))
    return convert(formula[2:-2].strip(), display="block" if is_block else "inline")
