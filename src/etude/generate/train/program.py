"""Program: all nodes of one pipeline rank's step, as columns. Fragments are placed one after another and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.generate.blocks.ops import Op, count_of, moved_shapes, types
from etude.generate.train.fragment import BEFORE, Book, Fragment
from etude.model.build import build_trace
from etude.model.schema import UNKNOWN, Kind, Why
from etude.model.trace import Trace

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class Program:
    """Rows and edges as they come. `place` returns the row at which a fragment begins.

    A fragment is placed once for each micro-batch, so placing only notes where; the columns are made at the end, all
    places of a fragment at once.
    """

    def __init__(self, book: Book) -> None:
        self.book = book
        self.rows = 0
        self._placed: dict[int, tuple[Fragment, list[int], list[int]]] = {}
        """Fragment -> (it, its first rows, its micro-batches)."""
        self._single: list[tuple[int, int, int, int, int]] = []
        """Nodes by themselves: row, op, module, micro-batch, tag."""
        self._steps: list[tuple[int, int]] = [(0, 0)]
        """Rows from which on another step is written, and which."""
        self._data: list[tuple[int, int]] = []
        self._ctrl: list[tuple[int, int]] = []

    def begin(self, step: int) -> None:
        """What comes now belongs to this step."""
        if self._steps[-1][1] != step:
            self._steps.append((self.rows, step))

    def place(self, fragment: Fragment, micro_batch: int, values: Sequence[int] = (), tips: Sequence[int] = ()) -> int:
        base = self.rows
        _, bases, micros = self._placed.setdefault(id(fragment), (fragment, [], []))
        bases.append(base)
        micros.append(micro_batch)
        self.rows += len(fragment.op)
        self._data += [(base + row, w) for row in fragment.on_value for w in values if w != BEFORE]
        self._ctrl += [(base + row, w) for row in fragment.on_tip for w in tips if w != BEFORE]
        return base

    def add(
        self,
        op: Op,
        module: str,
        *,
        micro_batch: int = -1,
        data: Sequence[int] = (),
        ctrl: Sequence[int] = (),
        tag: int = -1,
    ) -> int:
        """One node by itself."""
        row = self.rows
        path = f"{module}.{op.part}" if op.part else module
        self._single.append((row, self.book.op(op), self.book.module(path), micro_batch, tag))
        self.rows += 1
        self.join(row, data, ctrl)
        return row

    def join(self, row: int, data: Sequence[int] = (), ctrl: Sequence[int] = ()) -> None:
        """Let a row wait for others."""
        self._data += [(row, w) for w in data if w != BEFORE]
        self._ctrl += [(row, w) for w in ctrl if w != BEFORE]

    def _rows(self) -> tuple[I32, I32, I64, I64]:
        """Op, module, micro-batch and tag of every row."""
        op, module = np.empty(self.rows, np.int32), np.empty(self.rows, np.int32)
        micro, tag = np.empty(self.rows, np.int64), np.full(self.rows, -1, np.int64)
        for fragment, bases, micros in self._placed.values():
            at = np.array(bases)[:, None] + np.arange(len(fragment.op))
            op[at], module[at] = fragment.op, fragment.module
            micro[at] = np.array(micros)[:, None]
        if self._single:
            row, one, path, batch, number = np.array(self._single).T
            op[row], module[row], micro[row], tag[row] = one, path, batch, number
        return op, module, micro, tag

    def _edges(self, name: str, more: list[tuple[int, int]]) -> tuple[I64, I32]:
        """The CSR of the fragments' own edges and those between them."""
        found = [np.array(more, np.int32).reshape(-1, 2).T]
        for fragment, bases, _ in self._placed.values():
            inside: I32 = getattr(fragment, name)
            found.append((inside[:, None, :] + np.array(bases, np.int32)[None, :, None]).reshape(2, -1))
        return _csr(found, self.rows)

    def trace(self, host_ns: float = 0.0, *, graphs: bool = False) -> tuple[Trace, list[str], list[str]]:
        """The trace, and the labels of its group and peer slots. `graphs`: see Plan."""
        op, module, micro, tag = self._rows()
        columns, groups, peers = columns_of(self.book, op)
        paths = list(self.book.modules)
        used = np.bincount(module, minlength=len(paths)) > 0
        columns["module"] = (np.cumsum(used) - 1)[module], [paths[u] for u in np.flatnonzero(used)]
        columns["micro_batch"] = np.where(micro < 0, UNKNOWN, micro)
        since, step = np.array(self._steps, np.int64).T
        columns["step"] = np.repeat(step, np.diff(since, append=self.rows))
        message = (columns["kind"] == int(Kind.SEND)) | (columns["kind"] == int(Kind.RECV))
        columns["tag"] = np.where(message, np.maximum(tag, 0), -1)
        queued = _in_turn(columns["kind"], columns["stream"])
        data, ctrl = self._edges("data", self._data), self._edges("ctrl", [*self._ctrl, *queued])
        if host_ns:
            ops = self.book.ops
            calls = np.array([o.calls * (not graphs or sized_by_routing(o)) for o in ops])[op]
            read = np.array([o.read for o in ops])[op]
            columns, data, ctrl = _with_host(columns, data, ctrl, np.rint(host_ns * calls).astype(np.int64), read)
        trace = build_trace(
            columns,
            data=data,
            ctrl=ctrl,
            data_why=np.full(len(data[1]), int(Why.TENSOR), np.uint8),
            ctrl_why=np.full(len(ctrl[1]), int(Why.PROGRAM), np.uint8),
            group_slots=groups,
            peer_slots=len(peers),
        )
        return trace, groups, peers


def _in_turn(kind: NDArray[np.uint8], stream: I64) -> list[tuple[int, int]]:
    """Collectives of a stream one after another, as issued: members that took them in another order would wait for
    one another and never complete."""
    found: list[tuple[int, int]] = []
    calls = kind == int(Kind.COLL)
    for one in np.unique(stream[calls]).tolist():
        rows = np.flatnonzero(calls & (stream == one)).tolist()
        found += zip(rows[1:], rows[:-1], strict=True)
    return found


def columns_of(book: Book, op: I32) -> tuple[dict[str, Any], list[str], list[str]]:
    """Columns of these ops, and the labels of the group and peer slots that they use."""
    seen = np.bincount(op, minlength=len(book.ops)) > 0
    at = (np.cumsum(seen) - 1)[op]
    ops = [book.ops[u] for u in np.flatnonzero(seen)]
    ops = [moved_shapes(o) if o.kind in (Kind.COLL, Kind.SEND, Kind.RECV) else o for o in ops]
    groups = list(dict.fromkeys(o.group for o in ops if o.kind == Kind.COLL))
    peers = list(dict.fromkeys(o.group for o in ops if o.kind in (Kind.SEND, Kind.RECV)))

    def number(values: Sequence[int], dtype: str = "int64") -> NDArray[Any]:
        return np.array(values, dtype)[at]

    def words(values: Sequence[str]) -> tuple[I64, list[str]]:
        known = {word: i for i, word in enumerate(dict.fromkeys(v for v in values if v))}
        return np.array([known.get(v, -1) for v in values], np.int64)[at], list(known)

    compute = [o.kind == Kind.COMP for o in ops]
    columns: dict[str, Any] = {
        "kind": number([int(o.kind) for o in ops], "uint8"),
        "name": words([o.name for o in ops]),
        "cpu": np.zeros(len(op), np.int8),
        "stream": number([int(o.stream) if o.stream else UNKNOWN for o in ops]),
        "collective": number([int(o.collective) for o in ops], "uint8"),
        "in_bytes": number([o.in_bytes for o in ops]),
        "out_bytes": number([o.out_bytes for o in ops]),
        "tensor_bytes": number([o.size_bytes for o in ops]),
        "flops": number([o.flops if c else UNKNOWN for o, c in zip(ops, compute, strict=True)]),
        "group": number([groups.index(o.group) if o.kind == Kind.COLL else -1 for o in ops], "int32"),
        "src": number([peers.index(o.group) if o.kind == Kind.RECV else -1 for o in ops], "int32"),
        "dst": number([peers.index(o.group) if o.kind == Kind.SEND else -1 for o in ops], "int32"),
        "phase": words([o.phase.label for o in ops]),
        "in_shapes": words([o.in_shapes for o in ops]),
        "in_types": words([types(o.dtype, count_of(o.in_shapes)) if o.in_shapes else "" for o in ops]),
        "out_shapes": words([o.out_shapes for o in ops]),
        "out_types": words([types(o.dtype, count_of(o.out_shapes)) if o.out_shapes else "" for o in ops]),
    }
    return columns, groups, peers


def _csr(edges: list[I32], rows: int) -> tuple[I64, I32]:
    pairs = np.concatenate(edges, axis=1).astype(np.int64)
    key = np.unique(pairs[0] * rows + pairs[1]) if rows else np.zeros(0, np.int64)
    row, waited = key // max(rows, 1), (key % max(rows, 1)).astype(np.int32)
    start = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=start[1:])
    return start, waited


def sized_by_routing(op: Op) -> bool:
    """What no graph holds: how much it is changes from step to step."""
    return op.load or op.group in ("ep", "etp")


def _with_host(
    columns: dict[str, Any],
    data: tuple[I64, I32],
    ctrl: tuple[I64, I32],
    host_ns: I64,
    read: NDArray[np.bool_],
) -> tuple[dict[str, Any], tuple[I64, I32], tuple[I64, I32]]:
    """A host node before each device node: a thread issues them one after another, and none runs before. Where the
    host reads a result, it waits for the device before it goes on."""
    rows = len(columns["kind"])
    device = 2 * np.arange(rows) + 1
    wide: dict[str, Any] = {}
    blank = {"kind": int(Kind.COMP), "cpu": 1, "collective": 0, "group": -1, "src": -1, "dst": -1, "tag": -1}
    for name, column in columns.items():
        values = column[0] if isinstance(column, tuple) else column
        missing = -1 if isinstance(column, tuple) else blank.get(name, UNKNOWN)
        spread = np.full(2 * rows, missing, values.dtype)
        spread[device] = values
        wide[name] = (spread, column[1]) if isinstance(column, tuple) else spread
    codes, words = wide["name"]
    codes[0::2] = len(words)
    wide["name"] = codes, [*words, "cudaLaunchKernel"]
    for name in ("module", "phase"):
        wide[name][0][0::2] = columns[name][0]
    for name in ("micro_batch", "step"):
        wide[name][0::2] = columns[name]
    wide["duration_ns"] = np.full(2 * rows, UNKNOWN, np.int64)
    wide["duration_ns"][0::2] = host_ns
    wide["thread"] = np.full(2 * rows, UNKNOWN, np.int64)
    wide["thread"][0::2] = 1
    host = np.arange(0, 2 * rows, 2, dtype=np.int32)
    launched = np.stack([host + 1, host])
    queued = np.stack([host[1:], host[:-1]])
    waited = np.flatnonzero(read[:-1]).astype(np.int32)
    answered = np.stack([host[waited + 1], host[waited] + 1])
    wider_data = [np.stack([_owners(data) * 2 + 1, data[1] * 2 + 1]).astype(np.int32), launched, answered]
    wider_ctrl = [np.stack([_owners(ctrl) * 2 + 1, ctrl[1] * 2 + 1]).astype(np.int32), queued]
    return wide, _csr(wider_data, 2 * rows), _csr(wider_ctrl, 2 * rows)


def _owners(csr: tuple[I64, I32]) -> I32:
    return np.repeat(np.arange(len(csr[0]) - 1, dtype=np.int32), np.diff(csr[0]))
