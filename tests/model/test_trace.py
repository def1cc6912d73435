import numpy as np
import pytest

from etude.base.errors import TraceError, UsageError
from etude.model.build import TraceBuilder, build_trace
from etude.model.schema import COLUMN, NODE, UNKNOWN, Collective, Kind, LaneKind, ValueKind
from etude.model.trace import Trace, assert_same, first_difference


def three() -> TraceBuilder:
    b = TraceBuilder()
    gemm = b.add(Kind.COMP, "gemm", duration_ns=1500, flops=10, cpu=0, stream=7)
    b.add(Kind.COLL, "sum", data=[gemm], collective=Collective.ALL_REDUCE, in_bytes=64, group="dp")
    b.add(Kind.SEND, "out", ctrl=[gemm], dst=1, tag=4, in_bytes=3)
    return b


def test_columns_hold_what_was_added_and_unknown_elsewhere() -> None:
    t = three().build()
    assert t.kind.tolist() == [Kind.COMP, Kind.COLL, Kind.SEND]
    assert t.duration_ns.tolist() == [1500, UNKNOWN, UNKNOWN]
    assert t.in_bytes.tolist() == [UNKNOWN, 64, 3]
    assert t.collective.tolist() == [0, Collective.ALL_REDUCE, 0]
    assert t.group.tolist() == [-1, 0, -1]
    assert t.dst.tolist() == [-1, -1, 0]
    assert t.tag.tolist() == [-1, -1, 4]
    assert [t.text("name", i) for i in range(3)] == ["gemm", "sum", "out"]
    assert t.data_start.tolist() == [0, 0, 1, 1]
    assert t.data.tolist() == [0]
    assert t.ctrl_start.tolist() == [0, 0, 0, 1]


def test_the_schema_and_the_class_name_the_same_columns() -> None:
    annotated = list(Trace.__annotations__)
    columns = [c.name for c in NODE]
    assert annotated[1 : 1 + len(columns)] == columns
    assert annotated[0] == "heap"


def test_frozen() -> None:
    t = three().build()
    with pytest.raises(ValueError, match="read-only"):
        t.duration_ns[0] = 3
    with pytest.raises(AttributeError):
        t.kind = t.kind  # type: ignore[misc]


def test_a_column_of_the_wrong_type_or_length_is_refused() -> None:
    t = three().build()
    with pytest.raises(TraceError, match=r"column `flops` is float64\[3\], expected int64\[3\]"):
        t.replace(flops=np.zeros(3))
    with pytest.raises(TraceError, match=r"column `tag` is int64\[2\], expected int64\[3\]"):
        t.replace(tag=np.zeros(2, np.int64))
    with pytest.raises(TraceError, match="data dependencies: the index does not fit"):
        t.replace(data=np.zeros(5, np.int32))


def test_lanes() -> None:
    b = TraceBuilder()
    b.add(Kind.COMP, cpu=1, thread=3)
    b.add(Kind.COMP, cpu=0, stream=7)
    b.add(Kind.COMP)
    b.add(Kind.COLL)
    b.add(Kind.RECV)
    b.add(Kind.COLL, cpu=0, stream=7)
    t = b.build()
    lanes = [(LaneKind(t.lane_kind[i]), int(t.lane_id[i])) if i >= 0 else None for i in t.lane.tolist()]
    assert lanes == [
        (LaneKind.THREAD, 3), (LaneKind.STREAM, 7), (LaneKind.COMPUTE, 0), (LaneKind.NETWORK, 0), None,
        (LaneKind.STREAM, 7),
    ]  # fmt: skip


def test_attributes_in_order_with_their_kinds() -> None:
    b = TraceBuilder()
    attrs = {"x": (ValueKind.STRING, "é"), "none": (ValueKind.NONE, None), "l": (ValueKind.SINT64_LIST, [1, -2])}
    b.add(Kind.COMP, attrs=attrs)
    b.add(Kind.COMP, attrs={"d": (ValueKind.DOUBLE, -0.5), "u": (ValueKind.UINT64, 2**64 - 1)})
    t = b.build()
    assert [(a.name, v) for a, v in t.attributes(0)] == [("x", "é"), ("none", None), ("l", [1, -2])]
    assert [(a.name, v) for a, v in t.attributes(1)] == [("d", -0.5), ("u", 2**64 - 1)]
    assert {k: n.tolist() for k, (n, _) in t.attr_cells().items()} == {
        ("x", ValueKind.STRING): [0],
        ("l", ValueKind.SINT64_LIST): [0],
        ("d", ValueKind.DOUBLE): [1],
        ("u", ValueKind.UINT64): [1],
    }


@pytest.mark.parametrize(
    ("change", "node", "column"),
    [
        ({"duration_ns": np.array([1500, 9, UNKNOWN])}, 1, "duration_ns"),
        ({"kind": np.array([Kind.COMP, Kind.COLL, Kind.RECV], np.uint8)}, 2, "kind"),
        ({"name": np.array([0, 0, 0])}, 1, "name"),
        ({"data": np.array([1], np.int32)}, 1, "data dependency"),
        ({"ctrl_why": np.array([3], np.uint8)}, 2, "ctrl_why dependency"),
        ({"data_start": np.array([0, 0, 0, 1])}, 1, "data dependencies"),
    ],
)
def test_the_first_difference_names_node_and_column(change: dict[str, np.ndarray], node: int, column: str) -> None:
    a = three().build()
    found = first_difference(a, a.replace(**change))
    assert found is not None
    assert (found.node, found.column) == (node, column)
    assert_same(a, three().build())
    with pytest.raises(TraceError, match=f"node {node}: {column}"):
        assert_same(a, a.replace(**change))


def test_text_is_compared_as_text() -> None:
    a, b = TraceBuilder(), TraceBuilder()
    for name in ("x", "y"):
        a.add(Kind.COMP, name)
    for name in ("x", "y"):
        b.add(Kind.COMP, name)
    second = b.build()
    moved = second.replace(heap=np.concatenate([np.zeros(5, np.uint8), second.heap]), name=second.name + 5)
    assert_same(a.build(), moved)


def test_building_from_columns() -> None:
    t = build_trace(
        {"kind": [Kind.COMP, Kind.COMP], "name": ([1, 0], ["a", "b"]), "module": ["m", None]},
        data=([0, 0, 1], [0]),
    )
    assert [t.text("name", i) for i in (0, 1)] == ["b", "a"]
    assert [t.text("module", i) for i in (0, 1)] == ["m", ""]
    assert t.source_id.tolist() == [0, 1]
    assert t.flops.tolist() == [COLUMN["flops"].default] * 2


@pytest.mark.parametrize(
    ("columns", "more", "problem"),
    [
        ({"kinds": [5]}, {}, "unknown columns: kinds"),
        ({"name": ["a"]}, {}, "needs the column `kind`"),
        ({"kind": [5], "flops": [1, 2]}, {}, r"column `flops` has shape \(2,\)"),
        ({"kind": [5], "name": ([3], ["a"])}, {}, "a code is outside its 1 words"),
        ({"kind": [5]}, {"data": ([0, 1], [1])}, "a row is outside the trace's 1 nodes"),
        ({"kind": [5]}, {"ctrl": ([0], [])}, "the index has 1 entries for 1 nodes"),
    ],
)
def test_bad_columns_are_refused(columns: dict, more: dict, problem: str) -> None:
    with pytest.raises((TraceError, UsageError), match=problem):
        build_trace(columns, **more)
