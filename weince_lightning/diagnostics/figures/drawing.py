"""Figures of a diagnosis, by name."""

from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.diagnostics.figures.batches import (
    draw_evidence,
    draw_gate,
    draw_gradient_shares,
    draw_link,
)
from weince_lightning.diagnostics.figures.exceedances import draw_exceedances
from weince_lightning.diagnostics.figures.hardest import draw_hardest
from weince_lightning.diagnostics.figures.picture import Picture
from weince_lightning.diagnostics.figures.tail import (
    draw_mean_excess,
    draw_quantiles,
    draw_stability,
)

TOPICS = {
    "evidence": draw_evidence,
    "exceedances": draw_exceedances,
    "gate": draw_gate,
    "gradient_shares": draw_gradient_shares,
    "hardest": draw_hardest,
    "link": draw_link,
    "mean_excess": draw_mean_excess,
    "quantiles": draw_quantiles,
    "stability": draw_stability,
}
"""By name, in order; each returns None where its numbers are not there."""


def draw(diagnosis: Diagnosis) -> dict[str, Picture]:
    """Draw what can be drawn of a diagnosis.

    Args:
        diagnosis: The numbers.

    Returns:
        Pictures by name, in the order of their names. Without a fit there are no "quantiles", below
        ten similarities above the threshold neither "hardest" nor "exceedances", without known
        positives no "link".
    """
    pictures = {name: drawn(diagnosis) for name, drawn in TOPICS.items()}
    return {name: picture for name, picture in pictures.items() if picture is not None}
