"""Whether similarities of sentences agree with people, and sentences find their partners."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics.functional import spearman_corrcoef

from weince_lightning.callbacks.evaluation_monitor import EvaluationMonitor
from weince_lightning.checks import check_integer
from weince_lightning.data.padding import Padding
from weince_lightning.distributed import gather
from weince_lightning.functional.retrieval import paired_similarity, top1_among


class SentenceSimilarityMonitor(EvaluationMonitor):
    """Log what the features of pairs of sentences are worth, at the end of validation and of test.

    It reads the ``features`` (of the first and of the second sentences) and ``labels`` that
    ``validation_step`` and ``test_step`` return, as those of
    :class:`~weince_lightning.module.SentenceModule` do with the pairs of
    :class:`~weince_lightning.data.SentenceData`; nothing is computed twice, and training goes as
    without it. The sanity check is skipped, each pair counts once whatever a distributed sampler
    repeats, and several processes log what one would.

    - ``sts/spearman``, over all pairs whose labels are floating-point numbers, the scores that
      people gave: Spearman's rank correlation of score and cosine similarity, -1 to 1.
    - ``retrieval/top1``, over all other pairs: the part of the first sentences to which, among the
      second ones of ``num_candidates`` pairs, their own is nearest by cosine similarity. Pairs are
      put in the order of their labels, which are numbers.

    Features of the latter wait for the end of the epoch on the device.

    Args:
        num_candidates: Sentences among which each looks for its partner, at least 2; fewer if there
            are fewer pairs.

    Raises:
        ValueError: If ``num_candidates`` is out of its range.
    """

    def __init__(self, num_candidates: int = 1000) -> None:
        self.num_candidates = check_integer("num_candidates", num_candidates, at_least=2)
        self._padding = Padding()
        self._scored: list[Tensor] = []
        self._features: list[Tensor] = []
        self._numbers: list[Tensor] = []

    def _start(self, loaders: Any) -> None:
        self._scored, self._features, self._numbers = [], [], []
        self._padding.start(loaders)

    def _read(self, outputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The features of both sides of some pairs, detached, and their labels."""
        if isinstance(outputs, Mapping):
            features, labels = outputs.get("features"), outputs.get("labels")
            if isinstance(features, Sequence) and len(features) == 2 and isinstance(labels, Tensor):
                return features[0].detach(), features[1].detach(), labels
        raise self._refusal("features (a pair of tensors) and labels", outputs)

    def _keep(
        self, found: tuple[Tensor, Tensor, Tensor], batch_idx: int, dataloader_idx: int
    ) -> None:
        first, second, labels = found
        own = self._padding.count(len(labels), dataloader_idx).own
        first, second, labels = first[:own], second[:own], labels[:own]
        if labels.is_floating_point():
            similarity = paired_similarity(first, second)
            self._scored.append(torch.stack([similarity, labels.to(similarity.dtype)], dim=1))
        else:
            self._features.append(torch.stack([first, second], dim=1))
            self._numbers.append(labels)

    def _log(self, pl_module: LightningModule) -> None:
        metrics = {}
        if self._scored:
            similarity, scores = gather(torch.cat(self._scored)).unbind(dim=1)
            metrics["sts/spearman"] = spearman_corrcoef(similarity, scores)
        if self._features:
            features = gather(torch.cat(self._features))
            order = gather(torch.cat(self._numbers)).argsort(stable=True)
            first, second = features[order].unbind(dim=1)
            metrics["retrieval/top1"] = top1_among(first, second, self.num_candidates)
        for name, value in metrics.items():
            # All processes have the same number; the mean of three of them would be rounded.
            pl_module.log(name, value, prog_bar=True, sync_dist=True, reduce_fx="max")
