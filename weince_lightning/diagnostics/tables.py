"""The numbers of a diagnosis as rows of tables, with their units."""

from typing import NamedTuple

from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.extremes.threshold import ThresholdFit

NULL_NAMES = {"gaussian": "Gaussian scores", "sphere": "uniform directions in {:,} dimensions"}


class Row(NamedTuple):
    """A row of a table."""

    name: str
    value: str
    meaning: str
    """What it is, with its unit."""


def main_numbers(diagnosis: Diagnosis) -> list[Row]:
    """List what the verdict rests on.

    Args:
        diagnosis: The numbers.

    Returns:
        Rows, "none" where a number is not applicable.
    """
    fit, pooled, goodness = diagnosis.threshold, diagnosis.pooled, diagnosis.goodness
    part = f"{100 * (1 - fit.quantile):.2g} %"
    mean = f"{round(pooled.mean, 4) + 0.0:.4f}"  # + 0.0: no minus before a zero
    rows = [
        Row("mean", mean, "of the similarities of all pairs of negatives (cosine)"),
        Row("standard deviation", f"{pooled.standard_deviation:.4f}", "of the same (cosine)"),
        Row("threshold", f"{fit.threshold:.4f}", f"similarity (cosine) that {part} lie above"),
        Row("exceedances", f"{fit.num_exceedances:,}", "similarities above the threshold"),
        Row("ξ", _number(fit.xi), "shape of the generalised Pareto fit, no unit"),
        Row("95 % interval of ξ", span(fit.xi_interval), "by drawing samples anew"),
        Row("σ", _number(fit.sigma, 4), "scale of the generalised Pareto fit (cosine)"),
        Row(
            "endpoint", _number(possible_end(fit)), "similarity (cosine) where the fitted tail ends"
        ),
        Row(
            "p, goodness of fit",
            _p_value(None if goodness is None else goodness.p_value),
            "Anderson-Darling test of the generalised Pareto fit",
        ),
    ]
    for name in NULL_NAMES:
        null = diagnosis.nulls.get(name)
        value = "none" if null is None else f"{null.xi:.3f} ({span(null.xi_range)})"
        meaning = "at the same quantile: median and what holds 95 %, no unit"
        rows.append(Row(f"ξ of {name_null(name, diagnosis)}", value, meaning))
    if diagnosis.against is not None:
        other = diagnosis.against.threshold
        rows += [
            Row("ξ of the second encoder", _number(other.xi), "of the same samples, no unit"),
            Row("its 95 % interval of ξ", span(other.xi_interval), "by drawing samples anew"),
        ]
    link = diagnosis.link
    if link is not None:
        rows += [
            Row("λ of the link", _number(link.lambda_hat), "share of the Weibit, by the positives"),
            Row("its 95 % interval", span(link.lambda_interval), "by the profile likelihood"),
        ]
    return rows


def settings(diagnosis: Diagnosis) -> list[Row]:
    """List what was looked at and how.

    Args:
        diagnosis: What was found.

    Returns:
        Rows.
    """
    anchors, pooled, embeddings = diagnosis.anchors, diagnosis.pooled, diagnosis.embeddings
    layouts = {
        "views": "both embeddings of a sample with all others",
        "pairs": "first embeddings with second ones, both ways",
        "queries": "first embeddings with second ones, one way",
    }
    layout = ("none", "all pairs are negatives")
    if embeddings.second is not None:
        layout = (embeddings.layout, layouts[embeddings.layout])
    rows = [
        Row("samples", f"{embeddings.num_samples:,}", "rows of the embeddings"),
        Row("dimension", f"{embeddings.dimension:,}", "features of each"),
        Row("positives", *layout),
        Row("duplicates", f"{diagnosis.census.num_duplicates:,}", "rows equal to an earlier one"),
        Row("pooled anchors", f"{pooled.num_anchors:,}", "samples compared with many others"),
        Row("pooled candidates", f"{pooled.num_candidates:,}", "samples they were compared with"),
        Row("similarities", f"{pooled.tail.num_scores:,}", "of pairs of negatives, each once"),
        Row("quantile", f"{diagnosis.threshold.quantile:g}", "part below the threshold"),
        Row("batches", f"{anchors.num_batches:,}", f"of {anchors.batch_size:,} samples at random"),
        Row("anchors", f"{len(anchors.gate):,}", "of all batches together"),
        Row("negatives", f"{anchors.num_negatives:,}", "of an anchor, at most"),
    ]
    if diagnosis.link is not None:
        rows.append(
            Row("winners", f"{diagnosis.link.num_winners:,}", "positives of the link's fit")
        )
    return [
        *rows,
        Row("temperature τ", f"{diagnosis.temperature:g}", "of the softmax, no unit"),
        Row("seed", f"{diagnosis.seed}", "of all that was drawn at random"),
    ]


def _number(value: float | None, digits: int = 3) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


def _p_value(value: float | None) -> str:
    return "< 0.001" if value is not None and value < 1e-3 else _number(value)


def possible_end(fit: ThresholdFit) -> float | None:
    """Return where the fitted tail ends, if a cosine can be there; else the fit has placed none."""
    return fit.endpoint if fit.endpoint is not None and fit.endpoint <= 1 else None


def name_null(name: str, diagnosis: Diagnosis) -> str:
    """Name a null of a diagnosis for people."""
    return NULL_NAMES[name].format(diagnosis.embeddings.dimension)


def span(ends: tuple[float, float] | None) -> str:
    """Write an interval."""
    return "none" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
