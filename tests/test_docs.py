"""The documentation is true: its Python runs, its files exist, its quotations are the code's."""

import ast
import importlib
import json
import os
import posixpath
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from weince_lightning.layers import packaged_configs

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = {page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXTS[page], re.DOTALL | re.MULTILINE)


WITH_PYTHON = [page for page in TEXTS if blocks(page, "python")]
NOT_IN_DEV = {"integrations/stable_pretraining.md": "stable_pretraining"}
"""Pages about a library that the extra ``dev`` leaves out, as it joins every Trainer."""


def links(page: str) -> list[str]:
    outside_code = re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", TEXTS[page], flags=re.DOTALL | re.M)
    return re.findall(r"\]\((?!https?:)([^)\s]+)\)", outside_code)


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}


RUNNER = """
import json, sys, traceback
failed = {}
for page, blocks in json.load(sys.stdin).items():
    for block in blocks:
        try:
            exec(compile(block, page, "exec"), {"__name__": "block"})
        except Exception:
            failed.setdefault(page, traceback.format_exc())
open(sys.argv[1], "w").write(json.dumps(failed))
"""
"""Runs each block in a namespace of its own; the libraries are imported once for all pages."""


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    left_out = {page for page, library in NOT_IN_DEV.items() if find_spec(library) is None}
    pages = {page: blocks(page, "python") for page in WITH_PYTHON if page not in left_out}
    subprocess.run(
        [sys.executable, "-c", RUNNER, folder / "failed.json"],
        input=json.dumps(pages), text=True, capture_output=True, check=True, cwd=folder,
        env={**ENVIRONMENT, "SPT_CACHE_DIR": str(folder)},
    )  # fmt: skip
    return json.loads((folder / "failed.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", WITH_PYTHON)
@pytest.mark.slow
def test_every_python_block_runs_by_itself(page, failed):
    if page in NOT_IN_DEV:
        pytest.importorskip(NOT_IN_DEV[page])
    assert page not in failed, failed[page]


@pytest.mark.parametrize("page", TEXTS)
def test_relative_links_lead_to_files_and_headings(page):
    for link in links(page):
        target, _, anchor = link.partition("#")
        path = (DOCS / page).parent / target if target else DOCS / page
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("page", TEXTS)
def test_configurations_named_in_commands_exist(page):
    known = {*packaged_configs(), "CONFIG", "runs/digits/version_0/config.yaml"}
    for command in re.findall(r"weince [^`\n]*", TEXTS[page]):
        for found in re.findall(r"-c ([\w./]+)|weince sweep (sweeps/\w+)", command):
            name = "".join(found)
            packaged = (ROOT / "configs" / f"{name}.yaml").is_file()
            assert packaged or name in known or (ROOT / name).is_file(), name


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    from_the_root = {"readme.md", "contributing.md", "changelog.md"}
    assert set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)) == {*TEXTS, *from_the_root}


def public_names() -> list[str]:
    """What users import, by full name: ``__all__`` of packages, definitions of integrations."""
    found = []
    for package in ("losses", "module", "data", "callbacks"):
        module = importlib.import_module(f"weince_lightning.{package}")
        found += [f"{module.__name__}.{name}" for name in module.__all__]
    # Read, not imported: their libraries may be absent.
    for file in sorted((ROOT / "weince_lightning" / "integrations").glob("[!_]*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            name = getattr(node, "name", "_")
            if not name.startswith("_"):
                found.append(f"weince_lightning.integrations.{file.stem}.{name}")
    return found


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_has_an_entry_in_the_reference(name):
    entries = re.findall(r"^::: (\S+)$", "\n".join(TEXTS.values()), re.MULTILINE)
    assert name in entries


def templates() -> list[str]:
    """All strings of the package, with … for each value that is put in."""
    found = []
    for file in (ROOT / "weince_lightning").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                values = (getattr(part, "value", None) for part in node.values)
                found.append("".join(v if isinstance(v, str) else "…" for v in values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def test_messages_that_troubleshooting_quotes_are_those_of_the_code():
    known = templates()
    quoted = [block.strip() for block in blocks("troubleshooting.md", "text")]
    assert len(quoted) > 20
    for message in quoted:
        # A value may be spelt out in the code, and a sentence end before the code's does.
        pattern = re.escape(message.removesuffix("…").strip()).replace("…", ".+?")
        assert any(re.search(pattern, template) for template in known), message


def test_paths_and_names_in_code_style_exist():
    functional = ROOT / "weince_lightning" / "functional"
    for module, name in re.findall(r"`(\w+)\.(\w+)`", TEXTS["mathematics.md"]):
        if (functional / f"{module}.py").is_file():
            assert hasattr(importlib.import_module(f"weince_lightning.functional.{module}"), name)
    for text in TEXTS.values():
        for path in re.findall(r"`((?:tests|configs|benchmarks|notebooks)/[\w./]+)`", text):
            assert (ROOT / path).exists(), path


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    command = [sys.executable, DOCS / "figures.py", folder]
    result = subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True, text=True)
    return folder, result.stdout


@pytest.mark.slow
def test_the_figures_script_draws_what_the_page_shows(figures):
    folder, _ = figures
    shown = {posixpath.basename(link) for link in links("mathematics.md") if link.endswith(".svg")}
    assert {path.name for path in folder.iterdir()} == shown
    assert all(path.read_text(encoding="utf-8").count("<path") > 5 for path in folder.iterdir())


@pytest.mark.slow
def test_the_figures_script_prints_what_the_page_quotes(figures):
    _, printed = figures
    assert printed in blocks("mathematics.md", "text")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "site" / "mathematics" / "index.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert 'class="arithmatex"' not in page
    reference = (tmp_path / "site" / "api" / "losses" / "index.html").read_text(encoding="utf-8")
    assert ":math:" not in reference
    assert "supervised_terms" in reference
