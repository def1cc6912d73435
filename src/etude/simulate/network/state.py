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
from etude.machine.routes import Routes, common_switch
from etude.machine.topology import Topology
from etude.simulate.network import kernels as k

if TYPE_CHECKING:
    from etude.cost.schedules import Schedule
    from etude.simulate.network.run import NetworkOptions, Operation

I64 = NDArray[np.int64]
_FIRST_SLOTS = 1 << 12
_SLICE = 1 << 16
"""Instants between two looks at the outside: compiled code cannot be interrupted."""


class _Column:
    """Grows by parts; one array when asked for."""

    def __init__(self) -> None:
        self.parts: list[I64] = []
        self.size = 0

    def add(self, values: Any) -> int:
        part = np.asarray(values, np.int64)
        first = self.size
        self.parts.append(part)
        self.size += len(part)
        return first

    def array(self) -> I64:
        return np.concatenate(self.parts) if self.parts else np.zeros(0, np.int64)


class NetworkState:
    """Registered operations and the state of the network. `arrays` is what the kernels take."""

    def __init__(self, topology: Topology, options: NetworkOptions) -> None:
        self.topology, self.options = topology, options
        self.routes = Routes(topology)
        self.link_bytes = np.zeros(len(topology.src), np.int64)
        self.link_busy_ns = np.zeros(len(topology.src), np.int64)
        names = ("src", "dst", "wait0", "left0", "succ", "touch", "path_link", "delay", "succ_start", "touch_start")
        more = ("path_of", "path_start", "sizes", "has_deps", "put", "lags", "seats")
        self.columns = {name: _Column() for name in (*names, *more)}
        self.shapes: dict[int, int] = {}
        self.kept: list[Schedule] = []  # ids of dead schedules could come again
        self.shape_rows: list[tuple[int, int, int, int]] = []
        self.ways: dict[Hashable, int] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self.lags: dict[int, int] = {}
        self.kept_lags: list[I64] = []
        self.seats: dict[bytes, int] = {}
        self.load = np.zeros((1, 1), np.int32)
        """Rows that are > 0 in the first column while a rank computes; looked at where `busy_factor` is not 1."""
        self.seat_of = np.arange(len(topology))
        """Row of each rank there."""
        self.op_rows: list[tuple[int, ...]] = []
        self.hops_max = 1

    # --- registering

    def register(self, operations: Sequence[Operation]) -> None:
        """Adds operations; they are numbered in order. The ways of all new ones are searched together."""
        first = len(self.op_rows)
        self.op_rows += [()] * len(operations)
        single = [i for i, op in enumerate(operations) if op.schedule.algorithm == "message"]
        self._register_messages([operations[i] for i in single], [first + i for i in single])
        alone = set(single)
        asked: list[tuple[I64, I64, I64]] = []
        new: list[tuple[Hashable, int]] = []
        rest = [(first + i, op) for i, op in enumerate(operations) if i not in alone]
        keys = []
        for _, op in rest:
            self._check(op)
            shape = self._shape(op.schedule)
            key = (shape, np.asarray(op.members, np.int64).tobytes(), op.flow)
            keys.append(key)
            if key not in self.ways:
                self.ways[key] = -1
                asked.append(self._pairs(op))
                new.append((key, len(op.schedule)))
            if (shape, op.size_bytes) not in self.sizes:
                sizes = op.schedule.transfer_bytes(op.size_bytes)
                self.sizes[shape, op.size_bytes] = self.columns["sizes"].add(sizes)
        self._find_ways(asked, new)
        for (row, op), key in zip(rest, keys, strict=True):
            left = op.schedule.members + len(op.schedule)
            size0 = self.sizes[key[0], op.size_bytes]
            place = (key[0], -1, left, op.schedule.members, self.ways[key], size0)
            self.op_rows[row] = (*place, op.launch_ns, op.wire_ppm, self._lags(op.lags), self._seats(op))

    def _register_messages(self, messages: Sequence[Operation], rows: Sequence[int]) -> None:
        """Messages come in hundreds of thousands: all at once, nothing shared."""
        if not messages:
            return
        pair = np.array([op.members for op in messages], np.int64).reshape(-1, 2)
        size = np.array([op.size_bytes for op in messages], np.int64)
        odd = (pair < 0).any(axis=1) | (pair >= len(self.topology)).any(axis=1) | (pair[:, 0] == pair[:, 1])
        for i in np.flatnonzero(odd | (size < 0)).tolist():
            self._check(messages[i])
            messages[i].schedule.transfer_bytes(messages[i].size_bytes)
        vertex = self.topology.device[pair].astype(np.int64)
        path0 = self._add_paths(vertex[:, 0], vertex[:, 1], np.array([op.flow for op in messages], np.int64))
        size0 = self.columns["sizes"].add(size)
        for i, (row, op) in enumerate(zip(rows, messages, strict=True)):
            place = (self._shape(op.schedule), -1, 3, 2, path0 + i, size0 + i)
            self.op_rows[row] = (*place, op.launch_ns, op.wire_ppm, -1, self._seats(op))

    def _lags(self, lags: I64 | None) -> int:
        if lags is None:
            return -1
        if id(lags) not in self.lags:
            self.lags[id(lags)] = self.columns["lags"].add(lags)
            self.kept_lags.append(lags)
        return self.lags[id(lags)]

    def _seats(self, op: Operation) -> int:
        """Where the ranks of the members stand; -1 where nobody looks at what they do."""
        if self.options.busy_factor == 1:
            return -1
        members = np.asarray(op.members, np.int64)
        key = members.tobytes()
        if key not in self.seats:
            self.seats[key] = self.columns["seats"].add(self.seat_of[members])
        return self.seats[key]

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
        if not any(len(part) for part, _, _ in asked):
            self.ways |= {key: 0 for key, _ in new}  # one member alone goes nowhere
            return
        at = self._add_paths(*(np.concatenate(part) for part in zip(*asked, strict=True)))
        for key, count in new:
            self.ways[key] = at
            at += count

    def _add_paths(self, src: I64, dst: I64, way: I64) -> int:
        """Ways of these pairs of vertices; equal ones are kept once. Returns where in `path_of` they begin."""
        table = np.stack((src * len(self.topology.kind) + dst, np.zeros_like(way) if self.topology.dimensions else way))
        order = np.lexsort(table)
        new = np.append(True, (np.diff(table[:, order], axis=1) != 0).any(axis=0))
        which = np.empty(len(src), np.int64)
        which[order] = np.cumsum(new) - 1
        once = order[new]
        start, found = self.routes.paths(src[once], dst[once], way[once])
        self.hops_max = max(self.hops_max, int(np.diff(start).max()))
        first = self.columns["path_start"].add(self.columns["path_link"].add(found) + start)
        return self.columns["path_of"].add(first + which)

    # --- running

    def arrays(self, slots: int = _FIRST_SLOTS) -> tuple[NDArray[Any], ...]:
        """What the kernels take, before anything has happened; the order is that of `kernels.post`."""
        t, column, o = self.topology, {name: c.array() for name, c in self.columns.items()}, self.options
        slots = max(slots, max((row[1] + row[3] for row in self.shape_rows), default=1))
        ops = np.ascontiguousarray(np.array(self.op_rows, np.int64).reshape(-1, 10).T)
        shapes = np.array([(*row, -1) for row in self.shape_rows], np.int64).reshape(-1, 5).T
        transfers = np.stack([column[name] for name in ("src", "dst", "delay", "has_deps", "put", "wait0")])
        members = np.stack((np.append(column["touch_start"], len(column["touch"])), np.append(column["left0"], 0)))
        # Per us, so that a rate in whole bytes is exact where it is whole in bytes per us.
        reduce = round(o.reduce_bytes_per_s / 1e6)
        hop_bits = (self.hops_max - 1).bit_length()
        close = max(round(o.tolerance * 1e9), 1)
        busy = round(1000 * o.busy_factor)
        options = np.array([o.model == "flow", o.cut_through, o.endpoint_ns, hop_bits, reduce, close, busy], np.int64)
        links = np.zeros((k.LINK_ROWS, len(t.src)), np.int64)
        links[k.LATENCY], links[k.HEAD] = t.latency_ns, -1
        link_rates = np.zeros((5, len(t.src)))
        link_rates[k.RATE] = t.bytes_per_s / 1e9
        slot_columns = np.zeros((k.SLOT_ROWS, slots), np.int64)
        slot_columns[k.POS] = -1
        entries = np.zeros((2, slots << hop_bits if o.model == "flow" else 1), np.int64)
        return (
            np.zeros(10, np.int64), options, slot_columns, np.zeros((3, slots)), entries, ops,
            np.ascontiguousarray(shapes), transfers, members, np.append(column["succ_start"], len(column["succ"])),
            column["succ"], column["touch"], column["path_of"], column["path_start"],
            column["path_link"], column["sizes"], column["lags"], column["seats"], self.load, links, link_rates,
        )  # fmt: skip

    def grown(self, arrays: tuple[NDArray[Any], ...]) -> tuple[NDArray[Any], ...]:
        """Twice the slots, their contents kept."""
        reg, options, slots, slot_rates, entries, *more = arrays
        both = np.concatenate((slots, np.zeros_like(slots)), axis=1)
        both[k.POS, slots.shape[1] :] = -1
        rates = np.concatenate((slot_rates, np.zeros_like(slot_rates)), axis=1)
        if options[k.FLOW_MODEL]:
            entries = np.concatenate((entries, np.zeros_like(entries)), axis=1)
        return reg, options, both, rates, entries, *more

    def run(self, joins: I64, finish0: I64, *, slots: int = _FIRST_SLOTS) -> I64:
        """Posts the joins (rows of time, operation, member; ordered by time) and runs until all is quiet."""
        arrays = self.arrays(slots)
        finish = np.full(int(finish0[-1]), -1, np.int64)
        posted, over = 0, False
        while not over:
            before = int(arrays[0][k.SEQ]), posted
            posted, over = k.run(arrays, posted, joins, finish, finish0, _SLICE)
            if not over and (int(arrays[0][k.SEQ]), posted) == before:
                arrays = self.grown(arrays)
        self.link_bytes, self.link_busy_ns = arrays[-2][k.BYTES].copy(), arrays[-2][k.BUSY].copy()
        return finish
