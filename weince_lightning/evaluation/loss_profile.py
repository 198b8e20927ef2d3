"""Profile of a trained encoder's loss: its sharpness, and the evidence that WEINCE's gate gets."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from weince_lightning.functional.sharpness import Sharpness, sharpness
from weince_lightning.functional.vectors import unit_vectors

BATCH_SIZE = 256
"""Samples compared at once, the paper's: the more negatives, the less falls on each."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the anchors, for what differs between them."""

_PARTS = {"hardest_1_percent": 0.01, "hardest_5_percent": 0.05, "hardest_10_percent": 0.1}


def loss_profile(
    loss: Callable[[Tensor, Tensor], Tensor],
    project: Callable[[Tensor], Tensor],
    batches: Iterable[Any],
    num_batches: int = 4,
) -> dict[str, Any]:
    r"""Describe a loss on the embeddings that it has led to.

    Args:
        loss: Maps the projections ``(z0, z1)`` of two views to a scalar.
        project: Maps images to projections, shape ``(batch, features)``.
        batches: ``(views, labels)`` with two views, of any size; labels are not read.
        num_batches: How many batches of ``BATCH_SIZE`` samples are looked at. If there is not even
            one, all samples are.

    Returns:
        Means over the batches of the ``effective_temperature`` and of the shares of the gradient,
        see :func:`~weince_lightning.functional.sharpness.sharpness`. For a loss with tail evidence
        also ``gate`` (:math:`\lambda`), ``beta_hat``, ``shape``, ``rho`` and ``delta_aic``: mean,
        and quantiles over the anchors (named ``q05`` and so on); ``hardness_factor`` and
        ``fit_factor``, the two factors of the gate; and ``open_anchors``, the share of the anchors
        with :math:`\lambda > 1/2`, beside ``open_anchors_gradient``, the share of the gradient that
        moves them, by its lengths at the unit vectors.

    Raises:
        ValueError: If there is no batch of at least two samples.
    """
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).eval()  # its state would move with each batch
    found, tails = list[Sharpness](), list[dict[str, Tensor]]()
    with torch.no_grad():
        for z0, z1 in _projections(project, batches, num_batches):
            found.append(sharpness(loss, z0, z1, [*_PARTS.values()]))
            tails += _evidence(loss, z0, z1)
    columns = zip(*((f.effective_temperature, f.hardest, *f.shares) for f in found), strict=True)
    names = ("effective_temperature", "hardest", *_PARTS)
    profile: dict[str, Any] = {
        name: sum(column) / len(found) for name, column in zip(names, columns, strict=True)
    }
    if not tails:
        return profile
    evidence = {name: torch.cat([tail[name] for tail in tails]) for name in tails[0]}
    is_open, pull = evidence["gate"] > 0.5, evidence.pop("pull")
    profile["open_anchors"] = float(is_open.double().mean())
    profile["open_anchors_gradient"] = float(pull[is_open].sum() / pull.sum())
    return profile | {name: _summary(values) for name, values in evidence.items()}


def _projections(
    project: Callable[[Tensor], Tensor], batches: Iterable[Any], num_batches: int
) -> list[tuple[Tensor, Tensor]]:
    """Project as many samples as are wanted, and divide them into batches of one size."""
    views: list[tuple[Tensor, ...]] = []
    samples = 0
    for (first, second), *_ in batches:
        views.append(tuple(project(view).to(torch.float64) for view in (first, second)))
        samples += len(first)
        if samples >= num_batches * BATCH_SIZE:
            break
    if samples < 2:
        raise ValueError(f"batches must hold at least two samples, got {samples}.")
    z0, z1 = (torch.cat(parts) for parts in zip(*views, strict=True))
    size = min(samples, BATCH_SIZE)
    pairs = zip(torch.split(z0, size), torch.split(z1, size), strict=True)
    return [pair for pair in pairs if len(pair[0]) == size][:num_batches]


def _evidence(loss: Any, z0: Tensor, z1: Tensor) -> list[dict[str, Tensor]]:
    """Return what the loss says of the anchors, an empty list if it says nothing."""
    terms = loss.terms(z0, z1) if hasattr(loss, "terms") else None
    if terms is None or terms.tail is None or len(terms.tail.gate) != 2 * len(z0):
        return []
    names = ("gate", "beta_hat", "shape", "rho", "delta_aic")
    evidence = {name: getattr(terms.tail, name) for name in names}
    if is_dataclass(loss.gate):
        for name, signals in (("hardness_factor", "rho"), ("fit_factor", "aic")):
            alone = copy.copy(loss)
            alone.gate = replace(loss.gate, signals=signals)  # type: ignore[type-var]
            evidence[name] = alone.terms(z0, z1).tail.gate
    with torch.enable_grad():
        unit = unit_vectors(torch.cat([z0, z1])).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(*unit.chunk(2)), unit)
    return [{**evidence, "pull": gradient.norm(dim=1)}]


def _summary(values: Tensor) -> Mapping[str, float]:
    quantiles = torch.quantile(values, torch.tensor(QUANTILES, dtype=values.dtype))
    named = {f"q{100 * q:02.0f}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)}
    return {"mean": float(values.mean()), **named}
