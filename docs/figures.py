"""The figures of docs/mathematics.md: links, gate and shares of the gradient.

    python docs/figures.py [FOLDER]

Draws them with the package's own functions into FOLDER, by default docs/images/, and prints the
figures that the page quotes.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from weince_lightning.functional.candidates import Scores
from weince_lightning.functional.fused import Blend
from weince_lightning.functional.gates import tail_gate
from weince_lightning.functional.gradient_shares import gradient_shares
from weince_lightning.functional.links import blend_logits, softmax_logits, weibit_logits
from weince_lightning.functional.tails import TailFit
from weince_lightning.functional.vectors import unit_vectors

TEMPERATURE = 0.5
NEGATIVES, FEATURES, ANCHORS = 510, 64, 200
BLENDS = {
    "softmax": (1.0, None),
    "WEINCE, λ = 0.5, β = 1": (0.5, 0.5),
    "WEINCE, λ = 0.5, β = 4": (0.5, 2.0),
    "Weibit, β = 1": (0.0, 1.0),
}
"""Factors of the softmax's and of the Weibit's logit, τ = 0.5."""


def draw_links(axes: Axes) -> None:
    """Logits against similarity; all are 0 at similarity 0."""
    similarity = torch.linspace(-1, 0.999, 1000)
    half, one = torch.full((1,), 0.5), torch.ones(1)
    curves = {
        "softmax": softmax_logits(similarity, TEMPERATURE),
        "WEINCE, λ = 0.5, β = 1": blend_logits(similarity[None], half, one, TEMPERATURE)[0],
        "WEINCE, λ = 0.5, β = 4": blend_logits(similarity[None], half, 4 * one, TEMPERATURE)[0],
        "Weibit, β = 1": weibit_logits(similarity, 1.0),
    }
    for name, logits in curves.items():
        axes.plot(similarity, logits, label=name)
    axes.set(xlabel="similarity s", ylabel="logit", ylim=(-3, 8), xlim=(-1, 1.02))
    axes.legend(frameon=False)


def draw_gate(axes: Axes) -> dict[str, float]:
    """λ against ρ / ρ0 where the second factor is 1; returns some of its values."""
    ratio = torch.logspace(-0.5, 0.5, 1001, dtype=torch.float64)
    for kappa in (5.0, 10.0, 20.0):
        axes.plot(ratio, gate_of(ratio, kappa), label=f"$\\kappa_\\rho$ = {kappa:g}")
    axes.set(xlabel="ρ / ρ0", ylabel="λ", xscale="log")
    ticks = [0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False)
    ratios = (0.5, 0.8, 1.0, 1.25, 2.0)
    values = gate_of(torch.tensor(ratios, dtype=torch.float64), 10.0).tolist()
    return {f"{ratio:g}": value for ratio, value in zip(ratios, values, strict=True)}


def gate_of(ratio: Tensor, kappa: float) -> Tensor:
    """The gate of anchors of this hardness, relative to the reference, by hardness alone."""
    ones = torch.ones_like(ratio)
    fit = TailFit(beta_hat=ones, r_squared=ones, delta_aic=ones, rho=ratio, num_points=50 * ones)
    return tail_gate(fit, ones[0], kappa_rho=kappa, signals="rho")


def draw_shares(left: Axes, right: Axes) -> dict[str, float]:
    """Part of the gradient on the hardest negatives; returns that of the hardest 5 %."""
    generator = torch.Generator().manual_seed(0)
    shape = (ANCHORS, NEGATIVES + 1)
    directions = torch.randn(*shape, FEATURES, generator=generator, dtype=torch.float64)
    cases = {
        # The similarity of uniform directions to a fixed one is their first coordinate.
        "uniform directions": unit_vectors(directions)[..., 0],
        "shortfalls uniform up to 1": 1 - torch.rand(shape, generator=generator).double(),
    }
    ones = torch.ones(ANCHORS, dtype=torch.float64)
    counts = tuple(range(1, NEGATIVES + 1))
    found = {}
    for axes, (case, similarity) in zip((left, right), cases.items(), strict=True):
        scores = Scores(similarity, torch.zeros(ANCHORS, 1, dtype=torch.int64), NEGATIVES)
        for name, (softmax, weibull) in BLENDS.items():
            blend = Blend(softmax * ones, None if weibull is None else weibull * ones)
            shares = gradient_shares(scores, blend, TEMPERATURE, counts).mean(dim=0)
            axes.plot([count / NEGATIVES for count in counts], shares, label=name)
            hardest = gradient_shares(scores, blend, TEMPERATURE, (0.05,)).mean()
            found[f"{case}, {name}"] = float(hardest)
        axes.set(title=case, xlabel="part of the negatives, hardest first")
    left.set(ylabel="part of the gradient")
    right.legend(frameon=False)
    return found


def main(folder: Path) -> None:
    """Draw all into a folder and print what the page quotes."""
    mpl.rcParams["svg.hashsalt"] = "weince_lightning"  # the same file from the same numbers
    links, gate, shares = (
        Figure(figsize=(width, 3.6), layout="constrained") for width in (6, 6, 9)
    )
    draw_links(links.subplots())
    gates = draw_gate(gate.subplots())
    hardest = draw_shares(*shares.subplots(1, 2, sharey=True))
    for name, figure in (("links", links), ("gate", gate), ("gradient_shares", shares)):
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    for ratio, value in gates.items():
        print(f"gate at rho / rho0 = {ratio}: {value:.3f}")
    for name, value in hardest.items():
        print(f"gradient on the hardest 5 %, {name}: {value:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images")
