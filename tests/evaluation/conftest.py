"""Features of the digits, as an untrained encoder sees them: real neighbours and near ties."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from weince_lightning.functional.splits import stratified_split


@pytest.fixture(scope="session")
def digits():
    """Features of training and test images with their labels, in double precision."""
    pixels, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 48, generator=generator, dtype=torch.float64) / 8
    features = (torch.from_numpy(pixels) / 16 @ weight).relu()
    labels = torch.from_numpy(labels.astype(np.int64))
    rest, test = (torch.from_numpy(part) for part in stratified_split(labels.numpy(), 0.2, 0))
    return features[rest], labels[rest], features[test], labels[test]
