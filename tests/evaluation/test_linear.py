"""The probes, side by side, against one after the other; converged, against scikit-learn."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn.functional import cross_entropy

from weince_lightning.evaluation import LinearSettings, evaluate, linear
from weince_lightning.functional.splits import stratified_split

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def train_one(features, labels, settings, seed):
    """Train a plain ``nn.Linear`` by a plain loop, as the paper does."""
    rest, _ = stratified_split(labels.numpy(), settings.val_fraction, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = nn.Linear(features.shape[1], 10, dtype=features.dtype)
    optimizer = torch.optim.Adam(layer.parameters(), settings.learning_rate)
    for epoch in range(settings.epochs):
        order = rest[np.random.RandomState([seed, epoch]).permutation(len(rest))]
        for rows in torch.from_numpy(order).split(settings.batch_size):
            optimizer.zero_grad()
            cross_entropy(layer(features[rows]), labels[rows]).backward()
            optimizer.step()
    return layer


def top1(layer, features, labels):
    with torch.no_grad():
        return (layer(features).argmax(1) == labels).double().mean().item()


def final_state(samples, settings, monkeypatch):
    """Run the probes and catch their state after the last step."""
    states = []

    class Kept(dict):
        def __setitem__(self, name, value):
            states.append(value)
            super().__setitem__(name, value)

    monkeypatch.setattr(linear, "SECONDS_BETWEEN_SAVES", -1.0)
    kept = Kept()
    scores = evaluate(*samples, settings, None, kept)["linear"]
    return states[-2], scores


def test_probes_side_by_side_are_those_trained_one_by_one(digits, monkeypatch):
    # 230 of 1150 samples are kept; the last batch of an epoch is not whole.
    settings = LinearSettings(learning_rate=1e-2, epochs=4, batch_size=100, seeds=(1, 2, 9))
    state, scores = final_state(digits, settings, monkeypatch)
    for number, seed in enumerate(settings.seeds):
        layer = train_one(*digits[:2], settings, seed)
        torch.testing.assert_close(state["weight"][number], layer.weight, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(state["bias"][number, 0], layer.bias, rtol=1e-9, atol=1e-11)
        _, val = stratified_split(digits[1].numpy(), 0.2, seed)
        assert scores["val_top1"]["values"][number] == top1(layer, digits[0][val], digits[1][val])
        assert scores["test_top1"]["values"][number] == top1(layer, *digits[2:])


def test_probes_do_not_depend_on_the_other_seeds(digits):
    several = evaluate(*digits, LinearSettings(epochs=3, seeds=(1, 2, 3)), None)["linear"]
    alone = evaluate(*digits, LinearSettings(epochs=3, seeds=(3,)), None)["linear"]
    assert several["test_top1"]["values"][2] == alone["test_top1"]["mean"]


def test_first_weights_are_those_of_a_new_layer(digits, monkeypatch):
    settings = LinearSettings(learning_rate=1e-300, epochs=1, batch_size=2000, seeds=(7,))
    state, _ = final_state(digits, settings, monkeypatch)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        layer = nn.Linear(48, 10, dtype=torch.float64)
    torch.testing.assert_close(state["weight"][0], layer.weight, rtol=0, atol=1e-15)


def test_interrupted_probes_go_on_to_the_same_numbers(digits, monkeypatch):
    settings = LinearSettings(epochs=3, batch_size=100, seeds=(1, 2))
    monkeypatch.setattr(linear, "SECONDS_BETWEEN_SAVES", -1.0)

    class Stopping(dict):
        """Keeps the middle of the second epoch, and stops somewhat later."""

        def __setitem__(self, name, value):
            if value["step"] == 14:
                super().__setitem__(name, value)
            if value["step"] == 17:
                raise KeyboardInterrupt

    kept = Stopping()
    with pytest.raises(KeyboardInterrupt):
        evaluate(*digits, settings, None, kept)
    state = next(iter(kept.values()))
    assert state["step"] == 14
    assert evaluate(*digits, settings, None, dict(kept)) == evaluate(*digits, settings, None)


def test_converged_probes_are_scikit_learns_logistic_regression(digits):
    features, labels, test_features, test_labels = digits
    found = evaluate(*digits, LinearSettings(converge=True, seeds=(1, 2)), None)["linear"]
    for number, seed in enumerate((1, 2)):
        rest, val = stratified_split(labels.numpy(), 0.2, seed)
        reference = LogisticRegression(C=1.0, tol=1e-8, max_iter=10_000)
        reference.fit(features[rest].numpy(), labels[rest].numpy())
        expected = reference.score(features[val].numpy(), labels[val].numpy())
        assert found["val_top1"]["values"][number] == pytest.approx(expected, abs=1e-12)
        expected = reference.score(test_features.numpy(), test_labels.numpy())
        assert found["test_top1"]["values"][number] == pytest.approx(expected, abs=1e-12)


def test_the_papers_probe_stops_short_of_convergence(digits):
    short = evaluate(*digits, LinearSettings(seeds=(1,)), None)["linear"]["test_top1"]["mean"]
    settings = LinearSettings(seeds=(1,), converge=True)
    converged = evaluate(*digits, settings, None)["linear"]["test_top1"]["mean"]
    assert short < converged - 0.02


@pytest.mark.slow
@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="needs the package dataset-fashion-mnist")
def test_converged_probe_on_fashion_mnist_is_near_scikit_learns():
    def read(name, skip):
        content = gzip.decompress((FASHION_MNIST / f"{name}.gz").read_bytes())
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=skip).copy())

    # The features of a layer of random convolutions, mean over quarters: 256 numbers.
    layer = nn.Conv2d(1, 64, 5, padding=2)
    nn.init.normal_(layer.weight, std=0.2, generator=torch.Generator().manual_seed(0))
    nn.init.zeros_(layer.bias)

    def features(images):
        with torch.no_grad():
            parts = images.view(-1, 1, 28, 28).float().div(255).split(1000)
            return torch.cat([layer(part).relu().unfold(2, 14, 14).unfold(3, 14, 14).mean((4, 5))
                              .flatten(1) for part in parts])  # fmt: skip

    train = features(read("train-images-idx3-ubyte", 16)[:]), read("train-labels-idx1-ubyte", 8)
    test = features(read("t10k-images-idx3-ubyte", 16)[:]), read("t10k-labels-idx1-ubyte", 8)
    samples = (train[0], train[1].long(), test[0], test[1].long())
    found = evaluate(*samples, LinearSettings(converge=True, seeds=(1,)), None)["linear"]
    rest, _ = stratified_split(samples[1].numpy(), 0.2, 1)
    reference = LogisticRegression(C=1.0, tol=1e-6, max_iter=10_000)
    reference.fit(samples[0][rest].double().numpy(), samples[1][rest].numpy())
    expected = reference.score(samples[2].double().numpy(), samples[3].numpy())
    assert found["test_top1"]["mean"] == pytest.approx(expected, abs=0.005)
