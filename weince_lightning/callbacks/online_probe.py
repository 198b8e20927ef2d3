"""A linear classifier that learns beside the encoder and never touches it."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torchmetrics import Metric

from weince_lightning.functional.neighbours import UNKNOWN_LABEL


class OnlineLinearProbe(Callback):
    r"""Train a linear classifier on the detached features, and log its accuracy.

    It learns by Adam from the ``features`` (both views) and ``labels`` that ``training_step``
    returns, in float32 whatever the precision, one step per batch; with several processes from the
    batches of all, so that the probe is the same everywhere. It starts at zero: the problem is
    convex, and no random number is drawn. Samples with label -1 are left out. The classifier, its
    optimizer and the counts live in the callback and in its part of the checkpoint, never in the
    module. Probes with different names do not disturb each other.

    It logs, once per epoch, the part of the labelled samples told right: ``probe/train_top1``, each
    batch before the probe has learnt from it, and ``probe/val_top1``.

    Args:
        num_classes: Classes, at least 2; labels are below it.
        name: What stands before the slash in the metrics' names.
        learning_rate: Learning rate of the probe's Adam, positive.

    Raises:
        ValueError: If a number is out of its range.
    """

    def __init__(self, num_classes: int, name: str = "probe", learning_rate: float = 1e-2) -> None:
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, got {num_classes}.")
        if not learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {learning_rate}.")
        self.num_classes = num_classes
        self.name = name
        self.learning_rate = learning_rate
        self._classifier: _LinearClassifier | None = None
        self._loaded: dict[str, Any] = {}
        self._train_accuracy = LabelledAccuracy()
        self._val_accuracy = LabelledAccuracy()
        self._has_warned = False

    @property
    def state_key(self) -> str:
        """The probe's place in a checkpoint, by its name."""
        return self._generate_state_key(name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Classifier, optimizer and the epoch's counts: tensors, numbers and containers of them."""
        if self._classifier is None:
            return self._loaded
        return {
            "weight": self._classifier.weight.detach(),
            "bias": self._classifier.bias.detach(),
            "optimizer": self._classifier.optimizer.state_dict(),
            "train_accuracy": self._train_accuracy.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the device is known."""
        self._loaded = state_dict
        self._classifier = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from a checkpoint."""
        self._restore(pl_module.device)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Score the batch, then learn from it."""
        if not outputs:  # training_step skipped the batch
            return
        features, labels = _features_and_labels(outputs)
        if self._classifier is None:
            # At the first batch alone: reading a label waits for the device.
            if (largest := int(labels.max())) >= self.num_classes:
                raise ValueError(
                    f"num_classes must be larger than every label, got {self.num_classes} and "
                    f"label {largest}."
                )
            self._classifier = self._build(features.shape[1], features.device)
        with torch.autocast(features.device.type, enabled=False):
            scores = self._classifier.score(features)
            # All processes count all samples, so that the first one's count can be saved for all.
            self._train_accuracy.update(scores.detach(), labels, trainer.strategy)
            self._classifier.learn(scores, labels, trainer.strategy)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's accuracy on the training batches."""
        if self._classifier is not None:
            self._log(pl_module, "train_top1", self._train_accuracy)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score with a checkpoint's classifier where nothing is trained."""
        self._restore(pl_module.device)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score the batch, if the probe has learnt anything yet."""
        if self._classifier is not None and not trainer.sanity_checking:
            features, labels = _features_and_labels(outputs)
            with torch.autocast(features.device.type, enabled=False):
                self._val_accuracy.update(self._classifier.score(features), labels)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the accuracy on the validation batches."""
        if self._classifier is not None and not trainer.sanity_checking:
            self._log(pl_module, "val_top1", self._val_accuracy)

    def _build(self, num_features: int, device: torch.device) -> "_LinearClassifier":
        """A classifier at zero; the counts move to its device."""
        self._train_accuracy.to(device)
        self._val_accuracy.to(device)
        return _LinearClassifier(num_features, self.num_classes, self.learning_rate, device)

    def _restore(self, device: torch.device) -> None:
        """Build what a checkpoint held, if one was loaded."""
        if not self._loaded:
            return
        # Out of the evaluation loop's inference mode: its tensors could not learn later.
        with torch.inference_mode(False), torch.no_grad():
            self._classifier = self._build(self._loaded["weight"].shape[1], device)
            self._classifier.weight.copy_(self._loaded["weight"])
            self._classifier.bias.copy_(self._loaded["bias"])
            self._classifier.optimizer.load_state_dict(self._loaded["optimizer"])
            self._train_accuracy.load_state_dict(self._loaded["train_accuracy"])
        self._loaded = {}

    def _log(self, pl_module: LightningModule, metric: str, accuracy: "LabelledAccuracy") -> None:
        """Log and start anew; nothing labelled gives one warning instead."""
        value = accuracy.compute()
        accuracy.reset()
        if not value.isnan():
            pl_module.log(f"{self.name}/{metric}", value, sync_dist=True)
        elif not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f'OnlineLinearProbe "{self.name}" logs no {metric}: no sample has a label.'
            )


class LabelledAccuracy(Metric):
    """The part of the labelled samples whose largest score is at their label; NaN without any.

    Unlike torchmetrics' own accuracy an update does not wait for the device, and "nothing labelled"
    differs from "all wrong".

    Example:
        >>> accuracy = LabelledAccuracy()
        >>> scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 0.0]])
        >>> accuracy.update(scores, labels=torch.tensor([0, 0, -1]))
        >>> accuracy.compute()
        tensor(0.5000)
    """

    correct: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        # Persistent: a checkpoint within an epoch keeps the count so far.
        for name in ("correct", "total"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum", persistent=True)

    def update(self, scores: Tensor, labels: Tensor, strategy: Strategy | None = None) -> None:
        """Count a batch: scores of shape ``(B, classes)``, labels of shape ``(B,)``.

        With a strategy, count the batches of all its processes in each; the part stays the same.
        """
        # No class is -1: an unknown label is never right.
        counts = torch.stack(
            [(scores.argmax(dim=1) == labels).sum(), (labels != UNKNOWN_LABEL).sum()]
        )
        if strategy is not None:
            counts = cast(Tensor, strategy.reduce(counts, reduce_op="sum"))
        self.correct = self.correct + counts[0]
        self.total = self.total + counts[1]

    def compute(self) -> Tensor:
        """Divide, over all processes."""
        return self.correct / self.total


class _LinearClassifier:
    """Weights at zero and their optimizer."""

    def __init__(
        self, num_features: int, num_classes: int, learning_rate: float, device: torch.device
    ) -> None:
        self.weight = torch.zeros(num_classes, num_features, device=device, requires_grad=True)
        self.bias = torch.zeros(num_classes, device=device, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.weight, self.bias], lr=learning_rate)

    def score(self, features: Tensor) -> Tensor:
        """Scores of shape ``(B, classes)``."""
        return linear(features, self.weight, self.bias)

    def learn(self, scores: Tensor, labels: Tensor, strategy: Strategy) -> None:
        """One step on the mean cross-entropy over the labelled samples of all processes."""
        total = cross_entropy(scores, labels, ignore_index=UNKNOWN_LABEL, reduction="sum")
        gradients = torch.autograd.grad(total, [self.weight, self.bias])
        count = strategy.reduce((labels != UNKNOWN_LABEL).sum(), reduce_op="sum").clamp_min(1)
        for parameter, gradient in zip([self.weight, self.bias], gradients, strict=True):
            parameter.grad = strategy.reduce(gradient, reduce_op="sum") / count
        self.optimizer.step()


def _features_and_labels(outputs: Any) -> tuple[Tensor, Tensor]:
    """Rows of all views one below the other in float32, and the label of each row."""
    if not isinstance(outputs, Mapping) or not {"features", "labels"} <= outputs.keys():
        found = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise TypeError(
            "training_step and validation_step must return a dict with features (one tensor per "
            f"view) and labels for OnlineLinearProbe, got {found}."
        )
    views = [view.detach().float() for view in outputs["features"]]
    return torch.cat(views), outputs["labels"].repeat(len(views))
