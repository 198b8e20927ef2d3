"""What the loss of a trained encoder does: how sharp it is, and what the gate of WEINCE sees."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from weince_lightning.functional.sharpness import Sharpness, sharpness

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
        batches: ``(views, labels)`` with two views; labels are not read. A batch smaller than the
            first is left out.
        num_batches: How many of them are read.

    Returns:
        Means over the batches of the ``effective_temperature`` and of the shares of the gradient,
        see :func:`~weince_lightning.functional.sharpness.sharpness`. For a loss with tail evidence
        also ``gate`` (:math:`\lambda`), ``beta_hat``, ``shape``, ``rho`` and ``delta_aic``: mean,
        and quantiles over the anchors (named ``q05`` and so on); and ``hardness_factor`` and
        ``fit_factor``, the two factors of the gate.

    Raises:
        ValueError: If there is no batch of at least two samples.
    """
    loss = _in_evaluation_mode(loss)
    found, tails, size = list[Sharpness](), list[dict[str, Tensor]](), 0
    with torch.no_grad():
        for views, *_ in batches:
            if len(found) == num_batches or len(views[0]) < max(size, 2):
                break
            size = len(views[0])
            z0, z1 = (project(view).to(torch.float64) for view in views)
            found.append(sharpness(loss, z0, z1, [*_PARTS.values()]))
            tails += _evidence(loss, z0, z1)
    if not found:
        raise ValueError("batches must hold at least one batch of two samples, got none.")
    columns = zip(*((f.effective_temperature, f.hardest, *f.shares) for f in found), strict=True)
    names = ("effective_temperature", "hardest", *_PARTS)
    profile: dict[str, Any] = {
        name: sum(column) / len(found) for name, column in zip(names, columns, strict=True)
    }
    for name in tails[0] if tails else ():
        profile[name] = _summary(torch.cat([tail[name] for tail in tails]))
    return profile


def _in_evaluation_mode(loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Copy a loss whose state would move with each batch."""
    return copy.deepcopy(loss).eval() if isinstance(loss, nn.Module) else loss


def _evidence(loss: Any, z0: Tensor, z1: Tensor) -> list[dict[str, Tensor]]:
    """Return what the loss says of the anchors, an empty list if it says nothing."""
    terms = loss.terms(z0, z1) if hasattr(loss, "terms") else None
    if terms is None or terms.tail is None:
        return []
    names = ("gate", "beta_hat", "shape", "rho", "delta_aic")
    evidence = {name: getattr(terms.tail, name) for name in names}
    if is_dataclass(loss.gate):
        for name, signals in (("hardness_factor", "rho"), ("fit_factor", "aic")):
            alone = copy.copy(loss)
            alone.gate = replace(loss.gate, signals=signals)  # type: ignore[type-var]
            evidence[name] = alone.terms(z0, z1).tail.gate
    return [evidence]


def _summary(values: Tensor) -> Mapping[str, float]:
    quantiles = torch.quantile(values, torch.tensor(QUANTILES, dtype=values.dtype))
    named = {f"q{100 * q:02.0f}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)}
    return {"mean": float(values.mean()), **named}
