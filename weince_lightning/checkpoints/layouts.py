"""Naming schemes of encoder weights, and the architecture that their shapes tell."""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

Layout = Literal["weince_lightning", "authors", "lightly", "plain"]

_CLASSIFIER = re.compile(r"(fc|head|classifier|heads\.head|head\.fc)\.(weight|bias)")
"""What torchvision and timm call the layer that :mod:`weince_lightning.networks` takes away."""

_RESNETS = {
    ("BasicBlock", (2, 2, 2, 2), 64): "resnet18",
    ("BasicBlock", (2, 2, 2, 2), 16): "resnet18_slim",
    ("Bottleneck", (3, 4, 6, 3), 64): "resnet50",
}
"""By block, number of blocks in each stage and channels of the first convolution."""


def find_state(checkpoint: object) -> dict[str, Tensor]:
    """Return the weights in what a file held, without the prefixes that wrappers add.

    Args:
        checkpoint: A ``state_dict``, alone or under the key "state_dict" or "model".

    Returns:
        Tensors by name, empty if there are none.
    """
    if isinstance(checkpoint, Mapping):
        wrapped = checkpoint.get("state_dict", checkpoint.get("model"))
        checkpoint = wrapped if isinstance(wrapped, Mapping) else checkpoint
    named = checkpoint.items() if isinstance(checkpoint, Mapping) else ()
    state = {
        name.replace("_orig_mod.", ""): tensor  # the prefix of torch.compile
        for name, tensor in named
        if isinstance(name, str) and isinstance(tensor, Tensor)
    }
    if all(name.startswith("module.") for name in state):  # that of DistributedDataParallel
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    return state


def split_state(
    state: Mapping[str, Tensor],
) -> tuple[Layout, dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Tell the encoder's weights from the projection head's and from what is neither.

    Args:
        state: Tensors by name.

    Returns:
        Whose names they are; the encoder's weights by its own names; those of the projection head,
        named as :func:`weince_lightning.networks.projection_head` does; and the names of the rest.
    """
    if any(name.startswith("backbone.") for name in state):
        layout: Layout = "weince_lightning"
        encoder = _below(state, "backbone.")
        head = _below(state, "projection_head.")
        if stages := _stages_by_number(encoder):
            layout = "lightly"
            encoder = {_as_torchvision(name, stages): value for name, value in encoder.items()}
        prefixes: tuple[str, ...] = ("backbone.", "projection_head.")
    elif all(name.startswith(("encoder.", "projector.")) for name in state):
        layout = "authors"
        encoder = _below(state, "encoder.")
        head = {f"layers.{name}": value for name, value in _below(state, "projector.").items()}
        prefixes = ("encoder.", "projector.")
    else:
        layout = "plain"
        encoder = {k: value for k, value in state.items() if not _CLASSIFIER.fullmatch(k)}
        return layout, encoder, {}, [name for name in state if name not in encoder]
    return layout, encoder, head, [name for name in state if not name.startswith(prefixes)]


def describe_by_shapes(encoder: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tell from its weights which encoder of :mod:`weince_lightning.networks` they belong to.

    Args:
        encoder: Weights by the encoder's own names, in torchvision's way.

    Returns:
        The arguments of :func:`weince_lightning.networks.build_encoder` that can be told: for a
        ResNet ``backbone``, ``in_channels`` and ``small_image_stem``, but not where the stride of
        its blocks stands, which leaves no trace in the weights; for a small vision transformer
        ``backbone``, ``in_channels``, ``image_size`` and ``patch_size``; for timm's transformers
        ``in_channels`` and ``image_size``. Empty for others.
    """
    if {"pos_embed", "patch_embed.proj.weight"} <= set(encoder):
        _, in_channels, patch_size, _ = encoder["patch_embed.proj.weight"].shape
        # Some of timm's count one or two tokens that stand for no patch.
        num_tokens = encoder["pos_embed"].shape[1]
        squares = [n for n in range(num_tokens, num_tokens - 3, -1) if n == math.isqrt(n) ** 2]
        sizes = [{"image_size": math.isqrt(n) * patch_size} for n in squares]
        return {"in_channels": in_channels, **(sizes[0] if sizes else {})}
    if "class_token" in encoder and "conv_proj.weight" in encoder:
        width, in_channels, patch_size, _ = encoder["conv_proj.weight"].shape
        if width != 384:
            return {}
        num_patches = encoder["encoder.pos_embedding"].shape[1] - 1
        return {
            "backbone": "vit_small",
            "in_channels": in_channels,
            "image_size": round(num_patches**0.5) * patch_size,
            "patch_size": patch_size,
        }
    stages = [
        len({name.split(".")[1] for name in encoder if name.startswith(f"layer{stage}.")})
        for stage in (1, 2, 3, 4)
    ]
    block = "Bottleneck" if "layer1.0.conv3.weight" in encoder else "BasicBlock"
    stem = encoder.get("conv1.weight")
    if stem is None or stem.ndim != 4 or stem.shape[-1] not in (3, 7):
        return {}
    backbone = _RESNETS.get((block, (stages[0], stages[1], stages[2], stages[3]), len(stem)))
    if backbone is None:
        return {}
    return {
        "backbone": backbone,
        "in_channels": stem.shape[1],
        "small_image_stem": stem.shape[-1] == 3,
    }


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }


def _stages_by_number(encoder: Mapping[str, Tensor]) -> dict[str, str]:
    """Map the numbers that a ResNet's four stages have in an ``nn.Sequential`` to their names.

    lightly's models are ``nn.Sequential(*resnet.children())`` without the classifier; a max-pool
    that was left out moves the numbers.
    """
    blocks = [re.fullmatch(r"(\d+)\.0\.conv1\.weight", name) for name in encoder]
    numbers = sorted({int(block[1]) for block in blocks if block})
    if len(numbers) != 4:
        return {}
    return {str(number): f"layer{stage}" for stage, number in enumerate(numbers, start=1)}


def _as_torchvision(name: str, stages: Mapping[str, str]) -> str:
    number, _, rest = name.partition(".")
    return f"{({'0': 'conv1', '1': 'bn1'} | dict(stages)).get(number, number)}.{rest}"
