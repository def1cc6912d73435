"""Arrays as kernels take them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.kernels.arrays import as_read, distinct_values, sort_order


@pytest.mark.parametrize(
    "values",
    [
        np.array([], np.int64),
        np.array([3, -1, 3, 3, 0], np.int32),
        np.array([2, 0, 2], np.uint8),
        np.array([True, False, True]),
        np.array([[1, 2], [2, 1]]),
        np.array([1.5, np.nan, np.nan, 0.5]),
        np.arange(30_000) % 7,
    ],
)
def test_values_that_differ_are_those_of_numpy(values):
    found = distinct_values(values)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, np.unique(values))


def test_a_column_that_is_only_read_is_a_view():
    column = np.arange(4)
    view = as_read(column)
    assert view.base is column and not view.flags.writeable and column.flags.writeable


KEY = st.sampled_from([[0, 1, 2], [-3, 0, 3], [7], [-(1 << 62), 0, 1 << 62], list(range(9))])


@given(st.lists(KEY, min_size=1, max_size=4), st.integers(0, 40), st.randoms(use_true_random=False))
def test_rows_are_in_the_order_of_pythons_sort(values, count, random):
    keys = [[random.choice(some) for _ in range(count)] for some in values]
    rows = sorted(range(count), key=lambda row: [key[row] for key in keys])
    assert sort_order(*(np.array(key, np.int64) for key in keys)).tolist() == rows


def test_truths_are_keys_too():
    assert sort_order(np.array([1, 0, 1, 0]), np.array([True, True, False, False])).tolist() == [3, 1, 2, 0]
