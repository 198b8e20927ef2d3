"""Every notebook is short, is stored without outputs, and runs from its first cell to its last."""

import ast
import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
MOST_CELLS = 15
LONGEST_FUNCTION = 10
LARGEST_OUTPUTS = 2**20

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run(path, folder):
    """Execute a notebook with a folder as its working directory; return its outputs."""
    notebook = read(path)
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, timeout=900).execute()
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def printed(outputs):
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def images(outputs):
    return [output for output in outputs if "image/png" in output.get("data", {})]


def test_there_are_notebooks():
    assert {"results"} <= {path.stem for path in NOTEBOOKS}


@pytest.mark.slow
@every_notebook
def test_notebook_runs_in_any_folder_and_leaves_no_file_there(path, tmp_path):
    outputs = run(path, tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(json.dumps(outputs)) < LARGEST_OUTPUTS
    assert images(outputs) or printed(outputs).startswith("Skipped: no docs/results in ")
    # What a notebook claims of its own numbers is printed as "claim: True".
    assert ": False" not in printed(outputs)


@pytest.mark.slow
def test_results_shows_every_sweep_of_the_repository():
    outputs = run(ROOT / "notebooks" / "results.ipynb", ROOT / "notebooks")
    sweeps = [folder.parent.name for folder in (ROOT / "docs/results").glob("*/sweep.yaml")]
    tables = [output for output in outputs if "text/markdown" in output.get("data", {})]
    assert sweeps
    assert all(f"{sweep}: " in printed(outputs) for sweep in sweeps)
    assert [f"### {sweep}" for sweep in sorted(sweeps)] == [
        table.data["text/markdown"].splitlines()[0] for table in tables
    ]
    assert len(images(outputs)) == 2 * len(sweeps)
    assert len(json.dumps(outputs)) < LARGEST_OUTPUTS


@every_notebook
def test_notebook_is_stored_without_outputs(path):
    for cell in code_cells(read(path)):
        assert not cell.outputs
        assert cell.execution_count is None


@every_notebook
def test_notebook_is_short_and_says_first_how_long_it_takes(path):
    cells = read(path).cells
    assert len(cells) <= MOST_CELLS
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert "It takes " in cells[0].source


@every_notebook
def test_notebook_imports_from_the_package_and_defines_no_long_function(path):
    nodes = [node for cell in code_cells(read(path)) for node in ast.walk(ast.parse(cell.source))]
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    assert any(module.partition(".")[0] == "weince_lightning" for module in modules)
    long = [
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    ]
    assert not long
