"""Verdict on a diagnosis: its numbers in words."""

from typing import NamedTuple

from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.diagnostics.tables import name_null, span

REJECTED = 0.05
"""p-value below which a fit counts as bad."""
NEAR_ONE = 0.9
"""Least end that counts as that of WEINCE, a similarity of 1."""
FEW = 0.5
"""Part of the dimensions below which few of them are filled, by the effective rank."""
NEAR_COPY = 0.999
"""Similarity from which two rows are nearly copies."""
MIN_WITHOUT_INTERVAL = 500
"""Fewest exceedances that a verdict without interval rests on."""


class Verdict(NamedTuple):
    """A diagnosis in words."""

    headline: str
    """One sentence: what the tail is like."""
    findings: list[str]
    """Its grounds with their numbers, a sentence or two each."""


def pronounce(diagnosis: Diagnosis) -> Verdict:
    r"""Say what the numbers mean for the use of WEINCE.

    The shape is compared with those of two nulls and not with 0: at a finite threshold scores whose
    tail has no end give a shape below 0 too. :math:`\Delta` AIC has no say.

    Args:
        diagnosis: The numbers.

    Returns:
        The words.
    """
    sentences = (
        _shape, _ids, _rank, _copies, _endpoint, _goodness, _spread, _anchors, _link, _duplicates,
    )  # fmt: skip
    findings = [sentence(diagnosis) for sentence in sentences]
    return Verdict(_headline(diagnosis), [finding for finding in findings if finding])


def _headline(diagnosis: Diagnosis) -> str:
    fit = diagnosis.threshold
    if fit.xi is None:
        return f"No verdict on the tail: {fit.note}."
    if not diagnosis.nulls:
        return "No verdict on the tail: there is no null to compare its shape with."
    if fit.xi_interval is None and fit.num_exceedances < MIN_WITHOUT_INTERVAL:
        return (
            f"No verdict on the tail: {fit.num_exceedances} exceedances and no interval are too "
            "little to compare."
        )
    words, is_weibull = _compared(diagnosis, fit.xi_interval or (fit.xi, fit.xi))
    if is_weibull and fit.endpoint is not None and fit.endpoint < NEAR_ONE:
        words += f", but with its end at {fit.endpoint:.2f} and not at 1"
    if is_weibull and _fills_few(diagnosis):
        words += (
            ", as it does for any directions that fill few of their dimensions, learnt or not "
            f"(effective rank {_rank_of(diagnosis)})"
        )
    goodness = diagnosis.goodness
    if goodness is not None and goodness.p_value < REJECTED:
        return f"{words}; the fit is bad (p = {goodness.p_value:.3f})."
    return f"{words}."


def _compared(diagnosis: Diagnosis, shape: tuple[float, float]) -> tuple[str, bool]:
    """Compare the shape with the nulls; tell whether the tail looks Weibull."""
    fit, nulls, (low, high) = diagnosis.threshold, diagnosis.nulls, shape
    below = {name for name, null in nulls.items() if high < null.xi_range[0]}
    above = {name for name, null in nulls.items() if low > null.xi_range[1]}
    both = " and ".join(name_null(name, diagnosis) for name in nulls)
    tail = "The tail of the hard negatives "
    seems = "is" if fit.xi_interval is not None else "seems, without an interval,"
    if below == set(nulls):
        return f"{tail}{seems} shorter than that of {both}: it looks Weibull", True
    if above == set(nulls):
        return f"{tail}{seems} heavier than that of {both}: it does not look Weibull", False
    if "gaussian" in below:
        sphere = name_null("sphere", diagnosis)
        return (
            f"{tail}{seems} shorter than that of Gaussian scores, but not than that of {sphere}: "
            "it is as Weibull as geometry alone makes it",
            True,
        )
    return f"{tail}cannot be told from that of {both}: no evidence that it is Weibull", False


def _shape(diagnosis: Diagnosis) -> str:
    fit = diagnosis.threshold
    if fit.xi is None:
        return ""
    text = f"Its shape is ξ = {fit.xi:.3f}"
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


def _fills_few(diagnosis: Diagnosis) -> bool:
    return diagnosis.pooled.effective_rank < FEW * diagnosis.embeddings.dimension


def _rank_of(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.pooled.effective_rank:.3g} of {diagnosis.embeddings.dimension:,}"


def _rank(diagnosis: Diagnosis) -> str:
    text = f"The effective rank of the directions is {_rank_of(diagnosis)}."
    if _fills_few(diagnosis):
        text += (
            " Both nulls fill all dimensions: where few are filled the tail is shorter than theirs "
            "by that alone. An untrained encoder of the same kind is the better comparison."
        )
    return text


def _copies(diagnosis: Diagnosis) -> str:
    count = int((diagnosis.pooled.tail.scores > NEAR_COPY).sum())
    if not count:
        return ""
    return (
        f"{count:,} of the similarities of negatives are above {NEAR_COPY}: copies, or nearly so, "
        "that are counted as negatives and make the tail what it is. Equal ids leave them out."
    )


def _endpoint(diagnosis: Diagnosis) -> str:
    fit = diagnosis.threshold
    if fit.xi is None:
        return ""
    if fit.endpoint is None:
        return "The fitted tail has no end."
    text = f"The fitted tail ends at a similarity of {fit.endpoint:.3f}"
    ends = [
        f"{null.endpoint:.3f} for {name_null(name, diagnosis)}"
        for name, null in diagnosis.nulls.items()
        if null.endpoint is not None
    ]
    text += f" ({', '.join(ends)})" if ends else ""
    text += "; WEINCE takes the end to be 1."
    if fit.endpoint < NEAR_ONE:
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
    pooled = diagnosis.pooled
    text = (
        f"Similarities of negatives have mean {pooled.mean:.3f} and standard deviation "
        f"{pooled.standard_deviation:.3f}."
    )
    if pooled.mean > 0.5:
        text += (
            " The embeddings lie in a narrow cone, as those of an untrained encoder do: all "
            "of them are near the end."
        )
    return text


def _anchors(diagnosis: Diagnosis) -> str:
    anchors = diagnosis.anchors
    shares = anchors.shares.mean(dim=0)
    return (
        f"In batches of {anchors.batch_size} the default gate is open (λ > 1/2) for "
        f"{100 * anchors.open_share:.0f} % of {len(anchors.gate):,} anchors, mean λ "
        f"{float(anchors.gate.mean()):.2f}; by its rule that is about the hardest fifth, whatever "
        "the tail. The hardest 5 % of the negatives get "
        f"{100 * float(shares[0, 1]):.0f} % of the gradient by the softmax at τ = "
        f"{diagnosis.temperature:g} and {100 * float(shares[2, 1]):.0f} % by WEINCE."
    )


def _link(diagnosis: Diagnosis) -> str:
    link = diagnosis.link
    if link is None:
        return ""
    if link.lambda_hat is None or link.lambda_interval is None or link.p_value is None:
        return f"The link cannot be fitted: {link.note}."
    size = "p < 0.001" if link.p_value < 1e-3 else f"p = {link.p_value:.3f}"
    return (
        f"Fitted to {link.num_winners:,} positives among their negatives, the share of the Weibit "
        f"in the link is λ = {link.lambda_hat:.3f} (95 % interval {span(link.lambda_interval)}, "
        f"at τ = {link.temperature:g}; {size} against the softmax alone, positives taken as "
        "independent)."
    )


def _ids(diagnosis: Diagnosis) -> str:
    if diagnosis.embeddings.ids is None:
        return ""
    return (
        f"By their ids the {diagnosis.embeddings.num_samples:,} samples show "
        f"{int(diagnosis.census.labels.max()) + 1:,} different things; samples of one are not "
        "counted as negatives of each other."
    )


def _duplicates(diagnosis: Diagnosis) -> str:
    count = diagnosis.census.num_duplicates
    if not count:
        return ""
    rows = "row equals an earlier one" if count == 1 else "rows equal an earlier one"
    return f"{count:,} {rows}; equal rows are not counted as negatives of each other."
