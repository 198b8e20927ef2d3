"""The floors of the design: who may import whom, read from the source, strings included."""

import ast
import graphlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from cases import few

import weince_lightning

PACKAGE = Path(weince_lightning.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
NAME = "weince_lightning"

FLOORS = (
    {"checks"},
    {"functional", "extremes", "distributed", "networks", "yaml_files", "figures", "folders"},
    {"losses", "data", "checkpoints", "layers"},
    {"module", "integrations", "sweeps"},
    {"evaluation", "reporting"},
    {"callbacks", "diagnostics"},
    {"cli"},
    {"__init__", "__main__"},  # public names, loaded on first use; the command
)
"""The parts of the package, from the ground: each may import the floors below its own."""

SIDEWAYS = {("checkpoints", "losses")}
"""Imports within a floor, as (importer, imported): a checkpoint holds losses as plain values."""


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor_of(part: str) -> int:
    (floor,) = (number for number, parts in enumerate(FLOORS) if part in parts)
    return floor


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    return [(file, ast.parse(file.read_text(encoding="utf-8"))) for file in FILES]


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {}
    for file in FILES:
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def module_of(name: str) -> str | None:
    """Give the module of ours in which a dotted name lies, that of a public name its home."""
    first, *rest = name.split(".")
    if first == NAME and rest and rest[0] in weince_lightning.__all__:
        return getattr(weince_lightning, rest[0]).__module__
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name or None


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """A tree and everything under it, walked once for all that look at it."""
    return list(ast.walk(tree))


def type_checking(tree: ast.AST) -> set[ast.AST]:
    """Everything under ``if TYPE_CHECKING:``, which imports nothing when the program runs."""
    return {
        inner
        for node in nodes(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }


def docstrings(tree: ast.AST) -> set[ast.AST]:
    """Strings that stand alone, which document a module, a class, a function or an attribute."""
    return {
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def imported(tree: ast.AST, without: set[ast.AST] = frozenset()) -> set[str]:
    """Every module that import statements name, names imported from a module included."""
    names = set()
    for node in nodes(tree):
        if node in without:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def strings(tree: ast.AST) -> set[str]:
    """Every string but documentation; ``f"{__name__}.x"`` and sums of strings are put together."""
    documentation, texts = docstrings(tree), set()
    for node in nodes(tree):
        if isinstance(node, ast.JoinedStr):
            texts.add("".join(map(_shown, node.values)))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            texts.add(_shown(node.left) + _shown(node.right))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts |= {node.value} - {""} if node not in documentation else set()
    return texts


def named_in_strings(tree: ast.AST) -> set[str]:
    """Every module of ours, or name in one, that a string names.

    Such a string ends up in ``import_module``, ``__import__``, ``pkgutil.resolve_name``, a list of
    modules to preload or a class path; wherever that is, the file that holds it knows the module.
    """
    pattern = rf"(?<![\w.]){NAME}(?:\.\w+)+"
    return {name for text in strings(tree) for name in re.findall(pattern, text.replace(":", "."))}


def _shown(node: ast.AST) -> str:
    """Give the text of a part of a string, the package's name for ``__name__``."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    return (
        NAME if ast.unparse(inner) in ("__name__", "__package__") else "\N{REPLACEMENT CHARACTER}"
    )


def targets(file: Path, tree: ast.AST, with_types: bool = True) -> dict[Path, str]:
    """Map the files that a file imports, lazily too, or names in strings, to the names it uses."""
    names = imported(tree, set() if with_types else type_checking(tree)) | named_in_strings(tree)
    found = {}
    for name in sorted(names):
        module = module_of(name)
        # A name in a folder of data belongs to no module but the package, which is no arrow.
        if module not in (None, NAME) and modules()[module] != file:
            found[modules()[module]] = name
    return found


def third_parties(tree: ast.AST) -> set[str]:
    roots = {name.split(".")[0] for name in imported(tree)}
    return roots - set(sys.stdlib_module_names) - {"weince_lightning"}


def test_every_part_has_a_floor():
    parts = {part_of(file) for file in FILES}
    assert parts == set().union(*FLOORS)
    assert len(parts) == sum(map(len, FLOORS))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_imports_and_strings_name_lower_floors_alone(file):
    part = part_of(file)
    for target, name in targets(file, dict(trees())[file]).items():
        other = part_of(target)
        is_allowed = floor_of(other) < floor_of(part) or (part, other) in SIDEWAYS
        assert other == part or is_allowed, name


def test_files_import_each_other_in_no_circle():
    """Lazy imports and strings count; imports for types alone, and packages' own names, do not."""
    graph = {file: targets(file, tree, with_types=False) for file, tree in trees()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = [file.relative_to(PACKAGE).as_posix() for file in error.args[1]]
        pytest.fail(" <- ".join(circle))


@pytest.mark.parametrize(
    "hidden",
    [
        'importlib.import_module("weince_lightning.cli.lightning_cli")',
        '__import__("weince_lightning.__main__")',
        'pkgutil.resolve_name("weince_lightning.cli:main")',
        'import_module(f"{__name__}.cli")',
        '"weince_lightning" + ".cli"',
        'command = [sys.executable, "-c", "import weince_lightning.cli.sweep"]',
        "def later():\n    from weince_lightning.cli import main",
    ],
)
def test_an_arrow_hidden_in_a_string_is_seen(hidden):
    file = PACKAGE / "sweeps" / "processes.py"
    found = {part_of(target) for target in targets(file, ast.parse(hidden))}
    assert found in ({"cli"}, {"__main__"})


def test_documentation_is_no_arrow():
    text = 'def f():\n    """See weince_lightning.cli.main."""'
    assert not targets(PACKAGE / "sweeps" / "processes.py", ast.parse(text))


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


def test_only_distributed_uses_torch_distributed():
    first_line = (PACKAGE / "distributed.py").read_text(encoding="utf-8").partition("\n")[0]
    assert "the only user of ``torch.distributed``" in first_line
    for file, tree in trees():
        named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        named |= {text for text in strings(tree) if re.fullmatch(r"[\w.]+", text)}
        uses = any(name.startswith("torch.distributed") for name in imported(tree) | named)
        assert not uses or part_of(file) == "distributed", file


def test_benchmarks_need_no_command():
    for file in sorted((PACKAGE.parent / "benchmarks").glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = imported(tree) | named_in_strings(tree)
        assert not [name for name in names if name.startswith(f"{NAME}.cli")], file


def test_the_package_asserts_nothing():
    for file, tree in trees():
        assert not any(isinstance(node, ast.Assert) for node in nodes(tree)), file


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


@cache
def loaded(*names: str) -> dict[str, list[str]]:
    """Names of all modules that are loaded after each import of one process."""
    script = (
        "import importlib, json, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    print(json.dumps([*sys.modules]))\n"
    )
    command = [sys.executable, "-c", script, *names]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(zip(names, map(json.loads, found.stdout.splitlines()), strict=True))


# The callbacks import Lightning, which takes most of the time.
@pytest.mark.parametrize("name", few(UNNEEDED, *range(len(UNNEEDED) - 1)))
def test_importing_costs_no_more_than_it_needs(name):
    *light, heavy = UNNEEDED
    found = loaded(*UNNEEDED) if name == heavy else loaded(*light)
    assert UNNEEDED[name] & set(found[name]) == set()
