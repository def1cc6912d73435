"""Equal rows: numbers by first appearance, and what NumPy's sort says."""

import numpy as np

from etude.kernels.distinct import numbered_rows, sorted_rows


def test_rows_are_numbered_by_their_first_appearance():
    number, first = numbered_rows(np.array([[7, 1], [2, 9], [7, 1], [7, 2], [2, 9]]))
    assert number.tolist() == [0, 1, 0, 2, 1]
    assert first.tolist() == [0, 1, 3]


def test_no_rows_have_no_numbers():
    number, first = numbered_rows(np.zeros((0, 3), np.int64))
    assert len(number) == len(first) == 0


def test_sorted_rows_are_those_of_unique():
    rng = np.random.default_rng(1)
    for dtype in (np.int32, np.int64):
        rows = rng.integers(-4, 4, (5000, 3)).astype(dtype)
        distinct, number = sorted_rows(rows)
        assert (distinct == np.unique(rows, axis=0)).all()
        assert (distinct[number] == rows).all()
