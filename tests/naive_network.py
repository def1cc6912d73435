"""Slow twins of the network kernels: the definition of `links` and `flow`, in plain Python."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.cost.schedule import Schedule
from etude.machine.routes import Routes, common_switch
from etude.machine.topology import Topology
from etude.run.simulate.networks import Operation


def max_min_rates(paths: Sequence[Sequence[int]], rate: Sequence[float]) -> list[float]:
    """Progressive filling: raise all rates together; whoever meets a full link stays where he is."""
    speed = [math.inf] * len(paths)
    free, moving = dict(enumerate(rate)), {i for i, p in enumerate(paths) if p}
    while moving:
        users: dict[int, list[int]] = {}
        for i in moving:
            for link in paths[i]:
                users.setdefault(link, []).append(i)
        share, link = min((free[k] / len(v), k) for k, v in users.items())
        for i in users[link]:
            speed[i] = share
            moving.discard(i)
            for k in paths[i]:
                free[k] = max(free[k] - share, 0.0)
    return speed


class Naive:
    """Operations, what waits for what, and time; `move` and the rest are the models'."""

    def __init__(self, topology: Topology, operations: Sequence[Operation], options: dict[str, Any]) -> None:
        self.t, self.ops, self.options = topology, operations, options
        self.endpoint = options.get("endpoint_ns", 0)
        self.reduce = options.get("reduce_bytes_per_s", 0.0) / 1e9
        self.events: list[tuple[int, int, str, tuple[int, int]]] = []
        self.seq = 0
        self.ready: list[tuple[int, int]] = []
        self.waits, self.left, self.path, self.size, self.after = {}, {}, {}, {}, {}
        self.finish = [np.full(o.schedule.members, -1, np.int64) for o in operations]
        for i, o in enumerate(operations):
            self._register(i, o, o.schedule)

    def _register(self, i: int, o: Operation, s: Schedule) -> None:
        vertex = [int(self.t.device[m]) for m in o.members]
        if s.helpers:
            vertex += [common_switch(self.t, np.asarray(o.members))] * s.helpers
        src, dst = np.array(vertex)[s.src], np.array(vertex)[s.dst]
        start, links = Routes(self.t).paths(src, dst, o.flow + s.chunk.astype(np.int64))
        size = s.transfer_bytes(o.size_bytes)
        for t in range(len(s)):
            ends = {int(m) for m in (s.src[t], s.dst[t]) if m < s.members}
            deps = s.dep[s.dep_start[t] : s.dep_start[t + 1]].tolist()
            self.waits[i, t] = len(deps) + len(ends)
            for d in deps:
                self.after.setdefault((i, d), []).append((i, t))
            for m in ends:
                self.left[i, m] = self.left.get((i, m), 0) + 1
            self.path[i, t] = links[start[t] : start[t + 1]].tolist()
            self.size[i, t] = int(size[t])

    def at(self, time: int, what: str, who: tuple[int, int]) -> None:
        heapq.heappush(self.events, (time, self.seq, what, who))
        self.seq += 1

    def less(self, who: tuple[int, int]) -> None:
        self.waits[who] -= 1
        if self.waits[who] == 0:
            self.ready.append(who)

    def join(self, i: int, m: int, now: int) -> None:
        s = self.ops[i].schedule
        if (i, m) not in self.left:
            self.finish[i][m] = now
        for t in range(len(s)):
            if m in (s.src[t], s.dst[t]):
                self.less((i, t))

    def ended(self, who: tuple[int, int], now: int) -> None:
        i, t = who
        s = self.ops[i].schedule
        for other in self.after.get(who, []):
            self.less(other)
        for m in {int(s.src[t]), int(s.dst[t])}:
            if m < s.members:
                self.left[i, m] -= 1
                if self.left[i, m] == 0:
                    self.finish[i][m] = now

    def start_all(self, now: int) -> None:
        while self.ready:
            some, self.ready = sorted(self.ready), []
            for who in some:
                s = self.ops[who[0]].schedule
                if s.src[who[1]] == s.dst[who[1]]:
                    if s.delay_ns[who[1]]:
                        self.at(now + int(s.delay_ns[who[1]]), "end", who)
                    else:
                        self.ended(who, now)
                elif self.endpoint and s.dep_start[who[1]] == s.dep_start[who[1] + 1]:
                    self.at(now + self.endpoint, "start", who)
                else:
                    self.start(who, now)

    def landed(self, who: tuple[int, int], now: int) -> None:
        extra = self.endpoint
        if self.ops[who[0]].schedule.put[who[1]] and self.reduce:
            extra += 3 * int(self.size[who] / self.reduce)
        if extra:
            self.at(now + extra, "end", who)
        else:
            self.ended(who, now)

    def run(self, arrivals: Sequence[Any]) -> list[np.ndarray]:
        joins = sorted(
            (int(np.broadcast_to(a, o.schedule.members)[m]), i, m)
            for i, (o, a) in enumerate(zip(self.ops, arrivals, strict=True))
            for m in range(o.schedule.members)
        )
        while True:
            times = [self.events[0][0]] if self.events else []
            times += [joins[0][0]] if joins else []
            if (change := self.next_change()) is not None:
                times.append(change)
            if not times:
                return self.finish
            self.instant(min(times), joins)

    def instant(self, now: int, joins: list[tuple[int, int, int]]) -> None:
        self.elapse(now)
        while True:
            while self.events and self.events[0][0] <= now:
                _, _, what, who = heapq.heappop(self.events)
                {"start": self.start, "hop": self.hop, "land": self.landed, "end": self.ended}[what](who, now)
            if not self.ready:
                break
            self.start_all(now)
        while joins and joins[0][0] == now:
            _, i, m = joins.pop(0)
            self.join(i, m, now)
        self.start_all(now)
        self.settle()

    def next_change(self) -> int | None:
        return None

    def elapse(self, now: int) -> None: ...

    def settle(self) -> None: ...

    def start(self, who: tuple[int, int], now: int) -> None:
        raise NotImplementedError

    def hop(self, who: tuple[int, int], now: int) -> None:
        raise NotImplementedError


class NaiveLinks(Naive):
    def start(self, who: tuple[int, int], now: int) -> None:
        if not hasattr(self, "free"):
            self.free, self.state = [0] * len(self.t.src), {}
        self.state[who] = (0, 0)
        self.hop(who, now)

    def hop(self, who: tuple[int, int], now: int) -> None:
        at, tail = self.state[who]
        if at == len(self.path[who]):
            self.at(max(now, tail), "land", who)
            return
        link = self.path[who][at]
        move = self.size[who] / (self.t.bytes_per_s[link] / 1e9)
        latency = int(self.t.latency_ns[link])
        begin = max(now, self.free[link])
        if self.options.get("cut_through", True):
            self.free[link] = begin + int(move)
            self.state[who] = (at + 1, max(begin + int(move), tail) + latency)
            self.at(begin + latency, "hop", who)
        else:
            self.free[link] = begin + int(move)
            self.state[who] = (at + 1, 0)
            self.at(begin + int(latency + move), "hop", who)


class NaiveFlow(Naive):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.flows: dict[tuple[int, int], list[float]] = {}
        self.lines: dict[tuple[int, int, int, tuple[int, ...]], list[tuple[int, int]]] = {}
        self.now = 0
        self.peak = np.zeros(len(self.t.src))

    def start(self, who: tuple[int, int], now: int) -> None:
        if not (self.size[who] and self.path[who]):
            self.at(now + self.lag(who), "land", who)
            return
        waiting = self.lines.setdefault(self.line(who), [])
        waiting.append(who)
        if len(waiting) == 1:
            self.flows[who] = [float(self.size[who]), 0.0]

    def line(self, who: tuple[int, int]) -> tuple[int, int, int, tuple[int, ...]]:
        """The connection: what one operation sends from one member to another over one way goes in order."""
        s = self.ops[who[0]].schedule
        return who[0], int(s.src[who[1]]), int(s.dst[who[1]]), tuple(self.path[who])

    def lag(self, who: tuple[int, int]) -> int:
        return int(sum(self.t.latency_ns[k] for k in self.path[who]))

    def next_change(self) -> int | None:
        ends = [self.now + max(math.ceil(rest / speed - 1e-6), 0) for rest, speed in self.flows.values()]
        return min(ends, default=None)

    def elapse(self, now: int) -> None:
        for who, flow in list(self.flows.items()):
            ends = self.now + max(math.ceil(flow[0] / flow[1] - 1e-6), 0)
            flow[0] = max(flow[0] - flow[1] * (now - self.now), 0.0)
            if ends <= now:
                del self.flows[who]
                self.at(now + self.lag(who), "land", who)
                waiting = self.lines[self.line(who)]
                del waiting[0]
                if waiting:
                    self.flows[waiting[0]] = [float(self.size[waiting[0]]), 0.0]
        self.now = now

    def settle(self) -> None:
        who = list(self.flows)
        speeds = max_min_rates([self.path[w] for w in who], (self.t.bytes_per_s / 1e9).tolist())
        load = np.zeros(len(self.t.src))
        for w, speed in zip(who, speeds, strict=True):
            self.flows[w][1] = speed
            load[self.path[w]] += speed
        self.peak = np.maximum(self.peak, load)
