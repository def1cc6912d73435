"""Arrays as kernels take them."""

import numpy as np
import pytest

from etude.kernels.arrays import as_read, distinct_values


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
