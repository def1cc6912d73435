"""Makes a Trace: from columns (for generators), or node by node (for tests and small tools)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.base.errors import TraceError, UsageError
from etude.model.attrs import encode_list, scalar_to_cell
from etude.model.job import Job, Part, assemble
from etude.model.schema import COLUMN, NODE, Kind, ValueKind
from etude.model.text import HeapWriter
from etude.model.trace import Attr, Layout, Trace, complete_layouts, constant, lanes

Coded = tuple[ArrayLike, Sequence[str]]
"""A text column as codes (-1: none) and words."""


def build_trace(
    columns: Mapping[str, ArrayLike | Coded | Sequence[str | None]],
    *,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    ctrl: tuple[ArrayLike, ArrayLike] | None = None,
    data_why: ArrayLike | None = None,
    ctrl_why: ArrayLike | None = None,
    group_slots: Sequence[str] = (),
    peer_slots: int = 0,
) -> Trace:
    """A trace of these columns; those not given are unknown. `kind` is required; ids count from 0 unless given.

    Text columns are (codes, words) or a sequence of strings. Dependencies are CSR pairs (start, rows). Lanes follow
    from cpu, thread, stream and kind.
    """
    unknown = set(columns) - set(COLUMN) | {"lane", "layout"} & set(columns)
    if unknown:
        known = ", ".join(c.name for c in NODE if c.name not in ("lane", "layout"))
        raise UsageError(f"unknown columns: {', '.join(sorted(unknown))}", hint=f"known: {known}")
    if "kind" not in columns:
        raise UsageError("a trace needs the column `kind`")
    n = len(np.asarray(columns["kind"]))
    writer = HeapWriter()
    done: dict[str, NDArray[Any]] = {c.name: constant(c.name, n) for c in NODE}
    done["source_id"] = np.arange(n, dtype=np.uint64)
    for name, given in columns.items():
        if COLUMN[name].is_text:
            done[name] = _text(writer, name, given, n)
        else:
            done[name] = np.ascontiguousarray(given, dtype=COLUMN[name].dtype)
        if done[name].shape != (n,):
            raise TraceError(f"column `{name}` has shape {done[name].shape}, expected ({n},)")
    lane, lane_kind, lane_id = lanes(done["kind"], done["cpu"], done["thread"], done["stream"])
    done["lane"] = lane
    done["layout"] = np.zeros(n, np.int32)
    done["io"] = _io(done)
    data_start, data_rows = _csr(data, n)
    ctrl_start, ctrl_rows = _csr(ctrl, n)
    trace = Trace(
        heap=writer.heap(),
        **done,
        data_start=data_start,
        data=data_rows,
        data_why=_why(data_why, len(data_rows)),
        ctrl_start=ctrl_start,
        ctrl=ctrl_rows,
        ctrl_why=_why(ctrl_why, len(ctrl_rows)),
        missing=np.zeros(0, np.uint64),
        layouts=((),),
        cells=np.zeros(0, np.int64),
        extra_row=np.zeros(0, np.int32),
        extra=np.zeros(0, np.int64),
        lane_kind=lane_kind,
        lane_id=lane_id,
        group_slots=tuple(group_slots),
        peer_slots=peer_slots,
    )
    layouts, layout = complete_layouts(trace)
    return trace.replace(layouts=layouts, layout=layout)


def _text(writer: HeapWriter, name: str, given: Any, n: int) -> NDArray[np.int64]:
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], str):
        codes = np.asarray(given[0], np.int64)
        offsets = np.append(writer.put_all(list(given[1])), -1)
        if len(codes) and not -1 <= codes.min() <= codes.max() < len(offsets) - 1:
            raise TraceError(f"column `{name}`: a code is outside its {len(offsets) - 1} words")
        return offsets[codes]
    return writer.put_all(list(given))


def _io(done: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    has_in = (done["in_values"] >= 0) | (done["in_shapes"] >= 0) | (done["in_types"] >= 0)
    has_out = (done["out_values"] >= 0) | (done["out_shapes"] >= 0) | (done["out_types"] >= 0)
    return (done["io"] | has_in | has_out.astype(np.uint8) << 1).astype(np.uint8)


def _csr(given: tuple[ArrayLike, ArrayLike] | None, n: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    if given is None:
        return np.zeros(n + 1, np.int64), np.zeros(0, np.int32)
    start, rows = np.ascontiguousarray(given[0], np.int64), np.ascontiguousarray(given[1], np.int32)
    if len(start) != n + 1 or (np.diff(start) < 0).any():
        raise TraceError(f"dependencies: the index has {len(start)} entries for {n} nodes, or goes backwards")
    if len(rows) and not 0 <= rows.min() <= rows.max() < n:
        raise TraceError(f"dependencies: a row is outside the trace's {n} nodes")
    return start, rows


def _why(given: ArrayLike | None, edges: int) -> NDArray[np.uint8]:
    if given is None:
        return np.broadcast_to(np.uint8(0), (edges,))
    return np.ascontiguousarray(given, np.uint8)


class TraceBuilder:
    """A trace node by node. Groups are named, peers are ranks; the builder turns them into slots.

    b = TraceBuilder()
    a = b.add(Kind.COMP, "gemm", duration_ns=100)
    b.add(Kind.COLL, "grads", data=[a], collective=Collective.ALL_REDUCE, in_bytes=1 << 20, group="dp")
    part = b.part(rank=0, groups={"dp": [0, 1]})
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {c.name: [] for c in NODE if c.name not in ("lane", "layout", "io")}
        self._deps: dict[str, list[Sequence[int]]] = {"data": [], "ctrl": []}
        self._attrs: list[dict[str, tuple[ValueKind, Any]]] = []
        self.groups: dict[str, int] = {}
        self.peers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._attrs)

    def add(
        self,
        kind: Kind,
        name: str = "",
        *,
        data: Sequence[int] = (),
        ctrl: Sequence[int] = (),
        group: str | None = None,
        src: int | None = None,
        dst: int | None = None,
        attrs: Mapping[str, tuple[ValueKind, Any]] | None = None,
        **columns: Any,
    ) -> int:
        """Adds a node and returns its row. `attrs` are attributes that no column holds: name -> (kind, value)."""
        unknown = set(columns) - set(self._columns)
        if unknown:
            raise UsageError(f"no such column: {', '.join(sorted(unknown))}")
        columns |= {"kind": kind, "name": name or None}
        columns.setdefault("source_id", len(self))
        columns["group"] = -1 if group is None else self.groups.setdefault(group, len(self.groups))
        columns["src"] = -1 if src is None else self.peers.setdefault(src, len(self.peers))
        columns["dst"] = -1 if dst is None else self.peers.setdefault(dst, len(self.peers))
        for column, values in self._columns.items():
            values.append(columns.get(column, None if COLUMN[column].is_text else COLUMN[column].default))
        self._deps["data"].append(data)
        self._deps["ctrl"].append(ctrl)
        self._attrs.append(dict(attrs or {}))
        return len(self) - 1

    def build(self) -> Trace:
        csr = {k: (np.cumsum([0, *map(len, v)]), [d for ds in v for d in ds]) for k, v in self._deps.items()}
        trace = build_trace(
            self._columns,
            data=csr["data"],
            ctrl=csr["ctrl"],
            group_slots=tuple(f"g{i}" for i in range(len(self.groups))),
            peer_slots=len(self.peers),
        )
        return _with_attrs(trace, self._attrs) if any(self._attrs) else trace

    def part(self, rank: int, groups: Mapping[str, Sequence[int]] | None = None) -> Part:
        """This trace as one rank of a job; groups not named here have unknown members."""
        known = groups or {}
        return Part(rank, self.build(), [(g, known.get(g)) for g in self.groups], np.array(list(self.peers), np.int64))


def _with_attrs(trace: Trace, attrs: Sequence[Mapping[str, tuple[ValueKind, Any]]]) -> Trace:
    """The trace with these attributes in cells: one value at a time, for small traces."""
    heap = bytearray(trace.heap[:-8].tobytes())
    layouts: dict[Layout, int] = {}
    layout, cells = [], []
    for owned, node in zip(trace.layout.tolist(), attrs, strict=True):
        entry = trace.layouts[owned] + tuple(Attr(name, kind) for name, (kind, _) in node.items())
        layout.append(layouts.setdefault(entry, len(layouts)))
        for kind, value in node.values():
            if kind == ValueKind.NONE:
                continue
            if kind.is_heap:
                raw = encode_list(kind, value) if kind.is_list else value.encode() if isinstance(value, str) else value
                cells.append(len(heap))
                one = HeapWriter()
                one.put(raw)
                heap += one.heap()[:-8].tobytes()
            else:
                cells.append(scalar_to_cell(kind, value))
    heap += bytes(8)
    return trace.replace(
        heap=np.frombuffer(bytes(heap), np.uint8),
        layouts=tuple(layouts),
        layout=np.array(layout, np.int32),
        cells=np.array(cells, np.int64),
    )


def job_of(name: str, builders: Sequence[TraceBuilder], groups: Mapping[str, Sequence[int]] | None = None) -> Job:
    """A job of ranks 0, 1, ... from builders; `groups` gives members by name."""
    return assemble(name, [b.part(rank, groups) for rank, b in enumerate(builders)])
