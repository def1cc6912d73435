"""Rewriting: a trace with some of its nodes changed, removed or replaced by small templates of nodes.

    made = Rewriting(trace)
    encode = made.add(rows, BEFORE, "encode", kind=Kind.COMP, duration_ns=...)
    made.enter(rows, encode)                  # what the rows waited for, `encode` waits for
    made.wait(rows, encode)                   # and the rows wait for it
    made.set("in_bytes", rows, smaller)
    made.trace()

Nodes are handles: those of the trace have their rows, new ones count on from there. Edges of untouched nodes, and every
column of theirs but row numbers, stay as they are. Control edges that only keep two nodes of one lane in their order
stay with the nodes themselves, not with the template around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I32, I64, Bool
from etude.make.transform.rewrite.edges import Edges, bypassed, csr, edges_of, either, ends, joined, redirected
from etude.model import text
from etude.model.fingerprint import Fingerprint
from etude.model.job import VALUE_COLUMNS
from etude.model.schema import COLUMN, NODE, Kind, ValueKind, Why
from etude.model.trace import Attr, Trace, complete_layouts, lanes

BEFORE: Final = -1
AFTER: Final = 1
"""Position of new nodes relative to a row; numbers further from 0 are further away."""

_CONTEXT: Final = ("cpu", "thread", "step", "micro_batch", "phase", "module", "parent")
"""Columns that a new node takes from the node next to it."""
_ORDER: Final = (int(Why.PROGRAM), int(Why.STREAM))
"""Reasons of edges that only keep an order."""


class Rewriting:
    """Changes of one trace, collected; `trace()` applies them."""

    def __init__(self, trace: Trace) -> None:
        self.source = trace
        self.rows = len(trace)
        self._columns: dict[str, NDArray[Any]] = {}
        self._gone = np.zeros(len(trace), bool)
        self._joined = np.zeros(len(trace), bool)
        self._new: list[tuple[I64, int, bool]] = []
        """(rows next to which they are, on which side, whether they are copies) of each batch of new nodes."""
        self._new_columns: list[dict[str, NDArray[Any]]] = []
        self._marks: dict[int, str] = {}
        """Batch of new nodes -> their attribute."""
        self._lists: list[tuple[str, I64, I64, NDArray[np.uint8]]] = []
        """(attribute, nodes, offsets of their lists of text, added entries)."""
        self._words: list[str] = []
        self._writer = text.HeapWriter()
        self._entry: list[tuple[I64, I64]] = []
        self._exit: list[tuple[I64, I64]] = []
        self._order_entry: list[tuple[I64, I64]] = []
        self._order_exit: list[tuple[I64, I64]] = []
        self._edges: list[tuple[bool, Edges]] = []
        self._cut: dict[str, Bool] = {}
        self.more_peers = False
        """Ranks have one more peer than in the trace."""

    # -- what an edit says ---------------------------------------------------------------------------------------------

    def column(self, name: str) -> NDArray[Any]:
        """A column of the trace with the changes so far."""
        found: NDArray[Any] = self._columns.get(name, getattr(self.source, name))
        return found

    def set(self, name: str, rows: NDArray[Any], values: Any) -> None:
        """Sets these values in a column of the nodes at these rows."""
        if name not in self._columns:
            self._columns[name] = np.array(getattr(self.source, name))
        self._columns[name][rows] = values

    def words(self, name: str, rows: NDArray[Any], words: list[str], codes: NDArray[Any]) -> None:
        """Sets text in a column of the nodes at these rows: a word for each code, none for -1."""
        self.set(name, rows, np.append(self._offsets(words), -1)[codes])

    def add(self, at: NDArray[Any], place: int, name: str, **columns: Any) -> I64:
        """Adds a new node next to each of these rows; columns that are not given are empty. Returns their handles."""
        given = {c: np.broadcast_to(np.asarray(v, COLUMN[c].dtype), (len(at),)) for c, v in columns.items()}
        context = {c: getattr(self.source, c)[at] for c in _CONTEXT}
        named = {"name": np.broadcast_to(self._offsets([name])[0], (len(at),))}
        return self._batch(at, place, False, context | named | given)

    def copy(self, at: NDArray[Any], place: int, **columns: Any) -> I64:
        """Adds a copy of each of these rows next to it, with other values in some columns. Edges are not copied."""
        given = {c: np.broadcast_to(np.asarray(v, COLUMN[c].dtype), (len(at),)) for c, v in columns.items()}
        return self._batch(at, place, True, given)

    def peer(self) -> int:
        """The slot of a new peer."""
        self.more_peers = True
        return self.source.peer_slots

    def mark(self, attribute: str) -> None:
        """Gives the nodes added last this attribute (int64), with the value 0."""
        self._marks[len(self._new) - 1] = attribute

    def extend(self, attribute: str, nodes: NDArray[Any], entries: NDArray[np.uint8]) -> None:
        """Appends entries to the lists of text that nodes have as this attribute; a row of encoded entries for each of
        the nodes, which may repeat. To be called once for an attribute."""
        if not len(nodes):
            return
        order = np.argsort(nodes, kind="stable")
        owner, count = np.unique(_long(nodes), return_counts=True)
        ends = np.append(0, np.cumsum(count)) * entries.shape[1]
        heap, (at,) = text.heaped([(np.ascontiguousarray(entries[order]).reshape(-1), ends)])
        base = len(self.source.heap) - text.PAD
        offsets = base + self._writer.join(heap) + at
        rows, cells = self.source.attr_cells(heap_only=True).get(
            (attribute, ValueKind.STRING_LIST), (owner[:0], at[:0])
        )
        _, mine, theirs = np.intersect1d(owner, rows, return_indices=True)
        for i, cell in zip(mine.tolist(), cells[theirs].tolist(), strict=True):
            more = text.slice_bytes(heap, int(at[i]))
            offsets[i] = base + self._writer.put(text.slice_bytes(self.source.heap, cell) + more)
        self._lists.append((attribute, owner, offsets, entries))

    def enter(self, rows: NDArray[Any], nodes: NDArray[Any], *, order: bool = False) -> None:
        """These nodes take the dependencies of the rows; with `order`, also edges that only keep an order."""
        self._entry.append((_long(rows), _long(nodes)))
        if order:
            self._order_entry.append((_long(rows), _long(nodes)))

    def leave(self, rows: NDArray[Any], nodes: NDArray[Any], *, order: bool = False) -> None:
        """The dependents of the rows wait for these nodes."""
        self._exit.append((_long(rows), _long(nodes)))
        if order:
            self._order_exit.append((_long(rows), _long(nodes)))

    def wait(self, nodes: NDArray[Any], waited: NDArray[Any], why: Why = Why.TENSOR, *, data: bool = True) -> None:
        """Adds edges: each node waits for the corresponding one."""
        reason = np.full(len(nodes), int(why), np.uint8)
        self._edges.append((data, Edges(_long(nodes), _long(waited), reason)))

    def remove(self, rows: NDArray[Any]) -> None:
        """Removes the rows; their dependents wait for their dependencies."""
        self._joined[rows] = True

    def replace(self, rows: NDArray[Any], nodes: NDArray[Any]) -> None:
        """Removes the rows; other nodes take all their edges."""
        self._gone[rows] = True
        self.enter(rows, nodes, order=True)
        self.leave(rows, nodes, order=True)

    def cut(self, which: str, edges: Bool) -> None:
        """Removes these of the trace's `data` or `ctrl` edges."""
        self._cut[which] = self._cut.get(which, np.zeros(len(edges), bool)) | edges

    # -- what comes of it ----------------------------------------------------------------------------------------------

    @property
    def is_structural(self) -> bool:
        """Whether nodes or edges are added or removed, or columns change that ranks cannot have of their own."""
        changed = any(name not in VALUE_COLUMNS for name in self._columns)
        cut = any(edges.any() for edges in self._cut.values())
        return (
            changed or cut or bool(self._new or self._edges or self._lists) or bool((self._gone | self._joined).any())
        )

    @property
    def may_break(self) -> bool:
        """Whether ranks could then disagree on their communication, or nodes wait for one another."""
        return self.is_structural or "in_bytes" in self._columns or "out_bytes" in self._columns

    @property
    def is_nothing(self) -> bool:
        return not self.is_structural and all(
            np.array_equal(column, getattr(self.source, name)) for name, column in self._columns.items()
        )

    def signature(self) -> bytes:
        """Hash of everything except values: equal if the same trace gives the same program."""
        found = Fingerprint(self._words, len(self._new), sorted(self._marks.items()), int(self.more_peers))
        for name in sorted(set(self._columns) - set(VALUE_COLUMNS)):
            found.add(name, self._columns[name])
        found.add(self._gone, self._joined, *(self._cut[name] for name in sorted(self._cut)))
        for (at, place, copied), columns in zip(self._new, self._new_columns, strict=True):
            found.add(at, place, copied)
            found.add(*(columns[name] for name in sorted(columns) if name not in VALUE_COLUMNS))
        for attribute, nodes, _, entries in self._lists:
            found.add(attribute, nodes, entries)
        for pairs in (self._entry, self._exit, self._order_entry, self._order_exit):
            found.add(*(part for pair in pairs for part in pair))
        for data, edges in self._edges:
            found.add(data, *edges)
        return found.digest()

    def values(self) -> dict[str, NDArray[Any]]:
        """The columns that a rank may have of its own, for the resulting nodes."""
        origin, handle, _ = self._order()
        return {name: self._gathered(name, origin, handle) for name in VALUE_COLUMNS}

    def trace(self) -> Trace:
        """The trace with all changes."""
        origin, handle, row_of = self._order()
        columns: dict[str, NDArray[Any]] = {}
        for c in NODE:
            columns[c.name] = self._gathered(c.name, origin, handle)
        parent = columns["parent"]
        columns["parent"] = np.append(row_of, np.int32(-1))[self._called_by(parent)]
        columns["source_id"] = self._ids(handle)
        columns |= self._dependencies(row_of)
        columns |= self._attributes(origin, handle, columns["layout"])
        for attribute, nodes, offsets, _ in self._lists:
            there = row_of[nodes] >= 0
            columns |= _with_lists(columns, attribute, row_of[nodes[there]], offsets[there])
        columns["heap"] = self._heap()
        lane, lane_kind, lane_id = self._lanes(columns, handle)
        columns |= {"lane": lane, "lane_kind": lane_kind, "lane_id": lane_id}
        found = self.source.replace(**columns, peer_slots=self.source.peer_slots + self.more_peers)
        layouts, layout = complete_layouts(found)
        return found.replace(layouts=layouts, layout=layout)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _batch(self, at: NDArray[Any], place: int, copied: bool, columns: dict[str, NDArray[Any]]) -> I64:
        first = self.rows + sum(len(rows) for rows, _, _ in self._new)
        self._new.append((_long(at), place, copied))
        self._new_columns.append(columns)
        return np.arange(first, first + len(at), dtype=np.int64)

    def _order(self) -> tuple[I64, I64, I32]:
        """(original row of each resulting node, its handle, resulting row of each handle or -1)."""
        origin = np.concatenate([np.arange(self.rows), *(at for at, _, _ in self._new)]).astype(np.int64)
        place = np.concatenate([np.zeros(self.rows, np.int64), *(np.full(len(a), p) for a, p, _ in self._new)])
        stays = np.ones(len(origin), bool)
        stays[: self.rows] = ~(self._gone | self._joined)
        if not self._new:
            handle = np.flatnonzero(stays)
        else:
            order = np.lexsort((np.arange(len(origin)), place, origin))
            handle = order[stays[order]]
        row_of = np.full(len(origin), -1, np.int32)
        row_of[handle] = np.arange(len(handle), dtype=np.int32)
        return origin[handle], handle, row_of

    def _gathered(self, name: str, origin: I64, handle: I64) -> NDArray[Any]:
        """A column of the result: rows unchanged or as set, new nodes as given."""
        source = self.column(name)
        if not self._new:
            return source[: len(origin)] if source.strides == (0,) else source[origin]
        default = np.array(COLUMN[name].default, source.dtype)
        if source.strides == (0,) and source[:1] == default and not any(name in c for c in self._new_columns):
            return np.broadcast_to(default, (len(origin),))
        whole = [source]
        for (at, _, copied), columns in zip(self._new, self._new_columns, strict=True):
            given = columns.get(name)
            if given is None:
                given = source[at] if copied else np.broadcast_to(default, (len(at),))
            whole.append(given.astype(source.dtype, copy=False))
        return np.concatenate(whole)[handle]

    def _called_by(self, parent: I32) -> I32:
        """The nearest remaining caller of each node; -1: none."""
        gone = np.append(self._gone | self._joined, False)
        above, found = np.append(self.column("parent"), np.int32(-1)), parent
        while gone[found].any():
            found = np.where(gone[found], above[found], found)
        return np.asarray(found, np.int32)

    def _ids(self, handle: I64) -> NDArray[np.uint64]:
        """Ids of rows are unchanged; new nodes count up from the largest that is used or missing."""
        ids, fresh = self.column("source_id"), int((handle >= self.rows).sum())
        last = max((int(part.max()) for part in (ids, self.source.missing) if len(part)), default=-1)
        if last + len(handle) >= 2**64:
            raise TraceError("the ids of the file leave none for new nodes")
        found = np.append(ids, np.zeros(1, np.uint64))[np.minimum(handle, self.rows)]
        found[handle >= self.rows] = np.arange(last + 1, last + 1 + fresh, dtype=np.uint64)
        return found

    # -- edges ---------------------------------------------------------------------------------------------------------

    def _dependencies(self, row_of: I32) -> dict[str, NDArray[Any]]:
        trace = self.source
        data = edges_of(trace.data_start, trace.data, trace.data_why)
        ctrl = edges_of(trace.ctrl_start, trace.ctrl, trace.ctrl_why)
        if "data" in self._cut:
            data = data.take(~self._cut["data"])
        if "ctrl" in self._cut:
            ctrl = ctrl.take(~self._cut["ctrl"])
        if self._joined.any():
            data, ctrl = bypassed(data, ctrl, self._joined)
        if self._entry or self._exit:
            n = self.rows
            entry = either(ends(n, self._entry), ends(n, self._order_entry))
            exit_ = either(ends(n, self._exit), ends(n, self._order_exit))
            data = redirected(data, entry, exit_, np.zeros(len(data.owner), np.int64))
            ctrl = redirected(ctrl, entry, exit_, np.where(self._keeps_order(ctrl), n, 0))
        found: dict[str, NDArray[Any]] = {}
        for name, edges, is_data in (("data", data, True), ("ctrl", ctrl, False)):
            whole = joined(edges, *(more for kind, more in self._edges if kind == is_data))
            waited = np.where(whole.waited >= 0, row_of[np.maximum(whole.waited, 0)], whole.waited)
            there = (row_of[whole.owner] >= 0) & ((whole.waited < 0) | (waited >= 0))
            placed = Edges(row_of[whole.owner].astype(np.int64), waited.astype(np.int64), whole.why).take(there)
            start, rows, why = csr(placed, int(row_of.max(initial=-1)) + 1)
            found |= {f"{name}_start": start, name: rows, f"{name}_why": why}
        return found

    def _keeps_order(self, ctrl: Edges) -> Bool:
        """Control edges between two nodes of one lane that only keep their order."""
        lane, real = self.source.lane, ctrl.waited >= 0
        same = real & (lane[ctrl.owner] == lane[np.where(real, ctrl.waited, 0)]) & (lane[ctrl.owner] >= 0)
        return same & np.isin(ctrl.why, _ORDER)

    # -- text, attributes, lanes ---------------------------------------------------------------------------------------

    def _offsets(self, words: list[str]) -> I64:
        """Offsets of words in the heap: appended to it."""
        self._words += words
        return np.array([len(self.source.heap) - text.PAD + self._writer.put(word) for word in words], np.int64)

    def _heap(self) -> NDArray[np.uint8]:
        if not self._words and not self._lists:
            return self.source.heap
        return np.concatenate([self.source.heap[: -text.PAD], self._writer.heap()])

    def _attributes(self, origin: I64, handle: I64, layout: I32) -> dict[str, Any]:
        """Layouts, cells and extra fields: rows and copies have those of their row, new nodes none except marks."""
        trace, layouts = self.source, list(self.source.layouts)
        own = np.full(self.rows + sum(len(at) for at, _, _ in self._new), -1, np.int32)  # layout of new nodes
        first = self.rows
        for batch, (at, _, copied) in enumerate(self._new):
            if not copied:
                mark = self._marks.get(batch)
                wanted = (Attr(mark, ValueKind.INT64),) if mark else ()
                layouts += [] if wanted in layouts else [wanted]
                own[first : first + len(at)] = layouts.index(wanted)
            first += len(at)
        here, marked = own[handle] < 0, np.array([len(one) > 0 for one in layouts])[own[handle]]
        start = trace.cell_start()
        count = np.where(here, np.diff(start)[origin] if self.rows else 0, marked)
        cells = np.append(trace.cells, np.zeros(1, trace.cells.dtype))  # the last: what a mark says
        begin = np.where(here, start[origin], len(trace.cells))
        cells = cells[np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))]
        extra_at = np.full(self.rows, -1, np.int64)
        extra_at[trace.extra_row] = np.arange(len(trace.extra_row))
        extra = np.where(here, extra_at[origin] if self.rows else -1, -1)
        rows = np.flatnonzero(extra >= 0).astype(np.int32)
        return {
            "layout": np.where(here, layout, own[handle]).astype(np.int32),
            "layouts": tuple(layouts),
            "cells": cells,
            "extra_row": rows,
            "extra": trace.extra[extra[rows]],
        }

    def _lanes(self, columns: Mapping[str, NDArray[Any]], handle: I64) -> tuple[I32, NDArray[np.uint8], I64]:
        changed = {"kind", "cpu", "thread", "stream"} & set(self._columns)
        if not self._new and not changed:
            return self.source.lane[handle], self.source.lane_kind, self.source.lane_id
        return lanes(*(np.ascontiguousarray(columns[name]) for name in ("kind", "cpu", "thread", "stream")))


def _with_lists(columns: Mapping[str, Any], attribute: str, rows: I32, offsets: I64) -> dict[str, Any]:
    """Layouts and cells in which these rows have lists of text as an attribute, replacing existing ones."""
    layouts, layout, cells = list(columns["layouts"]), np.array(columns["layout"]), np.array(columns["cells"])
    order = np.argsort(rows)  # cells are in the order of rows
    rows, offsets = rows[order], offsets[order]
    wanted = Attr(attribute, ValueKind.STRING_LIST)
    in_cells = [[(a.name, a.kind) for a in one if a.in_cell] for one in layouts]
    key = attribute, wanted.kind
    place = np.array([one.index(key) if key in one else -1 for one in in_cells])
    count = np.array([len(one) for one in in_cells])[layout]
    end = np.cumsum(count)
    has = place[layout[rows]] >= 0
    old, new = rows[has], rows[~has]
    cells[(end - count)[old] + place[layout[old]]] = offsets[has]
    cells = np.insert(cells, end[new], offsets[~has])
    kinds, which = np.unique(layout[new], return_inverse=True)
    layout[new] = len(layouts) + which.reshape(-1)
    layouts += [(*layouts[kind], wanted) for kind in kinds.tolist()]
    return {"layouts": tuple(layouts), "layout": layout.astype(np.int32), "cells": cells}


def _long(rows: NDArray[Any]) -> I64:
    return np.asarray(rows, np.int64)


def compute_stream(trace: Trace) -> int:
    """The stream with most of the device's compute; UNKNOWN if none is recorded."""
    work = (trace.kind == int(Kind.COMP)) & (trace.cpu != 1)
    streams, count = np.unique(trace.stream[work], return_counts=True)
    return int(streams[count.argmax()]) if len(streams) else COLUMN["stream"].default


def free_stream(trace: Trace) -> int:
    """The first stream that nothing runs on."""
    return int(trace.stream.max(initial=0)) + 1


def free_thread(trace: Trace) -> int:
    """The first thread of the host that nothing runs on."""
    threads = trace.thread[trace.cpu == 1]
    return int(threads[threads != COLUMN["thread"].default].max(initial=0)) + 1
