"""Verdict on a diagnosis: the answer, and its numbers in words."""

from typing import NamedTuple

import numpy as np

from weince_lightning.diagnostics.decision import (
    NEAR_COPY,
    NEAR_ONE,
    REJECTED,
    Answer,
    count_copies,
    decide,
    hardest_shares,
)
from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.diagnostics.embeddings import UNKNOWN
from weince_lightning.diagnostics.tables import name_null, possible_end, span

FEW = 0.5
"""Part of the dimensions below which few of them are filled, by the effective rank."""
NARROW = 0.5
"""Mean similarity of negatives above which all lie in a narrow cone."""
TELLS_NOTHING = 0.9
"""Width from which an interval within [0, 1] is inconclusive."""


class Verdict(NamedTuple):
    """A diagnosis in words."""

    answer: Answer
    """Whether WEINCE is worth trying."""
    why: str
    """The reason, one sentence without extreme-value theory."""
    next: str
    """The next command, as it is typed."""
    purpose: str
    """What that command is for."""
    findings: list[str]
    """The numbers behind it, a sentence or two each."""

    @property
    def headline(self) -> str:
        """Answer and reason in one sentence."""
        return f"{self.answer.capitalize()}: {self.why}"


def pronounce(diagnosis: Diagnosis, source: str = "SOURCE") -> Verdict:
    """Say what the numbers mean for the use of WEINCE.

    :func:`~weince_lightning.diagnostics.decision.decide` gives the answer and has its rules.

    Args:
        diagnosis: The numbers.
        source: What was diagnosed, for the next command.

    Returns:
        The words.
    """
    decision = decide(diagnosis, source)
    sentences = (
        _ids, _shape, _against, _rank, _endpoint, _goodness, _spread, _gradient, _link, _copies,
        _duplicates,
    )  # fmt: skip
    findings = [sentence(diagnosis) for sentence in sentences]
    return Verdict(
        decision.answer,
        f"{decision.why}.",
        decision.command,
        decision.purpose,
        [finding for finding in findings if finding],
    )


def _shape(diagnosis: Diagnosis) -> str:
    fit = diagnosis.threshold
    if fit.xi is None:
        return f"There is no fit to the similarities above {fit.threshold:.3f}: {fit.note}."
    text = f"The shape of the tail is ξ = {fit.xi:.3f}"
    if fit.xi_interval is not None:
        text += f" (95 % interval {span(fit.xi_interval)})"
    elif fit.note:
        text += f" ({fit.note})"
    text += (
        f", from the {fit.num_exceedances:,} similarities above {fit.threshold:.3f}, the largest "
        f"{100 * (1 - fit.quantile):.2g} %."
    )
    nulls = [
        f"{name_null(name, diagnosis)} give {null.xi:.3f} ({span(null.xi_range)})"
        for name, null in diagnosis.nulls.items()
    ]
    if nulls:
        text += f" Above the same quantile, as many {' and '.join(nulls)}."
    return text


def _against(diagnosis: Diagnosis) -> str:
    if diagnosis.against is None:
        return ""
    fit = diagnosis.against.threshold
    if fit.xi is None:
        return f"There is no fit for the second encoder: {fit.note}."
    interval = fit.note if fit.xi_interval is None else f"95 % interval {span(fit.xi_interval)}"
    return f"For the second encoder it is ξ = {fit.xi:.3f} ({interval})."


def _rank(diagnosis: Diagnosis) -> str:
    rank, dimension = diagnosis.pooled.effective_rank, diagnosis.embeddings.dimension
    text = f"The effective rank of the directions is {rank:.3g} of {dimension:,}."
    if rank < FEW * dimension:
        text += (
            " Both nulls fill all dimensions: where few are filled the tail is shorter than theirs "
            "by that alone."
        )
    return text


def _endpoint(diagnosis: Diagnosis) -> str:
    fit = diagnosis.threshold
    if fit.xi is None:
        return ""
    end = possible_end(fit)
    if end is None:
        return "The fit places no end of the tail below a similarity of 1."
    text = f"The fitted tail ends at a similarity of {end:.3f}; WEINCE takes the end to be 1."
    if end < NEAR_ONE:
        text += (
            " That is far below 1: the shortfall 1 - s is not the distance to the end of this tail."
        )
    return text


def _goodness(diagnosis: Diagnosis) -> str:
    outcome = diagnosis.goodness
    if outcome is None:
        return ""
    fits = "fits" if outcome.p_value >= REJECTED else "does not fit"
    return (
        f"A generalised Pareto distribution {fits} what lies above the threshold (Anderson-Darling "
        f"{outcome.statistic:.2f}, p = {outcome.p_value:.3f})."
    )


def _spread(diagnosis: Diagnosis) -> str:
    mean = diagnosis.pooled.mean
    if mean <= NARROW:
        return ""
    return (
        f"The embeddings lie in a narrow cone, as those of an untrained encoder do: similarities "
        f"of negatives are {mean:.3f} on average."
    )


def _gradient(diagnosis: Diagnosis) -> str:
    softmax, weince = hardest_shares(diagnosis)
    return (
        f"In batches of {diagnosis.anchors.batch_size} the hardest 5 % of the negatives get "
        f"{100 * softmax:.0f} % of the gradient by the softmax at τ = {diagnosis.temperature:g} "
        f"and {100 * weince:.0f} % by WEINCE."
    )


def _link(diagnosis: Diagnosis) -> str:
    link = diagnosis.link
    if link is None:
        return ""
    if link.lambda_hat is None or link.lambda_interval is None:
        return f"The link cannot be fitted: {link.note}."
    low, high = link.lambda_interval
    if high - low >= TELLS_NOTHING:
        means = "inconclusive"
    elif low <= 0:
        means = "the softmax alone is not ruled out"
    else:
        means = "not the softmax alone"
    return (
        f"Fitted to {link.num_winners:,} positives among their negatives, the share of the Weibit "
        f"in the link is λ = {link.lambda_hat:.3f} (95 % interval {span(link.lambda_interval)}, "
        f"at τ = {link.temperature:g}): {means}."
    )


def _copies(diagnosis: Diagnosis) -> str:
    count = count_copies(diagnosis)
    if not count:
        return ""
    return (
        f"{count:,} of the similarities of negatives are above {NEAR_COPY}: copies, or nearly so, "
        "that are counted as negatives. Equal ids leave them out."
    )


def _ids(diagnosis: Diagnosis) -> str:
    ids = diagnosis.embeddings.ids
    if ids is None:
        return ""
    unknown = int((np.asarray(ids) == UNKNOWN).sum())
    if unknown == diagnosis.embeddings.num_samples:
        return ""
    return (
        f"By the ids or labels beside them the {diagnosis.embeddings.num_samples:,} samples show "
        f"{int(diagnosis.census.labels.max()) + 1:,} different things"
        + (f", each of {unknown:,} unknown ones counted as one" if unknown else "")
        + "; samples of one are not counted as negatives of each other. With --ids none they are, "
        "as in a training without labels."
    )


def _duplicates(diagnosis: Diagnosis) -> str:
    count = diagnosis.census.num_duplicates
    if not count:
        return ""
    rows = "row equals an earlier one" if count == 1 else "rows equal an earlier one"
    return f"{count:,} {rows}; equal rows are not counted as negatives of each other."
