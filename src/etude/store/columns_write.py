"""A job as Arrow tables, in the columns of columns_schema, and those as Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I32, I64
from etude.model import text
from etude.model.attrs import decode_list
from etude.model.schema import COLUMN, NODE, ValueKind
from etude.model.trace import Trace
from etude.store import columns_schema as schema
from etude.store.columns_attrs import Flat, flat_layouts, list_text

CHUNK_ROWS = 1 << 17
"""Approximate nodes in a row group: few enough to read one trace of many, enough to make small ranks cheap."""
TEXT_BYTES = 1 << 30
"""Largest amount of distinct text of one column in one row group; Arrow's limit is twice as much."""


class _TextError(Exception):
    """Too much text for one row group."""


@dataclass(frozen=True, slots=True)
class ColumnPiece:
    """Rows a to b of a trace."""

    number: int
    trace: Trace
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Contents of one row group of nodes.parquet, deps.parquet and attrs.parquet: rows of traces first to last."""

    first: int
    last: int
    nodes: int
    data: int
    ctrl: int
    attrs: int


# -- arrays ------------------------------------------------------------------------------------------------------------


def coded(codes: NDArray[Any], words: Any) -> Any:
    """A dictionary array; code -1 is NULL."""
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32(), mask=codes < 0), words)


def masked(column: NDArray[Any], default: int) -> Any:
    """Numbers with NULL for the default."""
    nothing = column == np.array(default, column.dtype)
    return pa.array(column, mask=nothing) if nothing.any() else pa.array(column)


def words_of(heap: NDArray[np.uint8], unique: I64, kind: Any) -> Any:
    data, starts = text.flat(heap, unique)
    if len(data) > TEXT_BYTES:
        raise _TextError
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(unique), buffers)


def slices(parts: Sequence[tuple[NDArray[np.uint8], I64]], kind: Any) -> Any:
    """Slices of heaps (heap, offsets) as one dictionary array; offset -1 is NULL."""
    by_heap: dict[int, list[int]] = {}
    for number, (heap, _) in enumerate(parts):
        by_heap.setdefault(id(heap), []).append(number)
    if len(by_heap) == 1:
        heap = parts[0][0]
        codes, unique = text.intern(heap, np.concatenate([offsets for _, offsets in parts]))
        return coded(codes, words_of(heap, unique, kind))
    small, moved, base = [], [np.zeros(0, np.int64)] * len(parts), 0
    for numbers in by_heap.values():
        heap = parts[numbers[0]][0]
        codes, unique = text.intern(heap, np.concatenate([parts[i][1] for i in numbers]))
        gathered, offsets = text.gather(heap, unique)
        here = np.append(offsets + base, -1)[codes]
        for i, own in zip(numbers, np.split(here, np.cumsum([len(parts[i][1]) for i in numbers])[:-1]), strict=True):
            moved[i] = own
        small.append(gathered[: len(gathered) - text.PAD])
        base += len(small[-1])
    heap = text.pad(np.concatenate(small))
    heap.flags.writeable = False
    codes, unique = text.intern(heap, np.concatenate(moved))
    return coded(codes, words_of(heap, unique, kind))


def lists(starts: I64, flat: Any, known: NDArray[np.bool_] | None = None) -> Any:
    mask = None if known is None or known.all() else pa.array(~known)
    values = flat if isinstance(flat, pa.Array) else pa.array(flat)
    kind = pa.list_(pa.field("element", values.type))
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values, type=kind, mask=mask)


def nested(rows: Sequence[Sequence[Any]], item: Any) -> Any:
    starts = np.cumsum([0, *map(len, rows)])
    return lists(starts, pa.array([x for row in rows for x in row], item))


def table(file: str, columns: Mapping[str, Any]) -> Any:
    """A table of these columns in the order and the types of the schema."""
    known = schema.FILES[file]
    names = [n for n in known if n in columns]
    return pa.table([columns[n] for n in names], schema=pa.schema([(n, known[n]) for n in names]))


# -- nodes, dependencies, attributes -----------------------------------------------------------------------------------


def used_columns(traces: Sequence[Trace]) -> tuple[str, ...]:
    """Node columns in which some trace recorded something."""
    return tuple(
        c.name
        for c in NODE
        if c.name in schema.NEVER_NULL or any(_recorded(getattr(t, c.name), c.default) for t in traces)
    )


def _recorded(column: NDArray[Any], default: int) -> bool:
    if not len(column) or column.strides == (0,):
        return bool(len(column)) and int(column[0]) != default
    return bool((column != np.array(default, column.dtype)).any())


def node_table(pieces: Sequence[ColumnPiece], used: Sequence[str], extras: bool) -> Any:
    lengths = [p.b - p.a for p in pieces]
    columns: dict[str, Any] = {
        "trace": np.repeat(np.array([p.number for p in pieces], np.int32), lengths),
        "node": np.concatenate([np.arange(p.a, p.b, dtype=np.int32) for p in pieces]),
    }
    for name in used:
        c = COLUMN[name]
        parts = [getattr(p.trace, name)[p.a : p.b] for p in pieces]
        if c.is_text:
            columns[name] = slices([(p.trace.heap, part) for p, part in zip(pieces, parts, strict=True)], pa.string())
            continue
        column = np.concatenate(parts)
        if name in schema.WORDS:
            words = schema.WORDS[name]
            if len(column) and int(column.max()) >= len(words):
                raise TraceError(
                    f"column `{name}` holds {int(column.max())}, which is not one of its {len(words)} values"
                )
            codes = column.astype(np.int32)
            codes[column == 0] = -1 if name not in schema.NEVER_NULL else 0
            columns[name] = coded(codes, pa.array(words))
        else:
            columns[name] = pa.array(column) if name in schema.NEVER_NULL else masked(column, c.default)
    if extras:
        columns["extra"] = slices([(p.trace.heap, _extra(p)) for p in pieces], pa.binary())
    return table("nodes", columns)


def _extra(piece: ColumnPiece) -> I64:
    column = np.full(piece.b - piece.a, -1, np.int64)
    x0, x1 = np.searchsorted(piece.trace.extra_row, (piece.a, piece.b))
    column[piece.trace.extra_row[x0:x1] - piece.a] = piece.trace.extra[x0:x1]
    return column


def dep_table(pieces: Sequence[ColumnPiece]) -> tuple[Any, int, int]:
    """(rows, how many are data, how many control): all data dependencies first."""
    parts: dict[str, list[NDArray[Any]]] = {"trace": [], "node": [], "position": [], "on": [], "why": []}
    counts = [0, 0]
    for which, kind in enumerate(schema.EDGES):
        for p in pieces:
            start = getattr(p.trace, f"{kind}_start")[p.a : p.b + 1]
            low, high = int(start[0]), int(start[-1])
            degree = np.diff(start)
            parts["trace"].append(np.full(high - low, p.number, np.int32))
            parts["node"].append(np.repeat(np.arange(p.a, p.b, dtype=np.int32), degree))
            parts["position"].append((np.arange(low, high) - np.repeat(start[:-1], degree)).astype(np.int32))
            parts["on"].append(getattr(p.trace, kind)[low:high])
            parts["why"].append(getattr(p.trace, f"{kind}_why")[low:high])
            counts[which] += high - low
    columns: dict[str, Any] = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    why = columns["why"].astype(np.int32)
    if len(why) and int(why.max()) >= len(schema.WHYS):
        raise TraceError(f"a dependency has reason {int(why.max())}, which is not one of the {len(schema.WHYS)}")
    columns["why"] = coded(why, pa.array(schema.WHYS))
    columns["kind"] = coded(np.repeat(np.arange(2, dtype=np.int32), counts), pa.array(schema.EDGES))
    return table("deps", columns), counts[0], counts[1]


class AttrTables:
    """Tables of attributes in cells; layouts are flattened once per set."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        kinds = {
            a.kind for s in {id(t.layouts): t.layouts for t in traces}.values() for row in s for a in row if a.in_cell
        }
        self.columns = {
            "bits": any(not k.is_heap for k in kinds),
            "double": bool(kinds & {ValueKind.DOUBLE, ValueKind.FLOAT}),
            "text": ValueKind.STRING in kinds,
            "payload": any(k.is_list or k == ValueKind.BYTES for k in kinds),
            "list": any(k.is_list for k in kinds),
        }
        self._flat: dict[int, Flat] = {}
        self._names: dict[str, int] = {}
        self._list_text: dict[tuple[int, bytes], str] = {}

    def _of(self, trace: Trace) -> Flat:
        flat = self._flat.get(id(trace.layouts))
        if flat is None:
            flat = self._flat[id(trace.layouts)] = flat_layouts(trace.layouts, self._names)
        return flat

    def table(self, pieces: Sequence[ColumnPiece], first_cell: Sequence[int]) -> tuple[Any, list[int]]:
        """(rows, cells of each piece); `first_cell` is where each piece's cells begin in its trace."""
        parts: dict[str, list[NDArray[Any]]] = {n: [] for n in ("trace", "node", "position", "name", "kind", "bits")}
        taken, heaps = [], []
        for p, cell in zip(pieces, first_cell, strict=True):
            flat = self._of(p.trace)
            node, entry = flat.cells(p.trace.layout[p.a : p.b])
            parts["trace"].append(np.full(len(node), p.number, np.int32))
            parts["node"].append(node + np.int32(p.a))
            parts["position"].append(flat.position[entry])
            parts["name"].append(flat.name[entry])
            parts["kind"].append(flat.kind[entry].astype(np.int32))
            parts["bits"].append(p.trace.cells[cell : cell + len(node)])
            if len(parts["bits"][-1]) != len(node):
                raise TraceError(f"trace {p.number}: its layouts need more cells than its {len(p.trace.cells)}")
            heaps.append(p.trace.heap)
            taken.append(len(node))
        names = pa.array(list(self._names), pa.string())
        kinds, bits = np.concatenate(parts["kind"]), parts.pop("bits")
        columns: dict[str, Any] = {n: np.concatenate(a) for n, a in parts.items()}
        columns |= {"name": coded(columns["name"], names), "kind": coded(kinds, pa.array(schema.VALUE_KINDS))}
        columns |= self._values(kinds, np.concatenate(bits), heaps, taken)
        return table("attrs", columns), taken

    def _values(self, kinds: I32, bits: I64, heaps: list[NDArray[np.uint8]], taken: list[int]) -> dict[str, Any]:
        is_list = (kinds > 0) & (kinds % 2 == 0)
        is_text = kinds == ValueKind.STRING
        is_payload = is_list | (kinds == ValueKind.BYTES)
        found: dict[str, Any] = {}
        ends = np.cumsum(taken)[:-1]
        if self.columns["bits"]:
            in_heap = is_text | is_payload
            found["bits"] = pa.array(bits, mask=in_heap)
        if self.columns["double"]:
            found["double"] = _doubles(kinds, bits)
        for name, chosen, kind in (("text", is_text, pa.string()), ("payload", is_payload, pa.binary())):
            if self.columns[name]:
                offsets = np.split(np.where(chosen, bits, -1), ends)
                found[name] = slices(list(zip(heaps, offsets, strict=True)), kind)
        if self.columns["list"]:
            found["list"] = self._list_column(kinds, is_list, found["payload"])
        return found

    def _list_column(self, kinds: I32, is_list: NDArray[np.bool_], payload: Any) -> Any:
        """Lists as JSON text: one Python step for each distinct (kind, payload)."""
        codes = payload.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        keys, inverse = np.unique(np.where(is_list, codes * 32 + kinds, -1), return_inverse=True)
        raws, words = payload.dictionary.to_pylist(), []
        if len(self._list_text) > 1 << 20:
            self._list_text.clear()
        for key in keys.tolist():
            pair = (key % 32, raws[key // 32]) if key >= 0 else (0, b"")
            word = self._list_text.get(pair)
            if word is None:
                word = list_text(decode_list(ValueKind(pair[0]), pair[1])) if pair[0] else ""
                self._list_text[pair] = word
            words.append(word)
        return coded(np.where(is_list, inverse, -1).astype(np.int32), pa.array(words, pa.string()))


def _doubles(kinds: I32, bits: I64) -> Any:
    is_double, is_float = kinds == ValueKind.DOUBLE, kinds == ValueKind.FLOAT
    value = np.where(is_double, bits, 0).view(np.float64).copy()
    value[is_float] = bits[is_float].astype(np.uint32).view(np.float32)
    return pa.array(value, mask=~(is_double | is_float))


def pieces_of(traces: Sequence[Trace], rows: int = CHUNK_ROWS) -> Iterator[list[ColumnPiece]]:
    """Whole traces up to about `rows` nodes together; a larger one alone, in parts."""
    waiting: list[ColumnPiece] = []
    held = 0
    for number, trace in enumerate(traces):
        n = len(trace)
        if waiting and held + n > rows:
            yield waiting
            waiting, held = [], 0
        if n > rows:
            for a in range(0, n, rows):
                yield [ColumnPiece(number, trace, a, min(a + rows, n))]
        else:
            waiting.append(ColumnPiece(number, trace, 0, n))
            held += n
    if waiting:
        yield waiting


def halves(pieces: list[ColumnPiece]) -> tuple[list[ColumnPiece], list[ColumnPiece]]:
    if len(pieces) > 1:
        return pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :]
    p = pieces[0]
    if p.b - p.a < 2:
        raise TraceError(f"trace {p.number}, node {p.a}: more than {TEXT_BYTES >> 20} MiB of text in one node")
    middle = (p.a + p.b) // 2
    return [ColumnPiece(p.number, p.trace, p.a, middle)], [ColumnPiece(p.number, p.trace, middle, p.b)]


def trace_chunks(traces: Sequence[Trace], rows: int = CHUNK_ROWS) -> Iterator[tuple[Chunk, dict[str, Any]]]:
    """Row groups: the contents of each, and its tables nodes, deps and attrs."""
    used, extras = used_columns(traces), any(len(t.extra_row) for t in traces)
    attrs = AttrTables(traces)
    next_cell = [0] * len(traces)
    todo = list(pieces_of(traces, rows))[::-1]
    while todo:
        pieces = todo.pop()
        try:
            nodes = node_table(pieces, used, extras)
            deps, data, ctrl = dep_table(pieces)
            cells, taken = attrs.table(pieces, [next_cell[p.number] for p in pieces])
        except _TextError:
            todo += halves(pieces)[::-1]
            continue
        for p, count in zip(pieces, taken, strict=True):
            next_cell[p.number] += count
        chunk = Chunk(pieces[0].number, pieces[-1].number, len(nodes), data, ctrl, len(cells))
        yield chunk, {"nodes": nodes, "deps": deps, "attrs": cells}


# -- files -------------------------------------------------------------------------------------------------------------


class ParquetFile:
    """One file of the folder; opened with the first table, which gives its columns."""

    def __init__(self, folder: Path, file: str) -> None:
        self._path, self._file = folder / f"{file}.parquet", file
        self._writer: Any = None

    def write(self, rows: Any) -> None:
        """Writes a row group; nothing if there are no rows."""
        if self._writer is None:
            words = [n for n in rows.column_names if pa.types.is_dictionary(rows.schema.field(n).type)]
            self._writer = pq.ParquetWriter(
                self._path,
                rows.schema,
                compression="zstd",
                use_dictionary=words or False,
                column_encoding={n: "DELTA_BINARY_PACKED" for n in rows.column_names if n in schema.DELTA} or None,
                write_page_checksum=True,
                store_schema=False,
            )
        if len(rows):
            self._writer.write_table(rows, row_group_size=len(rows))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
