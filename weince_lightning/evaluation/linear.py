"""The linear probe of the paper, for all seeds at once."""

import math
import time
from collections.abc import MutableMapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weince_lightning.evaluation.progress import progress_bar
from weince_lightning.evaluation.samples import Samples, accuracy
from weince_lightning.evaluation.settings import LinearSettings

SECONDS_BETWEEN_SAVES = 30.0


def train_probes(
    train: Samples, test: Samples, settings: LinearSettings, kept: MutableMapping[str, Any]
) -> list[dict[str, float]]:
    """Train a probe for each seed by Adam, and count what it tells right at the last epoch.

    All seeds are one batched product: the same numbers as one by one, up to rounding.

    Args:
        train: Training samples, from which each seed keeps a part for validation.
        test: Test samples.
        settings: Settings.
        kept: Where the state of the training goes, every half a minute and at its end, and comes
            from.

    Returns:
        ``val_top1`` and ``test_top1`` of each seed.
    """
    place = str(settings)
    state = kept.get(place, {})
    if "results" in state:
        return list(state["results"])
    seeds, batch_size = settings.seeds, settings.batch_size
    splits = [train.split(settings.val_fraction, seed) for seed in seeds]
    parts = torch.stack([rest for rest, _ in splits])
    weight, bias = _first_weights(train, seeds)
    optimizer = torch.optim.Adam([weight, bias], settings.learning_rate, fused=True)
    steps_per_epoch = math.ceil(parts.shape[1] / batch_size)
    num_steps, first = settings.epochs * steps_per_epoch, state.get("step", 0)
    if state:
        optimizer.load_state_dict(state["optimizer"])
        weight.copy_(state["weight"])
        bias.copy_(state["bias"])
    saved_at = time.monotonic()
    with torch.no_grad(), progress_bar("linear probe", num_steps, first) as bar:
        for step in range(first, num_steps):
            epoch, batch = divmod(step, steps_per_epoch)
            if step == first or batch == 0:
                order = _order(parts, seeds, epoch)
            rows = order[:, batch * batch_size : (batch + 1) * batch_size]
            weight.grad, bias.grad = _gradients(weight, bias, train, rows)
            optimizer.step()
            bar.update()
            if time.monotonic() - saved_at > SECONDS_BETWEEN_SAVES:
                kept[place] = {
                    "step": step + 1,
                    "weight": weight.clone(),
                    "bias": bias.clone(),
                    "optimizer": deepcopy(optimizer.state_dict()),
                }
                saved_at = time.monotonic()
    results = []
    for (_, val), own_weight, own_bias in zip(splits, weight, bias[:, 0], strict=True):
        val_top1 = accuracy(train.take(val), own_weight, own_bias)
        results.append({"val_top1": val_top1, "test_top1": accuracy(test, own_weight, own_bias)})
    kept[place] = {"results": results}
    return results


def _first_weights(train: Samples, seeds: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Draw what ``torch.manual_seed(seed); nn.Linear(...)`` would, for each seed."""
    num_features, num_classes = train.features.shape[1], int(train.classes.max()) + 1
    weights, biases = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.empty(num_classes, num_features, dtype=train.features.dtype)
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
        bound = 1 / math.sqrt(num_features)
        biases.append(weight.new_empty(1, num_classes).uniform_(-bound, bound, generator=generator))
        weights.append(weight)
    weight, bias = (torch.stack(each).to(train.features.device) for each in (weights, biases))
    return weight, bias


def _gradients(weight: Tensor, bias: Tensor, train: Samples, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate the mean cross-entropy of each seed's batch: softmax minus the target.

    By hand, it takes half the time of autograd.
    """
    device = train.features.device
    features = train.features.index_select(0, rows.flatten().to(device)).view(*rows.shape, -1)
    error = torch.baddbmm(bias, features, weight.mT).softmax(2)
    target = train.classes[rows].to(device)[..., None]
    error.scatter_add_(2, target, error.new_full((), -1.0).expand_as(target))
    error /= rows.shape[1]
    return torch.bmm(error.mT, features), error.sum(1, keepdim=True)


def _order(parts: Tensor, seeds: tuple[int, ...], epoch: int) -> Tensor:
    """Put the samples of each seed in the order of an epoch, which depends on these two alone."""
    # RandomState: NumPy promises that its stream never changes.
    orders = [np.random.RandomState([seed, epoch]).permutation(parts.shape[1]) for seed in seeds]
    return parts.gather(1, torch.from_numpy(np.stack(orders)))
