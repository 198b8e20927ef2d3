"""Features and labels that a linear probe reads from what a step returned."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from weince_lightning.functional.neighbours import UNKNOWN_LABEL


class LabelRange:
    """Smallest and largest label so far; gathering them does not wait for the device.

    Args:
        num_classes: Labels are below it.
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.start(torch.device("cpu"))

    def start(self, device: torch.device) -> None:
        """Begin with no label, on the device of the labels to come."""
        self._extremes = torch.tensor([UNKNOWN_LABEL, -UNKNOWN_LABEL], device=device)

    def add(self, labels: Tensor) -> None:
        """Add the labels of a batch, shape ``(samples,)``."""
        if len(labels):
            found = torch.stack([labels.max(), -labels.min()])
            self._extremes = torch.maximum(self._extremes, found)

    def check(self, strategy: Strategy) -> None:
        """Refuse labels out of range; waits for the device, and every process must call it.

        Raises:
            ValueError: If a label of any process is not -1 and not a class.
        """
        # All processes refuse together: if one stopped alone, the others would wait for it.
        extremes = strategy.reduce(self._extremes.clone(), reduce_op="max")
        largest, smallest = (extremes * extremes.new_tensor([1, -1])).tolist()
        if largest >= self.num_classes:
            raise ValueError(
                f"num_classes must be larger than every label, got {self.num_classes} and "
                f"label {largest}."
            )
        if smallest < UNKNOWN_LABEL:
            raise ValueError(
                f"labels must be at least 0, or {UNKNOWN_LABEL} where unknown, got {smallest}. "
                f"Replace it by {UNKNOWN_LABEL} if it marks unknown ones."
            )


def check_outputs(outputs: Any) -> None:
    """Refuse the outputs of a step that the probe cannot read.

    Raises:
        TypeError: If something is missing or of the wrong kind.
        ValueError: If there is not one label per sample.
    """
    if not isinstance(outputs, Mapping) or not {"features", "labels"} <= outputs.keys():
        found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise TypeError(
            "training_step and validation_step must return a dict with features (one tensor per "
            f"view) and labels for OnlineLinearProbe, got {found}."
        )
    views, labels = outputs["features"], outputs["labels"]
    if isinstance(views, Tensor) or any(view.ndim != 2 for view in views):
        shapes = "a tensor" if isinstance(views, Tensor) else [tuple(view.shape) for view in views]
        raise TypeError(
            "features must hold a tensor (samples, features) for each view for OnlineLinearProbe, "
            f"got {shapes}."
        )
    kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
    if not isinstance(kind, torch.dtype) or kind.is_floating_point or kind == torch.bool:
        raise TypeError(
            f"labels must hold integers for OnlineLinearProbe, got {kind}. Number the classes from "
            f"0, and give samples of unknown class {UNKNOWN_LABEL}."
        )
    samples = [len(view) for view in views]
    if labels.ndim != 1 or samples != [len(labels)] * len(samples):
        raise ValueError(
            "labels must have shape (samples,) for OnlineLinearProbe, got "
            f"{tuple(labels.shape)} for views of {samples} samples. Give each sample one label."
        )


def read_rows(outputs: Mapping[str, Any], samples: int | None = None) -> tuple[Tensor, Tensor]:
    """Rows of all views one below the other in float32, and the label of each row in int64.

    Args:
        outputs: What a step returned.
        samples: How many samples count, from the first; None is all.
    """
    views = [view[:samples].detach().float() for view in outputs["features"]]
    return torch.cat(views), outputs["labels"][:samples].long().repeat(len(views))
