"""Beside the losses, samplers and miners of pytorch-metric-learning."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.regularizers import LpRegularizer
from pytorch_metric_learning.samplers import MPerClassSampler
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from weince_lightning.integrations.pytorch_metric_learning import WEINCESupConLoss


def draw(samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (samples,), generator=generator)
    z = torch.randn(samples, 8, generator=generator, dtype=torch.float64)
    return z.requires_grad_(), labels


@pytest.mark.parametrize("with_references", [False, True])
def test_with_a_closed_gate_it_is_supcon(with_references: bool):
    z, labels = draw(40)
    others = dict(zip(("ref_emb", "ref_labels"), draw(30, 1), strict=True))
    others = others if with_references else {}
    ours = WEINCESupConLoss(0.1, gate=0.0)(z, labels, **others)
    theirs = SupConLoss(0.1)(z, labels, **others)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    leaves = [z, others["ref_emb"]] if with_references else [z]
    for found, expected in zip(
        torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_the_batch_among_the_references_is_told_by_the_labels_too():
    z, labels = draw(40)
    for others in ((labels + 1) % 5, labels.clone()):
        found = WEINCESupConLoss(0.1, gate=0.0)(z, labels, ref_emb=z, ref_labels=others)
        expected = SupConLoss(0.1)(z, labels, ref_emb=z, ref_labels=others)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("samples", "references"), [(1, 0), (2, 0), (30, 0), (30, 5)], ids=str)
def test_without_any_negative_it_is_zero_as_in_the_library(samples: int, references: int):
    z, _ = draw(samples)
    labels = torch.zeros(samples, dtype=torch.int64)
    others = {}
    if references:
        zeros = torch.zeros(references, dtype=torch.int64)
        others = {"ref_emb": draw(references, 1)[0], "ref_labels": zeros}
    found = WEINCESupConLoss()(z, labels, **others)
    assert found == SupConLoss()(z, labels, **others) == 0
    (gradient,) = torch.autograd.grad(found, z)
    assert not gradient.any()


def test_regularizers_of_the_library_are_added():
    z, labels = draw(40)
    plain = WEINCESupConLoss(0.1, gate=0.0)
    regularized = WEINCESupConLoss(
        0.1, gate=0.0, embedding_regularizer=LpRegularizer(), embedding_reg_weight=0.5
    )
    norms = 0.5 * z.norm(dim=1).mean()
    torch.testing.assert_close(regularized(z, labels), plain(z, labels) + norms)


def test_it_trains_an_encoder_with_the_librarys_sampler():
    torch.manual_seed(0)
    np.random.seed(0)  # the sampler draws from it
    digits = load_digits()
    images = torch.as_tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(images, torch.as_tensor(digits.target))
    sampler = MPerClassSampler(digits.target, m=8, batch_size=80, length_before_new_iter=80 * 80)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    criterion = WEINCESupConLoss(temperature=0.1)
    losses = []
    for batch, labels in DataLoader(data, batch_size=80, sampler=sampler):
        loss = criterion(encoder(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == 80
    # log 7 remains: an anchor has seven positives, which share its probability.
    assert sum(losses[-5:]) / 5 < 0.75 * sum(losses[:5]) / 5


def test_anchors_whose_loss_rounds_to_zero_stay_in_the_mean():
    # As the page says: the library's mean is over the others.
    torch.manual_seed(0)
    z = torch.eye(8).repeat(2, 1) + 0.01 * torch.rand(16, 8)
    z[0] += torch.eye(8)[1]
    labels = torch.arange(8).repeat(2)
    found = WEINCESupConLoss(0.02, gate=0.0)(z, labels)
    exact = WEINCESupConLoss(0.02, gate=0.0)(z.double(), labels)
    assert float(found) == pytest.approx(float(exact), rel=1e-4)
    assert float(SupConLoss(0.02)(z, labels)) > 2 * float(exact)


def test_what_it_can_not_do_is_refused():
    z, labels = draw(10)
    with pytest.raises(ValueError, match="indices_tuple must be None"):
        WEINCESupConLoss()(z, labels, (torch.zeros(1), torch.zeros(1), torch.zeros(1)))
    with pytest.raises(ValueError, match="labels must be given"):
        WEINCESupConLoss()(z)
    with pytest.raises(ValueError, match="distance must be left out"):
        WEINCESupConLoss(distance=None)
    with pytest.raises(ValueError, match="ref_labels must be given"):
        WEINCESupConLoss()(z, labels, ref_emb=z[:5])
    with pytest.raises(ValueError, match="ref_emb must have shape"):
        WEINCESupConLoss()(z, labels, ref_emb=z[:, 1:].clone(), ref_labels=labels)
