"""The encoder in a checkpoint: its weights, what is known of it, and the module itself."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from torch import Tensor, nn

from weince_lightning.checkpoints.files import CheckpointError
from weince_lightning.checkpoints.layouts import Layout, describe_by_shapes, split_state
from weince_lightning.checkpoints.record import Checkpoint, open_checkpoint
from weince_lightning.networks import build_encoder


class EncoderWeights(NamedTuple):
    """What a checkpoint holds of an encoder.

    Attributes:
        path: The file.
        layout: Whose names its weights have: "weince_lightning" (a ``ContrastiveModule``),
            "authors" (the released code of the paper), "lightly" (a SimCLR module of its
            tutorials) or "plain" (the encoder alone, as torchvision and timm publish it).
        encoder: The encoder's weights by its own names, which are torchvision's for a ResNet.
        projection_head: Those of the projection head, named as in
            :func:`weince_lightning.networks.projection_head`; empty if there are none.
        left_out: The names in the file that belong to neither, such as the loss's.
        arguments: What is known of the arguments of
            :func:`weince_lightning.networks.build_encoder`, by name. ``backbone`` is missing where
            neither settings nor shapes tell it.
        normalization: ``mean`` and ``std`` of each channel of the images that it learnt from; empty
            for images in [0, 1], or where it is unknown.
    """

    path: Path
    layout: Layout
    encoder: dict[str, Tensor]
    projection_head: dict[str, Tensor]
    left_out: list[str]
    arguments: dict[str, Any]
    normalization: dict[str, list[float]]

    @property
    def unknown(self) -> str | None:
        """The argument without which the encoder cannot be built, if there is one."""
        if "backbone" not in self.arguments:
            return "backbone"
        # In a module of ours the stride follows from the size of the images.
        telling = "image_size" if self.layout == "weince_lightning" else "v1_stride"
        is_told = {telling, "v1_stride"} & set(self.arguments)
        return None if is_told or self.arguments["backbone"] != "resnet50" else "v1_stride"


def read_encoder(source: str | Path | Checkpoint, **arguments: Any) -> EncoderWeights:
    """Read an encoder's weights and what is known of it.

    Args:
        source: A checkpoint of a ``ContrastiveModule``, of the paper's released code
            (``encoder.*``, ``projector.*``) or of lightly's SimCLR, or the weights of a model of
            torchvision or timm; a ``state_dict`` may stand alone or under "state_dict" or "model".
            A path, or what :func:`~weince_lightning.checkpoints.open_checkpoint` returned.
        **arguments: Arguments of :func:`weince_lightning.networks.build_encoder`, as far as you
            know better than the file; None says nothing.

    Returns:
        Weights, on the CPU, and arguments.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it cannot be read or holds no weights of an encoder of images.
    """
    checkpoint = open_checkpoint(source)
    path = checkpoint.source
    if checkpoint.holds_sentence_encoder:
        raise CheckpointError(
            f"{path} must hold an encoder of images, got one of sentences. `weince validate "
            f"--ckpt_path {path}` gives its numbers; in Python, "
            "SentenceModule.load_from_checkpoint(path).backbone.model.save_pretrained(folder) "
            "writes it for transformers."
        )
    layout, encoder, head, left_out = split_state(checkpoint.state)
    if not encoder:
        content = _content(checkpoint.content)
        raise CheckpointError(f"{path} must hold weights by name, got {content}.")
    known = _settings(checkpoint) or _by_shapes(layout, encoder)
    given = {name: value for name, value in arguments.items() if value is not None}
    if given.get("backbone", known.get("backbone")) != known.get("backbone"):
        # Another backbone than was found has other options.
        known = {name: known[name] for name in ("in_channels", "image_size") if name in known}
    return EncoderWeights(
        checkpoint.path, layout, encoder, head, left_out, known | given, checkpoint.normalization
    )


def load_encoder(
    source: str | Path | Checkpoint, backbone: str | nn.Module | None = None, **arguments: Any
) -> nn.Module:
    """Build the encoder of a checkpoint and load its weights.

    Backbone, number of channels and stem are found in the file: in the settings of a
    ``ContrastiveModule``, or else in the shapes of a ResNet-18, a ResNet-50
    or a ``vit_small``. Shapes do not show where the stride of a ResNet-50's blocks stands. With
    torchvision's stem it is taken to be torchvision's too; in a file of the paper's code, or with
    the stem for small images, ``v1_stride`` must say.

    Args:
        source: See :func:`read_encoder`.
        backbone: The name of the backbone where it cannot be found, or a module for its weights.
        **arguments: Further arguments of :func:`weince_lightning.networks.build_encoder`, such as
            ``v1_stride=True``, where they cannot be found or to overrule what was found.

    Returns:
        The encoder in evaluation mode, on the CPU.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If it cannot be read, or its weights are not those of the backbone.
        ValueError: If it does not tell what is needed to build the encoder, or an argument is
            wrong.

    Example:
        >>> import tempfile, torch
        >>> from weince_lightning.networks import resnet18
        >>> folder = tempfile.TemporaryDirectory()
        >>> torch.save(resnet18(in_channels=1).state_dict(), f"{folder.name}/grey.pt")
        >>> load_encoder(f"{folder.name}/grey.pt")(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 512])
    """
    return build_known(read_encoder(source, backbone=backbone, **arguments))


def build_known(weights: EncoderWeights) -> nn.Module:
    """Build an encoder and load its weights, or name what must be told; see `load_encoder`."""
    if unknown := weights.unknown:
        raise ValueError(f"{unknown} must be given for {weights.path}: {_WHY_UNKNOWN[unknown]}")
    return build(weights)


def build(weights: EncoderWeights) -> nn.Module:
    """Build an encoder of which nothing needed is unknown, and load its weights."""
    encoder = build_encoder(**weights.arguments)
    try:
        encoder.load_state_dict(weights.encoder)
    except RuntimeError as error:
        name = weights.arguments["backbone"]
        name = f"a {type(name).__name__}" if isinstance(name, nn.Module) else f"{name!r}"
        # After its title: which weights are missing, unexpected or of another shape.
        faults = " ".join(str(error).splitlines()[1:])
        raise CheckpointError(
            f"{weights.path} must hold the weights of {name}, got others: {shorten(faults, 200)}"
        ) from error
    return encoder.eval()


_WHY_UNKNOWN = {
    "backbone": "neither its settings nor the shapes of its weights tell what encoder it holds. "
    "Give the name of a backbone, or a module for its weights.",
    "v1_stride": "the weights of a ResNet-50 do not show where its stride stands. True: on the "
    "1x1 convolutions, as the paper says; False: on the 3x3 ones, as in torchvision, whose model "
    "the paper's released code takes.",
}


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the arguments that a module of ours saved, which may lack the backbone."""
    settings = checkpoint.module_settings
    if not {"in_channels", "image_size", "backbone_options"} <= set(settings):
        return {}
    known = {"in_channels": settings["in_channels"], "image_size": settings["image_size"]}
    if not isinstance(settings.get("backbone"), str):  # a module, or a class path and arguments
        return known
    options = dict(settings["backbone_options"] or {})
    options.pop("pretrained", None)  # timm would fetch weights that ours replace
    return {"backbone": settings["backbone"], **known, **options}


def _by_shapes(layout: Layout, encoder: Mapping[str, Tensor]) -> dict[str, Any]:
    """Add to what shapes tell the stride, where only torchvision's is likely."""
    known = describe_by_shapes(encoder)
    if known.get("backbone") == "resnet50" and not known["small_image_stem"]:
        return known if layout == "authors" else {**known, "v1_stride": False}
    return known


def _content(checkpoint: object) -> str:
    """Say what a file holds instead of weights."""
    if isinstance(checkpoint, Mapping):
        return f"the keys {shorten(', '.join(map(str, checkpoint)), 100)}"
    return f"a {type(checkpoint).__name__}"
