"""Nodes: the steps of one pipeline rank node by node, as columns, and their trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I32, I64
from etude.make.generate.blocks.ops import Op, Phase, count_of, in_types, shapes_of, types
from etude.model.build import build_trace
from etude.model.marks import marked
from etude.model.schema import UNKNOWN, Kind, Why
from etude.model.trace import Trace


class Book:
    """Distinct ops and module paths of a job, numbered. Equal layers share ops, so it stays short."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._number: dict[tuple[int, int], int] = {}
        self._kept: list[Op] = []  # keeps the objects of the ids alive
        self.modules: dict[str, int] = {}
        self._shapes: dict[int, tuple[str, str]] = {}
        self.patterns: dict[Any, Any] = {}
        """Passes of stages that are reused; see train/fragment.py."""

    def op(self, op: Op, phase: Phase | None = None) -> int:
        key = id(op), -1 if phase is None else int(phase)
        found = self._number.get(key)
        if found is None:
            self._kept.append(op)
            found = self._number[key] = len(self.ops)
            self.ops.append(op if phase is None else op.replace(phase=phase))
        return found

    def shapes(self, number: int) -> tuple[str, str]:
        """Input and output shapes of an op."""
        if number not in self._shapes:
            self._shapes[number] = shapes_of(self.ops[number])
        return self._shapes[number]

    def module(self, path: str) -> int:
        return self.modules.setdefault(path, len(self.modules))


class Units(NamedTuple):
    """Pieces of a step in their order: one pass (forward, backward) of a block with a micro-batch."""

    update: I64
    """Which update of the weights its gradients contribute to, from 0."""
    action: I64
    stage: I64
    micro: I64
    """Micro-batch of the step."""
    block: I64
    """Number in its stage."""
    first: I64
    """Its first row; -1 where it has none."""
    tip: I64
    """Last row on the compute stream at its end; -1 if none yet."""
    pass_first: I64
    """First row of the stage's pass that it belongs to."""
    pass_last: I64
    pass_tip: I64
    """Last row of that pass on the compute stream."""
    opens: I64
    """1 in the first pass of a stage after an update."""


@dataclass(frozen=True, slots=True, eq=False)
class StepNodes:
    """The steps of one pipeline rank, node by node. Edges are (row, row that it waits for), 2 x edges."""

    book: Book
    op: I32
    module: I32
    micro: I64
    tag: I64
    step: I64
    data: I32
    ctrl: I32
    units: Units
    """Empty unless a directive needs them."""
    ends: tuple[End, ...] = ()

    def trace(
        self, host_ns: float = 0.0, *, graphs: bool = False, same_sizes: bool = False
    ) -> tuple[Trace, list[str], list[str]]:
        """The trace, and the labels of its group and peer slots. `graphs`: see Plan; `same_sizes`: experts are padded
        to a capacity, and graphs hold them too."""
        columns, groups, peers = columns_of(self.book, self.op)
        paths = list(self.book.modules)
        used = np.bincount(self.module, minlength=len(paths)) > 0
        columns["module"] = (np.cumsum(used) - 1)[self.module], [paths[u] for u in np.flatnonzero(used)]
        columns["micro_batch"] = np.where(self.micro < 0, UNKNOWN, self.micro)
        columns["step"] = self.step
        message = (columns["kind"] == int(Kind.SEND)) | (columns["kind"] == int(Kind.RECV))
        columns["tag"] = np.where(message, np.maximum(self.tag, 0), -1)
        queued = np.array(_in_turn(columns["kind"], columns["stream"]), np.int32).reshape(-1, 2).T
        data, ctrl = _csr([self.data], len(self.op)), _csr([self.ctrl, queued], len(self.op))
        if host_ns:
            ops = self.book.ops
            issued = [not graphs or (sized_by_routing(o) and not same_sizes) for o in ops]
            calls = np.array([o.calls * one for o, one in zip(ops, issued, strict=True)])[self.op]
            read = np.array([o.read for o in ops])[self.op]
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
        ops, each = self.book.ops, len(trace) // max(len(self.op), 1)  # 2 with nodes of the host
        for mark in sorted({ops[number].mark for number in np.unique(self.op).tolist()} - {""}):
            nodes = np.zeros(len(trace), bool)
            nodes[each - 1 :: each] = np.array([op.mark == mark for op in ops])[self.op]
            trace = marked(trace, nodes, mark)
        return trace, groups, peers


class FurtherSum(NamedTuple):
    """Gradients that are summed in addition to those of copies: over tensor-parallel ranks, twins, the ends of a
    pipeline."""

    row: int
    params: tuple[tuple[int, bool], ...]
    """(parameters, are they experts') of each piece; without those of another sum."""
    updated: bool
    """Whether it sums what the optimizer updates, not what a rank keeps of the gradients."""


@dataclass(slots=True)
class End:
    """An update of the weights: what comes before it, and what waits for its gradients."""

    begin: int
    """First row after the previous update."""
    awaits: list[int] = field(default_factory=list)
    """Rows that wait for every gradient: further sums, the norm or the update."""
    sums: list[FurtherSum] = field(default_factory=list)
    over_params: list[int] = field(default_factory=list)
    """Rows that work on every trained parameter: the norm, the update."""
    updated: list[int] = field(default_factory=list)
    """Rows of the previous update, which produced the weights."""


def _in_turn(kind: NDArray[np.uint8], stream: I64) -> list[tuple[int, int]]:
    """Collectives of a stream in the order of issue: members with different orders would deadlock."""
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
    used = np.flatnonzero(seen).tolist()
    ops, formed = [book.ops[u] for u in used], [book.shapes(u) for u in used]
    groups = list(dict.fromkeys(o.group for o in ops if o.kind == Kind.COLL))
    peers = list(dict.fromkeys(o.group for o in ops if o.kind in (Kind.SEND, Kind.RECV)))

    def number(values: Sequence[int], dtype: str = "int64") -> NDArray[Any]:
        try:
            return np.array(values, dtype)[at]
        except OverflowError:
            problem = "an operator of more work than 64 bits count"
            raise UsageError(problem, hint="a shorter sequence, or fewer samples") from None

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
        "in_shapes": words([ins for ins, _ in formed]),
        "in_types": words([in_types(o, ins) for o, (ins, _) in zip(ops, formed, strict=True)]),
        "out_shapes": words([outs for _, outs in formed]),
        "out_types": words(
            [types(o.dtype, count_of(outs)) if outs else "" for o, (_, outs) in zip(ops, formed, strict=True)]
        ),
    }
    return columns, groups, peers


def _csr(edges: list[I32], rows: int) -> tuple[I64, I32]:
    pairs = np.concatenate(edges, axis=1).astype(np.int64)
    key = np.sort(pairs[0] * rows + pairs[1])
    key = key[np.diff(key, prepend=-1) != 0]
    row, waited = key // max(rows, 1), (key % max(rows, 1)).astype(np.int32)
    start = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=start[1:])
    return start, waited


def sized_by_routing(op: Op) -> bool:
    """Ops that no CUDA graph holds, because their size changes from step to step."""
    return op.load or op.group in ("ep", "ep_in", "ep_out", "etp")


def _with_host(
    columns: dict[str, Any], data: tuple[I64, I32], ctrl: tuple[I64, I32], host_ns: I64, read: NDArray[np.bool_]
) -> tuple[dict[str, Any], tuple[I64, I32], tuple[I64, I32]]:
    """A host node before each device node: a thread issues them in order, and none runs before its host node. If the
    host reads a result, it waits for the device before it continues."""
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
