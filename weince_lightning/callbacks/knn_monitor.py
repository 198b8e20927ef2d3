"""How well nearest neighbours tell the label, while the encoder trains."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from weince_lightning.functional.neighbours import UNKNOWN_LABEL, neighbour_scores

RECALL_AT = (1, 2, 5, 10, 20, 50)
"""Numbers of neighbours of the recall, as in the paper's tables."""


def extract_features(model: LightningModule, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Compute the features of a data set in evaluation mode, without gradient.

    Modes, BatchNorm statistics and gradients of the model are left as they were.

    Args:
        model: Its ``forward`` maps images to features, shape ``(B, features)``.
        batches: ``(images, labels)``, anything after them is ignored.

    Returns:
        Features, shape ``(samples, features)``, and labels, shape ``(samples,)``, on the CPU in
        the order of the batches.
    """
    modes = [(module, module.training) for module in model.modules()]
    features, labels = [], []
    try:
        model.eval()
        with torch.no_grad():
            for images, batch_labels, *_ in batches:
                features.append(model(images.to(model.device, model.dtype)).cpu())
                labels.append(batch_labels.cpu())
    finally:
        for module, training in modes:
            module.training = training
    return torch.cat(features), torch.cat(labels)


class KNNMonitor(Callback):
    r"""Log the accuracy of a nearest-neighbour vote over the encoder's features.

    At the end of a validation epoch the validation split asks, in a test run the test split; the
    training split answers. Both come from ``evaluation_dataloader`` of the data module, and the
    encoder is in evaluation mode. Neighbours are the nearest by cosine similarity :math:`s` and
    vote with weight :math:`\exp(s / \tau)`, see
    :func:`~weince_lightning.functional.neighbours.neighbour_scores`. The sanity check is skipped,
    samples with label -1 are left out. Every process computes the whole score.

    It logs ``knn/top1_k{k}`` for each ``k``, ``knn/top1`` for the largest, and
    ``knn/recall_at_{r}`` for r in 1, 2, 5, 10, 20, 50: the part of the queries with their label
    among the r nearest. ``ModelCheckpoint(monitor="knn/top1", mode="max")`` keeps the best encoder;
    with ``every_n_epochs`` give it the same number.

    Args:
        k: Numbers of neighbours that vote, each at least 1; more than the bank holds means all.
        temperature: Temperature :math:`\tau` of the votes, positive, dimensionless.
        name: What stands before the slash in the metrics' names.
        every_n_epochs: Epochs of training between two looks, at least 1; ``validate`` and ``test``
            always look.

    Raises:
        ValueError: If a number is out of its range.
    """

    def __init__(
        self,
        k: Sequence[int] = (1, 5, 20, 50),
        temperature: float = 0.1,
        name: str = "knn",
        every_n_epochs: int = 1,
    ) -> None:
        if not k or min(k) < 1:
            raise ValueError(f"k must hold numbers of at least 1, got {tuple(k)}.")
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}.")
        if every_n_epochs < 1:
            raise ValueError(f"every_n_epochs must be at least 1, got {every_n_epochs}.")
        self.k = tuple(k)
        self.temperature = temperature
        self.name = name
        self.every_n_epochs = every_n_epochs
        self._has_warned = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a data module that can not give the bank, before anything is trained."""
        data: Any = getattr(trainer, "datamodule", None)
        if stage != "predict" and not callable(getattr(data, "evaluation_dataloader", None)):
            found = "none (plain loaders were passed)" if data is None else type(data).__name__
            raise TypeError(
                "trainer.datamodule must have a method evaluation_dataloader(split) that gives "
                '(images, labels) of the split "train", "val" or "test" in a fixed order, got '
                f"{found}. KNNMonitor takes its bank and its queries from there: pass a data "
                "module such as weince_lightning.data.VisionData, or remove the callback."
            )

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the validation split."""
        if trainer.sanity_checking:
            return
        # The epochs of ModelCheckpoint(every_n_epochs), which fails where its metric is absent.
        is_turn = (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if is_turn or trainer.state.fn != "fit":
            self._log_scores(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the test split."""
        self._log_scores(trainer, pl_module, "test")

    def _log_scores(
        self, trainer: Trainer, pl_module: LightningModule, split: Literal["val", "test"]
    ) -> None:
        with isolate_rng():
            bank, bank_labels = self._features(trainer, pl_module, "train")
            queries, query_labels = self._features(trainer, pl_module, split)
        for labels, of_split in ((bank_labels, "train"), (query_labels, split)):
            if not (labels != UNKNOWN_LABEL).any():
                self._warn_once(of_split)
                return
        scores = neighbour_scores(
            queries.to(pl_module.device), query_labels, bank, bank_labels,
            self.k, RECALL_AT, self.temperature,
        )  # fmt: skip
        top1 = dict(zip(self.k, scores.accuracy, strict=True))
        metrics = {f"{self.name}/top1_k{k}": value for k, value in top1.items()}
        for r, value in zip(RECALL_AT, scores.recall, strict=True):
            metrics[f"{self.name}/recall_at_{r}"] = value
        pl_module.log_dict(metrics, sync_dist=True)
        pl_module.log(f"{self.name}/top1", top1[max(self.k)], prog_bar=True, sync_dist=True)

    def _features(
        self, trainer: Trainer, pl_module: LightningModule, split: Literal["train", "val", "test"]
    ) -> tuple[Tensor, Tensor]:
        """The features of a split; of its first batches in a ``fast_dev_run``."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        batches = data.evaluation_dataloader(split)
        num_batches = int(trainer.fast_dev_run) or None  # type: ignore[attr-defined]
        return extract_features(pl_module, islice(batches, num_batches))

    def _warn_once(self, split: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f'KNNMonitor "{self.name}" logs nothing: no sample of the split "{split}" has a '
                "label."
            )
