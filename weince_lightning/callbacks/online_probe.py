"""A linear classifier that learns beside the encoder and never touches it."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torchmetrics import Metric

from weince_lightning.callbacks.probe_inputs import LabelRange, check_outputs, read_rows
from weince_lightning.checks import check_integer, check_number
from weince_lightning.data.padding import Padding
from weince_lightning.functional.neighbours import UNKNOWN_LABEL

TOP_K = (1, 5)
"""Among how many of the largest scores a label is looked for."""


class OnlineLinearProbe(Callback):
    r"""Train a linear classifier on the detached features, and log its accuracy.

    It learns by Adam from the ``features`` (both views) and ``labels`` that ``training_step``
    returns, in float32 whatever the precision, one step per batch; with several processes from the
    batches of all, so that the probe is the same everywhere. It starts at zero: the problem is
    convex, and no random number is drawn. Samples with label -1 are left out. The classifier, its
    optimizer and the counts live in the callback and in its part of the checkpoint, never in the
    module. Probes with different names do not disturb each other. A training begins with a new
    probe unless it resumes: from a checkpoint, or with the same trainer.

    Labels out of range are refused: in one process on a CPU by the batch, else when the trainer
    logs and at the end of the epoch, without waiting for the device in between.

    It logs, once per epoch, the part of the labelled samples whose label has the largest score:
    ``probe/train_top1``, each batch before the probe has learnt from it, and ``probe/val_top1``,
    each sample once (what the distributed sampler repeats is left out). With more than 5 classes
    also the part whose label is among the 5 largest: ``probe/train_top5`` and ``probe/val_top5``.

    Args:
        num_classes: Classes, at least 2; labels are below it.
        name: What stands before the slash in the metrics' names.
        learning_rate: Learning rate of the probe's Adam, positive.

    Raises:
        ValueError: If a number is out of its range.
    """

    def __init__(self, num_classes: int, name: str = "probe", learning_rate: float = 1e-2) -> None:
        check_integer("num_classes", num_classes, at_least=2)
        check_number("learning_rate", learning_rate, above=0.0, condition="be positive")
        self.num_classes = num_classes
        self.name = name
        self.learning_rate = learning_rate
        self._classifier: _LinearClassifier | None = None
        self._loaded: dict[str, Any] = {}
        self._top_k = tuple(k for k in TOP_K if k < num_classes)
        # The counts of all processes come with each batch: a checkpoint, which one process writes,
        # holds them all.
        self._train_accuracy = LabelledAccuracy(len(self._top_k), sync_on_compute=False)
        self._val_accuracy = LabelledAccuracy(len(self._top_k))
        self._val_padding = Padding()
        self._train_labels, self._val_labels = LabelRange(num_classes), LabelRange(num_classes)
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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin a training with a new probe; a checkpoint's comes later."""
        self._train_accuracy.reset()
        self._has_warned = False
        if stage == "fit" and trainer.global_step == 0:
            self._classifier, self._loaded = None, {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from a checkpoint."""
        self._restore(pl_module.device)
        self._train_labels.start(pl_module.device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Score the batch, then learn from it."""
        if not outputs:  # training_step skipped the batch
            return
        check_outputs(outputs)
        features, labels = read_rows(outputs)
        self._train_labels.add(labels)
        is_free = features.device.type == "cpu" and trainer.world_size == 1
        steps = max(1, trainer.log_every_n_steps)  # type: ignore[attr-defined]
        is_logged = (batch_idx + 1) % steps == 0
        if self._classifier is None or is_free or is_logged:
            self._train_labels.check(trainer.strategy)
        if self._classifier is None:
            self._classifier = self._build(features.shape[1], features.device)
        with torch.autocast(features.device.type, enabled=False):
            scores = self._classifier.score(features)
            counts = count_right(scores.detach(), labels, self._top_k)
            counts = trainer.strategy.reduce(counts, reduce_op="sum")
            self._train_accuracy.update(counts)
            self._classifier.learn(scores, labels, counts[-1], trainer.strategy)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's accuracy on the training batches."""
        if self._classifier is not None:
            self._train_labels.check(trainer.strategy)
            self._log(pl_module, "train", self._train_accuracy)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score with a checkpoint's classifier where nothing is trained; begin to count."""
        self._restore(pl_module.device)
        self._val_accuracy.reset()
        self._val_labels.start(pl_module.device)
        self._val_padding.start(trainer.val_dataloaders)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score the batch if the probe has learnt anything yet; a sanity check only reads it."""
        if self._classifier is None and not trainer.sanity_checking:
            return
        check_outputs(outputs)
        self._val_labels.add(outputs["labels"].long())
        if self._classifier is not None and not trainer.sanity_checking:
            samples = self._val_padding.count(len(outputs["labels"]), dataloader_idx).own
            features, labels = read_rows(outputs, samples)
            with torch.autocast(features.device.type, enabled=False):
                scores = self._classifier.score(features)
            self._val_accuracy.update(count_right(scores, labels, self._top_k))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the accuracy on the validation batches, of several loaders together."""
        self._val_labels.check(trainer.strategy)
        if self._classifier is not None and not trainer.sanity_checking:
            self._log(pl_module, "val", self._val_accuracy)

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

    def _log(self, pl_module: LightningModule, split: str, accuracy: "LabelledAccuracy") -> None:
        """Log and start anew; nothing labelled gives one warning instead."""
        values = accuracy.compute().view(-1)  # torchmetrics makes one value a scalar
        accuracy.reset()
        if not values.isnan().any():
            for k, value in zip(self._top_k, values, strict=True):
                pl_module.log(f"{self.name}/{split}_top{k}", value, sync_dist=True)
        elif not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f'OnlineLinearProbe "{self.name}" logs no {split}_top1: no sample has a label.'
            )


def count_right(scores: Tensor, labels: Tensor, top_k: Sequence[int]) -> Tensor:
    """Count the samples whose label is among the largest scores; does not wait for the device.

    As for ``argmax``, of equal scores the first class comes first, and NaN is larger than all.

    Args:
        scores: Shape ``(samples, classes)``.
        labels: Shape ``(samples,)``, -1 where unknown: never right, and not counted.
        top_k: Among how many of the largest scores.

    Returns:
        Counts for each ``k``, and the labelled samples as the last one; int64.

    Example:
        >>> scores = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [9.0, 0.0, 0.0]])
        >>> count_right(scores, torch.tensor([0, 2, -1]), top_k=(1, 2))
        tensor([1, 2, 2])
    """
    num_classes = scores.shape[1]
    column = labels.clamp(0, num_classes - 1)[:, None]
    at_label = scores.gather(1, column)
    classes = torch.arange(num_classes, device=scores.device)
    ahead = ~(scores <= at_label) | ((scores == at_label) & (classes < column))
    place = ahead.sum(dim=1).where(labels == column[:, 0], num_classes)
    right = [(place < k).sum() for k in top_k]
    return torch.stack([*right, (labels != UNKNOWN_LABEL).sum()])


class LabelledAccuracy(Metric):
    """The part of the labelled samples that is right, for each k; NaN without any.

    Unlike torchmetrics' own accuracy an update does not wait for the device, and "nothing labelled"
    differs from "all wrong".

    Args:
        num_k: For how many k :func:`count_right` counts.
        **options: Those of ``torchmetrics.Metric``.

    Example:
        >>> accuracy = LabelledAccuracy(2)
        >>> accuracy.update(torch.tensor([3, 6, 8]))
        >>> accuracy.update(torch.tensor([1, 2, 2]))
        >>> accuracy.compute()
        tensor([0.4000, 0.8000])
    """

    counts: Tensor

    def __init__(self, num_k: int, **options: Any) -> None:
        super().__init__(**options)
        # Persistent: a checkpoint within an epoch keeps the count so far.
        none = torch.zeros(num_k + 1, dtype=torch.int64)
        self.add_state("counts", none, dist_reduce_fx="sum", persistent=True)

    def update(self, counts: Tensor) -> None:
        """Add what :func:`count_right` returned for a batch."""
        self.counts = self.counts + counts

    def compute(self) -> Tensor:
        """Divide, over all processes."""
        return self.counts[:-1] / self.counts[-1]


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

    def learn(self, scores: Tensor, labels: Tensor, labelled: Tensor, strategy: Strategy) -> None:
        """One step on the mean cross-entropy over the labelled samples of all processes."""
        # A label out of range, which is refused when labels are read, would stop a GPU for good.
        is_class = (labels >= 0) & (labels < len(self.weight))
        targets = labels.where(is_class, UNKNOWN_LABEL)
        total = cross_entropy(scores, targets, ignore_index=UNKNOWN_LABEL, reduction="sum")
        gradients = torch.autograd.grad(total, [self.weight, self.bias])
        count = labelled.clamp_min(1)
        for parameter, gradient in zip([self.weight, self.bias], gradients, strict=True):
            parameter.grad = strategy.reduce(gradient, reduce_op="sum") / count
        self.optimizer.step()
