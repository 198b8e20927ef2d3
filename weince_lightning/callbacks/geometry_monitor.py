"""How embeddings lie on the unit sphere, and whether they collapse."""

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from weince_lightning.callbacks.evaluation_monitor import EvaluationMonitor
from weince_lightning.callbacks.kept_batches import KeptBatches, Pairs
from weince_lightning.checks import check_integer, check_number
from weince_lightning.functional.geometry import (
    CandidateGeometry,
    alignment,
    candidate_geometry,
    effective_rank,
    normalized_std,
    positive_similarity,
    uniformity,
)
from weince_lightning.functional.layouts import Layout

COLLAPSED_STD = 0.01
r"""Collapse: a standard deviation below this part of :math:`1 / \sqrt d`, that of vectors that
point everywhere alike. The mean cosine similarity of two samples is then above 0.9999; networks at
their random start had parts of 0.05 to 0.6."""

DEFAULT_TEMPERATURE = 0.5
"""Temperature of the information estimate where neither the monitor nor the loss has one."""


class GeometryMonitor(EvaluationMonitor):
    r"""Log alignment, uniformity, effective rank and information of a validation or test split.

    It reads the ``features`` and ``projections`` (one tensor per view) that ``validation_step`` and
    ``test_step`` return, labels play no part, and logs at the end of the epoch; the sanity check is
    skipped. Once it warns of collapse: where the standard deviation falls below a hundredth of
    :math:`1 / \sqrt d`.

    Of the projections, on which the loss works, over the whole split:

    - ``geometry/alignment``, mean squared distance of the two views of a sample, 0 to 4, and
      ``geometry/positive_similarity``, their mean cosine similarity;
    - ``geometry/uniformity``, of all pairs of samples in each view, mean of the two views; -8 to 0,
      lower is more even;
    - ``geometry/projection_effective_rank`` and ``geometry/projection_std``, of both views' rows.

    Of the features, which later tasks use, over the whole split, both views' rows:

    - ``geometry/effective_rank``, how many directions are in use (RankMe), 1 to their number;
    - ``geometry/std``, standard deviation after scaling to unit length, mean over the dimensions:
      0 for collapsed features, :math:`1 / \sqrt d` for evenly spread ones.

    Of the projections, over each batch and then the mean over all anchors, since candidates are
    those of a batch (that of all processes, as the loss sees it by default; neither queues nor
    memory banks, and a batch of one sample has none):

    - ``geometry/hardest_negative_similarity``, an anchor's largest cosine similarity to a negative;
    - ``geometry/information``, an estimate in nats of what a view tells of the other:
      log(candidates) - cross-entropy of the softmax link, whatever the link of the loss, and
      ``geometry/information_limit``, log(candidates), which it cannot exceed.

    See :mod:`weince_lightning.functional.geometry` for formulas and papers. What a split is too
    small for is not logged.

    With several processes all samples count, once each: what the distributed sampler repeats is
    left out. The numbers are those of one process with batches as large as all processes' together.
    Processes talk at the end of the epoch alone, so that they may have different numbers of
    batches.

    Args:
        max_samples: Samples kept until the end of the epoch, at least 1; they wait on the CPU. Of a
            larger split every second, fourth, ... batch counts, so that they are spread over it.
            (The first batch of each loader always does.)
        temperature: Temperature of the information estimate, positive, dimensionless. None takes
            that of the module's ``loss``, or 0.5 if it has none.

    Raises:
        ValueError: If a number is out of its range.
    """

    def __init__(self, max_samples: int = 10_000, temperature: float | None = None) -> None:
        check_integer("max_samples", max_samples, at_least=1)
        if temperature is not None:
            check_number("temperature", temperature, above=0.0, condition="be positive or None")
        self.max_samples = max_samples
        self.temperature = temperature
        self._batches = KeptBatches(max_samples)
        self._has_warned = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begin a run that has not warned yet."""
        self._has_warned = False

    def _start(self, loaders: Any) -> None:
        self._batches.start(loaders)

    def _read(self, outputs: Any) -> Pairs:
        """The features and projections of a step's two views, side by side."""
        if isinstance(outputs, Mapping):
            both: list[Any] = [outputs.get(name) for name in Pairs._fields]
            if all(isinstance(views, Sequence) and len(views) == 2 for views in both):
                return Pairs(*(torch.stack(list(views), dim=1).detach() for views in both))
        raise self._refusal("features and projections (each a pair, one tensor per view)", outputs)

    def _keep(self, found: Pairs, batch_idx: int, dataloader_idx: int) -> None:
        self._batches.add(found, batch_idx, dataloader_idx)

    def _log(self, pl_module: LightningModule) -> None:
        batches = self._batches.join(pl_module.device)
        if not sum(len(batch.projections) for batch in batches):
            return
        split = Pairs(*map(torch.cat, zip(*batches, strict=True)))
        metrics = _split_metrics(split)
        with_negatives = [pairs.projections for pairs in batches if len(pairs.projections) > 1]
        if with_negatives:
            metrics |= self._candidate_metrics(with_negatives, getattr(pl_module, "loss", None))
        for name, value in metrics.items():
            # Some come from the CPU, where NCCL cannot average them.
            pl_module.log(f"geometry/{name}", value.to(pl_module.device), sync_dist=True)
        if len(split.features) > 1:
            self._warn_of_collapse(split, metrics)

    def _candidate_metrics(self, batches: list[Tensor], loss: Any) -> dict[str, Tensor]:
        """Means over the anchors of all batches, each among the candidates of its own."""
        temperature = self.temperature or _temperature_of(loss)
        named = getattr(loss, "layout", None)
        layout = cast(Layout, named if named in get_args(Layout) else "views")
        found = [candidate_geometry(z[:, 0], z[:, 1], temperature, layout) for z in batches]
        sizes = found[0].information.new_tensor([len(z) for z in batches])
        columns = zip(CandidateGeometry._fields, zip(*found, strict=True), strict=True)
        return {name: torch.stack(values) @ sizes / sizes.sum() for name, values in columns}

    def _warn_of_collapse(self, split: Pairs, metrics: dict[str, Tensor]) -> None:
        """Warn once, of what has collapsed."""
        for name, std in (("features", "std"), ("projections", "projection_std")):
            even = getattr(split, name).shape[-1] ** -0.5
            if not self._has_warned and metrics[std] < COLLAPSED_STD * even:
                self._has_warned = True
                rank_zero_warn(
                    f"The {name} have collapsed: scaled to unit length they differ by a standard "
                    f"deviation of {metrics[std]:.1e} (geometry/{std}), evenly spread ones by "
                    f"{even:.1e}. All images look the same to the encoder. Try a lower learning "
                    "rate or a warm-up, and see that every anchor has negatives."
                )


def _split_metrics(split: Pairs) -> dict[str, Tensor]:
    """What concerns all samples together."""
    z0, z1 = split.projections.unbind(dim=1)
    features, projections = (tensor.flatten(0, 1) for tensor in split)
    metrics = {
        "alignment": alignment(z0, z1),
        "positive_similarity": positive_similarity(z0, z1),
        "effective_rank": effective_rank(features),
        "std": normalized_std(features),
        "projection_effective_rank": effective_rank(projections),
        "projection_std": normalized_std(projections),
    }
    if len(z0) > 1:
        metrics["uniformity"] = (uniformity(z0) + uniformity(z1)) / 2
    return metrics


def _temperature_of(loss: Any) -> float:
    """The temperature of a loss, whoever wrote it."""
    value = getattr(loss, "temperature", None)
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, float | int) and value > 0 else DEFAULT_TEMPERATURE
