"""What the README shows is what runs: its Python, its commands, its files."""

import re
from pathlib import Path

import pytest
from processes import run_python

from weince_lightning.layers import packaged_configs

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
COMMANDS = re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("block", PYTHON)
def test_python_runs_as_it_stands(block, tmp_path):
    (tmp_path / "block.py").write_text(block, encoding="utf-8")
    run_python(tmp_path / "block.py", folder=ROOT, timeout=120)


def test_the_two_commands_for_a_fresh_machine_are_there():
    assert "pip install -e . && weince fit -c configs/digits.yaml\n" in COMMANDS
    assert 'pip install -e ".[dev]" && pytest\n' in COMMANDS


def test_continuous_integration_runs_the_test_command_of_the_readme():
    assert 'pip install -e ".[dev]" && pytest\n' in (ROOT / ".ci" / "run").read_text()


def test_configurations_named_in_commands_exist():
    known = packaged_configs()
    for name in re.findall(r"-c ([\w./]+)", "\n".join(COMMANDS)):
        if name != "CONFIG":
            assert name in known or (ROOT / name).is_file()


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXT):
        assert (ROOT / target).is_file(), target


def test_the_map_names_all_parts_and_nothing_else():
    block = re.search(r"```text\n(.*?)```", TEXT, flags=re.DOTALL).group(1)
    named = set(re.findall(r"^  ([\w.]+)/? ", block, flags=re.MULTILINE))
    there = {
        path.name
        for path in (ROOT / "weince_lightning").iterdir()
        if not path.name.startswith("__") and path.name != "py.typed"
    }
    assert named == there
