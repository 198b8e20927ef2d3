"""The answer to a diagnosis: is WEINCE worth trying? One function decides, by the rules below.

It answers "worth trying" only for what the repository's own results support: see ``SUPPORTED_BY``.
"""

import math
import shlex
from typing import Literal, NamedTuple, TypeAlias

from weince_lightning.diagnostics.diagnosis import Diagnosis
from weince_lightning.extremes.threshold import ThresholdFit

Answer: TypeAlias = Literal["worth trying", "no reason to expect a gain", "cannot tell"]

SUPPORTED_BY: tuple[str, ...] = ()
"""Folders of ``docs/results`` in which WEINCE was above InfoNCE at its best temperature, the 95 %
interval of the difference above 0, for an encoder that passes every rule of :func:`decide`. There
is none so far, and while there is none nothing is "worth trying". New evidence is entered here."""

MIN_EXCEEDANCES = 500
"""Fewest similarities above the threshold: with fewer an interval of the shape is wider than the
differences in ``docs/results/tails`` (about ±0.13 for 320 simulated uniform directions)."""
MOST_COPIES = 0.001
"""Largest share of near copies among those similarities: from there on copies in simulated uniform
directions shift the shape by more than ``MARGIN``."""
NEAR_COPY = 0.999
"""Similarity from which two rows are nearly copies: noise of 4 % of the length of a row."""
MARGIN = 0.1
"""Least difference in shape between tails that matters: the mildest short tail of
``docs/results/tails``, that of the EfficientNet, is 0.09 below uniform directions."""
NEAR_ONE = 0.9
"""Least end of the tail: below it the Weibit's slope 1 / (1 - s) stays under 10, that of a softmax
at temperature 0.1, the best one of InfoNCE in ``docs/results/fashion_mnist_convnet``."""
LEAST_CHANGE = 0.05
"""Least rise of the gradient's share on the hardest 5 % of the negatives by WEINCE: it is 0.01 for
the sentences of ``docs/results/tails`` and 0.17 to 0.21 for the images there."""
REJECTED = 0.05
"""p-value below which a fit counts as bad."""


class Decision(NamedTuple):
    """An answer with its reason, and what to do next."""

    answer: Answer
    """One of the three."""
    why: str
    """One sentence, in words that need no extreme-value theory."""
    command: str
    """The next command."""
    purpose: str
    """What that command is for."""


def decide(diagnosis: Diagnosis, source: str = "SOURCE") -> Decision:
    """Answer whether WEINCE is worth trying, by the first rule that applies.

    1. Too few similarities, or near copies among them: cannot tell.
    2. WEINCE weighs the negatives as InfoNCE does: no reason to expect a gain.
    3. The hardest negatives stop no earlier than those of random directions: no reason. If the
       interval leaves that open, or the fit is bad: cannot tell.
    4. They stop far below similarity 1: no reason.
    5. Nothing to compare with: cannot tell. No earlier than the second encoder's: no reason. If
       that is open: cannot tell.
    6. Otherwise all that WEINCE assumes is there. Worth trying where ``SUPPORTED_BY`` names results
       of this repository; while it names none, cannot tell.

    Args:
        diagnosis: The numbers; ``against`` in it is the same encoder untrained.
        source: What was diagnosed, for the command: a file, a checkpoint or the name of an encoder.

    Returns:
        The decision.
    """
    fit, against = diagnosis.threshold, diagnosis.against
    before = _why_not_judged(diagnosis, source) or _why_no_change(diagnosis, source)
    if before:
        return before
    nulls = [_compare(fit, null.xi_range, null.xi) for null in diagnosis.nulls.values()]
    if "not shorter" in nulls:
        return _no_reason(
            "the hardest negatives stop no earlier than those of random directions, and WEINCE is "
            "made for ones that do",
            diagnosis,
            source,
        )
    if not nulls or "unclear" in nulls:
        return _more_rows(
            "the hardest negatives may or may not stop earlier than those of random directions",
            source,
        )
    if diagnosis.goodness is not None and diagnosis.goodness.p_value < REJECTED:
        return Decision(
            "cannot tell",
            "the hardest negatives follow no smooth curve, as where groups of different kinds are "
            "mixed, so that it cannot be judged where they stop",
            _command(source, f"--quantile {_next_quantile(fit.quantile):g}"),
            "judges by half as many pairs, the most similar ones",
        )
    if fit.endpoint is not None and fit.endpoint < NEAR_ONE:
        return _no_reason(
            f"the hardest negatives stop early, at a similarity of {fit.endpoint:.2f}, and so far "
            "below 1 WEINCE does no more than a lower temperature of InfoNCE",
            diagnosis,
            source,
        )
    if against is None:
        return Decision(
            "cannot tell",
            "the hardest negatives stop early, as WEINCE assumes, but those of an untrained "
            "encoder often do so too",
            _command(source, _second(diagnosis)),
            "compares with the same encoder before training"
            + ("" if _is_encoder(diagnosis) else ", of which untrained.npy holds the same rows"),
        )
    return _against(fit, against, diagnosis, source)


def _against(fit: ThresholdFit, against: Diagnosis, diagnosis: Diagnosis, source: str) -> Decision:
    """Compare with the second encoder."""
    other = against.threshold
    order = "unclear"
    if other.xi is not None and _is_enough(other):
        order = _compare(fit, other.xi_interval or (other.xi, other.xi), other.xi)
    if order == "unclear":
        return _more_rows(
            "the hardest negatives stop early, but perhaps no earlier than those of the second "
            "encoder",
            source,
            option=_second(diagnosis),
        )
    if order == "not shorter":
        return _no_reason(
            "the hardest negatives stop early, but those of the second encoder do so as well: "
            "training has not made it",
            diagnosis,
            source,
        )
    stop = "the hardest negatives stop early, and earlier than those of the second encoder"
    compare = ("weince sweep sweeps/digits --dry-run", "shows how both losses are compared fairly")
    if SUPPORTED_BY:
        results = ", ".join(SUPPORTED_BY)
        why = f"{stop}: so it was where WEINCE gained ({results})"
        return Decision("worth trying", why, *compare)
    return Decision(
        "cannot tell",
        f"{stop}, as WEINCE assumes, but no training published with this package has gained by it",
        *compare,
    )


def _why_not_judged(diagnosis: Diagnosis, source: str) -> Decision | None:
    """Find out whether there are enough similarities, and of different things."""
    fit = diagnosis.threshold
    rows = math.ceil(math.sqrt(2 * MIN_EXCEEDANCES / (1 - fit.quantile))) + 1
    samples = diagnosis.embeddings.num_samples
    if samples < rows and not _is_enough(fit):
        return _more_rows(f"{samples:,} rows are too few to judge by", source, f"{rows:,}")
    share = min(1.0, count_copies(diagnosis) / max(fit.num_exceedances, 1))
    if share > MOST_COPIES:
        # An encoder's samples have no ids that could be given.
        second, purpose = _without_copies(diagnosis)
        return Decision(
            "cannot tell",
            f"{_percent(share)} of the hardest pairs of negatives are nearly copies of each other, "
            "so that the rest cannot be judged: duplicates in the data, or a collapsed encoder",
            _command(source, second),
            purpose,
        )
    if fit.xi is None or not _is_enough(fit):
        return Decision(
            "cannot tell",
            "the hardest negatives follow no curve by which it could be judged where they stop",
            _command(source, f"--quantile {0.995 if fit.quantile < 0.99 else 0.98:g}"),
            "judges by another part of the pairs",
        )
    return None


def _without_copies(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return the option of the next command where there are copies, and what it is for."""
    if not _is_encoder(diagnosis):
        return (
            "--ids ids.npy",
            "joins copies: ids.npy holds an integer for each row, equal for copies",
        )
    if diagnosis.against is None:
        return _second(diagnosis), "shows whether the data or the training made them so"
    return _second(diagnosis), "once more, when the data hold no copies"


def _why_no_change(diagnosis: Diagnosis, source: str) -> Decision | None:
    softmax, weince = hardest_shares(diagnosis)
    if weince - softmax >= LEAST_CHANGE:
        return None
    return _no_reason(
        f"at temperature {diagnosis.temperature:g} the hardest 5 % of the negatives get "
        f"{_percent(softmax)} of the gradient by InfoNCE and {_percent(weince)} by WEINCE, so that "
        "it would change little",
        diagnosis,
        source,
    )


def _compare(
    fit: ThresholdFit, reference: tuple[float, float], middle: float
) -> Literal["shorter", "not shorter", "unclear"]:
    """Compare a shape with an interval of another one; without an interval as it is."""
    low, high = fit.xi_interval or (fit.xi or 0.0, fit.xi or 0.0)
    if high < reference[0]:
        return "shorter"
    return "not shorter" if low >= middle - MARGIN else "unclear"


def count_copies(diagnosis: Diagnosis) -> int:
    """Count the similarities of negatives that are nearly 1."""
    return int((diagnosis.pooled.tail.scores > NEAR_COPY).sum())


def hardest_shares(diagnosis: Diagnosis) -> tuple[float, float]:
    """Return the hardest 5 % negatives' share of the gradient, by the softmax and by WEINCE."""
    shares = diagnosis.anchors.shares.mean(dim=0)
    return float(shares[0, 1]), float(shares[2, 1])


def _is_enough(fit: ThresholdFit) -> bool:
    return fit.num_exceedances >= MIN_EXCEEDANCES


def _is_encoder(diagnosis: Diagnosis) -> bool:
    return diagnosis.embeddings.what != "embeddings"


def _no_reason(why: str, diagnosis: Diagnosis, source: str) -> Decision:
    lower = diagnosis.temperature / 2
    return Decision(
        "no reason to expect a gain",
        why,
        _command(source, f"--temperature {lower:g}"),
        "shows what InfoNCE does at half the temperature, which is the cheaper thing to tune",
    )


def _more_rows(
    why: str, source: str, rows: str = "several times as many", option: str = ""
) -> Decision:
    purpose = f"once more, when it has {rows} rows"
    return Decision("cannot tell", why, _command(source, option), purpose)


def _second(diagnosis: Diagnosis) -> str:
    """Return the option that compares with the same encoder untrained."""
    return f"--against untrained{'' if _is_encoder(diagnosis) else '.npy'}"


def _next_quantile(quantile: float) -> float:
    """Leave half as many similarities above the threshold."""
    return min(round(1 - (1 - quantile) / 2, 4), 0.9999)


def _command(source: str, option: str = "") -> str:
    return f"weince diagnose {shlex.quote(source)} {option}".strip()


def _percent(share: float) -> str:
    """Write a share; a small one is not 0 %."""
    return f"{100 * share:.1f} %" if share < 0.01 else f"{100 * share:.0f} %"
