"""From a Trace to the JSON of one rank. Text is encoded once for each distinct value, attributes from a template per
layout."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.model import reasons, text
from etude.model.attrs import decode_list, element, encode_list
from etude.model.schema import COLUMN, Kind, ValueKind
from etude.model.trace import Attr, Layout, complete_layouts
from etude.store.et_decode import Decoded, attribute
from etude.store.et_encode import Owned, micros
from etude.store.et_irregular import fields
from etude.store.json_read import metadata_bytes
from etude.store.json_storage import FIELD, TYPES, storage_object
from etude.store.json_values import FIELD_NAME

_BLOCK = 1 << 16
_WIDE = {ValueKind.INT64, ValueKind.UINT64, ValueKind.SINT64, ValueKind.FIXED64, ValueKind.SFIXED64}
_UNSIGNED = {ValueKind.UINT64: "u8", ValueKind.FIXED64: "u8", ValueKind.UINT32: "u4", ValueKind.FIXED32: "u4"}
_IO = (("values", "shapes", "types"), ("inputs", "outputs"))
_PLAIN_NAN = {ValueKind.DOUBLE: 0x7FF8000000000000, ValueKind.FLOAT: 0x7FC00000}


def quoted(value: str) -> str:
    return msgspec.json.encode(value).decode()


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def lines(decoded: Decoded, *, id_base: int = 0, tag_base: int = 0) -> Iterator[str]:
    """The file, piece by piece."""
    yield f'{{"metadata": {metadata_json(decoded.metadata)},\n"nodes": [\n'
    writer = _Writer(decoded, id_base, tag_base)
    n = len(decoded.trace)
    for a in range(0, n, _BLOCK):
        b = min(a + _BLOCK, n)
        yield ",\n".join(writer.nodes(a, b)) + (",\n" if b < n else "\n")
    yield "]}\n"


def messages(decoded: Decoded) -> Iterator[str]:
    """GlobalMetadata and each node, as one JSON object per message."""
    yield metadata_json(decoded.metadata)
    writer = _Writer(decoded, 0, 0)
    for a in range(0, len(decoded.trace), _BLOCK):
        yield from writer.nodes(a, min(a + _BLOCK, len(decoded.trace)))


# -- values ------------------------------------------------------------------------------------------------------------


def number_json(kind: ValueKind, value: Any) -> str:
    """A number, bool, text or bytes in protobuf's JSON mapping."""
    if kind in (ValueKind.DOUBLE, ValueKind.FLOAT):
        return _float_json(kind, value)
    if kind == ValueKind.BOOL:
        return "true" if value else "false"
    if kind == ValueKind.STRING:
        return quoted(value)
    if kind == ValueKind.BYTES:
        return f'"{b64(value)}"'
    return f'"{value}"' if kind in _WIDE else str(value)


def _float_json(kind: ValueKind, value: float) -> str:
    if value != value:
        return '"NaN"'
    if value in (float("inf"), float("-inf")):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if kind == ValueKind.FLOAT:
        short = str(np.float32(value))
        if float(np.float32(float(short))) == value:
            return short
    return repr(float(value))


def list_json(kind: ValueKind, payload: bytes) -> str:
    """`{"values":[...]}`, followed by `_payload` if that would not give the same bytes again."""
    if kind == ValueKind.STRING_LIST and (strings := _short_strings(payload)):
        return f'{{"values":{msgspec.json.encode(strings).decode()}}}'
    one = element(kind)
    values = decode_list(kind, payload)
    if one == ValueKind.BOOL:
        values = [bool(v) for v in values]
    body = f'"values":[{",".join(number_json(one, v) for v in values)}]' if values else ""
    same = encode_list(kind, [float("nan") if v != v else v for v in values]) == payload
    return f"{{{body}}}" if same else f'{{{body}}},"_payload":"{b64(payload)}"'


def _short_strings(payload: bytes) -> list[str]:
    """The strings of a list whose lengths fit in one byte, as nearly all do; else nothing."""
    found, p = [], 0
    while p < len(payload):
        if payload[p] != 10 or payload[p + 1] > 127:
            return []
        end = p + 2 + payload[p + 1]
        found.append(payload[p + 2 : end].decode())
        p = end
    return found


def attr_json(name: str, kind: ValueKind, doc: str, unknown: bytes, value: str) -> str:
    """An attribute; `value` is JSON already, and may have keys after it."""
    parts = [f'"name":{quoted(name)}'] if name else []
    parts += [f'"docString":{quoted(doc)}'] if doc else []
    parts += [f'"_unknown":"{b64(unknown)}"'] if unknown else []
    parts += [f'"{FIELD_NAME[kind]}":{value}'] if kind else []
    return "{" + ",".join(parts) + "}"


def metadata_json(raw: bytes) -> str:
    """GlobalMetadata; with `_raw` if the mapping would not give the same bytes again."""
    version, attrs, unknown = "", [], False
    for f in fields(raw, "", 0):
        if f.number == 1 and f.wire == 2:
            version = f.payload.decode()
        elif f.number == 2 and f.wire == 2:
            name, kind, value, doc = attribute(f.payload, "", 0)
            if kind.is_list:
                one = element(kind)
                shown = ",".join(number_json(one, v) for v in value)  # type: ignore[attr-defined]
                attrs.append(attr_json(name, kind, doc, b"", f'{{"values":[{shown}]}}' if value else "{}"))
            else:
                attrs.append(attr_json(name, kind, doc, b"", number_json(kind, value) if kind else ""))
        else:
            unknown = True
    parts = [f'"version":{quoted(version)}'] if version else []
    parts += [f'"attr":[{",".join(attrs)}]'] if attrs else []
    done = "{" + ",".join(parts) + "}"
    if unknown or metadata_bytes(msgspec.json.decode(done), "", "$") != raw:
        done = "{" + ",".join([*parts, f'"_raw":"{b64(raw)}"']) + "}"
    return done


# -- nodes -------------------------------------------------------------------------------------------------------------


class _Writer:
    """Rows a to b of one rank as JSON, node by node."""

    def __init__(self, decoded: Decoded, id_base: int, tag_base: int) -> None:
        self._trace, self._start_ns = decoded.trace, decoded.start_ns
        self._id_base = np.uint64(id_base)
        self._groups = [quoted(g) for g in decoded.group_names]
        slots = np.arange(len(self._groups))
        self._layouts, self._layout = complete_layouts(decoded.trace, decoded.start_ns)
        self._why_heap, why_offset = reasons.spell(decoded.trace, text.HeapWriter().heap())
        self._owned = Owned(decoded, [], slots, why_offset, id_base, tag_base)
        self._templates = [_template(layout) for layout in self._layouts]
        counts = np.array([sum(a.in_cell for a in layout) for layout in self._layouts], np.int64)
        self._cell_start = np.concatenate([[0], np.cumsum(counts[self._layout])]) if len(self._trace) else counts
        extra = zip(self._trace.extra_row.tolist(), self._trace.extra.tolist(), strict=True)
        self._extra = {row: text.slice_bytes(self._trace.heap, offset) for row, offset in extra}

    def nodes(self, a: int, b: int) -> list[str]:
        t = self._trace
        columns: list[list[str]] = [
            [f'"id":"{i}"' if i else "" for i in (t.source_id[a:b] + self._id_base).tolist()],
            self._keyed("name", "name", a, b),
            [_TYPE[k] for k in t.kind[a:b].tolist()],
            self._deps("ctrlDeps", t.ctrl_start, t.ctrl, a, b),
            self._deps("dataDeps", t.data_start, t.data, a, b),
            [f'"startTimeMicros":"{v}"' if v else "" for v in micros(self._start_ns[a:b]).tolist()],
            [f'"durationMicros":"{v}"' if v else "" for v in micros(t.duration_ns[a:b]).tolist()],
            self._io("in", "inputs", 1, a, b),
            self._io("out", "outputs", 2, a, b),
            self._attrs(a, b),
        ]
        rows = ["{" + ",".join(filter(None, parts)) + "}" for parts in zip(*columns, strict=True)]
        for row in range(a, b) if len(self._extra) > b - a else [r for r in self._extra if a <= r < b]:
            if row in self._extra:
                rows[row - a] = _with_extra(rows[row - a], self._extra[row])
        return rows

    def _texts(self, offsets: I64, form: Callable[[bytes], str], heap: NDArray[np.uint8] | None = None) -> list[str]:
        """Slices of the (trace's) heap as JSON, each distinct one formatted once; "" if absent."""
        heap = self._trace.heap if heap is None else heap
        if offsets.strides == (0,) and len(offsets) and offsets[0] < 0:
            return [""] * len(offsets)
        codes, unique = text.intern(heap, offsets)
        words = [form(text.slice_bytes(heap, o)) for o in unique.tolist()]
        words.append("")
        return [words[c] for c in codes.tolist()]

    def _keyed(self, key: str, column: str, a: int, b: int) -> list[str]:
        """`"key":"text"` of each node; "" if the text is absent or empty."""
        return self._texts(
            getattr(self._trace, column)[a:b], lambda raw: f'"{key}":{quoted(raw.decode())}' if raw else ""
        )

    def _deps(self, key: str, start: I64, dep: NDArray[np.int32], a: int, b: int) -> list[str]:
        t = self._trace
        low, high = int(start[a]), int(start[b])
        rows = dep[low:high]
        ids = np.empty(len(rows), np.uint64)
        ids[rows >= 0] = t.source_id[rows[rows >= 0]]
        ids[rows < 0] = t.missing[~rows[rows < 0]]
        shown = [str(i) for i in (ids + self._id_base).tolist()]
        bounds = (start[a : b + 1] - low).tolist()
        return [f'"{key}":["{chr(34).join(_between(shown, x, y))}"]' if y > x else "" for x, y in pairwise(bounds)]

    def _io(self, prefix: str, key: str, bit: int, a: int, b: int) -> list[str]:
        has = (self._trace.io[a:b] & bit).tolist()
        if not any(has):
            return [""] * (b - a)
        parts = [self._keyed(part, f"{prefix}_{part}", a, b) for part in _IO[0]]
        return [
            f'"{key}":{{{",".join(filter(None, three))}}}' if h else ""
            for h, three in zip(has, zip(*parts, strict=True), strict=True)
        ]

    def _attrs(self, a: int, b: int) -> list[str]:
        found = [""] * (b - a)
        layout = self._layout[a:b]
        order = np.argsort(layout, kind="stable")
        used, first = np.unique(layout[order], return_index=True)
        for number, rows in zip(used.tolist(), np.split(order, first[1:]), strict=True):
            template = self._templates[number]
            columns = self._columns(self._layouts[number], rows + a)
            if not columns:
                for row in rows.tolist():
                    found[row] = template % () if template else ""
                continue
            for row, values in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
                found[row] = template % values
        return found

    def _columns(self, layout: Layout, rows: I64) -> list[list[Any]]:
        """Values for the placeholders of a layout's template, for these nodes."""
        columns, cell = [], 0
        for attr in layout:
            if attr.kind == ValueKind.NONE:
                continue
            if attr.column:
                columns.append(self._owned_column(attr, rows))
            else:
                columns.append(self._cells(attr.kind, self._trace.cells[self._cell_start[rows] + cell]))
                cell += 1
        return columns

    def _owned_column(self, attr: Attr, rows: I64) -> list[Any]:
        first, stop = int(rows.min()), int(rows.max()) + 1
        values = np.asarray(self._owned.column(attr.column, first, stop))[rows - first]
        if attr.column == "group":
            return [self._groups[slot] for slot in values.tolist()]
        if attr.column == "dep_why":
            return self._texts(values.astype(np.int64), lambda raw: quoted(raw.decode()), self._why_heap)
        if attr.column in COLUMN and COLUMN[attr.column].is_text:
            return self._texts(values.astype(np.int64), lambda raw: quoted(raw.decode()))
        return self._cells(attr.kind, values.astype(np.int64))

    def _cells(self, kind: ValueKind, cells: I64) -> list[Any]:
        if kind == ValueKind.STRING:
            return self._texts(cells, lambda raw: quoted(raw.decode()))
        if kind == ValueKind.BYTES:
            return self._texts(cells, lambda raw: f'"{b64(raw)}"')
        if kind.is_list:
            return self._texts(cells, lambda raw: list_json(kind, raw))
        if kind in (ValueKind.DOUBLE, ValueKind.FLOAT):
            return [_float_cell(kind, c) for c in cells.tolist()]
        if kind == ValueKind.BOOL:
            return ["true" if c else "false" for c in cells.tolist()]
        if kind in _UNSIGNED:
            return np.asarray(cells.astype(_UNSIGNED[kind])).tolist()
        return cells.tolist()


def _between(shown: list[str], x: int, y: int) -> list[str]:
    """The parts that, joined by a quote, make `a","b`."""
    parts = [shown[x]]
    for item in shown[x + 1 : y]:
        parts += [",", item]
    return parts


def _float_cell(kind: ValueKind, cell: int) -> str:
    bits = cell & (0xFFFFFFFF if kind == ValueKind.FLOAT else 0xFFFFFFFFFFFFFFFF)
    raw = bits.to_bytes(4 if kind == ValueKind.FLOAT else 8, "little")
    value = float(np.frombuffer(raw, "<f4" if kind == ValueKind.FLOAT else "<f8")[0])
    shown = _float_json(kind, value)
    return shown if value == value or bits == _PLAIN_NAN[kind] else f'{shown},"_bits":"{bits}"'


def _template(layout: Layout) -> str:
    """`"attr":[...]` with a placeholder for each value."""
    attrs = []
    for a in layout:
        place = '"%d"' if a.kind in _WIDE else "%s" if not a.kind.is_integer or a.kind == ValueKind.BOOL else "%d"
        shown = attr_json(a.name, a.kind, a.doc, a.unknown, "\0").replace("%", "%%")
        attrs.append(shown.replace("\0", place))
    return f'"attr":[{",".join(attrs)}]' if attrs else ""


def _with_extra(node: str, extra: bytes) -> str:
    """Adds fields that the model keeps separately: those of the schema under their names, the rest unchanged."""
    unknown, parts, storage = b"", [], ""
    for f in fields(extra, "", 0):
        if f.number == 3 and f.wire == 0:
            number = f.value - 2**64 if f.value >= 2**63 else f.value
            parts.append(f'"type":"{TYPES[number]}"' if number in TYPES else f'"type":{number}')
        elif f.number in (6, 7) and f.wire == 0:
            parts.append(f'"{"startTimeMicros" if f.number == 6 else "durationMicros"}":"{f.value}"')
        elif f.number == FIELD and f.wire == 2 and not (unknown or storage) and (said := storage_object(f.payload)):
            storage = f'"storage":{msgspec.json.encode(said).decode()}'
        else:
            unknown += f.raw
    parts += [storage] if storage else []
    if unknown:
        parts.append(f'"_unknown":"{b64(unknown)}"')
    return "{" + ",".join(filter(None, [node[1:-1], *parts])) + "}"


_TYPE = [f'"type":"{k.wire_name}"' if Kind.INVALID < k < Kind.OTHER else "" for k in Kind]
