r"""The main table for a paper: LaTeX with booktabs."""

import re
import unicodedata
from collections.abc import Sequence

from weince_lightning.reporting.comparison import Comparison
from weince_lightning.reporting.main_table import caption, main_table
from weince_lightning.reporting.wording import ABSENT

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{MINUS SIGN}": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
_GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|"
    "upsilon|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega"
)
"""Letters for which there is a command; the others look like Latin ones."""


def escape(text: str) -> str:
    r"""Write a text so that LaTeX sets what stands there, Greek letters too.

    Example:
        >>> print(escape("50 % of κ_λ"))
        50 \% of $\kappa$\_$\lambda$
    """
    return "".join(_SPECIAL.get(sign) or _greek(sign) for sign in text)


def _greek(sign: str) -> str:
    """Name a Greek letter, which LaTeX's text fonts lack."""
    found = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(sign, ""))
    name = found[2].lower().replace("lamda", "lambda") if found else ""
    if found and found[1] == "CAPITAL":
        name = name.capitalize()
    return f"$\\{name}$" if _GREEK.fullmatch(name) else sign


def table(comparison: Comparison, command: str) -> str:
    """Write the main table.

    Args:
        comparison: What to write.
        command: The command that made it.

    Returns:
        A ``table`` environment for a document that loads ``booktabs``.
    """
    header, rows = main_table(comparison)
    lines = [
        f"% Made by: {' '.join(command.split())}",
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape(caption(comparison))}}}",
        rf"  \begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}",
        r"    \toprule",
        _row(header),
        r"    \midrule",
        *map(_row, rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    # The braces: what follows a row's end in brackets, or a star, would be read as its argument.
    return f"    {{}}{' & '.join(map(_cell, cells))} \\\\"


def _cell(text: str) -> str:
    """Set signs of numbers as such, not as hyphens; an absent number as a dash."""
    if text == ABSENT:
        return "--"
    return re.sub(r"(?<![\w=.])([+-])(?=\d)", r"$\1$", escape(text))
