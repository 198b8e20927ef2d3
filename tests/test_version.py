"""`weince --version`: what a bug report needs, one line each, whatever state torch is in."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from weince_lightning.cli import main

ROOT = Path(__file__).parents[1]


def fake_torch(gpus=(), cuda=None, hip=None, mps=False):
    """The part of torch that tells devices."""
    return SimpleNamespace(
        __version__="2.14.1",
        version=SimpleNamespace(cuda=cuda, hip=hip),
        cuda=SimpleNamespace(
            is_available=lambda: bool(gpus),
            device_count=lambda: len(gpus),
            get_device_name=lambda index: gpus[index],
        ),
        backends=SimpleNamespace(
            cudnn=SimpleNamespace(version=lambda: 92400),
            mps=SimpleNamespace(is_available=lambda: mps),
        ),
        get_num_threads=lambda: 2,
    )


def test_every_version_has_a_line_and_the_first_is_ours(capsys):
    main(["--version"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"weince {version('weince-lightning')}"
    facts = dict(line.split(": ", 1) for line in lines[1:])
    libraries = ("lightning", "lightly", "torchvision", "torchmetrics", "jsonargparse", "numpy")
    assert [*facts] == ["Python", "platform", *libraries, "torch", "devices"]
    assert facts["Python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert {name: facts[name] for name in libraries} == {name: version(name) for name in libraries}
    assert facts["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("library", "devices"),
    [
        (fake_torch(), "CPU, torch threads: 2"),
        (fake_torch(mps=True), "MPS"),
        (fake_torch(gpus=["A", "B"], cuda="13.0"), "A, B (CUDA 13.0, cuDNN 92400)"),
        (fake_torch(gpus=["A"], hip="7.1"), "A (ROCm 7.1, MIOpen 92400)"),
        (
            fake_torch(cuda="13.0"),
            "CPU, torch threads: 2 (torch is built for CUDA 13.0, but finds no GPU)",
        ),
        (
            SimpleNamespace(__version__="2.14.1"),
            "not readable: AttributeError: 'types.SimpleNamespace' object has no attribute "
            "'version'",
        ),
    ],
)
def test_devices_are_named_in_one_line(library, devices, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", library)
    main(["--version"])
    assert capsys.readouterr().out.splitlines()[-1] == f"devices: {devices}"


def test_a_torch_that_is_missing_is_reported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    main(["--version"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("torch: not importable: ModuleNotFoundError: ")


def report_beside(source, folder):
    """What `python -m weince_lightning --version` gives where torch is this file."""
    (folder / "torch.py").write_text(source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "weince_lightning", "--version"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_a_torch_that_fails_is_reported_in_one_line(tmp_path):
    result = report_beside("raise OSError('libcudart.so.13:\\n  cannot open')", tmp_path)
    assert result.returncode == 0
    assert result.stderr == ""
    installed = version("torch")
    assert result.stdout.splitlines()[-1] == (
        f"torch: not importable: OSError: libcudart.so.13: cannot open (installed: {installed})"
    )


def test_a_torch_that_ends_the_process_leaves_the_other_lines(tmp_path):
    result = report_beside("import os; os._exit(9)", tmp_path)
    assert result.returncode == 9
    assert result.stdout.splitlines()[-1] == f"numpy: {version('numpy')}"
