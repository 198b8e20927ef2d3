"""Weights that a backbone starts from, read once and not again where a checkpoint is reloaded."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from weince_lightning.checkpoints import read_encoder
from weince_lightning.networks import build_encoder
from weince_lightning.networks.hubs import HUBS, hub_model

_weights_follow: ContextVar[bool] = ContextVar("_weights_follow", default=False)
_SHOWN = 3
"""Names of weights in an error."""


@contextmanager
def weights_follow() -> Iterator[None]:
    """Leave ``init_from`` of the modules that are built in the block closed.

    Their weights come from a checkpoint afterwards, and the file of the first ones may be gone.
    """
    token = _weights_follow.set(True)
    try:
        yield
    finally:
        _weights_follow.reset(token)


def load_initial_weights(backbone: nn.Module, init_from: str) -> None:
    """Give a backbone the weights of another encoder, all of them.

    Global random numbers stay as they are: what is drawn afterwards is the same without.

    Args:
        backbone: The module that gets them.
        init_from: A file (see :func:`~weince_lightning.checkpoints.read_encoder`),
            ``torchvision:NAME`` or ``timm:NAME``.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it cannot be read.
        ValueError: If the weights are not those of the backbone, or cannot be fetched.
        ModuleNotFoundError: If timm is needed and not installed.
    """
    if _weights_follow.get():
        return
    weights, origin = _read(init_from)
    own = backbone.state_dict()
    _check_stem(init_from, weights, own, backbone)
    _check_names(init_from, weights, own)
    if origin is not None:
        _check_strides(init_from, origin, backbone)
    broken = [name for name, value in weights.items() if not value.isfinite().all()]
    if broken:
        raise ValueError(f"init_from must hold finite weights, got {init_from}: {_listed(broken)}.")
    backbone.load_state_dict(weights)


def _read(init_from: str) -> tuple[Mapping[str, Tensor], nn.Module | None]:
    """Return weights by name, and the module they were trained in, as far as it is known."""
    with torch.random.fork_rng(devices=[]):
        if init_from.startswith(HUBS):
            module = hub_model(init_from, pretrained=True).module
            return module.state_dict(), module
        found = read_encoder(init_from)
        if found.unknown is not None:
            return found.encoder, None
        return found.encoder, build_encoder(**found.arguments)


def _check_stem(
    init_from: str, weights: Mapping[str, Tensor], own: Mapping[str, Tensor], backbone: nn.Module
) -> None:
    """Refuse the stem of photographs for small images, and the other way around."""
    given, wanted = weights.get("conv1.weight"), own.get("conv1.weight")
    if given is None or wanted is None or given.ndim != 4 or wanted.ndim != 4:
        return
    kernels = [f"{tensor.shape[-2]}x{tensor.shape[-1]}" for tensor in (given, wanted)]
    if kernels[0] == kernels[1]:
        return
    is_small = isinstance(getattr(backbone, "maxpool", None), nn.Identity)
    what = "small images" if is_small else "photographs"
    option = f"small_image_stem: {str(not is_small).lower()}"
    raise ValueError(
        f"init_from must hold a {kernels[1]} stem, that of a backbone for {what}, got {kernels[0]} "
        f"in {init_from}. Set backbone_options to {{{option}}}."
    )


def _check_names(init_from: str, weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Name the weights that are missing, unexpected or of another shape."""
    faults = {
        # BatchNorm counts its steps only since torch 0.4.1, and starts anew without.
        "misses": [k for k in own if k not in weights and not k.endswith("num_batches_tracked")],
        "has besides": [name for name in weights if name not in own],
        "has in other shapes": [
            f"{name} {tuple(value.shape)} for {tuple(own[name].shape)}"
            for name, value in weights.items()
            if name in own and value.shape != own[name].shape
        ],
    }
    found = [f"{what} {_listed(names)}" for what, names in faults.items() if names]
    if found:
        raise ValueError(
            f"init_from must hold the weights of the backbone, got {init_from}, which "
            f"{', '.join(found)}."
        )


def _check_strides(init_from: str, origin: nn.Module, backbone: nn.Module) -> None:
    """Refuse convolutions with other steps, which leave no trace in names and shapes."""
    modules = dict(backbone.named_modules())
    names = {name.rpartition(".")[2] for name in modules}
    for name, theirs in origin.named_modules():
        ours = modules.get(name)
        if not (isinstance(theirs, nn.Conv2d) and isinstance(ours, nn.Conv2d)):
            continue
        if theirs.stride != ours.stride:
            is_papers = str(theirs.kernel_size == (1, 1) and theirs.stride == (2, 2)).lower()
            hint = f" Set v1_stride in backbone_options to {is_papers}." if "conv3" in names else ""
            raise ValueError(
                f"init_from must hold weights for the backbone's strides, got {init_from}, where "
                f"{name} has {theirs.stride} in place of {ours.stride}.{hint}"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
