"""Check that a tag is the version that the project's files state.

python .ci/release.py v0.1.0
"""

import re
import sys
import tomllib
from pathlib import Path


def mismatches(tag: str, root: Path) -> list[str]:
    """Name what differs between a tag and the files that state the version.

    Args:
        tag: The tag, ``v`` and the version.
        root: The folder of ``pyproject.toml``, ``CITATION.cff`` and ``CHANGELOG.md``.

    Returns:
        One sentence per difference; none if the tag can be released.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = []
    if tag != f"v{version}":
        found.append(f"The tag must be v{version}, the version in pyproject.toml, got {tag}.")
    if f"\nversion: {version}\n" not in citation:
        found.append(f"CITATION.cff must state version: {version}.")
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE
    ):
        found.append(f"CHANGELOG.md must have a section '## [{version}] - YYYY-MM-DD'.")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(mismatches(sys.argv[1], Path(__file__).parents[1])) or 0)
