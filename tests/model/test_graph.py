"""The graph kernels against their slow twins, and small graphs worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive
from etude.base.errors import TraceError, UsageError
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
