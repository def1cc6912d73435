"""The slow twin of the simulator: rounds over dicts, written from the definition in docs/simulate.md."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

import naive
from etude.cost.collectives import collective_time_ns, p2p_time_ns
from etude.machine.system import System
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind, LaneKind
from etude.run.simulate.options import Options, Policy

Node = tuple[int, int]
"""Rank and row."""


@dataclass
class Op:
    """A collective or a message: who has to come, how long it takes."""

    members: list[Node]
    comers: int
    ns: int
    sender: Node | None = None
    come: list[Node] = field(default_factory=list)
    begin: int | None = None
    over: bool = False


@dataclass
class Work:
    """Something that takes time, some of it slowed down."""

    left: Fraction
    factor: Fraction
    since: int
    slow: bool = False

    def finish(self) -> int:
        return self.since + ceil(self.left * (self.factor if self.slow else 1))

    def set_slow(self, now: int, slow: bool) -> None:
        self.left -= Fraction(now - self.since) / (self.factor if self.slow else 1)
        self.since, self.slow = now, slow


class Naive:
    def __init__(self, job: Job, system: System, options: Options) -> None:
        self.job, self.system, self.options = job, system, options
        self.nodes = [(r, row) for r in job.ranks.tolist() for row in range(len(job.trace(r)))]
        self.traces = {r: job.trace(r) for r in job.ranks.tolist()}
        self.deps: dict[Node, list[Node]] = {}
        for r, trace in self.traces.items():
            for row, deps in enumerate(naive.dependencies(trace, "both")):
                self.deps[r, row] = [(r, d) for d in deps if d >= 0]
        self.op_of: dict[Node, Op] = {}
        self._collectives()
        self._messages()
        self.start: dict[Node, int] = {}
        self.end: dict[Node, int] = {}
        self.ready_at: dict[Node, int] = {}
        self.running: dict[Node, Work] = {}
        self.active: dict[int, tuple[Op, Work]] = {}
        self.busy: dict[tuple[int, int], Node] = {}
        self.next_in_order: dict[tuple[int, int], int] = defaultdict(int)
        self.lane_nodes: dict[tuple[int, int], list[Node]] = defaultdict(list)
        for n in self.nodes:
            if self.lane(n) >= 0:
                self.lane_nodes[n[0], self.lane(n)].append(n)
        for order in self.lane_nodes.values():
            order.sort(key=self.order_key)

    def _collectives(self) -> None:
        job = self.job
        for group, by_rank in naive.collectives(job).items():
            known = list(range(job.world_size)) if group == -1 else job.groups.ranks(group)
            members = sorted(by_rank) if known is None else sorted(set(map(int, known)))
            for k in range(max(map(len, by_rank.values()))):
                nodes = [(r, rows[k]) for r, rows in by_rank.items() if k < len(rows)]
                kind = max(Collective(int(self.traces[r].collective[row])) for r, row in nodes)
                size = max(max(int(self.traces[r].in_bytes[row]), 0) for r, row in nodes)
                ns = int(collective_time_ns(self.system, kind, [size], members)[0])
                op = Op(nodes, sum(m in self.traces for m in members), ns)
                self.op_of |= dict.fromkeys(nodes, op)

    def _messages(self) -> None:
        pairs, lone_sends, lone_recvs = naive.messages(self.job)
        for send, recv in pairs:
            self._message([send, recv], send)
        for send in lone_sends:
            self._message([send], send)
        for recv in lone_recvs:
            self._message([recv], None)

    def _message(self, nodes: list[Node], send: Node | None) -> None:
        size = max(max(int(self.traces[r].in_bytes[row]), 0) for r, row in nodes)
        ns = 0
        if send is not None:
            dst = int(self.job.peer_slots(send[0])[self.traces[send[0]].dst[send[1]]])
            ns = int(p2p_time_ns(self.system, [send[0]], [dst], [size])[0])
        eager = self.options.eager_bytes is None or size <= self.options.eager_bytes
        self.op_of |= dict.fromkeys(nodes, Op(nodes, 2, ns, send if eager else None))

    def lane(self, n: Node) -> int:
        trace = self.traces[n[0]]
        lane = int(trace.lane[n[1]])
        loose = self.options.concurrent_network and lane >= 0 and trace.lane_kind[lane] == LaneKind.NETWORK
        return -1 if trace.kind[n[1]] == Kind.METADATA or loose else lane

    def order_key(self, n: Node) -> tuple[int, int]:
        if self.options.policy in (Policy.RECORDED, Policy.HINT):
            if self.job.timing is None:
                return 0, n[1]
            start = int(self.job.timing.block(self.job.index(n[0]))[0][n[1]])
            return (2**63 if start == UNKNOWN else start), n[1]
        priority = int(self.traces[n[0]].priority[n[1]])
        return (0 if priority == UNKNOWN else priority), n[1]

    def cost(self, n: Node) -> int:
        known = int(self.traces[n[0]].duration_ns[n[1]])
        if self.traces[n[0]].kind[n[1]] != Kind.COMP or known == UNKNOWN:
            return 0
        return round(known * self.options.slow_ranks.get(n[0], 1.0))

    def computes(self, n: Node) -> bool:
        trace = self.traces[n[0]]
        comp = trace.kind == Kind.COMP
        on_device = trace.cpu != 1
        return bool(comp[n[1]] and (on_device[n[1]] or not (comp & on_device).any()))

    # -- rounds ----------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """True if all nodes ended."""
        now = 0
        while True:
            self.complete(now)
            self.issue(now)
            self.share(now)
            times = [w.finish() for w in self.running.values()] + [w.finish() for _, w in self.active.values()]
            if not times:
                return len(self.end) == len(self.nodes)
            now = min(times)

    def complete(self, now: int) -> None:
        for n, work in list(self.running.items()):
            if work.finish() == now:
                del self.running[n]
                self.finish(n, now)
        for key, (op, work) in list(self.active.items()):
            if work.finish() == now:
                del self.active[key]
                op.over = True
                for n in op.come:
                    if self.lane(n) < 0:
                        assert op.begin is not None
                        self.start[n] = max(self.start[n], op.begin)
                    self.finish(n, now)

    def finish(self, n: Node, now: int) -> None:
        self.end[n] = now
        self.busy.pop((n[0], self.lane(n)), None)

    def issue(self, now: int) -> None:
        ready = [n for n in self.nodes if n not in self.start and all(d in self.end for d in self.deps[n])]
        for n in ready:
            self.ready_at.setdefault(n, now)
        chosen = [n for n in ready if self.lane(n) < 0]
        for lane, nodes in self.lane_nodes.items():
            if lane in self.busy:
                continue
            able = [n for n in nodes if n in self.ready_at and n not in self.start]
            if self.options.policy == Policy.RECORDED:
                following = nodes[self.next_in_order[lane] : self.next_in_order[lane] + 1]
                able = [n for n in following if n in able]
            elif self.options.policy == Policy.READY:
                able.sort(key=lambda n: (self.ready_at[n], *self.order_key(n)))
            if able:
                chosen.append(able[0])
                self.busy[lane] = able[0]
                self.next_in_order[lane] += 1
        for n in chosen:
            self.begin(n, now)

    def begin(self, n: Node, now: int) -> None:
        self.start[n] = now
        op = self.op_of.get(n)
        if op is None:
            self.running[n] = Work(Fraction(self.cost(n)), self.factor(self.options.overlap.compute), now)
        elif op.over:
            self.running[n] = Work(Fraction(0), Fraction(1), now)
        else:
            op.come.append(n)
            if op.begin is None and (len(op.come) == op.comers or n == op.sender):
                op.begin = now
                work = Work(Fraction(op.ns), self.factor(self.options.overlap.communication), now)
                self.active[id(op)] = (op, work)

    @staticmethod
    def factor(value: float) -> Fraction:
        return Fraction(round(value * 1000), 1000)

    def share(self, now: int) -> None:
        computing = {n[0] for n in self.running if self.computes(n) and self.cost(n) > 0}
        sending = {n[0] for op, _ in self.active.values() if op.ns > 0 for n in op.come}
        for n, work in self.running.items():
            if self.computes(n) and n not in self.op_of:
                work.set_slow(now, n[0] in sending)
        for op, work in self.active.values():
            work.set_slow(now, any(n[0] in computing for n in op.come))
