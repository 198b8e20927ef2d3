"""Frozen features in, the numbers of the paper's tables out."""

from collections.abc import MutableMapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from weince_lightning.evaluation.converged import fit_to_convergence
from weince_lightning.evaluation.knn import score_neighbours
from weince_lightning.evaluation.linear import train_probes
from weince_lightning.evaluation.samples import Samples
from weince_lightning.evaluation.settings import KNNSettings, LinearSettings
from weince_lightning.functional.neighbours import UNKNOWN_LABEL, known_labels

Scores = dict[str, dict[str, Any]]
"""For each metric ``{"mean": mean over the seeds, "values": [one for each seed]}``."""

_LINEAR, _KNN = LinearSettings(), KNNSettings()


def evaluate(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    linear: LinearSettings | None = _LINEAR,
    knn: KNNSettings | None = _KNN,
    kept: MutableMapping[str, Any] | None = None,
) -> dict[str, Scores]:
    """Evaluate frozen features by the paper's protocol: a linear probe and nearest neighbours.

    Every seed keeps a stratified part of the training samples for validation. The probe trains
    on the others, and they are the bank of the neighbours. Both are asked for the labels of that
    part (``val_...``) and of the test samples (``test_...``); nothing is selected by them. Samples
    with label -1 are left out. Global random numbers stay untouched.

    The paper's probe, 100 epochs of Adam at 3e-4, stops well short of convergence: it rewards
    features that are quick to fit. ``LinearSettings(converge=True)`` fits to the end.

    Args:
        train_features: Features of the training samples, shape ``(samples, features)``; their
            device does the work.
        train_labels: Their labels, integers of at least 0, -1 where unknown, shape ``(samples,)``.
        test_features: Features of the test samples.
        test_labels: Their labels. One that no training sample has is never told right.
        linear: How the linear probe is trained; None leaves it out.
        knn: How neighbours vote; None leaves that out.
        kept: What an earlier call with the same samples was given, and has filled until it was
            interrupted: the numbers are those of a call that was not, to the last bit.

    Returns:
        Under "linear" ``val_top1`` and ``test_top1``; under "knn" ``val_top1_k{k}``,
        ``test_top1_k{k}``, and ``val_recall_at_{r}`` and ``test_recall_at_{r}`` for r in 1, 2, 5,
        10, 20, 50: the share of samples with their label among the r nearest. Each is ``{"mean":
        ..., "values": [one for each seed]}``, as shares in [0, 1].

    Raises:
        NoLabelError: If no training sample or no test sample has a label.
        ValueError: If shapes do not fit together, or a feature is NaN or infinite.

    References:
        Erol et al., "WEINCE: When Softmax Fails at the Top", ICML 2026, arXiv:2606.00262.

    Example:
        >>> labels = torch.arange(100) % 2
        >>> features = torch.nn.functional.one_hot(labels, 3).float()
        >>> found = evaluate(
        ...     features, labels, features, labels,
        ...     LinearSettings(epochs=1, seeds=(1, 2)), KNNSettings(k=5, seeds=(1,)),
        ... )
        >>> found["knn"]["test_top1_k5"]
        {'mean': 1.0, 'values': [1.0]}
        >>> len(found["linear"]["val_top1"]["values"])
        2
    """
    names = torch.unique(train_labels[train_labels != UNKNOWN_LABEL].cpu())
    train = _samples("train", train_features, train_labels, names)
    test = _samples("test", test_features, test_labels, names)
    if train.features.shape[1] != test.features.shape[1]:
        raise ValueError(
            f"test_features must have as many features as train_features, "
            f"{train.features.shape[1]}, got {test.features.shape[1]}."
        )
    test = Samples(test.features.to(train.features), test.classes)
    kept = {} if kept is None else kept
    scores = {}
    if linear is not None:
        by_seed = fit_to_convergence if linear.converge else train_probes
        scores["linear"] = _over_seeds(by_seed(train, test, linear, kept))
    if knn is not None:
        scores["knn"] = _over_seeds(score_neighbours(train, test, knn, kept))
    return scores


def _samples(name: str, features: Tensor, labels: Tensor, names: Tensor) -> Samples:
    """Keep the labelled samples, and number their classes."""
    has_label = known_labels(f"{name}_features", features, f"{name}_labels", labels)
    if not has_label.all():
        features, labels = features[has_label.to(features.device)], labels[has_label]
    finite = features.isfinite().all(dim=1)
    if not finite.all():
        raise ValueError(
            f"{name}_features must be finite, got NaN or infinity in {int((~finite).sum())} of "
            f"{len(finite)} rows."
        )
    labels = labels.cpu()
    classes = torch.searchsorted(names, labels).clamp_max(len(names) - 1)
    return Samples(features.detach(), classes.where(names[classes] == labels, len(names)))


def _over_seeds(by_seed: Sequence[dict[str, float]]) -> Scores:
    columns = {name: [scores[name] for scores in by_seed] for name in by_seed[0]}
    return {name: {"mean": fmean(values), "values": values} for name, values in columns.items()}
