"""Print pip constraints that hold every dependency at the oldest version the project says it takes.

python .ci/oldest.py > oldest.txt && pip install --constraint oldest.txt -e ".[dev]"
"""

import re
import tomllib
from itertools import chain
from pathlib import Path

project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
bounds = {}
for requirement in chain(project["dependencies"], *project["optional-dependencies"].values()):
    name, oldest = re.fullmatch(r"([\w.-]+)(?:\[.*\])?(?:>=([\w.]+))?", requirement).groups()
    if oldest is None:
        continue
    if bounds.setdefault(name, oldest) != oldest:
        raise SystemExit(f"{name} has two oldest versions, {bounds[name]} and {oldest}.")
print(*(f"{name}=={oldest}" for name, oldest in sorted(bounds.items())), sep="\n")
