"""The encoder in micro-batches: a loss over a large batch in the memory of a small one."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Encode = Callable[[Tensor], tuple[Tensor, Tensor]]


def encode_in_micro_batches(
    module: nn.Module, encode: Encode, images: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Encode images a few at a time, without keeping what the encoder computed on the way.

    The backward computes it again, one micro-batch after the other: a second forward of each, with
    torch's random numbers and the autocast of the first. Values and gradients are those of
    ``encode`` called on the micro-batches; where the rows of a batch do not meet in the encoder
    and nothing is random, they are those of the whole batch.

    Since ``encode`` runs twice, it must do the same twice: it must not log, count, or change
    ``images`` in place. What it changes in the buffers of ``module``, such as the running
    statistics of BatchNorm, it changes in the first run only. The second run reads them as the last
    micro-batch left them, so a buffer that the encoder both changes and needs in training (that of
    spectral normalisation) makes the gradient inexact.

    Args:
        module: Whose buffers ``encode`` may change.
        encode: From images ``(batch, ...)`` to features and projections ``(batch, ...)``.
        images: All images, shape ``(batch, ...)``.
        size: Largest number of images in a micro-batch, at least 1. Their sizes differ by one at
            most, so that no rest of one image upsets BatchNorm.

    Returns:
        Features and projections of all images, with gradient.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> images = torch.rand(5, 3)
        >>> features, _ = encode_in_micro_batches(layer, lambda x: (layer(x), layer(x)), images, 2)
        >>> torch.allclose(features, layer(images))
        True
    """
    dtype = torch.get_default_dtype()
    num_parts = max(1, math.ceil(len(images) / size))
    parts = [
        checkpoint(
            encode,
            part,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=lambda: (nullcontext(), _second_run(module, dtype)),
        )
        for part in images.tensor_split(num_parts)
    ]
    features, projections = zip(*parts, strict=True)
    return torch.cat(features), torch.cat(projections)


@contextmanager
def _second_run(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Give the module copies of its buffers, and new tensors the type they had in the first run."""
    # Copies, not None or a momentum of 0: the second run has to save the same tensors as the first,
    # and the number of batches counts up whatever the momentum.
    buffers = [
        (owner, name, buffer)
        for owner in module.modules()
        for name, buffer in owner.named_buffers(recurse=False)
    ]
    # Lightning's "64-true" sets the default type around the training step, not the backward.
    backward_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    for owner, name, buffer in buffers:
        setattr(owner, name, buffer.clone())
    try:
        yield
    finally:
        for owner, name, buffer in buffers:
            setattr(owner, name, buffer)
        torch.set_default_dtype(backward_dtype)
