"""The equations of WEINCE as plain loops: the oracle of the tests.

Evidence is arithmetic on Python numbers, because nothing flows back through it; only similarities,
logits and cross-entropies are (float64, scalar) tensors. Nothing here is shared with the package.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6


@dataclass
class Evidence:
    """What one anchor's tail says."""

    beta_hat: float
    r_squared: float
    delta_aic: float
    rho: float
    num_points: int


def unit(row: Tensor) -> Tensor:
    norm = row.square().sum().sqrt()
    return row * 0 if float(norm.detach()) < 1e-6 else row / norm


Key = tuple[Tensor, int | None]
"""A unit vector of an earlier batch and what it shows, if that is known."""


def candidates_of(
    z0: Tensor,
    z1: Tensor,
    layout: str,
    ids: Tensor | None = None,
    negatives: Tensor | None = None,
    queue: Sequence[Key] = (),
) -> list[tuple[Tensor, Tensor, list[Tensor]]]:
    """Each anchor with its positive and its negatives, all of unit length, order [z0; z1].

    The layout "bank" has no negatives but the keys of the queue and the explicit ones.
    """
    n = len(z0)
    sides = [[unit(row) for row in z0], [unit(row) for row in z1]]
    names = list(range(n)) if ids is None else ids.tolist()
    result = []
    for side in (0, 1) if layout in ("views", "pairs") else (0,):
        for i in range(n):
            found = []
            for other in (0, 1) if layout == "views" else (1 - side,):
                for j in range(n) if layout != "bank" else ():
                    if names[j] != names[i]:
                        found.append(sides[other][j])
            for key, name in queue if side == 0 else ():
                if ids is None or name is None or name != names[i]:
                    found.append(key)
            if side == 0 and negatives is not None:
                extra = negatives if negatives.ndim == 2 else negatives[i]
                found += [unit(row) for row in extra]
            result.append((sides[side][i], sides[1 - side][i], found))
    return result


def enqueued(queue: Sequence[Key], z1: Tensor, ids: Tensor | None, size: int) -> list[Key]:
    """The queue after a batch: the newest ``size`` keys, oldest first."""
    names = [None] * len(z1) if ids is None else ids.tolist()
    batch = [(unit(row), name) for row, name in zip(z1.detach(), names, strict=True)]
    return [*queue, *batch][-size:]


def line(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """Ordinary least squares: slope, residual and total sum of squares."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    sxx = max(sum((a - mean_x) ** 2 for a in x), 1e-12)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sxx
    sse = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return slope, max(sse, 1e-12), sum((b - mean_y) ** 2 for b in y)


def fit(ascending: list[float], k: int) -> tuple[float, float, float, int]:
    """Weibull and Gumbel lines through the k smallest shortfalls."""
    burn = max(1, k // 20)
    ranks = range(burn + 1, k + 1)
    if len(ranks) < 2:
        return 0.0, 0.0, 0.0, len(ranks)
    x = [math.log(ascending[r - 1]) for r in ranks]
    log_position = [math.log(r / (k + 1)) for r in ranks]
    beta, sse_weibull, total = line(x, log_position)
    gumbel, sse_gumbel, _ = line(x, [math.log(-value) for value in log_position])
    r_squared = min(max(1 - sse_weibull / total, 0.0), 1.0)
    sse_weibull += 1e6 if beta <= 0 else 0.0
    sse_gumbel += 1e6 if gumbel >= 0 else 0.0
    delta_aic = len(ranks) * (math.log(sse_gumbel) - math.log(sse_weibull))
    return max(beta, 0.0), r_squared, delta_aic, len(ranks)


def evidence(shortfalls: list[float], tail_fraction: float = 0.1, least: int = 32) -> Evidence:
    if not shortfalls:
        return Evidence(0.0, 0.0, 0.0, 2.0, 0)
    ascending = sorted(shortfalls)
    k = min(len(ascending), max(10, least, round(tail_fraction * len(ascending))))
    return Evidence(*fit(ascending, k)[:3], ascending[0], max(k - max(1, k // 20), 0))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def hardness_reference(found: list[Evidence], quantile: float = 0.2) -> float:
    return sorted(e.rho for e in found)[round(quantile * (len(found) - 1))]


def gates(
    found: list[Evidence],
    quantile: float = 0.2,
    kappa_rho: float = 10.0,
    kappa_aic: float = 1.0,
    margin: float = 2.0,
    signals: str = "both",
    hard: bool = False,
) -> list[float]:
    rho0 = hardness_reference(found, quantile)
    result = []
    for e in found:
        by_rho = sigmoid(kappa_rho * (math.log(rho0) - math.log(e.rho)))
        by_aic = sigmoid(kappa_aic * (e.delta_aic - margin))
        if hard:
            by_rho, by_aic = float(e.rho <= rho0), float(e.delta_aic >= margin)
        factor = {"both": by_rho * by_aic, "rho": by_rho, "aic": by_aic}[signals]
        result.append(factor if e.num_points >= 2 else 0.0)
    return result


def shapes(
    found: list[Evidence],
    target: float | None = None,
    c: float = 100.0,
    r2_min: float = 0.2,
    minimum: float = 0.5,
    maximum: float = 16.0,
) -> list[float]:
    if target is None:
        weight = sum(e.r_squared for e in found)
        target = sum(e.r_squared * e.beta_hat for e in found) / weight if weight > 0 else 0.0
    result = []
    for e in found:
        n = e.num_points * e.r_squared
        trusted = e.r_squared >= r2_min and e.beta_hat > 0
        w = n / (n + c) if trusted else 0.0
        result.append(min(max(w * e.beta_hat + (1 - w) * target, minimum), maximum))
    return result


def shortfall(similarity: Tensor) -> Tensor:
    """1 - s, floored; where the floor holds it is a constant."""
    value = 1 - similarity
    return value if float(value.detach()) > EPS else value.detach() * 0 + EPS


def cross_entropy(positive: Tensor, negatives: list[Tensor]) -> Tensor:
    return torch.stack([positive, *negatives]).logsumexp(0) - positive


def compare(batch: list[tuple[Tensor, Tensor, list[Tensor]]]) -> list[tuple[Tensor, list[Tensor]]]:
    """Similarities of each anchor to its positive and to its negatives."""
    return [((u * p).sum(), [(u * v).sum() for v in found]) for u, p, found in batch]


def infonce(scores: list[tuple[Tensor, list[Tensor]]], temperature: float) -> Tensor:
    losses = [cross_entropy(p / temperature, [s / temperature for s in ns]) for p, ns in scores]
    return torch.stack(losses).mean()


def tail_of(
    scores: list[tuple[Tensor, list[Tensor]]], tail_fraction: float = 0.1, least: int = 32
) -> list[Evidence]:
    return [
        evidence([float(shortfall(s.detach())) for s in ns], tail_fraction, least)
        for _, ns in scores
    ]


def weince(
    scores: list[tuple[Tensor, list[Tensor]]],
    gate: list[float],
    shape: list[float],
    temperature: float,
) -> Tensor:
    losses = []
    for (positive, negatives), lam, beta in zip(scores, gate, shape, strict=True):

        def logit(s: Tensor, lam: float = lam, beta: float = beta) -> Tensor:
            return (1 - lam) * s / temperature - lam * beta * shortfall(s).log()

        losses.append(cross_entropy(logit(positive), [logit(s) for s in negatives]))
    return torch.stack(losses).mean()


def labelled(
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Similarities of each anchor to its positives and to its negatives."""
    anchors, names = [unit(row) for row in embeddings], labels.tolist()
    candidates, their_names = anchors, names
    if references is not None:
        candidates, their_names = [unit(row) for row in references], reference_labels.tolist()
    result = []
    for i, anchor in enumerate(anchors):
        positives, negatives = [], []
        for j, candidate in enumerate(candidates):
            if references is not None or i != j:
                kind = positives if names[i] == their_names[j] else negatives
                kind.append((anchor * candidate).sum())
        result.append((positives, negatives))
    return result


def supervised(positives: list[Tensor], negatives: list[Tensor]) -> Tensor:
    """The mean over the positives' logits of the cross-entropy among all, as a loop."""
    if not positives:
        return torch.zeros((), dtype=torch.float64)
    total = torch.stack([*positives, *negatives]).logsumexp(0)
    return sum((total - logit for logit in positives), start=total * 0) / len(positives)
