"""Diagnosis of embeddings: all numbers about the tail of their similarities."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm

from weince_lightning.checks import check_number
from weince_lightning.diagnostics.anchors import (
    HARDEST,
    LINKS,
    Anchors,
    known_tails,
    look_at_batches,
)
from weince_lightning.diagnostics.embeddings import Census, Embeddings, take_census
from weince_lightning.diagnostics.pooled import Pooled, pool
from weince_lightning.extremes.nulls import Null, gaussian_null, sphere_null
from weince_lightning.extremes.pareto import MIN_EXCEEDANCES, Floats, Significance
from weince_lightning.extremes.selection import LinkFit, fit_link, link_profile
from weince_lightning.extremes.threshold import (
    ThresholdFit,
    fit_stability,
    fit_threshold,
    goodness_of_fit,
)

SHARES = np.linspace(0.0, 1.0, 41)
r"""Where the profile of the link is computed, as :math:`\lambda`."""

_OF_STABILITY = ("quantile", "threshold", "num_exceedances", "xi", "xi_interval")
"""Fields of the fits over other thresholds that are reported."""

Bar = Callable[[str, int | None], Any]
"""Makes a progress bar from a description and a number of steps, as tqdm does."""


class Diagnosis(NamedTuple):
    """Numbers about the tail of some embeddings; what is not applicable is None."""

    embeddings: Embeddings
    census: Census
    pooled: Pooled
    threshold: ThresholdFit
    goodness: Significance | None
    stability: list[ThresholdFit]
    nulls: dict[str, Null]
    """By name, "gaussian" and "sphere"; one that has no fit is not among them."""
    anchors: Anchors
    link: LinkFit | None
    """None where no positives are known."""
    profile: Floats | None
    """Log-likelihoods of the link at ``SHARES``, less the largest."""
    known_tails: dict[str, float]
    temperature: float
    seed: int
    against: "Diagnosis | None" = None
    """That of a second encoder's embeddings of the same samples."""

    def numbers(self) -> dict[str, Any]:
        """Return the numbers in plain types, for JSON."""
        fit, anchors = self.threshold, self.anchors
        no_link = LinkFit(
            None, None, None, None, None, self.temperature, 0, "no positives are known"
        )
        return {
            "embeddings": self.embeddings.what,
            "samples": self.embeddings.num_samples,
            "dimension": self.embeddings.dimension,
            "layout": None if self.embeddings.second is None else self.embeddings.layout,
            "duplicates": self.census.num_duplicates,
            "pooled": {
                "similarities": self.pooled.tail.num_scores,
                "anchors": self.pooled.num_anchors,
                "candidates": self.pooled.num_candidates,
                "mean": self.pooled.mean,
                "standard_deviation": self.pooled.standard_deviation,
                "effective_rank": self.pooled.effective_rank,
            },
            "threshold": {
                **_listed(fit),
                "goodness_statistic": None if self.goodness is None else self.goodness.statistic,
                "goodness_p": None if self.goodness is None else self.goodness.p_value,
            },
            "stability": [
                {name: value for name, value in _listed(each).items() if name in _OF_STABILITY}
                for each in self.stability
            ],
            "nulls": {
                name: _listed(self.nulls[name]) if name in self.nulls else None
                for name in ("gaussian", "sphere")
            },
            "tail": {
                "lambda_mean": float(anchors.gate.mean()),
                "lambda_above_half": anchors.open_share,
                "beta_hat_median": float(anchors.beta_hat.median()),
                "rho_median": float(anchors.rho.median()),
                "delta_aic_median": float(anchors.delta_aic.median()),
                "anchors": len(anchors.gate),
                "batches": anchors.num_batches,
                "batch_size": anchors.batch_size,
                "negatives": anchors.num_negatives,
            },
            "delta_aic_of_known_tails": self.known_tails,
            "link": _listed(self.link or no_link),
            "gradient_share": {
                name: {
                    f"{100 * part:.0f}": float(share)
                    for part, share in zip(HARDEST, shares, strict=True)
                }
                for name, shares in zip(LINKS, anchors.shares.mean(dim=0), strict=True)
            },
            "settings": {"temperature": self.temperature, "seed": self.seed},
            "against": None if self.against is None else self.against.numbers(),
        }


def diagnose(
    embeddings: Embeddings,
    temperature: float = 0.5,
    quantile: float = 0.99,
    seed: int = 0,
    bar: Bar | None = None,
    against: Embeddings | None = None,
) -> Diagnosis:
    r"""Find out what the tail of the negatives' similarities looks like.

    Memory does not grow with the samples: at most 1000 anchors are compared with 50,000 rows, and
    evidence is taken from 32 batches, all drawn at random by the seed.

    Args:
        embeddings: What is diagnosed.
        temperature: Softmax temperature :math:`\tau > 0`.
        quantile: Part of the similarities below the threshold, in ``[0.98, 0.9999]``.
        seed: Of all that is drawn at random.
        bar: Makes progress bars.
        against: The same samples by a second encoder, such as the same one untrained. Samples with
            equal ``ids`` in ``embeddings`` are no negatives of each other here either.

    Returns:
        The numbers.

    Raises:
        TypeError: If ``embeddings`` or ``against`` is something else.
        ValueError: If an argument is out of its range, a row cannot be used, no two samples are
            negatives of each other, or ``against`` holds other samples.
    """
    _check_kind("embeddings", embeddings)
    if against is not None:
        against = _check_against(embeddings, against)
    check_number(
        "quantile", quantile, at_least=0.98, at_most=0.9999, condition="lie in [0.98, 0.9999]"
    )
    check_number("temperature", temperature, above=0.0, condition="be a number above 0")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie in [0, 2**63), got {seed}.")
    second = None
    if against is not None:
        try:
            second = diagnose(against, temperature, quantile, seed, bar)
        except ValueError as error:
            raise ValueError(re.sub(r"^(first|second)\b", "against", str(error))) from error
    make_bar = bar or _no_bar
    with make_bar("rows", len(embeddings.sides) * embeddings.num_samples) as shown:
        census = take_census(embeddings, shown)
    order = torch.randperm(embeddings.num_samples, generator=torch.Generator().manual_seed(seed))
    order = order[~census.is_repeated[order]]
    generator = np.random.default_rng(seed)
    with make_bar("diagnosis", 7) as shown:

        def done(value: Any) -> Any:
            shown.update(1)
            return value

        pooled = done(pool(embeddings, census, order))
        anchors = done(look_at_batches(embeddings, census, order, temperature))
        if pooled is None or anchors is None:
            raise ValueError(
                "ids must leave at least two samples that are negatives of each other, got the "
                "same, or equal rows, for all."
            )
        fit = done(fit_threshold(pooled.tail, generator, quantile))
        stability = done(fit_stability(pooled.tail, generator))
        stability = [fit if each.quantile == quantile else each for each in stability]
        goodness = done(goodness_of_fit(pooled.tail, fit, generator))
        nulls = done(_nulls(embeddings, pooled, fit, generator))
        link = profile = None
        if embeddings.second is not None:
            positive = anchors.positive.double().numpy()
            negatives = anchors.negatives.double().numpy()
            link = fit_link(positive, negatives, temperature)
            if link.log_likelihood is not None:
                heights = link_profile(positive, negatives, SHARES, temperature)
                profile = heights - link.log_likelihood
        done(None)
    return Diagnosis(
        embeddings, census, pooled, fit, goodness, stability, nulls, anchors, link, profile,
        known_tails(anchors.num_negatives, generator), temperature, seed, second,
    )  # fmt: skip


def _check_kind(name: str, embeddings: object) -> None:
    if not isinstance(embeddings, Embeddings):
        raise TypeError(
            f"{name} must be Embeddings, got {type(embeddings).__name__}. Wrap an array: "
            "Embeddings(array)."
        )


def _check_against(embeddings: Embeddings, against: Embeddings) -> Embeddings:
    """Return a second encoder's embeddings with the ids of the first's, whose samples they show."""
    _check_kind("against", against)
    if against.num_samples != embeddings.num_samples:
        raise ValueError(
            f"against must hold the same samples, {embeddings.num_samples:,} rows, got "
            f"{against.num_samples:,}."
        )
    if (against.second is None) != (embeddings.second is None):
        have = ("has none", "has some") if against.second is None else ("has some", "has none")
        raise ValueError(
            f"against must hold positives where the embeddings do, got one that {have[0]} where "
            f"the first {have[1]}. Give both arrays of both encoders."
        )
    return replace(against, ids=embeddings.ids, layout=embeddings.layout)


def _nulls(
    embeddings: Embeddings, pooled: Pooled, fit: ThresholdFit, generator: np.random.Generator
) -> dict[str, Null]:
    """Simulate what there is to compare with."""
    size = fit.num_exceedances
    if size < MIN_EXCEEDANCES:
        return {}
    found: dict[str, Null | None] = {}
    if pooled.standard_deviation > 0:
        found["gaussian"] = gaussian_null(
            pooled.mean, pooled.standard_deviation, size, fit.quantile, generator
        )
    if embeddings.dimension > 1:
        found["sphere"] = sphere_null(embeddings.dimension, size, fit.quantile, generator)
    return {name: null for name, null in found.items() if null is not None}


def _listed(fit: ThresholdFit | Null | LinkFit) -> dict[str, Any]:
    """Return the fields by name, with the lists of JSON for tuples."""
    return {name: [*v] if isinstance(v, tuple) else v for name, v in fit._asdict().items()}


def _no_bar(description: str, total: int | None) -> Any:
    return Tqdm(disable=True)
