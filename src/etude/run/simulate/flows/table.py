"""Collectives lowered to flows between ranks: those that the `links` network moves, with bytes and order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.cost.schedule import Schedule
from etude.kernels.arrays import I64
from etude.machine.fabrics import topology_of_system
from etude.machine.system import System
from etude.model.job import Job
from etude.model.schema import Collective
from etude.run.simulate.carrying import carried_operations
from etude.run.simulate.lower import Lowered, lower
from etude.run.simulate.networks.messages import Messages
from etude.run.simulate.networks.operation import Operation
from etude.run.simulate.networks.state import WHOLE
from etude.run.simulate.operations import Operations, operations
from etude.run.simulate.options import Network, Options
from etude.run.simulate.run import simulate_with_links

MOST_FLOWS: Final = 20_000_000
_WINDOW: Final = 4
"""Chunks of one transfer in progress on `links`."""
_WITHOUT_HELP: Final = "ring"


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """`table`: flow, start_ns (not before: both ends have come to the collective, and it is launched), src and dst
    (ranks), bytes, wire_bytes (with the protocol), after (flows that have to arrive before), operation, what,
    algorithm."""

    table: pa.Table
    notes: tuple[str, ...]
    transfer: I64
    """Of each flow, in the schedule of its operation."""
    collective: Mapping[str, Any]
    """Algorithms that were asked for, or that stand for those that switches take part in."""


@dataclass(frozen=True, slots=True, eq=False)
class _Moves:
    """A schedule of one size without what moves nothing: ends are members, `dep` is CSR over the rows."""

    src: I64
    dst: I64
    bytes: I64
    dep_start: I64
    dep: I64
    row: I64
    """In the schedule."""


def flow_table(job: Job, system: System, *, collective: Mapping[str, Any] | None = None) -> Flows:
    """The flows of a job on a system, operation by operation in order of their starts. Algorithms are those of the
    `links` network, or as `collective` names them; a reduction in switches is carried out as a ring."""
    options = Options(network=Network.LINKS, collective=dict(collective or {}), fold=False).on(system)
    lowered, made, messages, number, ops, notes = _carried(job, system, options)
    helped = {op.schedule.collective.name.lower() for op in made if op.schedule.helpers}
    if helped:
        asked = sorted(helped & set(collective or {}))
        if asked:
            raise UsageError(f"{asked[0]}: switches take part in this algorithm, but flows are between ranks")
        instead = dict.fromkeys(helped, _WITHOUT_HELP)
        options = replace(options, collective={**options.collective, **instead})
        lowered, made, messages, number, ops, notes = _carried(job, system, options)
        notes = [*notes, f"{', '.join(sorted(helped))}: a ring, because flows cannot end in switches that reduce"]
    result, _ = simulate_with_links(job, system, options)
    assert result.timing is not None
    start_ns = np.concatenate(result.timing.start_ns)
    rows = _FlowRows(ops, start_ns)
    by_start = np.argsort(rows.begin_ns[number], kind="stable").tolist()
    for k in by_start:
        if k < len(made):
            rows.collective(int(number[k]), made[k])
        else:
            rows.message(int(number[k]), messages, k - len(made))
    del lowered
    return Flows(rows.table(), tuple(notes), rows.transfer(), options.collective)


def _carried(
    job: Job, system: System, options: Options
) -> tuple[Lowered, list[Operation], Messages, I64, Operations, list[str]]:
    lowered, notes = lower(job, system, options)
    ops = operations(lowered)
    made, messages, number = carried_operations(lowered, ops, topology_of_system(system), _WINDOW, notes)
    return lowered, made, messages, number, ops, [*ops.notes, *notes]


class _FlowRows:
    """The table, operation by operation."""

    def __init__(self, ops: Operations, start_ns: I64) -> None:
        self._ops = ops
        order = np.lexsort((ops.member, ops.of))
        self._bounds = np.searchsorted(ops.of[order], np.arange(len(ops) + 1))
        self._came = start_ns[ops.node[order]]
        self._member = ops.member[order]
        self.begin_ns = np.zeros(len(ops), np.int64)
        np.maximum.at(self.begin_ns, ops.of, start_ns[ops.node])
        self._known: dict[tuple[int, int], _Moves] = {}
        self._parts: dict[str, list[NDArray[np.int64]]] = {
            name: [] for name in ("start_ns", "src", "dst", "bytes", "wire_bytes", "row", "operation", "count", "after")
        }
        self._what: list[tuple[int, str, str]] = []
        self._count = 0

    def collective(self, number: int, op: Operation) -> None:
        moves = self._moves(op.schedule, op.size_bytes)
        members = np.asarray(op.members, np.int64)
        came = np.full(len(members), self.begin_ns[number])
        span = slice(self._bounds[number], self._bounds[number + 1])
        came[self._member[span]] = self._came[span]
        start_ns = np.maximum(came[moves.src], came[moves.dst]) + op.launch_ns
        ends = members[moves.src], members[moves.dst]
        after = moves.dep + self._count
        name = Collective(int(self._ops.collective[number])).name.lower()
        more = np.full(len(moves.row), op.wire_ppm / WHOLE)
        if op.factors is not None:
            more = more * op.factors[moves.row] / WHOLE
        wire = np.ceil(moves.bytes * more).astype(np.int64)
        self._add(number, start_ns, *ends, moves.bytes, wire, moves.row, np.diff(moves.dep_start), after)
        self._what.append((len(moves.src), name, op.schedule.algorithm))

    def message(self, number: int, messages: Messages, i: int) -> None:
        if messages.size_bytes[i] <= 0:
            return
        came = self._came[self._bounds[number] : self._bounds[number + 1]]
        alone = self._ops.sender[number] >= 0  # it sets off without its receiver
        start_ns = int(came[0] if alone else came.max()) + int(messages.launch_ns[i])
        size = int(messages.size_bytes[i])
        wire = math.ceil(size * int(messages.wire_ppm[i]) / WHOLE)
        figures = (start_ns, messages.src[i], messages.dst[i], size, wire, 0, 0)
        self._add(number, *(np.array([v], np.int64) for v in figures), np.zeros(0, np.int64))
        self._what.append((1, "message", "message"))

    def _add(self, number: int, *columns: I64) -> None:
        names = ("start_ns", "src", "dst", "bytes", "wire_bytes", "row", "count", "after")
        for name, column in zip(names, columns, strict=True):
            self._parts[name].append(column)
        count = len(columns[0])
        self._parts["operation"].append(np.full(count, number, np.int64))
        self._count += count
        if self._count > MOST_FLOWS:
            raise UsageError(f"more than {MOST_FLOWS:,} flows", hint="use a smaller job, or fewer steps")

    def _moves(self, plan: Schedule, size: int) -> _Moves:
        key = id(plan), size
        if key not in self._known:
            self._known[key] = _moves(plan, size)
        return self._known[key]

    def transfer(self) -> I64:
        return np.concatenate([np.zeros(0, np.int64), *self._parts["row"]])

    def table(self) -> pa.Table:
        column = {
            name: np.concatenate([np.zeros(0, np.int64), *parts])
            for name, parts in self._parts.items()
            if name != "row"
        }
        offsets = np.concatenate([[0], np.cumsum(column.pop("count"))]).astype(np.int32)
        after = pa.ListArray.from_arrays(pa.array(offsets), pa.array(column.pop("after")))
        lengths = [count for count, _, _ in self._what]
        words = [np.repeat(np.array([row[i] for row in self._what], object), lengths) for i in (1, 2)]
        what, algorithm = (pa.array(word.tolist(), pa.string()) for word in words)
        operation = column.pop("operation")
        return pa.table(
            {
                "flow": np.arange(len(operation)),
                **column,
                "after": after,
                "operation": operation,
                "what": what,
                "algorithm": algorithm,
            }
        )


def _moves(plan: Schedule, size: int) -> _Moves:
    moved = plan.transfer_bytes(size)
    real = (plan.src != plan.dst) & (moved > 0)
    new = np.cumsum(real) - 1
    deps = _deps(plan, real)
    rows = np.flatnonzero(real)
    kept = [deps[row] for row in rows.tolist()]
    start = np.concatenate([[0], np.cumsum([len(found) for found in kept])]).astype(np.int64)
    flat = np.array([other for found in kept for other in found], np.int64)
    return _Moves(plan.src[rows].astype(np.int64), plan.dst[rows].astype(np.int64), moved[rows], start, new[flat], rows)


def _deps(plan: Schedule, real: NDArray[np.bool_]) -> dict[int, Sequence[int]]:
    """What each transfer waits for, through joins and empty transfers to those that move bytes; ascending, once."""
    start, dep, moves = plan.dep_start.tolist(), plan.dep.tolist(), real.tolist()
    found: dict[int, Sequence[int]] = {}
    stack = list(range(len(plan) - 1, -1, -1))
    while stack:
        row = stack[-1]
        before = dep[start[row] : start[row + 1]]
        open_ = [other for other in before if not moves[other] and other not in found]
        if row not in found and open_:
            stack += open_
            continue
        stack.pop()
        if row not in found:
            reached = (([other] if moves[other] else found[other]) for other in before)
            found[row] = sorted({one for some in reached for one in some})
    return found
