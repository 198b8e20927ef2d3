"""A network that torch.compile makes faster in training, and that is itself everywhere else."""

from typing import Any

import torch
from torch import nn


def compile_for_training(network: nn.Module) -> None:
    """Compile a network in place, for as long as it is in training mode.

    In place, the names of its weights stay; copies and pickles of it are plain networks. In
    evaluation it runs as it is: nothing is compiled for the odd sizes of last batches, and the
    numbers are those of a run without a compiler.
    """
    call_impl: Any = network._call_impl

    def plainly(*arguments: Any, **options: Any) -> Any:
        return call_impl(*arguments, **options)

    # By a function of ours: up to torch 2.10 compiling torch's own leaves it as it is, unsaid.
    compiled = torch.compile(plainly)

    def call(*arguments: Any, **options: Any) -> Any:
        run = compiled if network.training else plainly
        return run(*arguments, **options)

    network._compiled_call_impl = call  # where nn.Module.compile keeps its own


def run_plainly(network: nn.Module) -> None:
    """Undo :func:`compile_for_training`."""
    network._compiled_call_impl = None
