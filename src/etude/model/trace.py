"""Trace: one program as frozen columns. No rank is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.base.shapes import names_in
from etude.kernels.arrays import I32, I64, U8, U64, as_read, distinct_values
from etude.kernels.compile import kernel
from etude.model import reasons, text
from etude.model.schema import (
    COLUMN,
    HEAP_KINDS,
    NODE,
    OWNED,
    OWNED_INDEX,
    UNKNOWN,
    Collective,
    Kind,
    LaneKind,
    ValueKind,
)

# Enums as plain numbers, for kernels.
SEND, RECV, COLL = int(Kind.SEND), int(Kind.RECV), int(Kind.COLL)
MEM_LOAD, MEM_STORE = int(Kind.MEM_LOAD), int(Kind.MEM_STORE)
THREAD_LANE, STREAM_LANE = int(LaneKind.THREAD), int(LaneKind.STREAM)
COMPUTE_LANE, NETWORK_LANE = int(LaneKind.COMPUTE), int(LaneKind.NETWORK)


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute in a layout: its name, the kind of its value, and where the value is stored."""

    name: str
    kind: ValueKind
    doc: str = ""
    unknown: bytes = b""
    """Fields newer than the schema, as in the file."""
    column: str = ""
    """The column that holds the value; if empty, the value is the node's next cell."""

    @property
    def in_cell(self) -> bool:
        return self.kind != ValueKind.NONE and not self.column


Layout = tuple[Attr, ...]
"""The ordered attributes of a node."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, kw_only=True)
class Trace:
    """One program, shared by the ranks that run it.

    Node i waits for data[data_start[i]:data_start[i+1]] and for ctrl[ctrl_start[i]:ctrl_start[i+1]]; an entry >= 0 is
    a row, an entry < 0 is ~k into `missing`, the ids that no node of the file has. Text columns hold offsets into
    `heap` (etude.model.text). A node's attributes are layouts[layout[i]]; those not held by a column have their
    values in `cells`, row after row (a scalar's 64 bits, or the heap offset of text, bytes and lists).

    trace: etude.Trace = job.trace(0)
    """

    heap: U8
    source_id: U64
    kind: U8
    name: I64
    duration_ns: I64
    lane: I32
    cpu: NDArray[np.int8]
    thread: I64
    stream: I64
    collective: U8
    in_bytes: I64
    out_bytes: I64
    tensor_bytes: I64
    flops: I64
    group: I32
    src: I32
    dst: I32
    tag: I64
    priority: I64
    step: I64
    micro_batch: I64
    rf_id: I64
    external_id: I64
    correlation: I64
    phase: I64
    module: I64
    io: U8
    in_values: I64
    in_shapes: I64
    in_types: I64
    out_values: I64
    out_shapes: I64
    out_types: I64
    in_strides: I64
    out_strides: I64
    parent: I32
    time_source: U8
    recorded_start_ns: I64
    recorded_end_ns: I64
    recorded_duration_ns: I64
    layout: I32

    data_start: I64
    data: I32
    data_why: U8
    ctrl_start: I64
    ctrl: I32
    ctrl_why: U8
    missing: U64

    layouts: tuple[Layout, ...]
    cells: I64
    extra_row: I32
    """Rows with wire fields newer than the schema, ascending."""
    extra: I64
    """Heap offset of the bytes of those fields, for each of them."""
    lane_kind: U8
    lane_id: I64
    group_slots: tuple[str, ...]
    """Label of each group slot; the job binds them to groups, rank by rank."""
    peer_slots: int
    """Number of peer slots; the job binds them to ranks."""

    def __post_init__(self) -> None:
        n = len(self.kind)
        for name, dtype in _DTYPES:
            column = getattr(self, name)
            if column.dtype != dtype or len(column) != n:
                raise TraceError(f"column `{name}` is {column.dtype}[{len(column)}], expected {dtype}[{n}]")
            column.setflags(write=False)
        for edges in ("data", "ctrl"):
            start, dep, why = getattr(self, f"{edges}_start"), getattr(self, edges), getattr(self, f"{edges}_why")
            if len(start) != n + 1 or start[0] != 0 or start[-1] != len(dep) or len(why) != len(dep):
                raise TraceError(f"{edges} dependencies: the index does not fit {n} nodes, {len(dep)} edges")
        for name in _OTHER_ARRAYS:
            getattr(self, name).setflags(write=False)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"Trace({len(self)} nodes, {len(self.data)} data and {len(self.ctrl)} control dependencies)"

    def replace(self, **columns: Any) -> Trace:
        """A copy with these columns replaced. Arrays become read-only."""
        return replace(self, **columns)

    # -- text -------------------------------------------------------------------------------------------------------

    def text(self, column: str, node: int) -> str:
        """The text of one cell; "" if not recorded."""
        if not COLUMN[column].is_text:
            raise TraceError(f"column `{column}` is not text")
        return text.string(self.heap, int(getattr(self, column)[node]))

    def coded(self, column: str, rows: NDArray[np.signedinteger[Any]] | None = None) -> tuple[I32, list[str]]:
        """A text column dictionary-encoded, or these rows of it: a code for each (-1: none) and the strings."""
        offsets = getattr(self, column)
        codes, unique = text.intern(self.heap, offsets if rows is None else offsets[rows])
        return codes, text.strings(self.heap, unique)

    def intern(self) -> dict[str | tuple[str, ValueKind], tuple[I32, I64]]:
        """Every text column and every attribute in the heap, dictionary-encoded: (code per node or per occurrence, heap
        offset per code). Keys are column names and (attribute, kind); columns without text are left out."""
        keys: list[str | tuple[str, ValueKind]] = [
            c.name for c in NODE if c.is_text and getattr(self, c.name).strides != (0,)
        ]
        columns: list[I64] = [getattr(self, str(name)) for name in keys]
        for key, (_, cells) in self.attr_cells(heap_only=True).items():
            keys.append(key)
            columns.append(cells)
        return dict(zip(keys, text.intern_many(self.heap, columns), strict=True))

    # -- attributes -------------------------------------------------------------------------------------------------

    def cell_start(self) -> I64:
        """First cell of each node, with one extra entry."""
        counts = np.array([sum(a.in_cell for a in layout) for layout in self.layouts] or [0], np.int64)
        start = np.zeros(len(self) + 1, np.int64)
        if len(self):
            np.cumsum(counts[self.layout], out=start[1:])
        return start

    def heap_cells(self) -> NDArray[np.bool_]:
        """Whether each cell is an offset into the heap."""
        kinds = [[a.kind in HEAP_KINDS for a in layout if a.in_cell] for layout in self.layouts]
        number = np.array([len(kind) for kind in kinds] or [0], np.int64)[self.layout]
        first = np.concatenate([[0], np.cumsum([len(kind) for kind in kinds])])[self.layout]
        at = np.repeat(first - (np.cumsum(number) - number), number) + np.arange(len(self.cells))
        return np.array([heap for kind in kinds for heap in kind], np.bool_)[at]

    def attr_cells(self, *, heap_only: bool = False) -> dict[tuple[str, ValueKind], tuple[I32, I64]]:
        """Attributes that no column holds: (name, kind) -> (nodes ascending, cells)."""
        found: dict[tuple[str, ValueKind], list[tuple[I32, I64]]] = {}
        start = self.cell_start()
        order = np.argsort(self.layout, kind="stable").astype(np.int32)
        bounds = np.searchsorted(self.layout[order], np.arange(len(self.layouts) + 1))
        for number, layout in enumerate(self.layouts):
            nodes = order[bounds[number] : bounds[number + 1]]
            cell = 0
            for attr in layout:
                if attr.in_cell and len(nodes) and (attr.kind.is_heap or not heap_only):
                    found.setdefault((attr.name, attr.kind), []).append((nodes, self.cells[start[nodes] + cell]))
                cell += attr.in_cell
        result = {}
        for key, parts in found.items():
            if len(parts) == 1:
                result[key] = parts[0]
                continue
            nodes = np.concatenate([p[0] for p in parts])
            sort = np.argsort(nodes, kind="stable")
            result[key] = nodes[sort], np.concatenate([p[1] for p in parts])[sort]
        return result

    def attributes(self, node: int) -> list[tuple[Attr, Any]]:
        """All attributes of one node, decoded; slots of groups and peers are given as slots. For inspection, not for
        loops."""
        from etude.model.attrs import decode_value

        cell = int(self.cell_start()[node])
        out: list[tuple[Attr, Any]] = []
        for attr in self.layouts[self.layout[node]]:
            if attr.column:
                column = COLUMN.get(attr.column)
                if attr.column == "dep_why":
                    out.append((attr, reasons.spelled(self, node)))
                    continue
                raw: Any = getattr(self, attr.column)[node] if column else None
                out.append((attr, text.string(self.heap, int(raw)) if column and column.is_text else raw))
            elif attr.kind == ValueKind.NONE:
                out.append((attr, None))
            else:
                out.append((attr, decode_value(self.heap, attr.kind, int(self.cells[cell]))))
                cell += 1
        return out


COLUMN_NAMES: Final = tuple(c.name for c in NODE)
_DTYPES: Final = tuple((c.name, np.dtype(c.dtype)) for c in NODE)
_OTHER_ARRAYS: Final = names_in("""
    heap data_start data data_why ctrl_start ctrl ctrl_why missing cells extra_row extra lane_kind lane_id
""")
EDGE_NAMES: Final = ("data_start", "data", "data_why", "ctrl_start", "ctrl", "ctrl_why", "missing")


_NOTHING: Final = {c.name: np.broadcast_to(np.array(c.default, c.dtype), (1 << 40,)) for c in NODE}
"""Longer than any trace, with one value each: slicing one is faster than making another."""


def constant(column: str, length: int) -> NDArray[Any]:
    """A column without recorded values; takes no memory."""
    return _NOTHING[column][:length]


def only(trace: Trace, rows: NDArray[np.signedinteger[Any]], columns: Sequence[str]) -> Trace:
    """Copies of these rows and columns only: no text, attributes or dependencies, and no reference to the file."""
    n = len(rows)
    none, start = np.zeros(0, np.int64), np.zeros(n + 1, np.int64)
    edges: dict[str, NDArray[Any]] = {"data_start": start, "ctrl_start": start, "missing": np.zeros(0, np.uint64)}
    edges |= {name: np.zeros(0, np.int32) for name in ("data", "ctrl")}
    edges |= {name: np.zeros(0, np.uint8) for name in ("data_why", "ctrl_why")}
    kept = {c.name: constant(c.name, n) for c in NODE}
    kept |= {name: taken for name in columns if (taken := _taken(getattr(trace, name), rows)) is not None}
    kept |= {"lane": np.zeros(n, np.int32), "layout": np.zeros(n, np.int32)}
    return Trace(
        heap=np.zeros(text.PAD, np.uint8),
        **kept,
        **edges,
        layouts=((),),
        cells=none,
        extra_row=np.zeros(0, np.int32),
        extra=none,
        lane_kind=np.zeros(1, np.uint8),
        lane_id=np.zeros(1, np.int64),
        group_slots=trace.group_slots,
        peer_slots=trace.peer_slots,
    )


def _taken(column: NDArray[Any], rows: NDArray[np.signedinteger[Any]]) -> NDArray[Any] | None:
    """Some rows; None if nothing was recorded."""
    return None if column.strides == (0,) else column[rows]


def complete_layouts(trace: Trace, start_ns: I64 | None = None) -> tuple[tuple[Layout, ...], I32]:
    """Layouts that match the columns: an attribute for every recorded value of a column that is written as one, and
    none for a cleared column."""
    n = len(trace)
    have_of = np.array(
        [sum(1 << OWNED_INDEX[a.column] for a in layout if a.column) for layout in trace.layouts] or [0], np.int32
    )
    need = np.zeros(n, np.int32)  # a bit for each
    for index, c in enumerate(OWNED):
        plain = n > 0 and c.name in COLUMN_NAMES and c.name != "duration_ns"
        if plain and _is_constant(getattr(trace, c.name), c.default):
            continue
        need |= np.multiply(_needed(trace, start_ns, c.name), np.int32(1 << index), dtype=np.int32)
    have = have_of[trace.layout] if n else need
    changed = (need & ~have) | (have & ~need & np.int32(_CLEARED))
    del need, have
    rows = np.flatnonzero(changed)
    if not len(rows):
        return trace.layouts, trace.layout
    layouts, layout = list(trace.layouts), trace.layout.copy()
    key = layout[rows].astype(np.int64) << len(OWNED) | changed[rows]
    keys = distinct_values(key)
    fresh = np.arange(len(layouts), len(layouts) + len(keys), dtype=np.int32)
    layout[rows] = fresh[np.searchsorted(keys, key)]
    for found in keys.tolist():
        old, bits = found >> len(OWNED), found & (1 << len(OWNED)) - 1
        kept = tuple(a for a in layouts[old] if not (a.column and bits >> OWNED_INDEX[a.column] & 1))
        bits &= ~int(have_of[old])
        added = tuple(Attr(c.attr, c.attr_kind, column=c.name) for i, c in enumerate(OWNED) if bits >> i & 1)
        layouts.append(kept + added)
    layout.flags.writeable = False  # as in a Trace: kernels are compiled once, for read-only columns
    return tuple(layouts), layout


# Columns in which "not recorded" cannot be said on the wire. In the others it is a number like any other, and a file
# may hold it.
_CLEARED: Final = sum(
    1 << i
    for i, c in enumerate(OWNED)
    if (c.default != UNKNOWN and c.name != "tag") or c.name in ("duration_ns", "start_ns")
)


def _is_constant(column: NDArray[Any], value: Any) -> bool:
    """Whether nothing was recorded in the column, as `constant` makes it."""
    return bool(column.strides == (0,) and column[0] == value)


def _holds(trace: Trace, column: str) -> NDArray[np.bool_]:
    """Rows whose layout names this column."""
    return np.array([any(a.column == column for a in layout) for layout in trace.layouts] or [False])[trace.layout]


def _needed(trace: Trace, start_ns: I64 | None, name: str) -> NDArray[np.bool_]:
    if name in ("duration_ns", "start_ns"):
        ns = start_ns if name == "start_ns" else trace.duration_ns
        if ns is None:  # not known here: the layout's entry stays
            return _holds(trace, name)
        return (ns != UNKNOWN) & ((ns % 1000 != 0) | (ns == 0) | _holds(trace, name))
    if name == "dep_why":
        return reasons.explained(trace)
    value: NDArray[Any] = getattr(trace, name)
    if name == "collective":
        return (value != Collective.NONE) & (value != Collective.OTHER)
    return value != COLUMN[name].default


@kernel(allocates=False)
def _lanes(kind, cpu, thread, stream, lane, table_kind, table_id):  # type: ignore[no-untyped-def]
    """Fills `lane`; returns the number of lanes, or -1 if the table is too small for them."""
    used = 0
    last = 0
    for i in range(len(kind)):
        k, n = COMPUTE_LANE, np.int64(0)
        if cpu[i] == 1:
            k = THREAD_LANE
            n = np.int64(0) if thread[i] == UNKNOWN else thread[i]
        elif stream[i] != UNKNOWN:
            k, n = STREAM_LANE, stream[i]
        elif kind[i] == RECV:
            lane[i] = -1
            continue
        elif kind[i] == SEND or kind[i] == COLL or kind[i] == MEM_LOAD or kind[i] == MEM_STORE:
            k = NETWORK_LANE
        if used == 0 or table_kind[last] != k or table_id[last] != n:
            last = 0
            while last < used and (table_kind[last] != k or table_id[last] != n):
                last += 1
            if last == used:
                if used == len(table_kind):
                    return -1
                table_kind[used], table_id[used] = k, n
                used += 1
        lane[i] = last
    return used


def lanes(kind: U8, cpu: NDArray[np.int8], thread: I64, stream: I64) -> tuple[I32, U8, I64]:
    """Lane of each node, and the lane table (kind, id) in order of first use.

    A host node runs on its thread; a device node on its stream where one was recorded, else on the device's compute or,
    for collectives, sends and memory, its network. A receive without a stream holds no lane.
    """
    lane = np.empty(len(kind), np.int32)
    kind, cpu, thread, stream = as_read(kind), as_read(cpu), as_read(thread), as_read(stream)
    size = 256
    while True:
        table_kind, table_id = np.empty(size, np.uint8), np.empty(size, np.int64)
        used = _lanes(kind, cpu, thread, stream, lane, table_kind, table_id)
        if used >= 0:
            return lane, table_kind[:used].copy(), table_id[:used].copy()
        if size >= 1 << 20:
            raise TraceError(f"more than {size} threads and streams")
        size *= 16


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two traces. `node` is a row, None if the difference is not in one node."""

    node: int | None
    column: str
    a: Any
    b: Any

    def __str__(self) -> str:
        where = "" if self.node is None else f"node {self.node}: "
        return f"{where}{self.column}: {self.a!r} against {self.b!r}"


def assert_same(a: Trace, b: Trace) -> None:
    """Raises TraceError with the first node and column in which two traces differ; text is compared as text."""
    difference = first_difference(a, b)
    if difference:
        raise TraceError(str(difference))


def first_difference(a: Trace, b: Trace) -> Difference | None:
    """The first difference of two traces: the lowest node, and the first of its columns."""
    if len(a) != len(b):
        return Difference(None, "nodes", len(a), len(b))
    found = [d for c in NODE if c.name != "layout" and (d := _column_difference(a, b, c.name, c.is_text))]
    found += [d for edges in ("data", "ctrl") if (d := _edge_difference(a, b, edges))]
    found += [d for d in (_attribute_difference(a, b), _extra_difference(a, b)) if d]
    if found:
        return min(found, key=lambda d: -1 if d.node is None else d.node)
    if len(a.missing) != len(b.missing) or (a.missing != b.missing).any():
        return Difference(None, "ids of missing nodes", a.missing.tolist()[:4], b.missing.tolist()[:4])
    return None


def _column_difference(a: Trace, b: Trace, column: str, is_text: bool) -> Difference | None:
    x, y = getattr(a, column), getattr(b, column)
    if is_text:
        x, y = _same_codes(a, b, x, y)
    elif column == "lane":
        x, y = _lane_keys(a), _lane_keys(b)
    rows = np.flatnonzero(x != y)
    if not len(rows):
        return None
    node = int(rows[0])
    if is_text:
        return Difference(node, column, a.text(column, node), b.text(column, node))
    return Difference(node, column, x[node].item(), y[node].item())


def _same_codes(a: Trace, b: Trace, x: I64, y: I64) -> tuple[I32, I32]:
    """Codes that are equal for equal text of two traces; absent and empty are the same, as on the wire."""
    if a.heap is b.heap:
        codes, unique = text.intern(a.heap, np.concatenate([x, y]))
        heap = a.heap
    else:
        (code_x, unique_x), (code_y, unique_y) = text.intern(a.heap, x), text.intern(b.heap, y)
        heap_x, at_x = text.gather(a.heap, unique_x)
        heap_y, at_y = text.gather(b.heap, unique_y)
        heap = np.concatenate([heap_x[: -text.PAD], heap_y])
        word, unique = text.intern(heap, np.concatenate([at_x, at_y + len(heap_x) - text.PAD]))
        both = np.append(word, np.int32(-1))
        codes = np.concatenate([both[code_x], both[np.where(code_y < 0, -1, code_y + len(at_x))]])
    empty = np.append(heap[unique] == 0, True)
    codes = np.where(empty[codes], np.int32(-1), codes)
    return codes[: len(x)], codes[len(x) :]


def _lane_keys(trace: Trace) -> I64:
    """Lanes by kind and id, since lane tables may be numbered differently."""
    kind = np.append(trace.lane_kind, 0).astype(np.int64)[trace.lane]
    return np.append(trace.lane_id, 0)[trace.lane] * 8 + kind


def _edge_difference(a: Trace, b: Trace, edges: str) -> Difference | None:
    start_a, start_b = getattr(a, f"{edges}_start"), getattr(b, f"{edges}_start")
    counts = np.flatnonzero(np.diff(start_a) != np.diff(start_b))
    node = int(counts[0]) if len(counts) else len(a)
    upto = int(min(start_a[node], start_b[node]))
    for part in (edges, f"{edges}_why"):
        x, y = getattr(a, part)[:upto], getattr(b, part)[:upto]
        at = np.flatnonzero(x != y)
        if len(at):
            owner = int(np.searchsorted(start_a, at[0], "right")) - 1
            return Difference(owner, f"{part} dependency", int(x[at[0]]), int(y[at[0]]))
    if node == len(a):
        return None
    shown = [start[node + 1] - start[node] for start in (start_a, start_b)]
    return Difference(node, f"{edges} dependencies", int(shown[0]), int(shown[1]))


def _attribute_difference(a: Trace, b: Trace) -> Difference | None:
    if not len(a):
        return None
    for x, y in np.unique(np.stack([a.layout, b.layout], 1), axis=0).tolist():
        if a.layouts[x] != b.layouts[y] and _said(a.layouts[x]) != _said(b.layouts[y]):
            node = int(np.flatnonzero((a.layout == x) & (b.layout == y))[0])
            return Difference(node, "attributes", _names(a.layouts[x]), _names(b.layouts[y]))
    in_heap = a.heap_cells()  # of both: their nodes have the same attributes in the same order
    differs = a.cells != b.cells
    x, y = _same_codes(a, b, a.cells[in_heap], b.cells[in_heap])
    differs[in_heap] = x != y
    return _cell_difference(a, b, int(np.argmax(differs))) if differs.any() else None


def _cell_difference(a: Trace, b: Trace, cell: int) -> Difference:
    from etude.model.attrs import decode_value

    start = a.cell_start()
    node = int(np.searchsorted(start, cell, "right")) - 1
    attr = [attr for attr in a.layouts[a.layout[node]] if attr.in_cell][cell - int(start[node])]
    values = (decode_value(trace.heap, attr.kind, int(trace.cells[cell])) for trace in (a, b))
    return Difference(node, f"attribute {attr.name}", *values)


def _extra_difference(a: Trace, b: Trace) -> Difference | None:
    what = "fields newer than the schema"
    if len(a.extra_row) != len(b.extra_row) or (a.extra_row != b.extra_row).any():
        rows = np.setxor1d(a.extra_row, b.extra_row)
        return Difference(int(rows[0]), what, bool(rows[0] in a.extra_row), bool(rows[0] in b.extra_row))
    for row, x, y in zip(a.extra_row.tolist(), a.extra.tolist(), b.extra.tolist(), strict=True):
        raw = text.slice_bytes(a.heap, x), text.slice_bytes(b.heap, y)
        if raw[0] != raw[1]:
            return Difference(row, what, raw[0].hex(), raw[1].hex())
    return None


def _said(layout: Layout) -> Layout:
    """The layout without exact times, which are attributes only if µs cannot express them, and without reasons of
    edges: both are compared separately."""
    return tuple(a for a in layout if a.column not in ("duration_ns", "start_ns", "dep_why"))


def _names(layout: Layout) -> str:
    return ", ".join(f"{a.name}:{a.kind.wire_name if a.kind else 'none'}" for a in layout) or "none"


assert {c.name for c in OWNED} - {"start_ns", "dep_why"} <= set(COLUMN_NAMES)
