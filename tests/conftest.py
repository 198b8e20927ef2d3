"""Fixtures shared by all tests."""

import pytest
import torch


@pytest.fixture
def generator() -> torch.Generator:
    """A freshly seeded source of random numbers, so that no test depends on another."""
    return torch.Generator().manual_seed(0)
