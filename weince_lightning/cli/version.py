"""The versions and devices that a bug report needs: ``weince --version``."""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def print_versions() -> None:
    """Write :func:`version_lines` to standard output, each line as soon as it is known."""
    for line in version_lines():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def version_lines() -> Iterator[str]:
    """Give the versions of this package, Python and the libraries, and the devices, line by line.

    torch is imported, as its import is what fails where an installation is broken. It comes last:
    if that import ends the process, the lines before it have been written. Versions of the other
    libraries are read from their metadata.

    Yields:
        One line per fact, without a line break; the first is ``weince`` and its version.
    """
    yield f"weince {_installed('weince-lightning')}"
    yield f"Python: {platform.python_version()} ({platform.python_implementation()})"
    yield f"platform: {platform.platform()}"
    for name in ("lightning", "lightly", "torchvision", "torchmetrics", "jsonargparse", "numpy"):
        yield f"{name}: {_installed(name)}"
    try:
        import torch

        yield f"torch: {torch.__version__}"
    # A missing library, another ABI, a file called torch.py: whatever it is, it is the report.
    except Exception as error:
        yield f"torch: not importable: {_reason(error)} (installed: {_installed('torch')})"
        return
    try:
        yield f"devices: {_devices()}"
    # Failures of drivers have no class in common.
    except Exception as error:
        yield f"devices: not readable: {_reason(error)}"


def _installed(name: str) -> str:
    """Return the version in a distribution's metadata."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    """Name the accelerators that torch can use, or else the threads of the CPU."""
    import torch

    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    if torch.version.hip:
        built_for = f"ROCm {torch.version.hip}"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        cudnn: Any = torch.backends.cudnn  # without types; under ROCm it is MIOpen
        kernels = "MIOpen" if torch.version.hip else "cuDNN"
        return f"{', '.join(names)} ({built_for}, {kernels} {cudnn.version()})"
    if torch.backends.mps.is_available():
        return "MPS"
    unused = f" (torch is built for {built_for}, but finds no GPU)" if built_for else ""
    return f"CPU, torch threads: {torch.get_num_threads()}{unused}"


def _reason(error: Exception) -> str:
    """Name an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
