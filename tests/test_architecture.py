"""The arrows of the design: who may import whom, read from the source."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import weince_lightning

PACKAGE = Path(weince_lightning.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

PURE = {"distributed", "extremes", "functional"}
ALLOWED = {
    "__init__": {"losses", "module"},
    "__main__": {"cli"},
    "callbacks": PURE,
    "checkpoints": {"networks"},
    "checks": set(),
    "data": {"distributed", "functional"},
    "diagnostics": PURE,
    "distributed": set(),
    "evaluation": PURE,
    "extremes": set(),
    "functional": set(),
    "integrations": {"distributed", "functional", "losses", "module"},
    "losses": {"distributed", "functional"},
    "module": {"checkpoints", "losses", "networks"},
    "networks": set(),
    "reporting": {"checkpoints", "sweeps"},
    "sweeps": {"checkpoints"},
}
"""The parts that each part may import, itself and the checks aside; the command may import all."""


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def trees() -> list[tuple[Path, ast.Module]]:
    return [(file, ast.parse(file.read_text(encoding="utf-8"))) for file in FILES]


def imported(tree: ast.AST) -> set[str]:
    """Every module that the source names, names imported from a module included."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_parts(tree: ast.AST) -> set[str]:
    prefix = "weince_lightning."
    return {name.split(".")[1] for name in imported(tree) if name.startswith(prefix)}


def third_parties(tree: ast.AST) -> set[str]:
    roots = {name.split(".")[0] for name in imported(tree)}
    return roots - set(sys.stdlib_module_names) - {"weince_lightning"}


@pytest.mark.parametrize(("file", "tree"), trees(), ids=lambda value: getattr(value, "name", ""))
def test_imports_follow_the_arrows(file, tree):
    part = part_of(file)
    if part != "cli":
        assert own_parts(tree) - {part, "checks"} <= ALLOWED[part]


def test_functional_needs_torch_alone():
    for file, tree in trees():
        if part_of(file) == "functional":
            assert third_parties(tree) <= (
                {"torch", "numpy"} if file.name in ("splits.py", "tails.py") else {"torch"}
            )


def test_checks_need_python_alone():
    assert third_parties(ast.parse((PACKAGE / "checks.py").read_text(encoding="utf-8"))) == set()


def test_extremes_needs_numpy_and_scipy_alone():
    for file, tree in trees():
        if part_of(file) == "extremes":
            assert third_parties(tree) <= {"numpy", "scipy"}


def test_only_distributed_talks_to_other_processes():
    for file, tree in trees():
        named = {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        talks = any(name.startswith("torch.distributed") for name in imported(tree) | named)
        assert not talks or part_of(file) == "distributed", file


def test_the_package_asserts_nothing():
    for file, tree in trees():
        assert not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), file


def test_no_file_is_a_drawer():
    assert not [file for file in FILES if file.name in ("utils.py", "common.py", "misc.py")]


# What a module brings stays loaded for those after it.
UNNEEDED = {
    "weince_lightning": {"torch", "lightning", "lightly"},
    "weince_lightning.cli": {"torch", "lightning"},
    "weince_lightning.losses": {"lightning", "lightly", "torchvision", "torch._dynamo"},
    "weince_lightning.integrations.open_clip": {"lightning", "lightly", "open_clip"},
    "weince_lightning.checkpoints": {"lightning", "lightly", "safetensors", "timm"},
    "weince_lightning.networks": {"timm"},
    "weince_lightning.callbacks": {"wandb"},
}


@pytest.fixture(scope="module")
def loaded():
    """Names of all modules that are loaded after each import of one process."""
    script = (
        "import importlib, json, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    print(json.dumps([*sys.modules]))\n"
    )
    command = [sys.executable, "-c", script, *UNNEEDED]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(zip(UNNEEDED, map(json.loads, found.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", UNNEEDED)
def test_importing_costs_no_more_than_it_needs(name, loaded):
    assert UNNEEDED[name] & set(loaded[name]) == set()
