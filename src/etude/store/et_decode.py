"""From the bytes of one `.et` file to a Trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.errors import FormatError
from etude.model import text
from etude.model.schema import COLUMN, NODE, OWNED, OWNED_INDEX, UNKNOWN, Collective, Kind, ValueKind
from etude.model.trace import Attr, Layout, Trace, constant, lanes
from etude.store import compressed
from etude.store import et_kernels as k
from etude.store.et_irregular import fields, regular_node

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

_BLOCK = 1 << 18
"""Nodes decoded between two looks at the clock: Ctrl-C works between blocks."""
_IO_TEXT = ("in_values", "in_shapes", "in_types", "out_values", "out_shapes", "out_types")
_NAMES = np.frombuffer("".join(c.attr for c in OWNED).encode(), np.uint8)
_NAME_START = np.cumsum([0] + [len(c.attr) for c in OWNED]).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One file, one rank: the program, and what binds it to this rank."""

    trace: Trace
    metadata: bytes
    """The GlobalMetadata message."""
    group_names: tuple[str, ...]
    """The `pg_name` behind each group slot."""
    peers: I64
    """The rank behind each peer slot."""
    start_ns: I64
    """Recorded starts; UNKNOWN where none."""
    warnings: tuple[str, ...]


def decode(data: bytes | bytearray | memoryview | U8, where: str = "", max_bytes: int | None = None) -> Decoded:
    """Decode the whole of a file, gzip and zstandard unpacked. `where` names it in errors."""
    return decode_heap(*compressed.unpack(data, where, max_bytes), where)


def decode_heap(heap: U8, size: int, where: str = "") -> Decoded:
    """The same without a copy: the file's bytes are heap[:size], with text.PAD zero bytes behind them."""
    if size == 0:
        raise FormatError("the file is empty", path=where, offset=0, hint="an `.et` file begins with its metadata")
    starts, ends = _split(heap, size, where)
    metadata = heap[starts[0] : ends[0]].tobytes()
    check_metadata(metadata, where, int(starts[0]))
    starts, ends = starts[1:], ends[1:]
    zero_length = np.flatnonzero(starts == ends)
    raw = _Raw(len(starts))
    raw.run(heap, starts, ends, where)
    extra_row, extra = np.zeros(0, np.int32), np.zeros(0, np.int64)
    if raw.cursor[k.IRREGULAR]:
        rows = np.flatnonzero(raw.out.irregular)
        heap, starts, ends, extra_row, extra = _rewrite(heap, size, starts, ends, rows, where)
        raw = _Raw(len(starts))
        raw.run(heap, starts, ends, where)
        if raw.cursor[k.IRREGULAR]:
            raise FormatError("a node could not be brought into regular form", path=where, offset=int(starts[rows[0]]))
        extra_row, extra = _mark_other(heap, raw, extra_row, extra)
    warnings = []
    if len(zero_length):
        warnings.append(
            f"{len(zero_length)} message(s) of length 0, the first at node {zero_length[0]}: read as all-default nodes"
        )
    del starts, ends
    return _finish(heap, raw, metadata, extra_row, extra, warnings)


def _split(heap: U8, size: int, where: str) -> tuple[I64, I64]:
    room = max(64, size // 256)
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    count = at = 0
    while True:
        count, at, status = k.split(heap, size, at, starts, ends, count)
        if status == k.DONE:
            return starts[:count], ends[:count]
        if status == k.GROW_ROWS:
            room = count * 2
            if at:
                room = max(count + 64, int(count * (size / at) * 1.05))
            starts, ends = _grown(starts, room), _grown(ends, room)
            continue
        problem = (
            "a message claims to run past the end of the file"
            if status == k.BAD_LENGTH
            else "a message length does not end"
        )
        raise FormatError(
            f"{problem} (message {count}, file of {size} bytes)",
            path=where,
            offset=at,
            hint="the file is cut short, or is not a Chakra `.et` file",
        )


def _grown(array: NDArray[np.generic], size: int) -> NDArray[np.generic]:  # type: ignore[type-var]
    bigger = np.empty(size, array.dtype)
    bigger[: len(array)] = array
    return bigger


class _Raw:
    """What the kernels fill: columns of known length, pools and a trie that grow."""

    def __init__(self, n: int) -> None:
        self.out = k.Out(
            source_id=np.empty(n, np.uint64),
            kind=np.empty(n, np.uint8),
            name=np.empty(n, np.int64),
            io=np.empty(n, np.uint8),
            lazy=np.empty((k.NUM_LAZY, n), np.int64),
            lazy_seen=np.zeros(k.NUM_LAZY, np.uint8),
            layout=np.empty(n, np.int32),
            data_start=np.zeros(n + 1, np.int64),
            ctrl_start=np.zeros(n + 1, np.int64),
            irregular=np.zeros(n, np.uint8),
        )
        self.pools = k.Pools(np.empty(1024, np.uint64), np.empty(1024, np.uint64), np.empty(1024, np.int64))
        self.trie = _new_trie(256)
        self.trie.predicted[0] = self.trie.layout[0] = -1
        self.cursor = np.zeros(k.CURSOR_SIZE, np.int64)
        self.cursor[k.STATES] = 1

    def run(self, heap: U8, starts: I64, ends: I64, where: str) -> None:
        word, n, cur = text.words(heap), len(starts), self.cursor
        while cur[k.ROW] < n:
            stop = min(n, int(cur[k.ROW]) + _BLOCK)
            k.decode(heap, word, starts, ends, stop, self.out, self.pools, self.trie, _NAMES, _NAME_START, cur)
            if cur[k.STATUS] == k.GROW_ROWS:
                self._grow_pools(n, int(ends[cur[k.ROW]] - starts[cur[k.ROW]]))
            elif cur[k.STATUS] == k.GROW_TRIE:
                self._grow_trie(heap)
            elif cur[k.STATUS] != k.DONE:
                problem = k.PROBLEM.get(int(cur[k.STATUS]), "malformed message")
                raise FormatError(f"node {int(cur[k.ROW])}: {problem}", path=where, offset=int(cur[k.AT]))

    def _grow_pools(self, n: int, room: int) -> None:
        """Room for the rest of the file at the density seen so far, and for the message at hand."""
        row = max(int(self.cursor[k.ROW]), 1)
        grown = []
        for array, used in zip(self.pools, self.cursor[[k.DATA, k.CTRL, k.CELLS]].tolist(), strict=True):
            ahead = int(used / row * n * 1.02) if row > 64 else 0
            wanted = max(used + room + 1024, ahead + room + 1024)
            grown.append(_grown(array, max(wanted, min(2 * len(array), wanted))) if wanted > len(array) else array)
        self.pools = k.Pools(*grown)

    def _grow_trie(self, heap: U8) -> None:
        used = int(self.cursor[k.STATES])
        bigger = _new_trie(4 * used)
        for old, new in zip(self.trie[:-1], bigger[:-1], strict=True):
            new[:used] = old[:used]
        k.rehash_trie(heap, bigger, used)
        self.trie = bigger

    def column(self, name: str) -> I64:
        """A lazy column by name, of default values if the file has none."""
        index = k.OWNED_FIRST + OWNED_INDEX[name] if name in OWNED_INDEX else _IO_TEXT.index(name)
        return self.lazy(index)

    def lazy(self, index: int) -> I64:
        n = len(self.out.kind)
        if self.out.lazy_seen[index]:
            return self.out.lazy[index]
        return np.broadcast_to(k.LAZY_DEFAULT[index], (n,))

    def seen(self, name: str) -> bool:
        """Does any node of the file have this attribute?"""
        return bool(self.out.lazy_seen[k.OWNED_FIRST + OWNED_INDEX[name]])

    def layouts(self, heap: U8) -> tuple[Layout, ...]:
        found: list[Layout] = [()] * int(self.cursor[k.LAYOUTS])
        attrs: list[Attr] = []
        paths: list[Layout] = []
        for state in range(int(self.cursor[k.STATES])):
            if state == 0:
                path: Layout = ()
            else:
                attrs.append(self._attr(heap, state))
                path = (*paths[int(self.trie.parent[state])], attrs[-1])
            paths.append(path)
            if self.trie.layout[state] >= 0:
                found[int(self.trie.layout[state])] = path
        return tuple(found) or ((),)

    def _attr(self, heap: U8, state: int) -> Attr:
        start, length = int(self.trie.start[state]), int(self.trie.length[state])
        kind = ValueKind(int(self.trie.kind[state]))
        raw = heap[start : start + length].tobytes()
        if kind:
            raw = raw[: -len(text.varint((kind + 2) << 3))]
        name, doc, unknown = b"", b"", b""
        for f in fields(raw, "", start, 1):
            if f.number == 1 and f.wire == 2:
                name = f.payload
            elif f.number == 2 and f.wire == 2:
                doc = f.payload
            else:
                unknown += f.raw
        owner = int(self.trie.owner[state])
        column = OWNED[owner - k.OWNED_FIRST].name if owner >= 0 else ""
        return Attr(name.decode(), kind, doc.decode(), unknown, column)


def _new_trie(size: int) -> k.Trie:
    table = 1
    while table < 2 * size + 2:
        table *= 2
    arrays = [np.zeros(size, np.int64) for _ in range(7)]
    return k.Trie(*arrays, np.full(table, -1, np.int64))


def _rewrite(
    heap: U8, size: int, starts: I64, ends: I64, rows: I64, where: str
) -> tuple[U8, I64, I64, NDArray[np.int32], I64]:
    """Irregular nodes in regular form behind the file's bytes, and their spans there."""
    starts, ends = starts.copy(), ends.copy()
    side = bytearray()
    extra_rows: list[int] = []
    extra: list[int] = []
    for row in rows.tolist():
        start = int(starts[row])
        node, rest = regular_node(heap[start : int(ends[row])].tobytes(), where, start)
        starts[row], ends[row] = size + len(side), size + len(side) + len(node)
        side += node
        if rest:
            extra_rows.append(row)
            extra.append(size + len(side))
            side += text.varint(len(rest)) + rest
    bigger = np.zeros(size + len(side) + text.PAD, np.uint8)
    bigger[:size] = heap[:size]
    bigger[size : size + len(side)] = np.frombuffer(side, np.uint8)
    return bigger, starts, ends, np.array(extra_rows, np.int32), np.array(extra, np.int64)


def _mark_other(
    heap: U8, raw: _Raw, extra_row: NDArray[np.int32], extra: I64
) -> tuple[NDArray[np.int32], I64]:
    """Nodes whose type is among their extra fields are of kind OTHER."""
    from etude.store.et_irregular import extra_type

    for row, offset in zip(extra_row.tolist(), extra.tolist(), strict=True):
        if extra_type(text.slice_bytes(heap, offset)) is not None:
            raw.out.kind[row] = Kind.OTHER
    return extra_row, extra


def check_metadata(metadata: bytes, where: str, base: int) -> None:
    """A GlobalMetadata message is well-formed, its attributes too."""
    for f in fields(metadata, where, base):
        if f.wire == 2 and f.number == 1:
            _utf8(f.payload, where, base)
        elif f.wire == 2 and f.number == 2:
            attribute(f.payload, where, base)


def attribute(payload: bytes, where: str, base: int) -> tuple[str, ValueKind, object, str]:
    """(name, kind, value, doc string) of one attribute message."""
    from etude.model.attrs import cell_to_scalar, decode_list, varint_to_scalar
    from etude.store.et_irregular import regular_attribute

    name, doc, kind = "", "", ValueKind.NONE
    value: object = None
    for f in fields(regular_attribute(payload, where, base), where, base, 1):
        if f.number == 1 and f.wire == 2:
            name = f.payload.decode()
        elif f.number == 2 and f.wire == 2:
            doc = f.payload.decode()
        elif 3 <= f.number <= 32 and f.wire == int(k.VALUE_WIRE[f.number - 2]):
            kind = ValueKind(f.number - 2)
            if kind.is_list:
                value = decode_list(kind, f.payload)
            elif kind == ValueKind.STRING:
                value = f.payload.decode()
            elif kind == ValueKind.BYTES:
                value = f.payload
            elif f.wire == 0:
                value = varint_to_scalar(kind, f.value)
            else:
                raw = int.from_bytes(f.payload, "little", signed=kind in (ValueKind.SFIXED32, ValueKind.SFIXED64))
                value = cell_to_scalar(kind, raw - 2**64 if raw >= 2**63 else raw)
    return name, kind, value, doc


def _utf8(payload: bytes, where: str, base: int) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise FormatError("text that is not UTF-8", path=where, offset=base) from None


# -- from raw columns to the model -------------------------------------------------------------------------------------


def _finish(
    heap: U8, raw: _Raw, metadata: bytes, extra_row: NDArray[np.int32], extra: I64, warnings: list[str]
) -> Decoded:
    out, cur = raw.out, raw.cursor
    n = len(out.kind)
    columns: dict[str, NDArray[np.generic]] = {c.name: constant(c.name, n) for c in NODE}
    columns.update(source_id=out.source_id, kind=out.kind, name=out.name, io=out.io)
    for c in OWNED:
        if c.name in columns and c.name not in ("group", "src", "dst", "collective", "cpu"):
            columns[c.name] = raw.column(c.name)
    for name in _IO_TEXT:
        columns[name] = raw.column(name)
    attributes = Attributes(raw.layouts(heap), out.layout, raw.pools.cells[: cur[k.CELLS]])
    columns["cpu"] = _flags(raw, attributes)
    columns["collective"] = _collectives(raw, attributes)
    columns["group"], group_names = _groups(heap, raw)
    (columns["src"], columns["dst"]), peers = _peers(raw)
    columns["tag"] = _tags(raw, attributes)
    columns["duration_ns"], wrong = _times(raw, attributes, "duration_ns", k.DURATION_US)
    start_ns, wrong_start = _times(raw, attributes, "start_ns", k.START_US)
    if wrong + wrong_start:
        warnings.append(f"{wrong + wrong_start} exact time(s) disagree with the µs field; the µs field is used")
    columns["lane"], lane_kind, lane_id = lanes(
        out.kind, columns["cpu"], columns["thread"], columns["stream"]  # type: ignore[arg-type]
    )
    columns["layout"] = attributes.layout
    data, ctrl, missing = _edges(raw)
    trace = Trace(
        heap=heap,
        **columns,  # type: ignore[arg-type]
        data_start=out.data_start,
        data=data,
        data_why=np.broadcast_to(np.uint8(0), (len(data),)),
        ctrl_start=out.ctrl_start,
        ctrl=ctrl,
        ctrl_why=np.broadcast_to(np.uint8(0), (len(ctrl),)),
        missing=missing,
        layouts=attributes.layouts,
        cells=attributes.cells,
        extra_row=extra_row,
        extra=extra,
        lane_kind=lane_kind,
        lane_id=lane_id,
        group_slots=tuple(f"g{i}" for i in range(len(group_names))),
        peer_slots=len(peers),
    )
    return Decoded(trace, metadata, group_names, peers, start_ns, tuple(warnings))


class Attributes:
    """Layouts, layout column and cells while a trace is being finished."""

    def __init__(self, layouts: tuple[Layout, ...], layout: NDArray[np.int32], cells: I64) -> None:
        self.layouts, self.layout, self.cells = layouts, layout, cells

    def disown(self, rows: I64, column: str, values: I64) -> None:
        """The attribute that `column` held becomes a plain cell on these rows: its value does not fit the column."""
        layouts = list(self.layouts)
        layout = self.layout.copy()
        counts = np.array([sum(a.in_cell for a in entry) for entry in layouts], np.int64)
        start = np.zeros(len(layout) + 1, np.int64)
        np.cumsum(counts[layout], out=start[1:])
        at = np.empty(len(rows), np.int64)
        for number in np.unique(layout[rows]).tolist():
            entry = layouts[number]
            place = next(i for i, a in enumerate(entry) if a.column == column)
            chosen = layout[rows] == number
            at[chosen] = start[rows[chosen]] + sum(a.in_cell for a in entry[:place])
            old = entry[place]
            layouts.append((*entry[:place], Attr(old.name, old.kind, old.doc, old.unknown), *entry[place + 1 :]))
            layout[rows[chosen]] = len(layouts) - 1
        self.layouts, self.layout, self.cells = tuple(layouts), layout, np.insert(self.cells, at, values)

    def holds(self, column: str) -> NDArray[np.bool_]:
        """Rows whose layout has this column."""
        has = np.array([any(a.column == column for a in entry) for entry in self.layouts])
        return has[self.layout]


def _flags(raw: _Raw, attributes: Attributes) -> NDArray[np.int8]:
    if not raw.seen("cpu"):
        return constant("cpu", len(raw.out.kind))
    value, held = raw.column("cpu"), attributes.holds("cpu")
    strange = np.flatnonzero(held & (value != 0) & (value != 1))
    if len(strange):
        attributes.disown(strange, "cpu", value[strange])
    fine = held & ((value == 0) | (value == 1))
    return np.where(fine, value, -1).astype(np.int8)


def _collectives(raw: _Raw, attributes: Attributes) -> U8:
    if not raw.seen("collective"):
        return constant("collective", len(raw.out.kind))
    value, held = raw.column("collective"), attributes.holds("collective")
    known = held & (value >= 0) & (value < Collective.OTHER - 1)
    newer = np.flatnonzero(held & ~known)
    result = np.where(known, np.where(known, value, 0) + 1, 0).astype(np.uint8)
    if len(newer):
        attributes.disown(newer, "collective", value[newer])
        result[newer] = Collective.OTHER
    return result


def _tags(raw: _Raw, attributes: Attributes) -> I64:
    if not raw.seen("tag"):
        return constant("tag", len(raw.out.kind))
    return np.where(attributes.holds("tag"), raw.column("tag"), COLUMN["tag"].default)


def _groups(heap: U8, raw: _Raw) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    if not raw.seen("group"):
        return constant("group", len(raw.out.kind)), ()
    codes, unique = text.intern(heap, raw.column("group"))
    return codes, tuple(text.strings(heap, unique))


def _peers(raw: _Raw) -> tuple[tuple[NDArray[np.int32], NDArray[np.int32]], I64]:
    """Slots of src and dst, numbered by first appearance down the rows, src before dst."""
    n = len(raw.out.kind)
    if not raw.seen("src") and not raw.seen("dst"):
        return (constant("src", n), constant("dst", n)), np.zeros(0, np.int64)
    src, dst = raw.column("src"), raw.column("dst")
    both = np.stack([src, dst], 1).ravel()
    rows = np.flatnonzero(both != UNKNOWN)
    values, first, inverse = np.unique(both[rows], return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    slot_of = np.empty(len(values), np.int32)
    slot_of[order] = np.arange(len(values), dtype=np.int32)
    slots = np.full(len(both), -1, np.int32)
    slots[rows] = slot_of[inverse]
    return (np.ascontiguousarray(slots[0::2]), np.ascontiguousarray(slots[1::2])), values[order]


def _times(raw: _Raw, attributes: Attributes, column: str, micros_index: int) -> tuple[I64, int]:
    """Exact ns where recorded and in agreement with the µs field, else µs x 1000, else UNKNOWN; and how many disagree."""
    micros = raw.lazy(micros_index)
    result = np.where(micros == 0, UNKNOWN, micros * 1000)
    if not raw.seen(column):
        return result, 0
    exact = raw.column(column)
    held = attributes.holds(column)
    agrees = held & (exact >= 0) & ((exact // 1000 + (exact % 1000 >= 500)) == micros)
    wrong = np.flatnonzero(held & ~agrees)
    if len(wrong):
        attributes.disown(wrong, column, exact[wrong])
    return np.where(agrees, exact, result), len(wrong)


def _edges(raw: _Raw) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint64]]:
    """Dependencies as rows; ids that no node has become ~k into the list of missing ids."""
    ids = raw.out.source_id
    dense = bool(len(ids)) and bool((ids == ids[0] + np.arange(len(ids), dtype=np.uint64)).all())
    found, lost = [], []
    for pool, used in ((raw.pools.data, k.DATA), (raw.pools.ctrl, k.CTRL)):
        targets = pool[: raw.cursor[used]]
        rows = np.empty(len(targets), np.int32)
        if len(ids):
            k.rows_of(ids, dense, targets, rows)
        found.append(rows)
        lost.append(targets[rows < 0])
    missing = np.unique(np.concatenate(lost))
    for rows, ids_lost in zip(found, lost, strict=True):
        if len(ids_lost):
            rows[rows < 0] = ~np.searchsorted(missing, ids_lost).astype(np.int32)
    return found[0], found[1], missing
