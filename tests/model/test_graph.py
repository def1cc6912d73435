"""The graph kernels against their slow twins, and small graphs worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from etude.base.errors import CycleError, TraceError, UsageError
from etude.model import graph as g
from etude.model.trace import Trace
from jobs import graph, graphs

WHICH = st.sampled_from(["data", "ctrl", "both"])
some = settings(deadline=None, max_examples=80)


@some
@given(graphs(), WHICH, st.booleans())
def test_order_and_successors_agree_with_naive(trace: Trace, which: g.Which, block: bool):
    assert g.topological_order(trace, which, block_missing=block).tolist() == naive.topological_order(
        trace, which, block
    )
    found = g.successors(trace, which)
    assert [found.of(i).tolist() for i in range(len(trace))] == naive.successors(trace, which)


@some
@given(graphs(), WHICH)
def test_a_cycle_is_found_exactly_where_there_is_one(trace: Trace, which: g.Which):
    cycle = g.find_cycle(trace, which).tolist()
    deps = naive.dependencies(trace, which)
    assert bool(cycle) == (len(naive.topological_order(trace, which)) < len(trace))
    assert len(set(cycle)) == len(cycle)
    assert all(b in deps[a] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True))
    assert not cycle or cycle[0] == min(cycle)


@some
@given(graphs(), WHICH, st.data())
def test_reach_agrees_with_naive(trace: Trace, which: g.Which, data: st.DataObject):
    rows = data.draw(st.lists(st.integers(0, len(trace) - 1), max_size=3)) if len(trace) else []
    seeds = np.array(rows, np.int64)
    assert g.ancestors(trace, seeds, which).tolist() == naive.reached(naive.dependencies(trace, which), rows)
    assert g.descendants(trace, seeds, which).tolist() == naive.reached(naive.successors(trace, which), rows)


@some
@given(graphs(acyclic=True), WHICH, st.data())
def test_the_longest_path_agrees_with_naive_and_adds_up(trace: Trace, which: g.Which, data: st.DataObject):
    cost = data.draw(st.lists(st.integers(0, 9), min_size=len(trace), max_size=len(trace)))
    finish, path = g.longest_path(trace, np.array(cost, np.int64), which)
    assert finish.tolist() == naive.finish(trace, cost, which)
    deps = naive.dependencies(trace, which)
    assert all(a in deps[b] for a, b in zip(path[:-1].tolist(), path[1:].tolist(), strict=True))
    assert sum(cost[i] for i in path.tolist()) == max(finish.tolist(), default=0)
    ones = [1] * len(trace)
    assert g.depth(trace, which).tolist() == [f - 1 for f in naive.finish(trace, ones, which)]


def test_a_diamond_by_hand():
    t = graph([[], [0], [0], [1, 2]])
    finish, path = g.longest_path(t, [1, 5, 2, 1])
    assert finish.tolist() == [1, 6, 3, 7]
    assert path.tolist() == [0, 1, 3]
    assert g.depth(t).tolist() == [0, 1, 1, 2]
    assert g.descendants(t, [1]).tolist() == [False, True, False, True]
    assert g.ancestors(t, [2]).tolist() == [True, False, True, False]


def test_ties_on_the_longest_path_go_to_the_smallest_row():
    assert g.longest_path(graph([[], [], [1, 0]]), [3, 3, 1])[1].tolist() == [0, 2]


def test_control_and_data_are_apart():
    t = graph([[], [0]], [[1], []])
    assert g.topological_order(t, "data").tolist() == [0, 1]
    assert g.topological_order(t, "ctrl").tolist() == [1, 0]
    assert g.topological_order(t, "both").tolist() == []
    assert g.find_cycle(t).tolist() == [0, 1]
    assert g.dependencies(t).of(1).tolist() == [0]


def test_a_node_that_waits_for_itself_is_a_cycle_unless_told_otherwise():
    t = graph([[], [1]])
    assert g.find_cycle(t).tolist() == [1]
    assert g.find_cycle(t, but_self=True).tolist() == []


def test_refusals():
    with pytest.raises(CycleError, match="0 waits for 1 waits for 0"):
        g.depth(graph([[1], [0]]))
    with pytest.raises(UsageError, match="cost of node 1 is not known"):
        g.longest_path(graph([[], []]), [1, np.iinfo(np.int64).min])
    with pytest.raises(UsageError, match="shape"):
        g.longest_path(graph([[]]), [1, 2])
    with pytest.raises(UsageError, match="outside"):
        g.ancestors(graph([[]]), [1])
    with pytest.raises(UsageError, match="unknown dependencies"):
        g.topological_order(graph([[]]), "all")  # type: ignore[arg-type]


def test_a_bad_index_never_reaches_a_kernel():
    with pytest.raises(TraceError, match="outside"):
        g.topological_order(graph([[7]]))
    with pytest.raises(TraceError, match="outside"):
        g.topological_order(graph([[-1]]))
    t = graph([[], [0]])
    with pytest.raises(TraceError, match="does not fit"):
        g.topological_order(t.replace(data_start=np.array([0, 5, 1], np.int64)))


def test_the_empty_trace():
    t = graph([])
    assert g.topological_order(t).tolist() == []
    assert g.find_cycle(t).tolist() == []
    assert g.longest_path(t, [])[1].tolist() == []
