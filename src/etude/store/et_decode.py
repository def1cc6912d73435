"""From the bytes of one `.et` file to a Trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError, TraceError
from etude.kernels.arrays import I64, U8, distinct_values
from etude.kernels.varint import encode_varint
from etude.model import reasons, text
from etude.model.attrs import cell_to_scalar, decode_list, varint_to_scalar
from etude.model.schema import COLUMN, NODE, OWNED, OWNED_INDEX, UNKNOWN, Collective, Kind, ValueKind
from etude.model.trace import Attr, Layout, Trace, constant, lanes
from etude.store import compressed, et_ids, et_wire
from etude.store import et_kernels as k
from etude.store.et_irregular import check_text, extra_time, extra_type, fields, regular_attribute, regular_node

_BLOCK = 1 << 18
"""Nodes decoded between two interrupt checks: Ctrl-C works between blocks."""
_IO_TEXT = ("in_values", "in_shapes", "in_types", "out_values", "out_shapes", "out_types")
_OWNED_IS_TEXT = np.array([c.attr_kind == ValueKind.STRING for c in OWNED])
_NAMES = k.Names(
    np.frombuffer("".join(c.attr for c in OWNED).encode(), np.uint8),
    np.cumsum([0] + [len(c.attr) for c in OWNED]).astype(np.int64),
    _OWNED_IS_TEXT,
)
_KINDS = tuple((kind, len(encode_varint((kind + 2) << 3)) if kind else 0) for kind in ValueKind)
"""Kinds of values, and the length of the tag of each in bytes."""
_LAZY_DEFAULT = np.array([-1] * 6 + [0, 0] + [-1 if is_text else UNKNOWN for is_text in _OWNED_IS_TEXT], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One file, one rank: the program, and its bindings to this rank."""

    trace: Trace
    metadata: bytes
    """The GlobalMetadata message."""
    group_names: tuple[str, ...]
    """The `pg_name` behind each group slot."""
    peers: I64
    """The rank behind each peer slot."""
    start_ns: I64
    """Recorded starts; UNKNOWN: none."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """Positions of files in a heap, and their names for errors."""

    start: I64
    end: I64
    names: tuple[str, ...]

    def at(self, offset: int) -> tuple[str, int]:
        """(file name, byte in that file) of an offset into the heap."""
        number = max(int(np.searchsorted(self.start, offset, "right")) - 1, 0)
        return self.names[number], offset - int(self.start[number])

    def error(self, problem: str, offset: int, hint: str = "") -> FormatError:
        name, byte = self.at(offset)
        return FormatError(problem, path=name, offset=byte, hint=hint)


def decode(data: bytes | bytearray | memoryview | U8, where: str = "", max_bytes: int | None = None) -> Decoded:
    """Decodes one whole file, gzip and zstandard decompressed. `where` names it in errors."""
    heap, size = compressed.unpack(data, where, max_bytes)
    return decode_files(heap, [(0, size, where)])[0]


def decode_files(heap: U8, spans: Sequence[tuple[int, int, str]]) -> list[Decoded]:
    """Decodes files stored in one heap (start, end, name), followed by text.PAD zero bytes.

    All files are decoded in one run, so that a thousand small ranks cost little more than one large one; their traces
    are slices of the same columns.
    """
    files = Files(
        np.array([s[0] for s in spans], np.int64), np.array([s[1] for s in spans], np.int64), tuple(s[2] for s in spans)
    )
    heap.flags.writeable = False  # kernels are compiled once, for read-only heaps
    starts, ends, first = _split(heap, files)
    metadata: list[bytes] = []
    checked: set[bytes] = set()
    for at in first[:-1].tolist():
        metadata.append(heap[starts[at] : ends[at]].tobytes())
        if metadata[-1] not in checked:
            checked.add(metadata[-1])
            name, byte = files.at(int(starts[at]))
            check_metadata(metadata[-1], name, byte)
    is_node = np.ones(len(starts), bool)
    is_node[first[:-1]] = False
    starts, ends = starts[is_node], ends[is_node]
    rank_start = first - np.arange(len(first))
    zero_length = np.flatnonzero(starts == ends)
    raw = _Raw(len(starts))
    raw.run(heap, starts, ends, files)
    extra_row, extra = np.zeros(0, np.int32), np.zeros(0, np.int64)
    if raw.cursor[k.IRREGULAR]:
        rows = np.flatnonzero(raw.out.irregular)
        heap, starts, ends, extra_row, extra = _rewrite(heap, starts, ends, rows, files)
        raw = _Raw(len(starts))
        raw.run(heap, starts, ends, files)
        if raw.cursor[k.IRREGULAR]:
            raise TraceError("a node could not be normalised", where=files.names[0])
        _mark_other(heap, raw, extra_row, extra)
    del starts, ends
    return _finish(heap, raw, rank_start, metadata, extra_row, extra, zero_length)


def _split(heap: U8, files: Files) -> tuple[I64, I64, I64]:
    """Spans of all messages, and where each file's messages begin among them (with one extra entry)."""
    total = int((files.end - files.start).sum())
    room = max(64, total // 256)
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    first = np.zeros(len(files.names) + 1, np.int64)
    count = done = 0
    for number, (begin, end) in enumerate(zip(files.start.tolist(), files.end.tolist(), strict=True)):
        if begin == end:
            raise files.error("the file is empty", begin, hint="an `.et` file begins with its metadata")
        at, status = begin, et_wire.GROW_ROWS
        while status == et_wire.GROW_ROWS:
            count, at, status = et_wire.split(heap, end, at, starts, ends, count)
            if status == et_wire.GROW_ROWS:
                share = max(done + at - begin, 1) / max(total, 1)
                room = max(2 * count, int(count / share * 1.05)) if share > 0.01 else 4 * count
                starts, ends = _grown(starts, room), _grown(ends, room)
        if status != et_wire.DONE:
            too_long = status == et_wire.BAD_LENGTH
            problem = "claims to run past the end of the file" if too_long else "has a length that does not end"
            raise files.error(
                f"message {count - int(first[number])} {problem} ({end - begin} bytes)",
                at,
                hint="the file is cut short, or is not a Chakra `.et` file",
            )
        first[number + 1] = count
        done += end - begin
    return starts[:count], ends[:count], first


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    bigger = np.empty(size, array.dtype)
    bigger[: len(array)] = array
    return bigger


class _Raw:
    """Output of the kernels: columns of known length, pools and a trie that grow."""

    def __init__(self, n: int) -> None:
        self.out = k.Out(
            source_id=np.empty(n, np.uint64),
            kind=np.empty(n, np.uint8),
            name=np.empty(n, np.int64),
            io=np.empty(n, np.uint8),
            lazy=np.empty((len(_LAZY_DEFAULT), n), np.int64),
            lazy_seen=np.zeros(len(_LAZY_DEFAULT), np.uint8),
            lazy_default=_LAZY_DEFAULT,
            layout=np.empty(n, np.int32),
            data_start=np.zeros(n + 1, np.int64),
            ctrl_start=np.zeros(n + 1, np.int64),
            irregular=np.zeros(n, np.uint8),
        )
        self.pools = k.Pools(np.empty(1024, np.uint64), np.empty(1024, np.uint64), np.empty(1024, np.int64))
        self.trie = _new_trie(256)
        self.trie.predicted[0] = self.trie.second[0] = self.trie.layout[0] = -1
        self.cursor = np.zeros(k.CURSOR_SIZE, np.int64)
        self.cursor[k.STATES] = 1

    def run(self, heap: U8, starts: I64, ends: I64, files: Files) -> None:
        word, n, cur = text.words(heap), len(starts), self.cursor
        while cur[k.ROW] < n:
            stop = min(n, int(cur[k.ROW]) + _BLOCK)
            k.decode(heap, word, starts, ends, stop, self.out, self.pools, self.trie, _NAMES, cur)
            if cur[k.STATUS] == et_wire.GROW_ROWS:
                self._grow_pools(n, int(ends[cur[k.ROW]] - starts[cur[k.ROW]]))
            elif cur[k.STATUS] == k.GROW_TRIE:
                self._grow_trie(heap)
            elif cur[k.STATUS] != et_wire.DONE:
                problem = et_wire.PROBLEM.get(int(cur[k.STATUS]), "malformed message")
                raise files.error(problem, int(cur[k.AT]))

    def _grow_pools(self, n: int, room: int) -> None:
        """Makes room for the rest of the file at the density seen so far, and for the current message."""
        row = max(int(self.cursor[k.ROW]), 1)
        grown: list[Any] = []
        for array, used in zip(self.pools, self.cursor[[k.DATA, k.CTRL, k.CELLS]].tolist(), strict=True):
            ahead = int(used / row * n * 1.02) if row > 64 else 0
            wanted = max(used + room + 1024, ahead + room + 1024)
            grown.append(_grown(array, max(wanted, min(2 * len(array), wanted))) if wanted > len(array) else array)
        self.pools = k.Pools(*grown)

    def _grow_trie(self, heap: U8) -> None:
        used = int(self.cursor[k.STATES])
        bigger = _new_trie(4 * used)
        for old, new in zip(self.trie[:-2], bigger[:-2], strict=True):
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
        return np.broadcast_to(_LAZY_DEFAULT[index], (n,))

    def seen(self, name: str) -> bool:
        """Whether any node of the file has this attribute."""
        return bool(self.out.lazy_seen[k.OWNED_FIRST + OWNED_INDEX[name]])

    def layouts(self, heap: U8) -> tuple[Layout, ...]:
        found: list[Layout] = [()] * int(self.cursor[k.LAYOUTS])
        used = int(self.cursor[k.STATES])
        trie = (self.trie.start, self.trie.length, self.trie.kind, self.trie.owner)
        # as lists: a file may have a million attributes, and indexing an array is slower than a list
        attrs = [_attr(heap, *entry) for entry in zip(*(column[1:used].tolist() for column in trie), strict=True)]
        parent = self.trie.parent[:used].tolist()
        for state in np.flatnonzero(self.trie.layout[:used] >= 0).tolist():
            path = []
            at = state
            while at:
                path.append(attrs[at - 1])
                at = parent[at]
            found[int(self.trie.layout[state])] = tuple(reversed(path))
        return tuple(found) or ((),)


def _attr(heap: U8, start: int, length: int, kind_number: int, owner: int) -> Attr:
    kind, tag_bytes = _KINDS[kind_number]
    raw = heap[start : start + length - tag_bytes].tobytes()
    column = OWNED[owner - k.OWNED_FIRST].name if owner >= 0 else ""
    if len(raw) > 1 and raw[0] == 0x0A and raw[1] == len(raw) - 2:  # a short name and nothing else, as most are
        return Attr(raw[2:].decode(), kind, column=column)
    name, doc, unknown = b"", b"", b""
    for f in fields(raw, "", start, 1):
        if f.number == 1 and f.wire == 2:
            name = f.payload
        elif f.number == 2 and f.wire == 2:
            doc = f.payload
        else:
            unknown += f.raw
    return Attr(name.decode(), kind, doc.decode(), unknown, column)


def _new_trie(size: int) -> k.Trie:
    table = 1
    while table < 2 * size + 2:
        table *= 2
    arrays: list[Any] = [np.zeros(size, np.int64) for _ in range(8)]
    arrays += [np.full(table, -1, np.int64), np.empty(et_wire.MAX_DEPTH, np.uint64)]
    return k.Trie(*arrays)


def _rewrite(heap: U8, starts: I64, ends: I64, rows: I64, files: Files) -> tuple[U8, I64, I64, NDArray[np.int32], I64]:
    """Irregular nodes in regular form after the files' bytes, and their spans there."""
    size = len(heap) - text.PAD
    side = bytearray()
    extra_rows: list[int] = []
    extra: list[int] = []
    for row in rows.tolist():
        start = int(starts[row])
        node, rest = regular_node(heap[start : int(ends[row])].tobytes(), *files.at(start))
        starts[row], ends[row] = size + len(side), size + len(side) + len(node)
        side += node
        if rest:
            extra_rows.append(row)
            extra.append(size + len(side))
            side += encode_varint(len(rest)) + rest
    bigger = np.zeros(size + len(side) + text.PAD, np.uint8)
    bigger[:size] = heap[:size]
    bigger[size : size + len(side)] = np.frombuffer(side, np.uint8)
    bigger.flags.writeable = False
    return bigger, starts, ends, np.array(extra_rows, np.int32), np.array(extra, np.int64)


def _mark_other(heap: U8, raw: _Raw, extra_row: NDArray[np.int32], extra: I64) -> None:
    """Nodes whose type is among their extra fields are of kind OTHER."""
    for row, offset in zip(extra_row.tolist(), extra.tolist(), strict=True):
        if extra_type(text.slice_bytes(heap, offset)) is not None:
            raw.out.kind[row] = Kind.OTHER


def check_metadata(metadata: bytes, where: str, base: int) -> None:
    """Checks that a GlobalMetadata message and its attributes are well-formed."""
    for f in fields(metadata, where, base):
        if f.wire == 2 and f.number == 1:
            check_text(f.payload, where, base)
        elif f.wire == 2 and f.number == 2:
            attribute(f.payload, where, base)


def attribute(payload: bytes, where: str, base: int) -> tuple[str, ValueKind, object, str]:
    """(name, kind, value, doc string) of one attribute message."""
    name, doc, kind = "", "", ValueKind.NONE
    value: object = None
    for f in fields(regular_attribute(payload, where, base), where, base, 1):
        if f.number == 1 and f.wire == 2:
            name = f.payload.decode()
        elif f.number == 2 and f.wire == 2:
            doc = f.payload.decode()
        elif 3 <= f.number <= 32 and f.wire == int(et_wire.VALUE_WIRE[f.number - 2]):
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


# -- from raw columns to the model -------------------------------------------------------------------------------------


def _finish(
    heap: U8,
    raw: _Raw,
    rank_start: I64,
    metadata: list[bytes],
    extra_row: NDArray[np.int32],
    extra: I64,
    zero_length: I64,
) -> list[Decoded]:
    out, cur = raw.out, raw.cursor
    n = len(out.kind)
    columns: dict[str, NDArray[Any]] = {c.name: constant(c.name, n) for c in NODE}
    columns.update(source_id=out.source_id, kind=out.kind, name=out.name, io=out.io)
    for c in OWNED:
        if c.name in columns and c.name not in ("group", "src", "dst", "collective", "cpu", "tag", "parent"):
            columns[c.name] = raw.column(c.name)
    for name in _IO_TEXT:
        columns[name] = raw.column(name)
    attributes = Attributes(raw.layouts(heap), out.layout, raw.pools.cells[: cur[k.CELLS]])
    rank = np.repeat(np.arange(len(rank_start) - 1, dtype=np.int32), np.diff(rank_start))
    columns["cpu"] = _flags(raw, attributes)
    columns["collective"] = _collectives(raw, attributes)
    columns["tag"] = _tags(raw, attributes)
    columns["parent"] = _parents(raw, attributes, rank_start)
    columns["group"], group_names = _groups(heap, raw, rank, rank_start)
    (columns["src"], columns["dst"]), peers = _peers(raw, attributes, rank, rank_start)
    columns["duration_ns"], wrong = _times(raw, attributes, "duration_ns", k.DURATION_US)
    start_ns, wrong_start = _times(raw, attributes, "start_ns", k.START_US)
    columns["lane"], lane_kind, lane_id = lanes(out.kind, columns["cpu"], columns["thread"], columns["stream"])
    data, ctrl, missing = _edges(raw, rank, rank_start)
    data_why, ctrl_why = _reasons(heap, raw, attributes)
    columns["layout"] = attributes.layout
    cell_start = attributes.cell_start()
    too_large = [extra_time(text.slice_bytes(heap, offset)) for offset in extra.tolist()]
    warned = _warnings(
        out.source_id,
        rank_start,
        {
            "message(s) of length 0 read as all-default nodes": zero_length,
            "exact time(s) disagree with the µs field, which is used": np.concatenate([wrong, wrong_start]),
            "time(s) too large for 64 bits of ns: kept, not used": extra_row[np.array(too_large, bool)],
        },
    )
    decoded = []
    bounds = zip(rank_start[:-1].tolist(), rank_start[1:].tolist(), strict=True)
    for r, (a, b) in enumerate(bounds):
        d0, d1, c0, c1 = out.data_start[a], out.data_start[b], out.ctrl_start[a], out.ctrl_start[b]
        x0, x1 = np.searchsorted(extra_row, (a, b))
        trace = Trace(
            heap=heap,
            **{name: column[a:b] for name, column in columns.items()},
            data_start=out.data_start[a : b + 1] - d0 if d0 else out.data_start[a : b + 1],
            data=data[d0:d1],
            data_why=data_why[d0:d1],
            ctrl_start=out.ctrl_start[a : b + 1] - c0 if c0 else out.ctrl_start[a : b + 1],
            ctrl=ctrl[c0:c1],
            ctrl_why=ctrl_why[c0:c1],
            missing=missing[r],
            layouts=attributes.layouts,
            cells=attributes.cells[cell_start[a] : cell_start[b]],
            extra_row=extra_row[x0:x1] - np.int32(a),
            extra=extra[x0:x1],
            lane_kind=lane_kind,
            lane_id=lane_id,
            group_slots=tuple(f"g{i}" for i in range(len(group_names[r]))),
            peer_slots=len(peers[r]),
        )
        decoded.append(Decoded(trace, metadata[r], group_names[r], peers[r], start_ns[a:b], warned.get(r, ())))
    return decoded


def _warnings(
    ids: NDArray[np.uint64], rank_start: I64, problems: Mapping[str, NDArray[Any]]
) -> dict[int, tuple[str, ...]]:
    """Warnings of each file, from the rows that have a problem."""
    found: dict[int, list[str]] = {}
    for problem, rows in problems.items():
        ranks, counts = np.unique(np.searchsorted(rank_start, rows, "right") - 1, return_counts=True)
        for r, count in zip(ranks.tolist(), counts.tolist(), strict=True):
            first = int(ids[rows[(rows >= rank_start[r]) & (rows < rank_start[r + 1])].min()])
            found.setdefault(r, []).append(f"{count} {problem}; the first at node {first}")
    return {r: tuple(texts) for r, texts in found.items()}


class Attributes:
    """Layouts, layout column and cells while a trace is being finished."""

    def __init__(self, layouts: tuple[Layout, ...], layout: NDArray[np.int32], cells: I64) -> None:
        self.layouts, self.layout, self.cells = layouts, layout, cells

    def disown(self, rows: I64, column: str, values: I64) -> None:
        """Turns the attribute held by `column` into a plain cell on these rows: its value does not fit the column."""
        layouts = list(self.layouts)
        layout = self.layout.copy()
        start = self.cell_start()
        at = np.empty(len(rows), np.int64)
        for number in distinct_values(layout[rows]).tolist():
            entry = layouts[number]
            place = next(i for i, a in enumerate(entry) if a.column == column)
            chosen = layout[rows] == number
            at[chosen] = start[rows[chosen]] + sum(a.in_cell for a in entry[:place])
            old = entry[place]
            layouts.append((*entry[:place], Attr(old.name, old.kind, old.doc, old.unknown), *entry[place + 1 :]))
            layout[rows[chosen]] = len(layouts) - 1
        self.layouts, self.layout, self.cells = tuple(layouts), layout, np.insert(self.cells, at, values)

    def cell_start(self) -> I64:
        """First cell of each row, with one extra entry."""
        counts = np.array([sum(a.in_cell for a in entry) for entry in self.layouts], np.int64)
        start = np.zeros(len(self.layout) + 1, np.int64)
        np.cumsum(counts[self.layout], out=start[1:])
        return start

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


def _parents(raw: _Raw, attributes: Attributes, rank_start: I64) -> NDArray[np.int32]:
    """Rows of callers. The attribute holds an id; an id without a node stays an attribute."""
    n = len(raw.out.kind)
    if not raw.seen("parent"):
        return constant("parent", n)
    held = attributes.holds("parent")
    ids = raw.column("parent")[held].view(np.uint64)
    start = np.zeros(n + 1, np.int64)
    np.cumsum(held, out=start[1:])
    rows = np.empty(len(ids), np.int32)
    et_ids.rows_of(raw.out.source_id, rank_start, start, ids, rows)
    parent = np.full(n, -1, np.int32)
    parent[held] = rows
    lost = np.flatnonzero(held & (parent < 0))
    if len(lost):
        attributes.disown(lost, "parent", raw.column("parent")[lost])
    return parent


def _groups(
    heap: U8, raw: _Raw, rank: NDArray[np.int32], rank_start: I64
) -> tuple[NDArray[np.int32], list[tuple[str, ...]]]:
    """Group slots, numbered in each rank by first appearance, and the names behind them."""
    if not raw.seen("group"):
        return constant("group", len(rank)), [()] * (len(rank_start) - 1)
    codes, unique = text.intern(heap, raw.column("group"))
    names = text.strings(heap, unique)
    rows = np.flatnonzero(codes >= 0)
    slot, behind = _slots(rank[rows], codes[rows].astype(np.int64), len(rank_start) - 1)
    group = np.full(len(rank), -1, np.int32)
    group[rows] = slot
    return group, [tuple(names[c] for c in b.tolist()) for b in behind]


def _peers(
    raw: _Raw, attributes: Attributes, rank: NDArray[np.int32], rank_start: I64
) -> tuple[tuple[NDArray[np.int32], NDArray[np.int32]], list[I64]]:
    """Slots of src and dst, numbered in each rank by first appearance down the rows, src before dst."""
    if not raw.seen("src") and not raw.seen("dst"):
        nothing = np.zeros(0, np.int64)
        return (constant("src", len(rank)), constant("dst", len(rank))), [nothing] * (len(rank_start) - 1)
    both = np.stack([raw.column("src"), raw.column("dst")], 1).ravel()
    held = np.stack([attributes.holds("src"), attributes.holds("dst")], 1).ravel()
    rows = np.flatnonzero(held)
    slot, behind = _slots(rank[rows // 2], both[rows], len(rank_start) - 1)
    slots = np.full(len(both), -1, np.int32)
    slots[rows] = slot
    return (np.ascontiguousarray(slots[0::2]), np.ascontiguousarray(slots[1::2])), behind


def _slots(rank: NDArray[np.int32], value: I64, ranks: int) -> tuple[NDArray[np.int32], list[I64]]:
    """Numbers the distinct values of each rank by first appearance; returns also the values of each rank in that
    order."""
    distinct, value_code = np.unique(value, return_inverse=True)
    keys, first, inverse = np.unique(
        rank.astype(np.int64) * max(len(distinct), 1) + value_code, return_index=True, return_inverse=True
    )
    order = np.argsort(first, kind="stable")  # rows ascend by rank, so this is rank by rank
    bound = np.searchsorted(rank[first[order]], np.arange(ranks + 1))
    slot_of = np.empty(len(keys), np.int32)
    slot_of[order] = np.arange(len(keys)) - bound[rank[first[order]]]
    values = value[first[order]]
    return slot_of[inverse], [values[a:b] for a, b in zip(bound[:-1].tolist(), bound[1:].tolist(), strict=True)]


def _times(raw: _Raw, attributes: Attributes, column: str, micros_index: int) -> tuple[I64, I64]:
    """Exact ns if recorded and consistent with the µs field, else µs x 1000, else UNKNOWN; and rows that disagree."""
    micros = raw.lazy(micros_index)
    result = np.where(micros == 0, UNKNOWN, micros * 1000)
    if not raw.seen(column):
        return result, np.zeros(0, np.int64)
    exact = raw.column(column)
    held = attributes.holds(column)
    agrees = held & (exact >= 0) & ((exact // 1000 + (exact % 1000 >= 500)) == micros)
    wrong = np.flatnonzero(held & ~agrees)
    if len(wrong):
        attributes.disown(wrong, column, exact[wrong])
    return np.where(agrees, exact, result), wrong


def _edges(
    raw: _Raw, rank: NDArray[np.int32], rank_start: I64
) -> tuple[NDArray[np.int32], NDArray[np.int32], list[NDArray[np.uint64]]]:
    """Dependencies as rows of their rank; ids without a node become ~k into the rank's list of missing ids."""
    ids = raw.out.source_id
    pools = (
        (raw.pools.data[: raw.cursor[k.DATA]], raw.out.data_start),
        (raw.pools.ctrl[: raw.cursor[k.CTRL]], raw.out.ctrl_start),
    )
    found, lost, lost_rank = [], [], []
    for targets, edge_start in pools:
        rows = np.empty(len(targets), np.int32)
        et_ids.rows_of(ids, rank_start, edge_start, targets, rows)
        at = np.flatnonzero(rows < 0)
        found.append(rows)
        lost.append(targets[at])
        lost_rank.append(rank[np.searchsorted(edge_start, at, "right") - 1])
    all_lost, all_ranks = np.concatenate(lost), np.concatenate(lost_rank)
    order = np.lexsort((all_lost, all_ranks))
    all_lost, all_ranks = all_lost[order], all_ranks[order]
    fresh = np.ones(len(all_lost), bool)
    fresh[1:] = (all_lost[1:] != all_lost[:-1]) | (all_ranks[1:] != all_ranks[:-1])
    missing = all_lost[fresh]
    bound = np.searchsorted(all_ranks[fresh], np.arange(len(rank_start))).astype(np.int64)
    if len(missing):
        for (targets, edge_start), rows in zip(pools, found, strict=True):
            et_ids.number_missing(rank_start, edge_start, targets, rows, missing, bound)
    return found[0], found[1], [missing[a:b] for a, b in zip(bound[:-1].tolist(), bound[1:].tolist(), strict=True)]


def _reasons(heap: U8, raw: _Raw, attributes: Attributes) -> tuple[U8, U8]:
    """Why each edge exists. Text that does not fit the edges stays an attribute."""
    if not raw.seen("dep_why"):
        edges = (raw.cursor[k.DATA], raw.cursor[k.CTRL])
        return np.broadcast_to(np.uint8(0), edges[:1]), np.broadcast_to(np.uint8(0), edges[1:])
    offset = raw.column("dep_why")
    data_why, ctrl_why, strange = reasons.read(heap, offset, raw.out.data_start, raw.out.ctrl_start)
    if len(strange):
        attributes.disown(strange, "dep_why", offset[strange])
    return data_why, ctrl_why
