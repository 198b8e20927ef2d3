"""Fixtures of the tests of the data module."""

import data_files
import pytest


@pytest.fixture
def pattern():
    """The image that a data set of one pattern per index holds at an index."""
    return data_files.pattern


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function that writes the named data set and returns its ``data_dir``."""

    def write_named(name, **options):
        data_files.write(name, tmp_path, monkeypatch, **options)
        return tmp_path

    return write_named
