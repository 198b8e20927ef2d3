import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weince_lightning.functional.splits import stratified_split

UNEVEN = np.repeat([0, 1, 2, 7], [100, 30, 9, 1])


@given(
    labels=st.lists(st.integers(-1, 9), min_size=1, max_size=50),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_two_parts_hold_every_position_once_and_have_the_sizes_asked_for(
    labels, fraction, seed
):
    rest, part = stratified_split(np.array(labels), fraction, seed)
    assert sorted([*rest, *part]) == [*range(len(labels))]
    assert len(part) == round(fraction * len(labels))


@pytest.mark.parametrize("seed", range(5))
def test_each_class_gives_its_share_to_within_one(seed):
    _, part = stratified_split(UNEVEN, 0.3, seed)
    for label, size in zip(*np.unique(UNEVEN, return_counts=True), strict=True):
        assert abs((UNEVEN[part] == label).sum() - 0.3 * size) <= 1


def test_the_split_depends_on_the_seed_alone():
    first, again = (stratified_split(UNEVEN, 0.3, seed=4)[1] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, stratified_split(UNEVEN, 0.3, seed=5)[1])


def test_the_split_is_the_same_in_every_release():
    _, part = stratified_split(np.zeros(20, dtype=np.int64), 0.25, seed=0)
    # The first 5 of RandomState(0).permutation(20), sorted.
    assert part.tolist() == [1, 8, 10, 18, 19]


def test_unknown_labels_are_split_at_random():
    _, part = stratified_split(np.full(1000, -1), 0.2, seed=0)
    assert len(part) == 200
    assert abs(part.mean() - 499.5) < 80  # standard error of a mean of 200 of them: 18


def test_global_random_numbers_stay_untouched():
    before = np.random.get_state()[1].copy()
    stratified_split(UNEVEN, 0.3, seed=0)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
