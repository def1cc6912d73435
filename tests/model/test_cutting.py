"""Some nodes of a trace: what they are, what they wait for and who called them."""

import numpy as np

from etude.model.build import TraceBuilder
from etude.model.cutting import kept
from etude.model.schema import Kind, ValueKind


def test_nodes_keep_what_they_are_and_lose_what_is_gone() -> None:
    b = TraceBuilder()
    b.add(Kind.COMP, "outer", cpu=1, attrs={"x": (ValueKind.STRING, "a")})
    b.add(Kind.COMP, "inner", cpu=1, parent=0, attrs={"y": (ValueKind.INT64, 5), "x": (ValueKind.STRING, "b")})
    b.add(Kind.COMP, "first", cpu=1, parent=1, duration_ns=7, data=[0])
    b.add(Kind.COMP, "second", cpu=1, parent=0, data=[1, 2], ctrl=[0], attrs={"y": (ValueKind.INT64, 6)})
    b.add(Kind.COMP, "third", cpu=1, data=[3, 2])
    found = kept(b.build(), np.array([True, False, True, True, True]))
    assert [found.text("name", i) for i in range(len(found))] == ["outer", "first", "second", "third"]
    assert found.source_id.tolist() == [0, 2, 3, 4]
    assert found.parent.tolist() == [-1, 0, 0, -1]  # `inner` is gone, and what it called belongs to `outer`
    data = [found.data[found.data_start[i] : found.data_start[i + 1]].tolist() for i in range(4)]
    assert data == [[], [0], [1], [2, 1]]
    assert found.ctrl.tolist() == [0] and found.ctrl_start.tolist() == [0, 0, 0, 1, 1]
    own = [[(a.name, v) for a, v in found.attributes(i) if not a.column] for i in range(4)]
    assert own == [
        [("x", "a")], [], [("y", 6)], [],
    ]  # fmt: skip
    assert found.duration_ns.tolist()[1] == 7


def test_all_and_nothing() -> None:
    b = TraceBuilder()
    b.add(Kind.COMP, "a", attrs={"y": (ValueKind.INT64, 5)})
    b.add(Kind.COMP, "b", data=[0])
    trace = b.build()
    assert kept(trace, np.ones(2, bool)).data.tolist() == [0]
    assert len(kept(trace, np.zeros(2, bool))) == 0
