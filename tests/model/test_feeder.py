from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.base.errors import CycleError, DanglingDependency, DeadlockError, TraceError, UsageError
from etude.model.build import TraceBuilder, build_trace, job_of
from etude.model.feeder.feed import Feeder, feeder
from etude.model.fold import fold
from etude.model.job import Job, Part, assemble
from etude.model.schema import Collective, Kind, LaneKind, ValueKind
from etude.model.trace import Trace
from naive_feeder import NaiveFeeder


def tiny(*deps: tuple[Sequence[int], Sequence[int]]) -> Trace:
    """A node for each (data, ctrl)."""
    b = TraceBuilder()
    for data, ctrl in deps:
        b.add(Kind.COMP, f"n{len(b)}", data=data, ctrl=ctrl, duration_ns=10 * len(b))
    return b.build()


DIAMOND = tiny(((), ()), ((0,), ()), ((0,), ()), ((1, 2), ()))


def dangling(edges: str = "ctrl") -> Trace:
    """0, 1 <- 0, 2 <- the missing ids 70 (twice) and 71."""
    trace = tiny(((), ()), ((0,), ()), ((), ()))
    rows: dict[str, Any] = {"missing": np.array([70, 71], np.uint64)}
    own = [~0, ~1, ~0]
    before = 1 if edges == "data" else 0
    rows[edges] = np.array([0] * before + own, np.int32)
    rows[f"{edges}_start"] = np.array([0, 0, before, before + 3], np.int64)
    rows[f"{edges}_why"] = np.zeros(before + 3, np.uint8)
    return trace.replace(**rows)


# -- order and release


def test_the_smallest_ready_row_comes_first_and_completion_releases():
    feed = feeder(DIAMOND)
    assert feed.next(0) == 0
    assert feed.next(0) is None  # 1 and 2 wait
    feed.complete(0, 0)
    assert feed.ready(0).tolist() == [1, 2]
    assert (feed.next(0), feed.next(0), feed.next(0)) == (1, 2, None)
    feed.complete(0, 2)  # completions in any order
    assert feed.next(0) is None
    feed.complete(0, 1)
    assert feed.next(0) == 3
    assert not feed.done()
    feed.complete(0, 3)
    assert feed.done() and feed.done(0)
    assert feed.next(0) is None


def test_a_node_pushed_back_keeps_its_place():
    feed = feeder(tiny(((), ()), ((), ()), ((), ())))
    assert [feed.next(0), feed.next(0)] == [0, 1]
    feed.push_back(0, 0)
    assert [feed.next(0), feed.next(0), feed.next(0)] == [0, 2, None]


def test_any_ready_node_can_be_taken():
    feed = feeder(tiny(((), ()), ((), ()), ((1,), ())))
    feed.take(0, 1)
    assert feed.ready(0).tolist() == [0]
    with pytest.raises(UsageError, match="node 2 is waiting for 1 more"):
        feed.take(0, 2)


def test_a_dependency_on_a_later_row_is_one():
    assert feeder(tiny(((2,), ()), ((), ()), ((1,), ()))).drain(0).tolist() == [1, 2, 0]


def test_a_dependency_given_twice_or_in_both_kinds_is_one_wait():
    feed = feeder(tiny(((), ()), ((0, 0), (0,))))
    assert feed.next(0) == 0
    assert feed.waiting(0) == [(1, [0])]
    feed.complete(0, 0)
    assert feed.next(0) == 1


@pytest.mark.parametrize(
    ("data", "ctrl", "first"),
    [(True, True, [0]), (True, False, [0, 2]), (False, True, [0, 1]), (False, False, [0, 1, 2])],
)
def test_each_kind_of_dependency_can_be_switched_off(data: bool, ctrl: bool, first: list[int]):
    trace = tiny(((), ()), ((0,), ()), ((), (0,)))
    assert feeder(trace, data=data, ctrl=ctrl).ready(0).tolist() == first


def test_batches():
    feed = feeder(DIAMOND)
    assert feed.next_batch(0).tolist() == [0]
    assert feed.next_batch(0).tolist() == []
    assert feed.complete_many(0, [0]) == 2
    assert feed.next_batch(0, limit=1).tolist() == [1]
    assert feed.next_batch(0).tolist() == [2]
    assert feed.complete_many(0, np.array([2, 1])) == 1
    assert feed.values(0, "duration_ns", feed.next_batch(0)).tolist() == [30]
    assert feed.complete_many(0, [3]) == 0
    assert feed.done(0)
    assert feed.complete_many(0, []) == 0


def test_an_empty_trace_is_done():
    feed = feeder(tiny())
    assert feed.done() and feed.next(0) is None and feed.drain(0).tolist() == [] and feed.next_batch(0).tolist() == []
    feed.expect_done()


# -- refusals


def test_completing_what_is_not_in_flight_is_refused():
    feed = feeder(DIAMOND)
    with pytest.raises(UsageError, match="rank 0: node 0 is ready and not issued"):
        feed.complete(0, 0)
    feed.next(0)
    feed.complete(0, 0)
    with pytest.raises(UsageError, match="node 0 is already completed"):
        feed.complete(0, 0)
    with pytest.raises(UsageError, match="node 3 is waiting for 2 more"):
        feed.complete(0, 3)
    for node in (-1, 4, 1 << 40):
        with pytest.raises(UsageError, match="there is no node"):
            feed.complete(0, node)
        with pytest.raises(UsageError, match="there is no node"):
            feed.complete_many(0, [node])
    with pytest.raises(UsageError, match="node 1 is ready and not issued"):
        feed.push_back(0, 1)


def test_a_batch_with_a_wrong_node_changes_nothing():
    feed = feeder(DIAMOND)
    feed.next(0)
    feed.complete(0, 0)
    feed.next_batch(0)
    with pytest.raises(UsageError, match="node 0 is already completed"):
        feed.complete_many(0, [1, 2, 0])
    with pytest.raises(UsageError, match="node 2 is named twice"):
        feed.complete_many(0, [1, 2, 2])
    with pytest.raises(UsageError, match="expected a list of rows"):
        feed.complete_many(0, [1.0, 2.0])
    assert feed.next(0) is None
    assert feed.complete_many(0, [1, 2]) == 1


def test_what_is_done_stays_done():
    feed = feeder(DIAMOND)
    feed.drain(0)
    for act in (feed.complete, feed.push_back, feed.take):
        with pytest.raises(UsageError, match="node 3 is already completed"):
            act(0, 3)
    with pytest.raises(UsageError, match="node 3 is already completed"):
        feed.complete_many(0, [3])
    assert feed.ready(0).tolist() == [] and feed.waiting(0) == []
    assert feed.rank(0).nbytes == 0


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"rank 5 is not in the job\nhint: present: 0"):
        feeder(DIAMOND).next(5)


# -- missing nodes, circles, deadlock


def test_a_missing_dependency_is_an_error_with_names():
    with pytest.raises(DanglingDependency) as problem:
        feeder(dangling("ctrl"))
    assert str(problem.value) == (
        "rank 0: node 2 waits for node 70, which is not in the trace (3 such dependencies in total)\n"
        'hint: `missing="drop"` ignores dependencies on missing nodes; `ctrl=False` leaves out ctrl dependencies'
    )
    with pytest.raises(DanglingDependency, match="`data=False` leaves out data dependencies"):
        feeder(dangling("data"))


def test_a_missing_dependency_can_be_dropped_or_its_kind_switched_off():
    assert feeder(dangling("ctrl"), ctrl=False).drain(0).tolist() == [0, 1, 2]
    assert feeder(dangling("ctrl"), missing="drop").ready(0).tolist() == [0, 2]
    assert feeder(dangling("data"), missing="drop").drain(0).tolist() == [0, 1, 2]
    with pytest.raises(DanglingDependency):
        feeder(dangling("data"), ctrl=False)
    with pytest.raises(UsageError, match="known: error, drop"):
        feeder(DIAMOND, missing="ignore")  # type: ignore[arg-type]


def test_a_circle_is_named():
    trace = tiny(((), ()), ((3,), ()), ((), (1,)), ((2,), ()), ((3,), ()))  # 4 waits behind the circle, is not on it
    with pytest.raises(CycleError, match=r"rank 0: nodes wait for one another in a cycle: ([123]) -> .* -> \1\n") as p:
        feeder(trace)
    shown = p.value.problem.partition(": ")[2].split(" -> ")
    assert sorted(shown[:-1]) == ["1", "2", "3"]
    waits_for = {"1": "3", "2": "1", "3": "2"}
    assert all(waits_for[b] == a for a, b in pairwise(shown))
    assert feeder(trace, ctrl=False).drain(0).tolist() == [0, 2, 3, 1, 4]


def test_a_node_that_waits_for_itself_is_a_circle():
    with pytest.raises(CycleError, match="cycle: 1 -> 1"):
        feeder(tiny(((), ()), ((1,), ())))


def test_dependencies_outside_the_trace_never_reach_a_kernel():
    bad = DIAMOND.replace(data=np.array([0, 0, 9, 2], np.int32))
    with pytest.raises(TraceError, match="rank 0: the dependencies of node 3 are outside the trace"):
        feeder(bad)
    with pytest.raises(TraceError, match="are outside"):
        feeder(DIAMOND.replace(data=np.array([0, ~0, 1, 2], np.int32)))
    with pytest.raises(TraceError, match="are outside"):
        feeder(DIAMOND.replace(data_start=np.array([0, 0, 9, 2, 4], np.int64)))


def test_a_simulation_that_stops_early_is_told_why():
    feed = feeder(DIAMOND)
    feed.next(0)
    with pytest.raises(DeadlockError) as problem:
        feed.expect_done()
    assert problem.value.problem.splitlines() == [
        "1 of 1 ranks are not done",
        "rank 0: 0 of 4 nodes completed, 0 ready",
        "  in flight: node 0, COMP `n0`",
        "  waiting: node 1 for 0",
        "  waiting: node 2 for 0",
        "  waiting: node 3 for 1, 2",
    ]


# -- many ranks


def pair_job() -> Job:
    """Two ranks run the same program; rank 1 has ids from 100, tags from 7, another peer and another duration."""
    builders = []
    for rank in (0, 1):
        b = TraceBuilder()
        gemm = b.add(Kind.COMP, "gemm", source_id=100 * rank + 4, duration_ns=50 + rank, cpu=0)
        kinds = {"color": (ValueKind.STRING, "red"), "weights": (ValueKind.DOUBLE_LIST, [0.5, 2.0])}
        b.add(Kind.COLL, "sum", source_id=100 * rank + 5, data=[gemm], collective=Collective.ALL_REDUCE, in_bytes=64,
              group="dp", attrs=kinds)  # fmt: skip
        b.add(Kind.SEND, source_id=100 * rank + 6, ctrl=[gemm], dst=1 - rank, tag=7 * rank + 1, in_bytes=8)
        builders.append(b)
    return fold(job_of("pair", builders, {"dp": [0, 1]}))


def test_ranks_of_a_folded_job_share_their_graph_and_nothing_else():
    job = pair_job()
    assert len(job.traces) == 1
    feed = feeder(job)
    static = feed.nbytes
    assert feed.next(0) == 0
    feed.complete(0, 0)
    assert feed.ready(1).tolist() == [0]
    assert feed.ready(0).tolist() == [1, 2]
    assert feed.rank(0)._graph is feed.rank(1)._graph
    assert feed.nbytes == static + feed.rank(0).nbytes + feed.rank(1).nbytes
    assert not feed.done()
    for rank in (0, 1):
        feed.drain(rank)
    feed.expect_done()
    assert feed.nbytes == static


def test_a_view_gives_the_node_as_its_rank_has_it():
    feed = feeder(pair_job())
    gemm, total, send = (feed.node(1, n) for n in range(3))
    assert (gemm.kind, gemm.name, gemm.source_id, gemm.duration_ns) == (Kind.COMP, "gemm", 104, 51)
    assert feed.node(0, 0).duration_ns == 50
    assert (gemm.lane, total.lane) == ((LaneKind.COMPUTE, 0), (LaneKind.NETWORK, 0))
    assert (gemm.cpu, total.cpu, gemm.flops, gemm.start_ns, gemm.module) == (False, None, None, None, "")
    assert (total.collective, total.in_bytes, total.group, total.group_name) == (
        Collective.ALL_REDUCE,
        64,
        (0, 1),
        "dp",
    )
    assert (gemm.collective, gemm.group, gemm.dst, gemm.tag) == (Collective.NONE, None, None, None)
    assert (send.dst, send.src, send.tag) == (0, None, 8)
    assert (feed.node(0, 2).dst, feed.node(0, 2).tag) == (1, 1)
    assert (total.data_ids, send.data_ids, send.ctrl_ids) == ([104], [], [104])
    assert total.attr("color") == "red" and total.attr("weights") == [0.5, 2.0]
    assert total.attr("nothing") is None and total.attr("nothing", 3) == 3
    assert total.attrs == {"comm_type": 0, "comm_size": 64, "pg_name": "dp", "color": "red", "weights": [0.5, 2.0]}
    assert repr(send) == "NodeView(rank 1, node 2, id 106, SEND ``)"
    with pytest.raises(UsageError, match="there is no node 3"):
        feed.node(1, 3)


def test_a_trace_alone_has_labels_for_groups_and_no_members():
    b = TraceBuilder()
    b.add(Kind.COLL, group="tp")
    b.add(Kind.SEND, dst=3)
    feed = feeder(b.build())
    assert (feed.node(0, 0).group_name, feed.node(0, 0).group, feed.node(0, 1).dst) == ("g0", None, None)


def test_columns_of_numbers_only():
    with pytest.raises(UsageError, match="`name` is not a column of plain numbers"):
        feeder(DIAMOND).values(0, "name", [0])
    job = feeder(pair_job())
    assert job.values(1, "source_id", [2, 0]).tolist() == [106, 104]
    assert job.values(1, "tag", [0, 2]).tolist() == [-1, 8]
    with pytest.raises(UsageError, match="there is no node 4"):
        feeder(DIAMOND).values(0, "duration_ns", [0, 4])


# -- against the naive twin, and the bound on memory


@st.composite
def graphs(draw: st.DrawFn) -> Trace:
    """A graph without circles whose rows are in no order; long ones have several levels of ready words."""
    n = draw(st.integers(0, 40) | st.sampled_from([64, 65, 130, 4200]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    width = draw(st.integers(1, 6))
    place = random.permutation(n) if draw(st.booleans()) else np.arange(n)
    deps: list[tuple[list[int], list[int]]] = [([], []) for _ in range(n)]
    for at in range(1, n):
        for kind in (0, 1):
            picks = random.integers(max(0, at - width * 5), at, random.integers(0, 3))
            deps[place[at]][kind].extend(place[picks].tolist())
    return tiny(*deps)


@given(graphs(), st.integers(0, 2**32), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_agrees_with_the_naive_twin(trace: Trace, seed: int, data: bool, ctrl: bool):
    waits_for: list[list[int]] = []
    for i in range(len(trace)):
        own = trace.data[trace.data_start[i] : trace.data_start[i + 1]].tolist() if data else []
        waits_for.append(own + (trace.ctrl[trace.ctrl_start[i] : trace.ctrl_start[i + 1]].tolist() if ctrl else []))
    random = np.random.default_rng(seed)
    fast, slow = feeder(trace, data=data, ctrl=ctrl).rank(0), NaiveFeeder(waits_for)
    steps = 0
    while not slow.done and steps < 400:
        steps += 1
        expected = slow.ready()
        assert fast.ready_count == len(expected)
        if steps % 7 == 0:
            assert fast.ready().tolist() == expected
        flying = sorted(slow.issued)
        assert fast.in_flight == len(flying)
        action = random.integers(0, 6)
        if action < 2:
            assert fast.next() == slow.next()
        elif action == 2:
            limit = int(random.integers(0, 9))
            assert fast.next_batch(limit).tolist() == [slow.next() for _ in expected[:limit]]
        elif action == 3 and flying:
            chosen = random.permutation(flying)[: random.integers(0, len(flying)) + 1]
            for node in chosen.tolist():
                slow.complete(node)
            assert fast.complete_many(chosen) == len(set(slow.ready()) - set(expected))
        elif action == 4 and flying and random.integers(0, 3) == 0:
            node = int(random.choice(flying))
            fast.push_back(node)
            slow.push_back(node)
        elif flying:
            node = int(random.choice(flying))
            fast.complete(node)
            slow.complete(node)
    assert fast.done == slow.done
    fast.complete_many(fast.issued())
    fast.drain()
    assert fast.done


@pytest.mark.parametrize("ranks", [1, 5])
def test_memory_is_what_the_formula_says_and_within_the_bound(ranks: int):
    n = 20_000
    b = np.arange(n)
    start = np.concatenate([[0], np.cumsum(np.minimum(b, 3))])
    dep = np.concatenate([np.arange(max(0, i - 3), i) for i in range(n)])
    trace = build_trace({"kind": np.full(n, Kind.COMP)}, data=(start, dep), ctrl=(start, dep))
    job = fold(assemble("j", [Part(r, trace, [], np.zeros(0, np.int64)) for r in range(ranks)]))
    feed: Feeder = feeder(job)
    for rank in range(ranks):
        feed.next(rank)
    edges = 2 * len(dep)
    slack = 200 * ranks
    assert feed.nbytes <= 12 * n + 4 * edges + ranks * 4.13 * n + slack
    assert feed.nbytes <= (64 * n + 8 * edges) * ranks
    held = 0
    for array in {id(a): a for r in range(ranks) for a in _arrays(feed.rank(r))}.values():
        held += array.nbytes
    assert abs(feed.nbytes - held) <= slack


def _arrays(rank: Any) -> list[Any]:
    return [rank._remaining, rank._bits, rank._graph.succ, rank._graph.succ_start, rank._graph.indegree]
