"""What a built wheel holds, and that it works away from the source tree."""

import configparser
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
SOURCES = ("LICENSE", "README.md", "configs", "pyproject.toml", "setup.cfg", "weince_lightning")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    # From a copy: a build writes into the tree it builds from.
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next((source / "dist").glob("*.whl"))


def test_oldest_python_is_one_that_the_oldest_dependencies_take():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    refusing = {}
    for each in map(Requirement, wanted):
        try:
            found = metadata(each.name)
        except PackageNotFoundError:  # of an extra that is not for development
            continue
        bounds = [SpecifierSet(f"=={part.version}") for part in each.specifier]
        is_oldest = any(found["Version"] in bound for bound in bounds)
        if is_oldest and oldest not in SpecifierSet(found["Requires-Python"] or ""):
            refusing[each.name] = found["Requires-Python"]
    assert not refusing


def test_setup_cfg_lists_every_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    folders = {file.parent for file in (ROOT / "weince_lightning").rglob("__init__.py")}
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert listed == found | {"weince_lightning.configs"}


@pytest.mark.slow
def test_wheel_holds_the_package_its_configs_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("weince_lightning", "configs")
        for pattern in ("*.py", "*.yaml", "py.typed")
        for path in (ROOT / folder).rglob(pattern)
    }
    expected = {
        f"weince_lightning/{path}" if path.startswith("configs/") else path for path in sources
    }
    assert names == expected


@pytest.mark.slow
def test_installed_wheel_finds_its_configs_from_any_folder(wheel, tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    # The dependencies of the environment that runs the tests, after the new one's own packages.
    site = next((environment / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    command = [environment / "bin" / "weince", "fit", "-c", "digits", "--print_config"]
    result = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "dataset: digits" in result.stdout
    where = [python, "-c", "import weince_lightning; print(weince_lightning.__file__)"]
    result = subprocess.run(where, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert result.stdout.startswith(str(environment))
