"""Intervals against slow twins and cases worked by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etude.kernels.intervals import covered, depths, merged, nest, time_by_mask
from naive_analyse import covered as naive_covered
from naive_analyse import merged as naive_merged
from naive_analyse import time_by_mask as naive_time_by_mask

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 7)), max_size=8)


@given(INTERVALS)
def test_the_sweep_counts_as_the_twin_does(drawn):
    intervals = [(s, s + d, bits) for s, d, bits in drawn]
    start, end, bits = (np.array([i[k] for i in intervals], np.int64) for k in range(3))
    assert time_by_mask(start, end, bits.astype(np.uint8), 3).tolist() == naive_time_by_mask(intervals, 3)
    first, last = merged(start, end)
    assert list(zip(first.tolist(), last.tolist(), strict=True)) == naive_merged([(s, e) for s, e, _ in intervals])
    order = np.argsort(start, kind="stable")
    assert [covered(start, end, order[bits[order] == g]) for g in range(8)] == naive_covered(intervals, 8)


def nested(intervals, slack=0):
    """(parents, apart, ends) of (start, end) or (start, end, may hold) of one thread, in the order of the kernel."""
    start, end = (np.array([i[k] for i in intervals], np.int64) for k in range(2))
    hold = np.array([len(i) < 3 or i[2] for i in intervals], bool)
    parent, apart = np.empty(len(start), np.int64), np.empty(len(start), bool)
    nest(np.array([0, len(start)]), start, end, hold, slack, parent, apart)
    return parent.tolist(), apart.tolist(), end.tolist()


def naive(intervals, slack):
    """Among the intervals that may hold something, the last before it whose end is not before its own."""
    parents, aparts, ends = [], [], []
    for i, (start, end, _) in enumerate(intervals):
        around = [j for j in range(i) if intervals[j][2] and not aparts[j] and ends[j] > start]
        holding = [j for j in around if end <= ends[j] + slack]
        parents.append(holding[-1] if holding else -1)
        aparts.append(bool(around) and parents[-1] != around[-1])
        ends.append(min(end, ends[around[-1]]) if around and not aparts[-1] else end)
    return parents, aparts, ends


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.booleans()), max_size=12), st.integers(0, 2))
def test_nesting_agrees_with_the_twin(drawn, slack):
    intervals = sorted(((s, s + d, hold) for s, d, hold in drawn), key=lambda i: (i[0], -i[1]))
    found = nested(intervals, slack)
    assert found == naive(intervals, slack)
    for i, parent in enumerate(found[0]):  # all that is around it is around it
        while parent >= 0:
            assert intervals[parent][0] <= intervals[i][0]
            assert intervals[i][1] <= intervals[parent][1] + slack
            parent = found[0][parent]


def test_what_outlives_the_interval_it_began_in_belongs_to_the_one_around_both():
    """A step, a call in it that starts some work, the work, and the next call, in the middle of the work."""
    parents, apart, _ = nested([(0, 100), (10, 20), (15, 60), (30, 40)])
    assert parents == [-1, 0, 0, 0]
    assert apart == [False, False, True, False]


def test_an_end_that_is_late_by_rounding_is_cut_and_what_follows_is_not_inside():
    assert nested([(0, 100), (50, 101), (100, 105)], 1) == ([-1, 0, -1], [False] * 3, [100, 100, 105])
    assert nested([(0, 100), (50, 101), (100, 105)], 0) == ([-1, -1, -1], [False, True, False], [100, 101, 105])


def test_threads_do_not_see_one_another():
    parent, apart = np.empty(3, np.int64), np.empty(3, bool)
    start, end = np.array([0, 0, 5]), np.array([50, 50, 10])
    nest(np.array([0, 1, 1, 3]), start, end, np.ones(3, bool), 0, parent, apart)
    assert parent.tolist() == [-1, -1, 1]
    assert depths(parent).tolist() == [0, 0, 1]
