"""Values and gradients of the authors' released code, float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from weince_lightning.functional.candidates import Scores, compare, score
from weince_lightning.functional.contrastive import negated_similarities
from weince_lightning.functional.layouts import build_candidates
from weince_lightning.functional.links import shortfall
from weince_lightning.functional.tails import (
    fit_pooled,
    fit_tail,
    pooled_tail,
    smallest,
    tail_size,
)
from weince_lightning.losses import InfoNCELoss, TailGate, WeibitLink, WEINCELoss

FILES = sorted((Path(__file__).parent / "golden").glob("*.npz"))
ARMS = (
    "infonce",
    "weince",
    "weince_rho_only",
    "weince_aic_only",
    "weibit_beta4",
    "weibit_beta1",
    "recipe",
    "loss_mix_soft",
    "loss_mix_hard",
)
KEYS_OF_ARMS = {f"{arm}_{part}" for arm in ARMS for part in ("loss", "grad0", "grad1")}
SETTINGS = {
    "temperature",
    "rho_quantile",
    "aic_margin",
    "kappa_rho",
    "kappa_aic",
    "tail_fraction",
    "min_tail_points",
    "eps",
    "top_m",
    "weib_beta",
}
PER_ANCHOR = ("rho", "beta_hat", "r2", "delta_aic", "gate", "beta_shrunk_toward_4", "rho0")

pytestmark = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def load(path: Path) -> dict[str, Tensor]:
    with np.load(path) as file:
        return {key: torch.from_numpy(np.asarray(file[key])) for key in file}


def gate_of(golden: dict[str, Tensor], **rest: object) -> TailGate:
    return TailGate(
        rho_quantile=float(golden["rho_quantile"]),
        kappa_rho=float(golden["kappa_rho"]),
        kappa_aic=float(golden["kappa_aic"]),
        aic_margin=float(golden["aic_margin"]),
        tail_fraction=float(golden["tail_fraction"]),
        min_tail_points=int(golden["min_tail_points"]),
        **rest,
    )


def build(arm: str, golden: dict[str, Tensor]) -> InfoNCELoss | WEINCELoss:
    tau = float(golden["temperature"])
    gate = gate_of(golden)
    return {
        "infonce": lambda: InfoNCELoss(tau),
        "weince": lambda: WEINCELoss(tau, gate, shape=1.0),
        "weince_rho_only": lambda: WEINCELoss(tau, gate_of(golden, signals="rho"), shape=1.0),
        "weince_aic_only": lambda: WEINCELoss(tau, gate_of(golden, signals="aic"), shape=1.0),
        "weibit_beta4": lambda: InfoNCELoss(tau, WeibitLink(4.0)),
        "weibit_beta1": lambda: WEINCELoss(tau, gate=1.0, shape=1.0),
        "recipe": lambda: WEINCELoss.released(tau, gate),
        "loss_mix_soft": lambda: WEINCELoss(tau, gate, mix="losses"),
        "loss_mix_hard": lambda: WEINCELoss(tau, gate_of(golden, hard=True), mix="losses"),
    }[arm]()


@pytest.mark.parametrize("arm", ARMS)
def test_value_and_gradient_agree(path, arm):
    golden = load(path)
    z0, z1 = golden["z0"].requires_grad_(), golden["z1"].requires_grad_()
    loss = build(arm, golden)(z0, z1)
    loss.backward()
    # The authors' running beta is float32, which the recipe inherits.
    torch.testing.assert_close(
        loss.detach(), golden[f"{arm}_loss"], rtol=1e-7 if arm == "recipe" else 1e-9, atol=0
    )
    if path.stem.startswith("dups") and (arm == "recipe" or arm.startswith("loss_mix")):
        return  # The top-M cut falls between two identical negatives: the gradient is not unique.
    for z, key in ((z0, f"{arm}_grad0"), (z1, f"{arm}_grad1")):
        assert (z.grad - golden[key]).norm() <= 1e-7 * golden[key].norm()


@pytest.mark.parametrize("key", PER_ANCHOR)
def test_tail_evidence_agrees(path, key):
    golden = load(path)
    mix = "losses" if key == "beta_shrunk_toward_4" else "logits"
    loss = WEINCELoss(float(golden["temperature"]), gate_of(golden), mix=mix)
    name = {"r2": "r_squared", "beta_shrunk_toward_4": "shape"}.get(key, key)
    found = getattr(loss.terms(golden["z0"], golden["z1"]).tail, name)
    torch.testing.assert_close(found, golden[key], rtol=1e-9, atol=1e-12)


def negatives_of(golden: dict[str, Tensor]) -> tuple[Scores, Tensor]:
    (group,) = build_candidates(golden["z0"], golden["z1"], "views")
    scores = score(group, compare(group))
    return scores, shortfall(-negated_similarities(scores))


def test_number_of_tail_points_agrees(path):
    golden = load(path)
    gate = gate_of(golden)
    scores, shortfalls = negatives_of(golden)
    size = tail_size(scores.max_negatives, gate.tail_fraction, gate.min_tail_points)
    fit = fit_tail(smallest(shortfalls, size), None, scores.max_negatives)
    assert set(fit.num_points.tolist()) == {int(golden["n_eff"])}


def test_pooled_line_agrees(path):
    golden = load(path)
    scores, shortfalls = negatives_of(golden)
    total = scores.max_negatives * len(scores.similarity)
    beta, r_squared = fit_pooled(pooled_tail([shortfalls], total), torch.tensor(total))
    torch.testing.assert_close(beta, golden["batch_beta_hat"], rtol=1e-9, atol=0)
    torch.testing.assert_close(r_squared, golden["batch_r2"], rtol=1e-9, atol=0)


def test_running_shape_agrees_over_three_steps(path):
    golden = load(path)
    loss = build("recipe", golden)
    z0, z1 = golden["z0"].requires_grad_(), golden["z1"].requires_grad_()
    loss(z0, z1)
    loss(z1, z0)
    third = loss(z0, z1).detach()
    torch.testing.assert_close(third, golden["recipe_second_step_loss"], rtol=1e-7, atol=0)
    running = loss.top_m_terms[0].link.running_beta.double()
    torch.testing.assert_close(running, golden["recipe_beta_after_3_steps"], rtol=1e-7, atol=0)


def test_every_key_of_the_file_is_compared(path):
    others = {
        "z0",
        "z1",
        "n_eff",
        "batch_beta_hat",
        "batch_r2",
        "recipe_second_step_loss",
        "recipe_beta_after_3_steps",
    }
    assert set(load(path)) == KEYS_OF_ARMS | SETTINGS | set(PER_ANCHOR) | others
