"""Program: all nodes of one pipeline rank's step, as columns. Fragments are placed one after another and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.generate.fragment import BEFORE, Book, Fragment
from etude.generate.ops import Op, count_of, types
from etude.model.build import build_trace
from etude.model.schema import UNKNOWN, Kind, Why
from etude.model.trace import Trace

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class Program:
    """Rows and edges as they come. `place` returns the row at which a fragment begins."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.rows = 0
        self._op: list[Any] = []
        self._module: list[Any] = []
        self._micro: list[tuple[int, int]] = []
        self._data: list[I32] = []
        self._ctrl: list[I32] = []
        self._tags: list[tuple[int, int]] = []

    def place(self, fragment: Fragment, micro_batch: int, values: Sequence[int] = (), tips: Sequence[int] = ()) -> int:
        base = self.rows
        self._op.append(fragment.op)
        self._module.append(fragment.module)
        self._micro.append((len(fragment), micro_batch))
        self.rows += len(fragment)
        if fragment.data.size:
            self._data.append(fragment.data + np.int32(base))
        if fragment.ctrl.size:
            self._ctrl.append(fragment.ctrl + np.int32(base))
        self._outside(fragment.on_value, base, values, self._data)
        self._outside(fragment.on_tip, base, tips, self._ctrl)
        return base

    def _outside(self, rows: I32, base: int, waited: Sequence[int], edges: list[I32]) -> None:
        for row in waited:
            if row != BEFORE and len(rows):
                edges.append(np.stack([rows + np.int32(base), np.full(len(rows), row, np.int32)]))

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
        self._op.append([self.book.op(op)])
        self._module.append([self.book.module(f"{module}.{op.part}" if op.part else module)])
        self._micro.append((1, micro_batch))
        self.rows += 1
        self.join(row, data, ctrl)
        if tag >= 0:
            self._tags.append((row, tag))
        return row

    def join(self, row: int, data: Sequence[int] = (), ctrl: Sequence[int] = ()) -> None:
        """Let a row wait for others."""
        for waited, edges in ((data, self._data), (ctrl, self._ctrl)):
            known = [w for w in waited if w != BEFORE]
            if known:
                edges.append(np.array([[row] * len(known), known], np.int32))

    def trace(self, host_ns: float = 0.0) -> tuple[Trace, list[str], list[str]]:
        """The trace, and the labels of its group and peer slots."""
        op = np.concatenate([np.asarray(o, np.int32) for o in self._op])
        columns, groups, peers = columns_of(self.book, op)
        module = np.concatenate([np.asarray(m, np.int32) for m in self._module])
        used, codes = np.unique(module, return_inverse=True)
        paths = list(self.book.modules)
        columns["module"] = codes.astype(np.int64), [paths[u] for u in used]
        counts, micro = zip(*self._micro, strict=True)
        batch = np.repeat(np.array(micro, np.int64), counts)
        columns["micro_batch"] = np.where(batch < 0, UNKNOWN, batch)
        columns["step"] = np.zeros(self.rows, np.int64)
        columns["tag"] = self._tag(columns)
        data, ctrl = _csr(self._data, self.rows), _csr(self._ctrl, self.rows)
        why = int(Why.TENSOR), int(Why.PROGRAM)
        if host_ns:
            columns, data, ctrl = _with_host(columns, data, ctrl, int(host_ns))
        return (
            build_trace(
                columns,
                data=data,
                ctrl=ctrl,
                data_why=np.full(len(data[1]), why[0], np.uint8),
                ctrl_why=np.full(len(ctrl[1]), why[1], np.uint8),
                group_slots=groups,
                peer_slots=len(peers),
            ),
            groups,
            peers,
        )

    def _tag(self, columns: dict[str, Any]) -> I64:
        message = np.isin(columns["kind"], (int(Kind.SEND), int(Kind.RECV)))
        tag = np.where(message, 0, -1).astype(np.int64)
        if self._tags:
            rows, tags = zip(*self._tags, strict=True)
            tag[list(rows)] = tags
        return tag


def columns_of(book: Book, op: I32) -> tuple[dict[str, Any], list[str], list[str]]:
    """Columns of these ops, and the labels of the group and peer slots that they use."""
    used, at = np.unique(op, return_inverse=True)
    ops = [book.ops[u] for u in used]
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
        # ASTRA-sim's roofline divides by the operations, so what only moves bytes says one.
        "flops": number([max(o.flops, 1) if c else UNKNOWN for o, c in zip(ops, compute, strict=True)]),
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
    if not edges:
        return np.zeros(rows + 1, np.int64), np.zeros(0, np.int32)
    pairs = np.concatenate(edges, axis=1)
    order = np.lexsort((pairs[1], pairs[0]))
    row, waited = pairs[0][order], pairs[1][order]
    fresh = np.ones(len(row), bool)
    fresh[1:] = (row[1:] != row[:-1]) | (waited[1:] != waited[:-1])
    row, waited = row[fresh], waited[fresh]
    start = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=start[1:])
    return start, waited


def _with_host(
    columns: dict[str, Any], data: tuple[I64, I32], ctrl: tuple[I64, I32], host_ns: int
) -> tuple[dict[str, Any], tuple[I64, I32], tuple[I64, I32]]:
    """A host node before each device node: a thread issues them one after another, and none runs before."""
    rows = len(columns["kind"])
    device = 2 * np.arange(rows) + 1
    wide: dict[str, Any] = {}
    blank = {"kind": int(Kind.COMP), "cpu": 1, "collective": 0, "group": -1, "src": -1, "dst": -1, "tag": -1, "step": 0}
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
    wide["micro_batch"][0::2] = columns["micro_batch"]
    wide["duration_ns"] = np.full(2 * rows, UNKNOWN, np.int64)
    wide["duration_ns"][0::2] = host_ns
    wide["thread"] = np.full(2 * rows, UNKNOWN, np.int64)
    wide["thread"][0::2] = 1
    host = np.arange(0, 2 * rows, 2, dtype=np.int32)
    launched = np.stack([host + 1, host])
    queued = np.stack([host[1:], host[:-1]])
    wider_data = [np.stack([_owners(data) * 2 + 1, data[1] * 2 + 1]).astype(np.int32), launched]
    wider_ctrl = [np.stack([_owners(ctrl) * 2 + 1, ctrl[1] * 2 + 1]).astype(np.int32), queued]
    return wide, _csr(wider_data, 2 * rows), _csr(wider_ctrl, 2 * rows)


def _owners(csr: tuple[I64, I32]) -> I32:
    return np.repeat(np.arange(len(csr[0]) - 1, dtype=np.int32), np.diff(csr[0]))
