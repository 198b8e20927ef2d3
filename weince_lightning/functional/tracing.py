"""Tensors that have no numbers of their own: under torch.compile and torch.func."""

import torch


def is_traced() -> bool:
    """Whether tensors may lack numbers, so that neither NumPy nor a cache may see them."""
    return torch.compiler.is_compiling() or is_transformed()


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` runs, such as ``grad`` or ``vmap``.

    torch has no public name for it; ``torch.autograd.Function`` asks the same.
    """
    if torch.compiler.is_compiling():  # it traces transforms by rules of its own
        return False
    return torch._C._are_functorch_transforms_active()
