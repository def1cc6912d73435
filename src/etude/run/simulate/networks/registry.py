"""Operations gathered into the state of a network with links.

Operations with the same schedule share its arrays; those with the same schedule, members and flow share their routes;
those with the same schedule and size share their bytes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.cost.schedule import Schedule, chunked, message
from etude.kernels.arrays import I64
from etude.kernels.heap import Queue, empty_queue
from etude.machine.routes import Routes, common_switch
from etude.machine.topology import Topology
from etude.run.simulate.choices import PacketFabric
from etude.run.simulate.networks import flow
from etude.run.simulate.networks.messages import Messages, distinct, equal_ways, messages_of
from etude.run.simulate.networks.operation import NetworkOptions, Operation
from etude.run.simulate.networks.queues import ports_of_links
from etude.run.simulate.networks.state import (
    CARRIED,
    LINK,
    LINKS_CLOCK,
    MEMBER,
    MILLI,
    NEVER,
    OUTSIDE_CLOCK,
    PLACE,
    PLAN,
    SHARED_INSTANCE,
    SHARED_NODE,
    SLOT,
    TRANSFER,
    UNBORN,
    VISIT,
    Amounts,
    FlowState,
    GivenTimes,
    LinkCosts,
    LinkState,
    OutsideState,
    PacketDetail,
    Paths,
    Rates,
    Schedules,
    Table,
)
from etude.run.simulate.packets.state import PacketState, with_more_flows, with_more_packets

FIRST_SLOTS: Final = 1 << 12
_CHOICES: Final = 16
"""Routes that adaptive routing chooses from."""
_MOST_WAYS: Final = 64
"""Most routes that a transfer is sprayed over."""


class _Column:
    """An array that grows by parts."""

    def __init__(self) -> None:
        self.parts: list[I64] = []
        self.size = 0

    def add(self, values: Any) -> int:
        """Appends values; returns where they begin."""
        part = np.asarray(values, np.int64)
        first = self.size
        self.parts.append(part)
        self.size += len(part)
        return first

    def array(self) -> I64:
        return np.concatenate(self.parts) if self.parts else np.zeros(0, np.int64)


_COLUMNS: Final = (
    *("src", "dst", "delay_ns", "has_deps", "put", "waits", "succ_start", "succ", "left", "touch_start", "touch"),
    *("path_of", "path_line", "path_start", "path_link", "sizes", "lags", "seats"),
)


class Registry:
    """Operations on a topology; `state` is what the kernels take."""

    def __init__(
        self,
        topology: Topology,
        options: NetworkOptions,
        *,
        instances: Table | None = None,
        instance_of: I64 | None = None,
        work: Table | None = None,
    ) -> None:
        """`instances[instance_of[rank]].computing` is > 0 while a rank computes; used if `busy_factor` is not 1.
        `work[node].rate` is the rate at which a member communicates, if nodes have rates."""
        self.topology, self.options = topology, options
        self.instances = np.zeros(1, SHARED_INSTANCE) if instances is None else instances
        self.work = np.zeros(0, SHARED_NODE) if work is None else work
        self.is_seated = options.busy_factor != 1 or work is not None
        self.instance_of = np.zeros(len(topology), np.int64) if instance_of is None else instance_of
        self.routes = Routes(topology)
        self.columns = {name: _Column() for name in _COLUMNS}
        self.plans: dict[int, int] = {}
        self.kept: list[Schedule] = []  # ids of dead schedules could be reused
        self.plan_rows: list[tuple[int, int, int, int, int]] = []
        self.ways: dict[Hashable, int] = {}
        self.sizes: dict[tuple[int, int], int] = {}
        self.lags: dict[int, int] = {}
        self.kept_lags: list[I64] = []
        self.seats: dict[bytes, int] = {}
        self.carried: list[Table] = []  # CARRIED, without `place0`
        self.most_hops = 1
        self.packets = options.model == "packets"
        chooses = options.routing == "adaptive" or (
            self.packets and (options.routing == "spray" or PacketFabric(options.fabric).spreads)
        )
        self.choices = _CHOICES if chooses and not topology.dimensions else 1
        self.cuts = options.routing == "spray" and not self.packets and not topology.dimensions
        self.split: dict[tuple[int, int], Any] = {}
        self.held: list[Any] = []  # the objects behind ids in `split`
        self.equal_ways: dict[tuple[int, ...], int] = {}
        self.in_parts: dict[int, Schedule] = {}

    # --- registering

    def register(self, operations: Sequence[Operation]) -> None:
        """Adds operations, numbered in order. Routes of all new ones are searched together."""
        table = np.zeros(len(operations), CARRIED)
        is_message = np.array([_is_message(op) for op in operations], bool)
        single, rest = np.flatnonzero(is_message), np.flatnonzero(~is_message)
        table[single] = self._messages(messages_of([operations[i] for i in single.tolist()]))
        table[rest] = self._schedules_of([operations[i] for i in rest.tolist()])
        self.carried.append(table)

    def register_messages(self, messages: Messages) -> None:
        """Adds messages; their numbers continue in order."""
        self.carried.append(self._messages(messages))

    def _schedules_of(self, operations: Sequence[Operation]) -> Table:
        if self.cuts:
            operations = [self._sprayed(op) for op in operations]
        asked: list[tuple[I64, I64, I64]] = []
        new: list[tuple[Hashable, int, int]] = []
        keys = []
        for op in operations:
            self._check(op)
            plan = self._plan(op.schedule)
            key = (plan, np.asarray(op.members, np.int64).tobytes(), op.flow)
            keys.append(key)
            if key not in self.ways:
                self.ways[key] = -1
                asked.append(self._pairs(op))
                new.append((key, plan, len(op.schedule)))
            self._sizes(plan, op.size_bytes)
        self._find_ways(asked, new)
        rows = []
        for op, key in zip(operations, keys, strict=True):
            left = op.schedule.members + len(op.schedule)
            size0 = self._sizes(key[0], op.size_bytes)
            place = (key[0], UNBORN, left, op.schedule.members, self.ways[key], size0)
            lags = (self._lags(op.lags), self._lags(op.factors), self._seats(op))
            rows.append((*place, op.launch_ns, op.wire_ppm, *lags, 0))
        return _table(CARRIED, rows)

    def _sizes(self, plan: int, size_bytes: int) -> int:
        """Index of the first of a schedule's transfer sizes."""
        if (plan, size_bytes) not in self.sizes:
            sizes = self.kept[plan].transfer_bytes(size_bytes)
            self.sizes[plan, size_bytes] = self.columns["sizes"].add(sizes)
        return self.sizes[plan, size_bytes]

    def _sprayed(self, op: Operation) -> Operation:
        """The operation in as many parts as there are routes between its members; unchanged if it has parts already."""
        s = op.schedule
        ways = self._equal_ways(op) if len(s) and s.chunks == 1 and s.fixed_bytes is None else 1
        if ways == 1:
            return op
        if (id(s), ways) not in self.split:
            self.held.append(s)
            self.split[id(s), ways] = replace(chunked(s, ways, ways), algorithm=f"{s.algorithm}, sprayed")
        parts: dict[str, Any] = {}
        for name in ("lags", "factors"):
            each = getattr(op, name)
            if each is not None and (id(each), ways) not in self.split:
                self.held.append(each)
                self.split[id(each), ways] = np.tile(each, ways)
            parts[name] = None if each is None else self.split[id(each), ways]
        return replace(op, schedule=self.split[id(s), ways], **parts)

    def _equal_ways(self, op: Operation) -> int:
        """Routes between the first member and the one with the most of them, among a few."""
        self._check(op)
        device = self.topology.device[np.asarray(op.members, np.int64)].astype(np.int64)
        goals = device[[1, len(device) // 2, -1]] if len(device) > 1 else device
        asked = (int(device[0]), *goals.tolist())
        if asked not in self.equal_ways:
            ways = equal_ways(self.routes, np.full(len(goals), device[0]), goals, _MOST_WAYS)
            self.equal_ways[asked] = int(ways.max(initial=1))
        return self.equal_ways[asked]

    # --- messages

    def _messages(self, messages: Messages) -> Table:
        """All messages at once; they share only routes."""
        m, table = messages, np.zeros(len(messages), CARRIED)
        if not len(m):
            return table
        self._check_messages(m)
        src, dst = (self.topology.device[rank].astype(np.int64) for rank in (m.src, m.dst))
        parts = m.parts
        if self.cuts and (parts == 1).any():
            parts = np.where(parts == 1, equal_ways(self.routes, src, dst, _MOST_WAYS), parts)
        table["base"], table["members"], table["left"] = UNBORN, 2, 2 + parts
        table["launch_ns"], table["wire_ppm"] = m.launch_ns, m.wire_ppm
        table["lag0"] = table["factor0"] = table["seat0"] = -1
        if self.is_seated:
            seats = self.columns["seats"].add(self.instance_of[np.stack((m.src, m.dst), axis=1)].ravel())
            table["seat0"] = seats + 2 * np.arange(len(m))
        for count in np.unique(parts).tolist():
            mine = np.flatnonzero(parts == count)
            plan = self._plan(self._message(count))
            table["plan"][mine] = plan
            table["path0"][mine] = self._message_ways(plan, src[mine], dst[mine], m.flow[mine])
            table["size0"][mine] = self._message_sizes(plan, m.size_bytes[mine])
        return table

    def _check_messages(self, m: Messages) -> None:
        ends = np.stack((m.src, m.dst))
        odd = ((ends < 0) | (ends >= len(self.topology))).any(axis=0) | (m.src == m.dst) | (m.size_bytes < 0)
        for i in np.flatnonzero(odd)[:1].tolist():
            self._check(Operation.message(int(m.src[i]), int(m.dst[i]), 0))
            message().transfer_bytes(int(m.size_bytes[i]))

    def _message(self, parts: int) -> Schedule:
        """A message, or one in this many parts that start together."""
        if parts not in self.in_parts:
            one = message()
            several = replace(chunked(one, parts, parts), algorithm="message over several paths") if parts > 1 else one
            self.in_parts[parts] = several
        return self.in_parts[parts]

    def _message_ways(self, plan: int, src: I64, dst: I64, flow: I64) -> I64:
        """Index of the first route of each message's parts; equal messages share routes."""
        first, which = distinct(src, dst, flow)
        chunk = self.kept[plan].chunk.astype(np.int64)
        parts = len(chunk)
        way = (flow[first, None] + chunk).ravel()
        at = self._add_paths(np.repeat(src[first], parts), np.repeat(dst[first], parts), way)
        lines = np.full((len(first), parts), -1)
        if self.plan_rows[plan][4]:
            path = self.columns["path_of"].parts[-1].reshape(-1, parts)
            order = np.argsort(path, axis=1, kind="stable")
            new = np.diff(np.take_along_axis(path, order, axis=1), axis=1, prepend=-1) != 0
            np.put_along_axis(lines, order, np.cumsum(new, axis=1) - 1, axis=1)
        self.columns["path_line"].add(lines.ravel())
        return at + which * parts

    def _message_sizes(self, plan: int, size_bytes: I64) -> I64:
        """Index of the first size of each message's parts."""
        if self.kept[plan].chunks == 1:
            return self.columns["sizes"].add(size_bytes) + np.arange(len(size_bytes))
        sizes, which = np.unique(size_bytes, return_inverse=True)
        return np.array([self._sizes(plan, size) for size in sizes.tolist()], np.int64)[which.reshape(-1)]

    # --- shared by operations

    def _lags(self, lags: I64 | None) -> int:
        if lags is None:
            return -1
        if id(lags) not in self.lags:
            self.lags[id(lags)] = self.columns["lags"].add(lags)
            self.kept_lags.append(lags)
        return self.lags[id(lags)]

    def _seats(self, op: Operation) -> int:
        """Seats of the members' ranks; -1 if their compute does not matter."""
        if not self.is_seated:
            return -1
        members = np.asarray(op.members, np.int64)
        key = members.tobytes()
        if key not in self.seats:
            self.seats[key] = self.columns["seats"].add(self.instance_of[members])
        return self.seats[key]

    def _check(self, op: Operation) -> None:
        members = np.asarray(op.members, np.int64)
        if len(members) != op.schedule.members:
            raise UsageError(f"{len(members)} ranks, but the schedule has {op.schedule.members} members")
        if len(members) and not 0 <= members.min() <= members.max() < len(self.topology):
            bad = members[(members < 0) | (members >= len(self.topology))][0]
            raise UsageError(f"rank {bad} is not on any of the {len(self.topology)} devices of {self.topology.name}")
        if len(np.unique(members)) != len(members):
            raise UsageError("a rank appears twice in a group")

    def _plan(self, schedule: Schedule) -> int:
        if id(schedule) in self.plans:
            return self.plans[id(schedule)]
        s, add = schedule, self.columns
        everyone = s.members + s.helpers
        join = s.src == s.dst
        deps = np.diff(s.dep_start)
        waits = deps + (s.src < s.members) + ((s.dst < s.members) & ~join)
        first = add["src"].add(s.src)
        for name, values in (("dst", s.dst), ("delay_ns", s.delay_ns), ("has_deps", deps > 0), ("put", s.put)):
            add[name].add(values)
        add["waits"].add(waits)
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
        row = (first, len(s), add["left"].add(count), everyone, self._most_lines(s))
        self.plans[id(schedule)] = len(self.plan_rows)
        self.plan_rows.append(row)
        self.kept.append(schedule)
        return len(self.plan_rows) - 1

    def _most_lines(self, s: Schedule) -> int:
        """Connections that may carry several transfers of the schedule, whatever the routes; 0: none does."""
        if (self.options.model != "flow" and not self.options.mixed) or not len(s):
            return 0
        pair = s.src.astype(np.int64) * (s.members + s.helpers) + s.dst
        each = pair * s.chunks + self._way(s.chunk.astype(np.int64))
        moves = s.src != s.dst
        return len(np.unique(each[moves])) if len(np.unique(pair[moves])) < moves.sum() else 0

    def _lines(self, plan: int, path: I64) -> I64:
        """The connection of each transfer: those with the same route share one."""
        if self.plan_rows[plan][4] == 0:
            return np.full(len(path), -1)
        s = self.kept[plan]
        moves = np.flatnonzero(s.src != s.dst)
        line = np.full(len(path), -1)
        line[moves] = np.unique(path[moves], return_inverse=True)[1]
        return line

    def _pairs(self, op: Operation) -> tuple[I64, I64, I64]:
        vertex = self.topology.device[np.asarray(op.members, np.int64)].astype(np.int64)
        if op.schedule.helpers:
            vertex = np.concatenate((vertex, self._helpers(op)))
        way = op.flow + op.schedule.chunk.astype(np.int64)
        return vertex[op.schedule.src], vertex[op.schedule.dst], way

    def _helpers(self, op: Operation) -> I64:
        """The switch of each helper: the one nearest to all members that exchange data with it."""
        s, members = op.schedule, np.asarray(op.members, np.int64)
        with_helper = np.concatenate((s.src[s.dst >= s.members], s.dst[s.src >= s.members]))
        helper = np.concatenate((s.dst[s.dst >= s.members], s.src[s.src >= s.members])) - s.members
        found = np.zeros(s.helpers, np.int64)
        for h in range(s.helpers):
            own = np.unique(with_helper[(helper == h) & (with_helper < s.members)])
            found[h] = common_switch(self.topology, members[own] if len(own) else members, self.routes)
        return found

    def _find_ways(self, asked: list[tuple[I64, I64, I64]], new: list[tuple[Hashable, int, int]]) -> None:
        if not any(len(part) for part, _, _ in asked):
            self.ways |= {key: 0 for key, _, _ in new}  # a single member needs no route
            return
        at = self._add_paths(*(np.concatenate(part) for part in zip(*asked, strict=True)))
        path, done = self.columns["path_of"].parts[-1], 0
        for key, plan, count in new:
            self.ways[key] = at + done
            self.columns["path_line"].add(self._lines(plan, path[done : done + count]))
            done += count

    def _way(self, flow: I64) -> I64:
        """Flows that may take another route: in a grid only those between opposite devices of a ring."""
        if not self.topology.dimensions:
            return flow
        return flow % 2 if any(d.split_ties for d in self.topology.dimensions) else np.zeros_like(flow)

    def _add_paths(self, src: I64, dst: I64, way: I64) -> int:
        """Adds routes of these pairs of vertices, equal ones once. Returns where in `path_of` they begin."""
        once, which = distinct(src, dst, self._way(way))
        if self.choices > 1:
            many = [np.repeat(v[once], self.choices) for v in (src, dst)]
            start, found = self.routes.paths(many[0], many[1], (way[once, None] + np.arange(self.choices)).ravel())
            if self.packets:
                start, found = _sorted_ways(start, found, self.choices)
        else:
            start, found = self.routes.paths(src[once], dst[once], way[once])
        self.most_hops = max(self.most_hops, int(np.diff(start).max()))
        first = self.columns["path_start"].add(self.columns["path_link"].add(found) + start)
        if self.choices > 1:
            return self.columns["path_of"].add(first + which * self.choices)
        return self.columns["path_of"].add(
            first + _first_alike(src[once] * len(self.topology.kind) + dst[once], start, found)[which]
        )

    # --- state

    def state(self, slots: int = FIRST_SLOTS) -> tuple[LinkState, FlowState | None]:
        """The initial state for the kernels. All places are free."""
        o, links, column = self.options, len(self.topology.src), {n: c.array() for n, c in self.columns.items()}
        plans = _table(PLAN, [(*row, -1) for row in self.plan_rows])
        slots = max(slots, int((plans["transfers"] + plans["members"] + plans["lines"]).max(initial=1)))
        carried, places = self._places()
        # Per us, so that a rate in whole bytes per us is exact.
        reduce = round(o.reduce_bytes_per_s / 1e6)
        numbers = [np.zeros(size, np.int64) for size in (2 * len(places) + 2, len(places) + 1, slots, slots)]
        state = LinkState(
            clock=np.zeros(1, LINKS_CLOCK),
            costs=LinkCosts(o.cut_through, o.endpoint_ns, reduce, round(MILLI * o.busy_factor)),
            place_of=np.zeros(0, np.int64),
            places=places,
            posted=numbers[0],
            done=numbers[1],
            carried=carried,
            schedules=self._schedules(plans),
            paths=Paths(
                column["path_of"], column["path_line"], column["path_start"], column["path_link"], self.choices
            ),
            amounts=Amounts(column["sizes"], column["lags"], column["seats"], self.instances, self.work),
            slots=np.zeros(slots, SLOT),
            events=empty_queue(slots),
            ready=numbers[2],
            order=numbers[3],
            links=self._links(),
            rates=Rates(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0)),
            visits=np.zeros(0, VISIT),
            packets=self._packets(slots, column["path_link"], column["path_start"]) if o.model == "packets" else None,
            detail=self._no_detail(len(carried), len(column["path_start"])) if o.mixed else None,
            outside=OutsideState(
                np.zeros(1, OUTSIDE_CLOCK),
                numbers[2].copy(),
                numbers[3].copy(),
                GivenTimes(*(np.zeros(0, np.int64) for _ in range(3))),
            )
            if o.model == "external"
            else None,
        )
        state.clock["next_ns"] = NEVER
        if o.model != "flow" and not o.mixed:
            return state, None
        return state, flow.make_flows(links, slots, self.most_hops, o.tolerance)

    def _no_detail(self, operations: int, paths: int) -> PacketDetail:
        none = np.zeros(0, np.int64)
        return PacketDetail(np.zeros(operations, np.uint8), np.zeros(paths, np.uint8), none, none)

    def _packets(self, slots: int, link: I64, way: I64) -> PacketState:
        return ports_of_links(self.topology, self.options.fabric, self.options.routing, link, way, slots)

    def _places(self) -> tuple[Table, Table]:
        """The carried operations, and a place for each of their members."""
        carried = np.concatenate((_table(CARRIED, []), *self.carried))
        members = carried["members"]
        carried["place0"] = np.cumsum(members) - members
        places = np.zeros(int(members.sum()), PLACE)
        places["operation"] = np.repeat(np.arange(len(carried)), members)
        places["node"] = places["done_ns"] = -1
        return carried, places

    def _schedules(self, plans: Table) -> Schedules:
        """One extra transfer and member terminate the last list."""
        of = self.columns
        transfers, members = np.zeros(of["src"].size + 1, TRANSFER), np.zeros(of["left"].size + 1, MEMBER)
        for name in ("src", "dst", "delay_ns", "has_deps", "put", "waits"):
            transfers[name][:-1] = of[name].array()
        transfers["succ_start"] = np.append(of["succ_start"].array(), of["succ"].size)
        members["transfers"][:-1] = of["left"].array()
        members["touch_start"] = np.append(of["touch_start"].array(), of["touch"].size)
        return Schedules(plans, transfers, of["succ"].array(), members, of["touch"].array())

    def _links(self) -> Table:
        links = np.zeros(len(self.topology.src), LINK)
        links["latency_ns"], links["bytes_per_ns"] = self.topology.latency_ns, self.topology.bytes_per_s / 1e9
        return links


def _is_message(op: Operation) -> bool:
    return op.schedule.algorithm == "message" and op.lags is None and op.factors is None


def _sorted_ways(start: I64, links: Any, choices: int) -> tuple[I64, Any]:
    """Each pair's routes in order of their links, so that those with the same first ones are adjacent; instead of one
    that leaves by another port than the first, the first."""
    length = np.diff(start)
    if not len(length) or not len(links):
        return start, links
    first = np.arange(len(length)) // choices * choices
    head = np.where(length > 0, links[np.minimum(start[:-1], len(links) - 1)], -1)
    which = np.where(head == head[first], np.arange(len(length)), first)
    rows = np.full((len(length), int(length.max())), -1, np.int64)
    column = np.arange(len(links)) - np.repeat(start[:-1], length)
    rows[np.repeat(np.arange(len(length)), length), column] = links
    rows = rows[which]
    rows = rows[np.lexsort((*rows.T[::-1], first))]
    return np.append(0, np.cumsum((rows >= 0).sum(axis=1))), rows[rows >= 0].astype(links.dtype)


def _first_alike(pair: I64, start: I64, links: Any) -> I64:
    """For each route, the first one between the same two ends over the same links. Equal pairs are adjacent."""
    again = np.flatnonzero(np.append(False, np.diff(pair) == 0))
    alike = np.arange(len(pair))
    if len(again):
        some = np.union1d(again, again - 1)
        length = np.diff(start)[some]
        rows = np.full((len(some), int(length.max()) + 1), -1, np.int64)
        rows[:, 0] = pair[some]
        column = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        rows[np.repeat(np.arange(len(some)), length), column + 1] = links[np.repeat(start[some], length) + column]
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        alike[some] = some[first[which.ravel()]]
    return alike


def _table(kind: np.dtype[np.void], rows: Sequence[tuple[int, ...]]) -> Table:
    return np.array(rows, kind).reshape(-1)


def grown(state: LinkState, flows: FlowState | None) -> tuple[LinkState, FlowState | None]:
    """A copy with twice the slots; or with twice the packets, if these are too few."""
    packets = state.packets
    if packets is not None and packets.clock[0]["crowded"]:
        state.clock["crowded"] = 0
        return state._replace(packets=with_more_packets(packets)), flows
    events, outside = state.events, state.outside
    item, key, turn = (flow.twice(array) for array in (events.item, events.key, events.turn))
    place = np.concatenate((events.place, np.full(len(events.place), -1)))
    state.clock["crowded"] = 0
    larger = state._replace(
        slots=flow.twice(state.slots),
        events=Queue(item, place, key, turn, events.size),
        ready=flow.twice(state.ready),
        order=flow.twice(state.order),
        packets=None if packets is None else with_more_flows(packets),
        outside=None
        if outside is None
        else outside._replace(slot=flow.twice(outside.slot), at_ns=flow.twice(outside.at_ns)),
    )
    return larger, None if flows is None else flow.grown(flows)
