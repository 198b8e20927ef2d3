"""Fixtures shared by all tests."""

import pytest
import torch
from hypothesis import settings

# The same examples each time, on slow machines too, and nothing written beside the tests.
settings.register_profile("tests", derandomize=True, deadline=None, database=None)
settings.load_profile("tests")


@pytest.fixture
def generator() -> torch.Generator:
    """A freshly seeded source of random numbers, so that no test depends on another."""
    return torch.Generator().manual_seed(0)
