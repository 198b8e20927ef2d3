"""Embeddings are looked at once, wherever they lie, and what cannot be used is refused."""

import re

import numpy as np
import pytest
import torch

from weince_lightning.diagnostics import embeddings as module
from weince_lightning.diagnostics.embeddings import Embeddings, pair_up, take, take_census


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((20, 3))


def partition(labels):
    """Which samples have a label together."""
    return {tuple(np.flatnonzero(labels == label)) for label in np.unique(labels)}


def test_equal_rows_are_counted_and_joined(rows):
    rows[4] = rows[7] = rows[2]
    rows[9, 0], rows[11] = 0.0, rows[9]
    rows[11, 0] = -0.0
    census = take_census(Embeddings(rows))
    assert census.num_duplicates == 3
    assert census.num_distinct == 17
    groups = partition(census.labels.numpy())
    assert (2, 4, 7) in groups
    assert (9, 11) in groups
    assert len(groups) == 17


def test_samples_are_joined_over_ids_and_rows_of_either_side(rows):
    """0 and 5 by an id, 5 and 8 by the first side, 8 and 3 by the second: all four are one."""
    second = rows[::-1].copy()
    ids = np.arange(20)
    ids[5] = 0
    rows[8] = rows[5]
    second[3] = second[8]
    census = take_census(Embeddings(rows, second, ids))
    assert (0, 3, 5, 8) in partition(census.labels.numpy())
    assert len(partition(census.labels.numpy())) == 17
    assert census.num_duplicates == 2


def test_a_row_that_comes_again_with_its_id_is_no_duplicate(rows):
    rows[1] = rows[0]
    assert take_census(Embeddings(rows, ids=np.r_[0, 0, 2:20])).num_duplicates == 0
    assert take_census(Embeddings(rows)).num_duplicates == 1


def test_blocks_make_no_difference(rows, monkeypatch):
    rows[13] = rows[1]
    whole = take_census(Embeddings(rows))
    monkeypatch.setattr(module, "BLOCK_BYTES", 100)
    parts = take_census(Embeddings(rows))
    assert torch.equal(whole.labels, parts.labels)
    assert whole[2:] == parts[2:]
    assert torch.equal(whole.is_repeated, parts.is_repeated)
    assert parts.is_repeated.nonzero().tolist() == [[13]]
    rows[17, 1] = np.nan
    with pytest.raises(ValueError, match="got 1 of 20 that are not, such as row 17"):
        take_census(Embeddings(rows))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f4", "longdouble"])
def test_every_kind_of_number_is_read(rows, kind):
    found = take(rows.astype(kind), slice(3, 6))
    assert found.dtype == (torch.float64 if kind in ("float64", "longdouble") else torch.float32)
    assert torch.allclose(found.double(), torch.from_numpy(rows[3:6]), atol=1e-2)


def test_tensors_and_maps_of_files_give_the_same(rows, tmp_path):
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    kept = [take_census(Embeddings(each)).labels for each in (rows, torch.tensor(rows), mapped)]
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[0], kept[2])
    index = torch.tensor([5, 1])
    assert torch.equal(take(mapped, index), take(torch.tensor(rows), index))
    assert take(torch.tensor(rows, dtype=torch.bfloat16), index).dtype == torch.float32


@pytest.mark.parametrize(
    ("first", "others", "error", "message"),
    [
        (np.ones((4, 3), int), {}, TypeError, "first must hold floating point numbers, got int64."),
        (np.ones((4, 3), complex), {}, TypeError, "first must hold floating point numbers, got co"),
        (
            [[1.0, 2.0]],
            {},
            TypeError,
            "first must be an array of NumPy's or a dense",
        ),
        (
            torch.eye(4).to(torch.float8_e4m3fn),
            {},
            TypeError,
            "floating point numbers, got torch",
        ),
        (np.ones(4), {}, ValueError, "first must have shape (samples, features), got (4,)."),
        (np.ones((4, 0)), {}, ValueError, "first must have shape (samples, features), got (4, 0)."),
        (np.ones((1, 3)), {}, ValueError, "first must have at least 2 rows, got 1."),
        (
            np.eye(3),
            {"second": np.eye(4)},
            ValueError,
            "second must have the shape of first",
        ),
        (np.eye(3), {"ids": np.ones(3)}, TypeError, "ids must hold integers, got float64."),
        (
            np.eye(3),
            {"ids": np.ones(4, int)},
            ValueError,
            "ids must hold one number for each",
        ),
        (np.eye(3), {"layout": "view"}, ValueError, 'layout must be "views", "pairs" or "queries"'),
    ],
)
def test_wrong_arguments_are_named(first, others, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Embeddings(first, **others)


def test_a_sparse_tensor_is_refused():
    with pytest.raises(TypeError, match=r"first must be .* dense tensor, got torch\.sparse_coo"):
        Embeddings(torch.eye(3).to_sparse())


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
@pytest.mark.parametrize("side", ["first", "second"])
def test_rows_that_can_not_be_used_are_named(rows, bad, side):
    sides = {"first": rows, "second": rows[::-1].copy()}
    sides[side][[3, 6]] = bad
    what = "finite" if not np.isfinite(bad) else "other than 0"
    message = f"{side} must hold rows that are {what}, got 2 of 20 that are not, such as row 3."
    with pytest.raises(ValueError, match=re.escape(message)):
        take_census(Embeddings(**sides))


def test_one_distinct_row_is_not_enough():
    with pytest.raises(ValueError, match="first must hold at least 2 distinct rows, got 5 times"):
        take_census(Embeddings(np.ones((5, 3))))


def test_pairs_that_share_a_row_have_one_id(rows):
    first, second, ids = pair_up(rows, np.array([[0, 1], [2, 3], [1, 4], [5, 6]]))
    assert np.array_equal(first.numpy(), rows[[0, 2, 1, 5]])
    assert np.array_equal(second.numpy(), rows[[1, 3, 4, 6]])
    assert ids[0] == ids[2]
    assert len(set(ids.tolist())) == 3


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        (np.ones((3, 2)), TypeError, "pairs must hold integers, got float64."),
        (np.ones((3, 3), int), ValueError, "pairs must have shape (pairs, 2) with 2 pairs or more"),
        (
            np.array([[0, 1], [2, 20]]),
            ValueError,
            "pairs must name rows from 0 to 19, got 0 to",
        ),
        (
            np.array([[0, 1], [-1, 2]]),
            ValueError,
            "pairs must name rows from 0 to 19, got -1",
        ),
    ],
)
def test_a_wrong_index_is_refused(rows, pairs, error, message):
    with pytest.raises(error, match=re.escape(message)):
        pair_up(rows, pairs)
