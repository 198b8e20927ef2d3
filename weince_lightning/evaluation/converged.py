"""The linear probe at the end of its training: multinomial logistic regression."""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import LBFGS

from weince_lightning.evaluation.samples import Samples, accuracy, score_seeds
from weince_lightning.evaluation.settings import LinearSettings

_MOST_ITERATIONS = 5000
_LARGEST_GRADIENT = 1e-5
"""Of the mean loss, where the search ends: scikit-learn ends at 1e-4."""


def fit_to_convergence(
    train: Samples, test: Samples, settings: LinearSettings, kept: MutableMapping[str, Any]
) -> list[dict[str, float]]:
    """Minimise scikit-learn's ``LogisticRegression(C=1)`` for the split of each seed.

    Args:
        train: Training samples, from which each seed keeps a part for validation.
        test: Test samples.
        settings: Settings.
        kept: Where the numbers of each seed go, and come from.

    Returns:
        ``val_top1`` and ``test_top1`` of each seed.
    """
    num_classes = int(train.classes.max()) + 1

    def score(rest: Samples, val: Samples) -> dict[str, float]:
        layer = _minimise(rest, num_classes)
        return {"val_top1": accuracy(val, *layer), "test_top1": accuracy(test, *layer)}

    return score_seeds("logistic regression", train, settings, kept, score)


def _minimise(samples: Samples, num_classes: int) -> tuple[Tensor, Tensor]:
    features = samples.features.double()
    classes = samples.classes.to(features.device)
    weight = features.new_zeros(num_classes, features.shape[1]).requires_grad_()
    bias = features.new_zeros(num_classes).requires_grad_()
    search = LBFGS(
        [weight, bias],
        max_iter=_MOST_ITERATIONS,
        max_eval=2 * _MOST_ITERATIONS,
        tolerance_grad=_LARGEST_GRADIENT,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        search.zero_grad()
        logits = torch.addmm(bias, features, weight.T)
        # scikit-learn adds up losses and half the squares of the weights, but not of the biases.
        penalty = weight.square().sum() / (2 * len(classes))
        loss = cross_entropy(logits, classes) + penalty
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(objective)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()
