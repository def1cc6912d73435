"""Sparse rows against lists of edges."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etude.kernels.csr import reverse, starts, topological

NODES = 8


def csr(edges):
    """Row i has what it waits for, in the order of the list; -1 leads nowhere."""
    rows = [[d for i, d in edges if i == node] for node in range(NODES)]
    return np.cumsum([0, *map(len, rows)]), np.array([d for row in rows for d in row], np.int32)


EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(-1, NODES - 1)), max_size=20)


@given(EDGES)
def test_turned_around_every_edge_is_there_once(edges):
    start, rows = reverse(*csr(edges))
    found = [(d, i) for d in range(NODES) for i in rows[start[d] : start[d + 1]].tolist()]
    assert found == sorted((d, i) for i, d in edges if d >= 0)
    assert rows.dtype == np.int32


@given(EDGES)
def test_the_order_is_first_in_first_out_and_leaves_circles_out(edges):
    edges = [(i, d) for i, d in edges if d >= 0]
    waits = np.array([sum(i == node for i, _ in edges) for node in range(NODES)])
    order = np.full(NODES, -1, np.int32)
    count = topological(waits, *reverse(*csr(edges)), order)
    naive, left = [node for node in range(NODES) if not any(i == node for i, _ in edges)], list(edges)
    for done in naive:
        for who in sorted(i for i, d in edges if d == done):
            left.remove((who, done))
            if who not in naive and not any(i == who for i, _ in left):
                naive.append(who)
    assert order[:count].tolist() == naive
    assert {node for node in range(NODES) if waits[node] > 0} == set(range(NODES)) - set(naive)


def test_where_runs_of_equal_keys_begin():
    assert starts(np.array([3, 3, 5, 3])).tolist() == [0, 2, 3, 4]
    assert starts(np.array([], np.int32)).tolist() == [0, 0]
