"""The roles that the docstrings borrow from reStructuredText, as the Markdown of the site."""

import re
from typing import Any

import griffe

_BLOCK = re.compile(r"^( *)\.\. math:: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)
_MATH = re.compile(r":math:`([^`]+)`(?:\\ )?")
_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
_NAME = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites formulas and references of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring, before it is taken apart."""
        if obj.docstring is not None:
            obj.docstring.value = in_markdown(obj.docstring.value)


def in_markdown(text: str) -> str:
    """Write formulas between dollar signs, and references as links where they have a page."""
    text = _EXAMPLE.sub(r"\1Examples:", text)  # the section that is read as a session
    text = _BLOCK.sub(_block, text)
    text = _MATH.sub(lambda match: f"${match[1]}$", text)
    return _NAME.sub(_reference, text)


def _block(match: re.Match[str]) -> str:
    """A display formula, in one line: those of the docstrings have no line of their own meaning."""
    return f"{match[1]}$${' '.join(match[2].split())}$$"


def _reference(match: re.Match[str]) -> str:
    name = match[1]
    shown = name.rpartition(".")[2]
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'
