"""The arrays that the network kernels work on, gathered from operations.

Operations that have a schedule in common share its arrays; those with schedule, members and flow in common share their
ways; those with schedule and size in common share their bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.model.routes import Routes, common_switch
from etude.model.topology import Topology
from etude.simulate.network import flow, links

if TYPE_CHECKING:
    from etude.cost.schedules import Schedule
    from etude.simulate.network.run import NetworkOptions, Operation

I64 = NDArray[np.int64]
_FIRST_SLOTS = 1 << 12


class _Column:
    """Grows by parts; one array when asked for."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.parts: list[NDArray[Any]] = []
        self.size = 0

    def add(self, values: Any) -> int:
        part = np.asarray(values, self.dtype)
        first = self.size
        self.parts.append(part)
        self.size += len(part)
        return first

    def array(self) -> NDArray[Any]:
        return np.concatenate(self.parts) if self.parts else np.zeros(0, self.dtype)


class NetworkState:
    """Registered operations and the state of the network. `arrays` is what the kernels take."""

    def __init__(self, topology: Topology, options: NetworkOptions) -> None:
        self.topology, self.options = topology, options
        self.kernels = flow if options.model == "flow" else links
        self.routes = Routes(topology)
        self.link_bytes = np.zeros(len(topology.src), np.int64)
        self.link_busy_ns = np.zeros(len(topology.src), np.int64)
        names32 = ("src", "dst", "wait0", "left0", "succ", "touch", "path_link")
        names64 = ("delay", "succ_start", "touch_start", "path_start", "t_bytes")
        self.columns = {name: _Column(np.int32) for name in names32} | {name: _Column(np.int64) for name in names64}
        self.columns |= {"has_deps": _Column(np.bool_), "put": _Column(np.uint8)}
        self.shapes: dict[int, int] = {}
        self.kept: list[Schedule] = []  # ids of dead schedules could come again
        self.shape_rows: list[tuple[int, int, int, int]] = []
        self.ways: dict[Hashable, int] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self.op_rows: list[tuple[int, int, int, int, int]] = []
        self.hops_max = 1

    # --- registering

    def register(self, operations: Sequence[Operation]) -> None:
        """Adds operations; they are numbered in order. The ways of all new ones are searched together."""
        asked: list[tuple[I64, I64, I64]] = []
        new: list[tuple[Hashable, int]] = []
        for op in operations:
            self._check(op)
            shape = self._shape(op.schedule)
            key = (shape, bytes(np.asarray(op.members, np.int64).data), op.flow)
            if key not in self.ways:
                self.ways[key] = -1
                asked.append(self._pairs(op))
                new.append((key, len(op.schedule)))
            size_key = (shape, op.size_bytes)
            if size_key not in self.sizes:
                self.sizes[size_key] = self.columns["t_bytes"].add(op.schedule.transfer_bytes(op.size_bytes))
        self._find_ways(asked, new)
        for op in operations:
            shape = self.shapes[id(op.schedule)]
            way = self.ways[shape, bytes(np.asarray(op.members, np.int64).data), op.flow]
            left = op.schedule.members + len(op.schedule)
            self.op_rows.append((shape, way, self.sizes[shape, op.size_bytes], op.schedule.members, left))

    def _check(self, op: Operation) -> None:
        members = np.asarray(op.members, np.int64)
        if len(members) != op.schedule.members:
            raise UsageError(f"{len(members)} ranks for a schedule of {op.schedule.members} members")
        if len(members) and not 0 <= members.min() <= members.max() < len(self.topology):
            bad = members[(members < 0) | (members >= len(self.topology))][0]
            raise UsageError(f"rank {bad} sits on none of the {len(self.topology)} devices of {self.topology.name}")
        if len(np.unique(members)) != len(members):
            raise UsageError("a rank is twice in a group")

    def _shape(self, schedule: Schedule) -> int:
        if id(schedule) in self.shapes:
            return self.shapes[id(schedule)]
        s, add = schedule, self.columns
        everyone = s.members + s.helpers
        join = s.src == s.dst
        deps = np.diff(s.dep_start)
        waits = deps + (s.src < s.members) + ((s.dst < s.members) & ~join)
        first = add["src"].add(s.src)
        for name, values in (("dst", s.dst), ("delay", s.delay_ns), ("has_deps", deps > 0), ("put", s.put)):
            add[name].add(values)
        add["wait0"].add(waits)
        who = np.repeat(np.arange(len(s)), deps)
        order = np.argsort(s.dep, kind="stable")
        start = np.cumsum(np.bincount(s.dep, minlength=len(s))) if len(s) else np.zeros(0, np.int64)
        base = add["succ"].add(who[order])
        add["succ_start"].add(base + start - np.bincount(s.dep, minlength=len(s)))
        member = np.concatenate((s.src, s.dst[~join]))
        transfer = np.concatenate((np.arange(len(s)), np.flatnonzero(~join)))
        count = np.bincount(member, minlength=everyone)
        base = add["touch"].add(transfer[np.lexsort((transfer, member))])
        add["touch_start"].add(base + np.cumsum(count) - count)
        row = (first, len(s), add["left0"].add(count), everyone)
        self.shapes[id(schedule)] = len(self.shape_rows)
        self.shape_rows.append(row)
        self.kept.append(schedule)
        return len(self.shape_rows) - 1

    def _pairs(self, op: Operation) -> tuple[I64, I64, I64]:
        vertex = self.topology.device[np.asarray(op.members, np.int64)].astype(np.int64)
        if op.schedule.helpers:
            helper = common_switch(self.topology, np.asarray(op.members))
            vertex = np.concatenate((vertex, np.full(op.schedule.helpers, helper)))
        way = op.flow + op.schedule.chunk.astype(np.int64)
        return vertex[op.schedule.src], vertex[op.schedule.dst], way

    def _find_ways(self, asked: list[tuple[I64, I64, I64]], new: list[tuple[Hashable, int]]) -> None:
        if not asked:
            return
        src, dst, way = (np.concatenate(part) for part in zip(*asked, strict=True))
        start, found = self.routes.paths(src, dst, way)
        if len(start) > 1:
            self.hops_max = max(self.hops_max, int(np.diff(start).max()))
        base = self.columns["path_link"].add(found)
        at = self.columns["path_start"].add(base + start)
        for key, count in new:
            self.ways[key] = at
            at += count

    # --- running

    def arrays(self, slots: int = _FIRST_SLOTS) -> tuple[NDArray[Any], ...]:
        """All that the kernels need, before anything has happened."""
        t, column = self.topology, {name: c.array() for name, c in self.columns.items()}
        largest = max((row[1] + row[3] for row in self.shape_rows), default=1)
        slots = max(slots, largest)
        ops = np.array(self.op_rows, np.int64).reshape(-1, 5)
        ends = {"succ_start": len(column["succ"]), "touch_start": len(column["touch"])}
        for name, end in ends.items():
            column[name] = np.append(column[name], end)
        shapes = np.array(self.shape_rows, np.int64).reshape(-1, 4)
        reg = np.zeros(16, np.int64)
        options = np.array([self.options.cut_through, self.options.endpoint_ns, self.hops_max], np.int64)
        common = (
            reg, np.zeros(slots, np.int32), np.full(slots, -1, np.int32), *np.zeros((2, slots), np.int64),
            np.zeros(slots, np.int8), np.zeros(slots, np.int32), np.zeros(slots, np.int32), np.zeros(slots, np.int32),
            np.zeros(slots, np.int32), np.zeros(slots, np.int32),
            ops[:, 0].copy(), np.full(len(ops), -1, np.int64), ops[:, 4].copy(), ops[:, 3].copy(), ops[:, 1].copy(),
            ops[:, 2].copy(), shapes, column["src"], column["dst"], column["delay"], column["has_deps"],
            column["put"], column["wait0"], column["left0"], column["succ_start"], column["succ"],
            column["touch_start"], column["touch"], column["path_start"], column["path_link"], column["t_bytes"],
            t.bytes_per_s / 1e9, t.latency_ns.copy(), self.link_bytes, self.link_busy_ns,
            np.full(len(shapes), -1, np.int64), *np.zeros((2, slots), np.int64), options,
            np.array([self.options.reduce_bytes_per_s / 1e9]),
        )  # fmt: skip
        return common + (self._flow_arrays(slots) if self.options.model == "flow" else self._link_arrays(slots))

    def _link_arrays(self, slots: int) -> tuple[NDArray[Any], ...]:
        return np.zeros(slots, np.int32), np.zeros(slots, np.int64), np.zeros(len(self.topology.src), np.int64)

    def _flow_arrays(self, slots: int) -> tuple[NDArray[Any], ...]:
        links_ = len(self.topology.src)
        return (
            *np.zeros((3, slots), np.float64), np.zeros(slots, np.int64), *np.full((2, slots), -1, np.int32),
            np.zeros(slots, np.int64), np.zeros(slots, np.bool_), *np.zeros((4, slots), np.int32),
            np.zeros(slots, np.int64), *np.full((2, slots * self.hops_max), -1, np.int64),
            *np.zeros((2, links_), np.int64), np.full(links_, -1, np.int64), *np.zeros((2, links_), np.float64),
            np.zeros(links_, np.int64), np.zeros(links_, np.int32), np.zeros(links_, np.int64),
            np.zeros(links_, np.float64), np.zeros(links_, np.int32), np.zeros(links_, np.float64),
            np.zeros(links_, np.int32), np.zeros(links_, np.bool_),
        )  # fmt: skip

    def grown(self, arrays: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
        """Twice the slots, their contents kept."""
        slots = len(arrays[1])
        more = []
        for at, array in enumerate(arrays):
            per_slot = at in _SLOTTED or (at >= len(_COMMON) and len(array) in (slots, slots * self.hops_max))
            if per_slot and at - len(_COMMON) in (_LINK_ONLY if self.options.model == "links" else _FLOW_LINK_ONLY):
                per_slot = False
            fill = np.full(len(array), -1, array.dtype)
            more.append(np.concatenate((array, fill)) if per_slot else array)
        return tuple(more)

    def run(self, joins: I64, finish0: I64) -> I64:
        """Posts the joins (rows of time, operation, member; ordered by time) and runs until all is quiet."""
        arrays = self.arrays()
        finish = np.full(int(finish0[-1]), -1, np.int64)
        at = 0
        while True:
            at = int(self.kernels.run(arrays, at, joins, finish, finish0))
            if at == len(joins):
                return finish
            arrays = self.grown(arrays)


_COMMON = range(41)
_SLOTTED = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 37, 38))
_LINK_ONLY = frozenset((2,))
_FLOW_LINK_ONLY = frozenset(range(15, 27))
