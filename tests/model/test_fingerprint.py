import numpy as np

from etude.model.fingerprint import Fingerprint


def same(*pair):
    first, second = (Fingerprint(*values).digest() for values in pair)
    return first == second


def test_values_their_order_and_their_bounds_count():
    assert same((1, "a", np.arange(3)), (1, "a", np.arange(3)))
    assert not same((1, 2), (2, 1))
    assert not same(("ab", "c"), ("a", "bc"))
    assert not same((np.arange(3), np.arange(2)), (np.arange(2), np.arange(3)))
    assert not same((np.array([0, 1]), np.array([], int)), (np.array([0]), np.array([1])))


def test_types_count_and_strides_do_not():
    assert not same((np.zeros(4, np.int32),), (np.zeros(2, np.int64),))
    assert same((np.arange(6)[::2],), (np.array([0, 2, 4]),))


def test_a_column_that_was_not_recorded_differs_from_one_that_was():
    assert not same((np.broadcast_to(np.int64(0), 3),), (np.zeros(3, np.int64),))
    assert same((np.broadcast_to(np.int64(0), 3),), (np.broadcast_to(np.int64(0), 3),))
