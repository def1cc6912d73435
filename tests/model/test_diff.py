import numpy as np

from etude.model.build import job_of
from etude.model.diff import diff
from etude.model.fold import fold
from etude.model.schema import UNKNOWN
from etude.model.timing import measured
from tiny_jobs import GROUPS, ring


def jobs(**second):  # type: ignore[no-untyped-def]
    return job_of("a", [ring(r) for r in range(4)], GROUPS), job_of("b", [ring(r, **second) for r in range(4)], GROUPS)


def found(a, b):  # type: ignore[no-untyped-def]
    d = diff(a, b)
    assert d is not None
    return d.rank, d.node, d.column, d.a, d.b


def test_same_in_other_shape_and_name() -> None:
    a, b = jobs()
    assert diff(a, b) is None
    assert diff(a, fold(b)) is None


def test_value_text_id_and_tag() -> None:
    assert found(*jobs(duration_ns=11)) == (0, 0, "duration_ns", 10, 11)
    assert found(*jobs(name="gemv")) == (0, 0, "name", "gemm", "gemv")
    assert found(*jobs(first_id=7)) == (0, 0, "source_id", 0, 7)
    assert found(*jobs(first_tag=3))[2:] == ("first tag", 0, 3)


def test_one_rank_only() -> None:
    a = job_of("a", [ring(r) for r in range(4)], GROUPS)
    b = job_of("b", [ring(r, duration_ns=20 if r == 3 else 10) for r in range(4)], GROUPS)
    assert found(a, b) == (3, 0, "duration_ns", 10, 20)
    assert found(fold(a), b) == (3, 0, "duration_ns", 10, 20)


def test_groups_peers_ranks_and_world() -> None:
    a = job_of("a", [ring(r) for r in range(4)], GROUPS)
    assert found(a, job_of("b", [ring(r) for r in range(4)], GROUPS | {"b": [3, 2]})) == (
        2, 1, "members of group b", [2, 3], [3, 2],
    )  # fmt: skip
    assert found(a, job_of("b", [ring(r) for r in range(3)], GROUPS)) == (None, None, "ranks", "0-3", "0-2")
    assert found(a, a.replace(world_size=9)) == (None, None, "world_size", 4, 9)
    peers = a.peer_of.copy()
    peers[0] = 3
    assert found(a, a.replace(peer_of=peers)) == (0, 4, "peer", 1, 3)


def test_times() -> None:
    a, b = jobs()
    starts = [np.full(5, UNKNOWN) for _ in range(4)]
    starts[2][3] = 40
    durations = [t.duration_ns for t in a.traces]
    timed = a.replace(timing=measured(starts, durations))
    assert found(timed, b) == (0, None, "recorded times", True, False)
    later = [s.copy() for s in starts]
    later[2][3] = 41
    assert found(timed, b.replace(timing=measured(later, durations))) == (2, 4, "start_ns", 40, 41)


def test_how_slots_are_numbered_does_not_count() -> None:
    """A file has one slot for a peer, a program that suits many ranks may have two: the one before, the one behind."""
    a, b = jobs()
    split = tuple(
        t.replace(
            group=np.where(t.group < 0, t.group, 1 - t.group),
            peer_slots=3,
            src=np.where(t.src < 0, -1, 2).astype(np.int32),
        )
        for t in a.traces
    )
    peers = np.stack([a.peer_of.reshape(4, 2)[:, 0], a.peer_of.reshape(4, 2)[:, 1], a.peer_of.reshape(4, 2)[:, 1]], 1)
    other = a.replace(
        traces=split,
        peer_start=np.arange(5) * 3,
        peer_of=peers.ravel(),
        group_of=a.group_of.reshape(4, 2)[:, ::-1].ravel(),
    )
    assert diff(a, other) is None
    assert diff(other, b) is None
    peers[2, 2] = 3
    assert found(a, other.replace(peer_of=peers.ravel())) == (2, 5, "peer", 1, 3)
    unsaid = tuple(t.replace(group=np.full(len(t), -1, np.int32)) for t in split)
    assert found(a, other.replace(traces=unsaid)) == (0, 1, "group", "a", None)
