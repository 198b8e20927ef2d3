"""The same encoder before training: what to compare a trained one with."""

import copy

import torch
from torch import nn

from weince_lightning.diagnostics.encoders import Encoder

UNTRAINED = "untrained"
"""In the place of a second encoder: the first one before training."""


def as_untrained(encoder: Encoder, seed: int = 0) -> Encoder:
    """Copy an encoder with new random weights, as PyTorch initializes its layers.

    Args:
        encoder: The trained encoder, which stays as it is.
        seed: Of the weights.

    Raises:
        ValueError: If a parameter belongs to no layer that can be initialized anew.
    """
    module = copy.deepcopy(encoder.module)
    fresh = set[int]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in module.modules():
            # That of nn.MultiheadAttention is private.
            reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
            if callable(reset):
                reset()
                fresh |= {id(parameter) for parameter in part.parameters()}
    kept = [name for name, each in module.named_parameters() if id(each) not in fresh]
    if kept:
        raise ValueError(
            f"against must not be {UNTRAINED} for an encoder with weights that no layer of "
            f"PyTorch initializes, got {kept[0]}. Give a checkpoint from before training."
        )
    return encoder._replace(module=nn.Module.eval(module))
