"""From Parquet files to traces: a run of row groups at a time, so that a thousand small traces cost little more than
one large one. Every index is checked before a trace is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError
from etude.kernels.arrays import I32, I64, U8, distinct_values
from etude.model import text
from etude.model.schema import COLUMN, NODE, OWNED, OWNED_INDEX, LaneKind, ValueKind
from etude.model.trace import Attr, Layout, Trace, constant
from etude.store import columns_schema as schema
from etude.store.columns_attrs import Flat, flat_layouts
from etude.store.columns_files import File, HeapPlan
from etude.store.columns_write import Chunk
from etude.store.et_irregular import fields
from etude.store.et_wire import PROBLEM, check_lists

_OWNED_TEXT = {c.name for c in OWNED if c.attr_kind == ValueKind.STRING}


@dataclass(frozen=True, slots=True, eq=False)
class TraceRows:
    """traces.parquet."""

    nodes: I64
    data_deps: I64
    ctrl_deps: I64
    attrs: I64
    group_slots: list[tuple[str, ...]]
    peer_slots: I32
    missing_start: I64
    missing: NDArray[np.uint64]
    lane_start: I64
    lane_kind: U8
    lane_id: I64
    layouts: I32


def read_trace_rows(folder: Path, traces: int) -> TraceRows:
    file = File(folder, "traces")
    found = file.read(list(file.types))
    number = file.numbers(found["trace"], "trace")
    if len(number) != traces or (number != np.arange(traces)).any():
        raise file.error(f"its rows are not traces 0 to {traces - 1}")
    counts = {n: file.numbers(found[n], n) for n in ("nodes", "data_deps", "ctrl_deps", "attrs", "peer_slots")}
    for name, column in counts.items():
        if len(column) and (column.min() < 0 or column.max() >= 1 << 40):
            raise file.error(f"column `{name}` holds an invalid count")
    slot_start, labels, _ = file.lists(found["group_slots"], "group_slots")
    missing_start, missing, _ = file.lists(found["missing"], "missing")
    kind_start, lane_kind, _ = file.lists(found["lane_kind"], "lane_kind")
    lane_start, lane_id, _ = file.lists(found["lane_id"], "lane_id")
    if (kind_start != lane_start).any():
        raise file.error("lanes have kinds and ids in different number")
    if len(lane_kind) and not 0 < int(np.min(lane_kind)) <= int(np.max(lane_kind)) <= max(LaneKind):
        raise file.error("column `lane_kind` has an unknown kind")
    label = labels.to_pylist()
    bounds = zip(slot_start[:-1].tolist(), slot_start[1:].tolist(), strict=True)
    return TraceRows(
        **counts,
        group_slots=[tuple(label[a:b]) for a, b in bounds],
        missing_start=missing_start,
        missing=missing.to_numpy(zero_copy_only=False),
        lane_start=lane_start,
        lane_kind=lane_kind.to_numpy(zero_copy_only=False),
        lane_id=lane_id.to_numpy(zero_copy_only=False),
        layouts=file.numbers(found["layouts"], "layouts"),
    )


# -- layouts -----------------------------------------------------------------------------------------------------------


def read_layouts(folder: Path, counts: Sequence[int]) -> list[tuple[Layout, ...]]:
    """The sets of layouts; `counts` is how many each has. One Python step for each attribute of each layout."""
    file = File(folder, "layouts")
    found = file.read(list(file.types))
    columns = {name: column.to_pylist() for name, column in found.items()}
    sets: list[list[list[Attr]]] = [[[] for _ in range(n)] for n in counts]
    kinds = {name: ValueKind(i) for i, name in enumerate(schema.VALUE_KINDS)}
    seen: dict[tuple[Any, ...], Attr] = {}
    order = zip(*(columns[n] for n in ("set", "layout", "position")), strict=True)
    values = zip(*(columns[n] for n in ("name", "kind", "doc", "unknown", "column")), strict=True)
    for (number, layout, position), value in zip(order, values, strict=True):
        attr = seen.get(value)
        if attr is None:
            attr = seen[value] = _attr(file, kinds, value)
        if number is None or layout is None or not 0 <= number < len(sets) or not 0 <= layout < len(sets[number]):
            raise file.error(f"no layout {layout} in set {number}")
        if position != len(sets[number][layout]):
            raise file.error(f"set {number}, layout {layout}: attribute {position} is out of order")
        sets[number][layout].append(attr)
    done = [tuple(map(tuple, layouts)) for layouts in sets]
    for number, layouts in enumerate(done):
        for layout in layouts:
            held = [a.column for a in layout if a.column]
            if len(set(held)) != len(held):
                raise file.error(f"set {number}: a layout has one column twice")
    return done


def _attr(file: File, kinds: dict[str, ValueKind], value: tuple[Any, ...]) -> Attr:
    name, kind_name, doc, unknown, column = value
    if None in value or kind_name not in kinds:
        raise file.error(f"attribute `{name}` has an unknown kind: {kind_name}")
    kind = kinds[kind_name]
    if column:
        fits = kind == ValueKind.STRING if column in _OWNED_TEXT else kind.is_integer
        if column not in OWNED_INDEX or not fits:
            raise file.error(f"attribute `{name}` of kind {kind_name} cannot be held by column `{column}`")
    if unknown:
        list(fields(unknown, str(file.path), 0, 1))  # raises if these are not protobuf fields
    return Attr(name, kind, doc, unknown, column)


# -- traces ------------------------------------------------------------------------------------------------------------


class TraceReader:
    """Traces of a folder, by runs of row groups."""

    def __init__(self, folder: Path, rows: TraceRows, sets: list[tuple[Layout, ...]], chunks: list[Chunk]) -> None:
        self.rows, self.sets, self.chunks = rows, sets, chunks
        self.nodes, self.deps, self.attrs = (File(folder, name) for name in ("nodes", "deps", "attrs"))
        self._names: dict[str, int] = {}
        self._flat: dict[int, Flat] = {}
        self._groups = [
            self._row_groups(self.nodes, [c.nodes for c in chunks]),
            self._row_groups(self.deps, [c.data + c.ctrl for c in chunks]),
            self._row_groups(self.attrs, [c.attrs for c in chunks]),
        ]
        if len(rows.layouts) and not 0 <= rows.layouts.min() <= rows.layouts.max() < len(sets):
            raise FormatError("a trace names a set of layouts that does not exist", path=folder / "traces.parquet")

    @staticmethod
    def _row_groups(file: File, counts: list[int]) -> list[list[int]]:
        """Row groups of each chunk: one, or none if it has no rows."""
        if [n for n in counts if n] != file.group_rows.tolist():
            raise file.error("its row groups are not those of the manifest")
        groups, at = [], 0
        for n in counts:
            groups.append([at] if n else [])
            at += n > 0
        return groups

    def runs(self) -> list[tuple[int, int]]:
        """Chunks that belong together, a to b: a large trace has several."""
        found: list[tuple[int, int]] = []
        for i, chunk in enumerate(self.chunks):
            if i and self.chunks[i - 1].last == chunk.first:
                found[-1] = (found[-1][0], i + 1)
            else:
                found.append((i, i + 1))
        return found

    def read(self, a: int, b: int) -> list[Trace]:
        """The traces of one run."""
        chunks = self.chunks[a:b]
        first, last = chunks[0].first, chunks[-1].last
        if not 0 <= first <= last < len(self.rows.nodes):
            raise self.nodes.error(f"the manifest gives it traces {first} to {last}")
        run = _Run(self, chunks, first, last)
        groups = [[g for own in file[a:b] for g in own] for file in self._groups]
        run.read_nodes(groups[0])
        run.read_deps(groups[1])
        run.read_attrs(groups[2])
        return run.traces()

    def flat(self, number: int) -> Flat:
        if number not in self._flat:
            self._flat[number] = flat_layouts(self.sets[number], self._names)
        return self._flat[number]


class _Run:
    """Traces first to last while they are read; their columns are concatenated."""

    def __init__(self, reader: TraceReader, chunks: list[Chunk], first: int, last: int) -> None:
        self.reader, self.chunks, self.first = reader, chunks, first
        self.own = slice(first, last + 1)
        self.lengths = reader.rows.nodes[self.own]
        self.start = np.concatenate([[0], np.cumsum(self.lengths)])
        self.n = int(self.start[-1])
        self.plan = HeapPlan()
        self.columns: dict[str, NDArray[Any]] = {}
        self.texts: dict[str, int] = {}
        self.sets = reader.rows.layouts[self.own]

    def read_nodes(self, groups: list[int]) -> None:
        file = self.reader.nodes
        if self.n != sum(c.nodes for c in self.chunks):
            raise file.error(f"traces {self.first} to {self.first + len(self.lengths) - 1} do not have its rows")
        found = file.read(list(file.types), groups) if groups else {}
        trace = np.repeat(np.arange(self.first, self.first + len(self.lengths)), self.lengths)
        if groups:
            _expect(file, found.pop("trace"), "trace", trace)
            _expect(file, found.pop("node"), "node", np.arange(self.n) - np.repeat(self.start[:-1], self.lengths))
        extra = found.pop("extra", None)
        for c in NODE:
            column = found.get(c.name)
            if column is None or (column.null_count == self.n and c.name not in schema.NEVER_NULL):
                self.columns[c.name] = constant(c.name, self.n)
            elif c.is_text:
                self.texts[c.name] = self.plan.add(file, column, c.name)
            elif c.name in schema.WORDS:
                self.columns[c.name] = file.words(column, c.name, schema.WORDS[c.name])
            else:
                default = None if c.name in schema.NEVER_NULL else c.default
                self.columns[c.name] = file.numbers(column, c.name, default)
        if extra is not None and extra.null_count < self.n:
            self.texts["extra"] = self.plan.add(file, extra, "extra")
            for chunk in extra.chunks:
                for raw in chunk.dictionary.to_pylist():
                    list(fields(raw or b"", str(file.path), 0))  # raises if these are not protobuf fields
        self._check_slots(file)

    def _check_slots(self, file: File) -> None:
        rows = self.reader.rows
        lanes = np.diff(rows.lane_start)[self.own]
        slots = np.array([len(s) for s in rows.group_slots[self.own]], np.int64)
        layouts = np.array([len(s) for s in self.reader.sets], np.int64)[self.sets] if len(self.sets) else lanes
        peers = rows.peer_slots[self.own]
        limits = (
            ("lane", lanes),
            ("group", slots),
            ("src", peers),
            ("dst", peers),
            ("layout", layouts),
            ("parent", self.lengths),
        )
        for name, limit in limits:
            column = self.columns[name]
            low = 0 if name == "layout" else -1
            if column.strides == (0,) and len(column) and int(column[0]) == low:
                continue
            bad = np.flatnonzero((column < low) | (column >= np.repeat(limit, self.lengths)))
            if len(bad):
                raise file.error(f"row {bad[0]} of trace {self.first}...: `{name}` is {column[bad[0]]}, out of range")

    def read_deps(self, groups: list[int]) -> None:
        file, rows = self.reader.deps, self.reader.rows
        found = file.read(("trace", "node", "kind", "position", "on", "why"), groups) if groups else {}
        empty = np.zeros(0, np.int32)
        names = ("trace", "node", "position", "on")
        trace, node, position, on = (file.numbers(found[n], n) if found else empty for n in names)
        kind = file.words(found["kind"], "kind", schema.EDGES) if found else empty.astype(np.uint8)
        why = file.words(found["why"], "why", schema.WHYS) if found else kind
        counts = [n for c in self.chunks for n in (c.data, c.ctrl)]
        wanted = np.repeat(np.tile(np.arange(2, dtype=np.uint8), len(self.chunks)), counts)
        if len(wanted) != len(kind) or (kind != wanted).any():
            raise file.error("data and control dependencies are not where the manifest has them")
        trace = trace - np.int32(self.first)
        if len(trace) and not 0 <= trace.min() <= trace.max() < len(self.lengths):
            raise file.error("a dependency belongs to another trace than its row group")
        length = self.lengths[trace]
        missing = np.diff(rows.missing_start)[self.own][trace]
        if ((node < 0) | (node >= length) | (on >= length) | (on < -missing)).any():
            raise file.error("a dependency leads outside its trace")
        row = self.start[trace] + node
        for which, name in enumerate(schema.EDGES):
            chosen = kind == which
            rows_of = row[chosen]
            if (np.diff(rows_of) < 0).any():
                raise file.error("dependencies are not in the order of their nodes")
            start = np.zeros(self.n + 1, np.int64)
            np.cumsum(np.bincount(rows_of, minlength=self.n), out=start[1:])
            if (position[chosen] != np.arange(len(rows_of)) - start[rows_of]).any():
                raise file.error("dependencies are not in the order of their positions")
            self.columns |= {f"{name}_start": start, name: on[chosen], f"{name}_why": why[chosen]}
            owed = getattr(rows, f"{name}_deps")[self.own]
            if (np.diff(start[self.start]) != owed).any():
                raise file.error(f"traces have other {name} dependencies than traces.parquet says")

    def read_attrs(self, groups: list[int]) -> None:
        """Reads cells: numbers as they are, and for heap values the column that has them."""
        file = self.reader.attrs
        node, kind = self._cells()
        if len(node) != sum(c.attrs for c in self.chunks):
            raise file.error(f"{sum(c.attrs for c in self.chunks)} rows where the layouts need {len(node)}")
        self.kind = kind
        found = file.read(("trace", "node", "kind", "bits", "text", "payload"), groups) if groups else {}
        if found:
            trace = np.searchsorted(self.start, node, "right") - 1
            _expect(file, found["trace"], "trace", trace + self.first)
            _expect(file, found["node"], "node", node - self.start[trace])
            if (file.words(found["kind"], "kind", schema.VALUE_KINDS) != kind).any():
                raise file.error("an attribute has another kind than in its layout")
        in_text, in_payload = kind == ValueKind.STRING, _is_payload(kind)
        wanted = (("bits", ~(in_text | in_payload)), ("text", in_text), ("payload", in_payload))
        for name, chosen in wanted:
            column = found.get(name)
            if column is None:
                if chosen.any():
                    raise file.error(f"column `{name}` is missing")
                continue
            if (column.is_valid().to_numpy() != chosen).any():
                raise file.error(f"column `{name}` has values where other kinds are, or none where it should")
            if name == "bits":
                self.columns["cells"] = file.numbers(column, name, 0)
            elif chosen.any():
                self.texts[name] = self.plan.add(file, column, name)
        self.columns.setdefault("cells", np.zeros(len(kind), np.int64))
        if "payload" in self.texts:
            self._check_lists(file)

    def _cells(self) -> tuple[I64, U8]:
        """The row and the kind of each cell that the layouts require."""
        nodes, kinds = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)]
        change = np.flatnonzero(np.diff(self.sets)) + 1
        for a, b in zip([0, *change.tolist()], [*change.tolist(), len(self.sets)], strict=True):
            first, stop = int(self.start[a]), int(self.start[b])
            flat = self.reader.flat(int(self.sets[a]))
            node, entry = flat.cells(self.columns["layout"][first:stop])
            nodes.append(node + np.int64(first))
            kinds.append(flat.kind[entry])
        return np.concatenate(nodes), np.concatenate(kinds)

    def _check_lists(self, file: File) -> None:
        at = 0
        for data, starts, codes in self.plan.distinct(self.texts["payload"]):
            kind = self.kind[at : at + len(codes)]
            at += len(codes)
            keys = distinct_values(codes[codes >= 0].astype(np.int64) * 32 + kind[codes >= 0])
            heap = text.pad(data)
            heap.flags.writeable = False
            keys = keys[keys % 2 == 0]
            problem = check_lists(heap, text.words(heap), keys % 32, starts[keys // 32], starts[keys // 32 + 1])
            if problem:
                raise file.error(f"a list is damaged: {PROBLEM[problem]}")

    def traces(self) -> list[Trace]:
        heap = self.plan.build()
        for name, number in self.texts.items():
            if name in COLUMN:
                self.columns[name] = self.plan.offsets(number)
            elif name in ("text", "payload"):
                offsets = self.plan.offsets(number)
                cells = self.columns["cells"]
                self.columns["cells"] = np.where(offsets >= 0, offsets, cells)
        self._check_held()
        extra_row, extra = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if "extra" in self.texts:
            column = self.plan.offsets(self.texts["extra"])
            extra_row = np.flatnonzero(column >= 0)
            extra = column[extra_row]
        cell_start = self._cell_start()
        return [self._trace(i, heap, extra_row, extra, cell_start) for i in range(len(self.lengths))]

    def _cell_start(self) -> I64:
        """First cell of each trace, with one extra entry."""
        owed = self.reader.rows.attrs[self.own]
        start = np.concatenate([[0], np.cumsum(owed)])
        if start[-1] != len(self.columns["cells"]):
            raise self.reader.attrs.error("traces have other attributes than traces.parquet says")
        return start

    def _check_held(self) -> None:
        """Checks that a text column has a value wherever a layout refers to it."""
        for column in sorted(_OWNED_TEXT & set(COLUMN)):
            values = self.columns[column]
            if not len(values) or (values.strides != (0,) and int(values.min()) >= 0):
                continue
            for number in distinct_values(self.sets).tolist():
                holds = np.array([any(a.column == column for a in entry) for entry in self.reader.sets[number]])
                if not holds.any():
                    continue
                for i in np.flatnonzero(self.sets == number).tolist():
                    a, b = int(self.start[i]), int(self.start[i + 1])
                    if (holds[self.columns["layout"][a:b]] & (values[a:b] < 0)).any():
                        raise self.reader.nodes.error(f"trace {self.first + i}: an attribute's `{column}` is NULL")

    def _trace(self, i: int, heap: U8, extra_row: I64, extra: I64, cell_start: I64) -> Trace:
        rows, number = self.reader.rows, self.first + i
        a, b = int(self.start[i]), int(self.start[i + 1])
        edges: dict[str, NDArray[Any]] = {}
        for name in schema.EDGES:
            start = self.columns[f"{name}_start"][a : b + 1]
            low, high = int(start[0]), int(start[-1])
            edges |= {f"{name}_start": start - low if low else start, name: self.columns[name][low:high]}
            edges[f"{name}_why"] = self.columns[f"{name}_why"][low:high]
        x0, x1 = np.searchsorted(extra_row, (a, b))
        lanes = slice(int(rows.lane_start[number]), int(rows.lane_start[number + 1]))
        return Trace(
            heap=heap,
            **{c.name: self.columns[c.name][a:b] for c in NODE},
            **edges,
            missing=rows.missing[int(rows.missing_start[number]) : int(rows.missing_start[number + 1])],
            layouts=self.reader.sets[int(self.sets[i])],
            cells=self.columns["cells"][int(cell_start[i]) : int(cell_start[i + 1])],
            extra_row=(extra_row[x0:x1] - a).astype(np.int32),
            extra=extra[x0:x1],
            lane_kind=rows.lane_kind[lanes],
            lane_id=rows.lane_id[lanes],
            group_slots=rows.group_slots[number],
            peer_slots=int(rows.peer_slots[number]),
        )


def _is_payload(kind: U8) -> NDArray[np.bool_]:
    return ((kind > 0) & (kind % 2 == 0)) | (kind == ValueKind.BYTES)


def _expect(file: File, column: Any, name: str, wanted: NDArray[Any]) -> None:
    found = file.numbers(column, name)
    if len(found) != len(wanted) or (found != wanted).any():
        raise file.error(f"column `{name}` is not in order")
