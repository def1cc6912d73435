"""Jobs with placement: each runs with all that it requests or not at all, in the order of a policy.

At the same instant, jobs end before others arrive; then the queue is scanned once.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.world.clock import NEVER, Event, LoneEntity, run_alone
from etude.world.fleet.sharing.cluster import WHOLE, Cluster
from etude.world.fleet.sharing.jobs import Jobs, pairs_of
from etude.world.fleet.sharing.place import Free, Seat, sort_of
from etude.world.fleet.sharing.policies import QUEUES_S, JobView, SharingPolicy, las
from etude.world.fleet.sharing.supply import Supply, SupplyChange

UNKNOWN: Final = -1
DAY_NS: Final = 86_400 * 10**9


@dataclass(slots=True)
class Shared:
    """Results of jobs on a cluster."""

    jobs: Jobs
    cluster: Cluster
    start_ns: I64
    """First start; -1: never."""
    end_ns: I64
    waited_ns: I64
    """Time until the first start."""
    service_ns: NDArray[np.float64]
    """Device nanoseconds, without those of switches."""
    preemptions: I64
    switch_ns: NDArray[np.float64]
    """Device nanoseconds of stops and starts."""
    series: list[tuple[int, int, int, float]]
    """(time, running jobs, waiting jobs, devices in use)."""
    refused: list[int]
    redo_ns: NDArray[np.float64]
    """Device nanoseconds of work that was lost."""
    cost: NDArray[np.float64]
    """Dollars for the devices that each job held."""
    cold: I64
    """Number of cold starts of each job."""
    there_ns: float = 0.0
    """Available device nanoseconds, from the first arrival to the last end; 0: all devices, all the time."""
    idle_cost: float = 0.0
    """Dollars for idle devices that are paid for anyway."""
    stuck: int = 0
    """Jobs that never ended."""


def nothing_yet(cluster: Cluster, jobs: Jobs, refused: list[int]) -> Shared:
    """The result before the first event."""
    n = len(jobs)
    start, end, waited = (np.full(n, UNKNOWN, np.int64) for _ in range(3))
    service, switch, redo, cost = (np.zeros(n) for _ in range(4))
    stops, cold = np.zeros(n, np.int64), np.zeros(n, np.int64)
    return Shared(jobs, cluster, start, end, waited, service, stops, switch, [], refused, redo, cost, cold)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingTimes:
    """Times of starts and moves."""

    switch_ns: int = 0
    """Time to restart a job that was stopped."""
    start_ns: int = 0
    """Time of a cold start: no job of the tenant ran on one of its nodes within `keep_ns`."""
    keep_ns: int = 0
    migrate_ns: int = 0
    """Additional time if a stopped job continues on other nodes."""
    horizon_ns: int = 0
    """End of the simulation; 0: 100 days after the first arrival if nodes come and go without end, else no limit."""

    def end_ns(self, first_ns: int, supply: Supply) -> int:
        return self.horizon_ns or (first_ns + 100 * DAY_NS if supply.endless else NEVER)


@dataclass(slots=True)
class Gangs(LoneEntity):
    cluster: Cluster
    jobs: Jobs
    policy: SharingPolicy
    times: SharingTimes
    supply: Supply
    free: Free = field(init=False)
    left: I64 = field(init=False)
    since: I64 = field(init=False)
    """Time from which a running job does work: the end of its start-up."""
    round: I64 = field(init=False)
    """Version of a job, raised at each start and stop: ends of older versions are ignored."""
    seats: dict[int, list[Seat]] = field(default_factory=dict)
    sort: list[int] = field(init=False)
    """Class of each job: jobs of one class fit the same places."""
    waiting: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Waiting jobs by class, in order of their keys."""
    queued: int = 0
    running: list[tuple[float, int]] | None = None
    """Keys of running jobs, kept as long as nothing changes."""
    out: Shared = field(init=False)
    devices: list[float] = field(init=False)
    in_use: float = 0.0
    pace: list[dict[str, float]] = field(init=False)
    """Speed of each job by kind of device; empty: 1."""
    factor: NDArray[np.float64] = field(init=False)
    """Speed of each running job."""
    began: I64 = field(init=False)
    """Time at which a running job got its devices."""
    last: dict[int, frozenset[int]] = field(default_factory=dict)
    """Nodes that a job had before it was stopped."""
    warm: dict[tuple[int, str], int] = field(default_factory=dict)
    """(node, tenant) -> time until which the node is warm."""
    by_group: NDArray[np.float64] = field(init=False)
    """Dollars for the devices that jobs held, by group."""
    there: float = 0.0
    """Number of available devices."""
    since_ns: int = 0
    end_ns: int = NEVER

    def __post_init__(self) -> None:
        n = len(self.jobs)
        self.free = Free(self.cluster)
        self.left, self.since = self.jobs.work_ns.copy(), np.zeros(n, np.int64)
        self.round = np.zeros(n, np.int64)
        known: dict[tuple[object, ...], int] = {}
        self.sort = [known.setdefault(sort_of(self.jobs, job), len(known)) for job in range(n)]
        self.devices = self.jobs.devices.tolist()
        own = zip(self.jobs.rates, self.jobs.name, strict=True)
        self.pace = [pairs_of(text, f"job `{name}`: rates") for text, name in own]
        self.factor, self.began, self.by_group = np.ones(n), np.zeros(n, np.int64), np.zeros(len(self.cluster.groups))
        for node in self.supply.away:
            self.free.leave(node)
        self.there = float(self.cluster.devices) - float(self.cluster.gpus[self.supply.away].sum())
        self.since_ns = int(self.jobs.arrival_ns.min())
        self.out = nothing_yet(self.cluster, self.jobs, [])

    def view(self, job: int, now: int) -> JobView:
        jobs, done = self.jobs, max(now - int(self.since[job]), 0) if job in self.seats else 0
        devices = self.devices[job]
        return JobView(
            jobs.name[job], jobs.arrival_ns[job] / 1e9, devices, jobs.work_ns[job] / 1e9,
            (int(self.left[job]) - done * self.factor[job]) / 1e9, (self.out.service_ns[job] + done * devices) / 1e9,
            float(jobs.weight[job]), float(jobs.priority[job]), jobs.deadline_ns[job] / 1e9, jobs.tenant[job],
        )  # fmt: skip

    def key(self, job: int, now: int) -> float:
        try:
            return float(self.policy.key(self.view(job, now), now / 1e9))
        except Exception as problem:
            raise UsageError(
                f"the policy failed: {type(problem).__name__}: {problem}", where=self.policy.name
            ) from None

    # -- on the clock --------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        """When a job arrives or ends, or a node comes or goes that somebody may wait for."""
        own, turn = self.later.next_ns(), self.supply.next_ns
        return own if turn is None or (own == NEVER and not self.queued) else min(own, turn)

    def advance(self, until_ns: int) -> Iterable[Event]:
        while (now := self._next()) <= min(until_ns, self.end_ns, NEVER - 1):
            self._instant(now)
        return ()

    def on(self, event: Event) -> Iterable[Event]:
        """A node comes or goes."""
        self._turn(SupplyChange(event.time_ns, *event.about))
        self._arrange(event.time_ns)
        return ()

    def start(self, refused: list[int]) -> None:
        """All jobs but those that fit nowhere will arrive."""
        self.out.refused = refused
        gone = set(refused)
        for job, at in enumerate(self.jobs.arrival_ns.tolist()):
            if job not in gone:
                self._note(at, "arrive", job)
        self.end_ns = self.times.end_ns(self.since_ns, self.supply)

    def _note(self, at: int, kind: str, job: int) -> None:
        """At an instant jobs end first, then others arrive, each in the order of the file."""
        rank = ("end", "arrive", "again").index(kind) * len(self.jobs) + job
        self.later.note(at, kind, (job, int(self.round[job])), rank=rank)

    def _instant(self, now: int) -> None:
        """Jobs that end now, then those that arrive, then nodes; then the queue is scanned once."""
        while self.later.next_ns() == now:
            kind, (job, number) = self.later.pop()
            if kind == "arrive":
                self._queue(job, now)
            elif kind == "end" and number == self.round[job]:
                self._stop(job, now)
                self.left[job] = 0
                self.out.end_ns[job] = now
        while self.supply.next_ns == now:
            self._turn(self.supply.pop())
        self._arrange(now)

    def _arrange(self, now: int) -> None:
        self._schedule(now)
        self.out.series.append((now, len(self.seats), self.queued, self.in_use))

    def _turn(self, change: SupplyChange) -> None:
        """Handles a node that is reclaimed or comes back; jobs on a reclaimed node stop."""
        now, node, there = change
        self._count(now)
        self.there += float(self.cluster.gpus[node]) * (1 if there else -1)
        if there:
            self.free.come(node)
            return
        for job in [job for job, seats in self.seats.items() if any(seat.node == node for seat in seats)]:
            self._stop(job, now, lost=True)
            self.out.preemptions[job] += 1
            self._queue(job, now)
        self.free.leave(node)
        for key in [key for key in self.warm if key[0] == node]:
            del self.warm[key]

    def _count(self, now: int) -> None:
        """Counts available device time until now."""
        self.out.there_ns += max(now - self.since_ns, 0) * self.there
        self.since_ns = max(now, self.since_ns)

    def finish(self, now: int) -> Shared:
        """The end: jobs that run are stopped, and their time is counted."""
        out = self.out
        for job in list(self.seats):
            self._stop(job, now)
        out.stuck = int((out.end_ns == UNKNOWN).sum()) - len(out.refused)
        self._count(now)
        for k, group in enumerate(self.cluster.groups):
            if not group.spot:
                first = int(self.jobs.arrival_ns.min())
                hourly = (self.cluster.gpus * self.cluster.price)[self.cluster.group == k]
                paid = float(hourly @ self.cluster.present_ns(k, first, now)) / 3.6e12
                out.idle_cost += paid - float(self.by_group[k])
        return out

    def _queue(self, job: int, now: int) -> tuple[float, int]:
        entry = self.key(job, now), job
        insort(self.waiting.setdefault(self.sort[job], []), entry)
        self.queued += 1
        return entry

    def _schedule(self, now: int) -> None:
        """Starts the best job of each class, in order, until nothing more fits: if the first of a class does not fit,
        no other of it does."""
        self.running = None
        if not self.policy.steady:
            self.waiting = {
                sort: sorted((self.key(job, now), job) for _, job in entries) for sort, entries in self.waiting.items()
            }
        heads = [entries[0] for entries in self.waiting.values()]
        heapq.heapify(heads)
        while heads:
            key, job = heapq.heappop(heads)
            entries = self.waiting.get(self.sort[job], [])
            if not entries or entries[0] != (key, job):
                continue  # another job of its class came before it
            seats, stopped = self.free.seats(self.jobs, job), list[int]()
            if not seats and self.policy.preempts:
                seats, stopped = self._make_room(key, job, now)
            if not seats:
                if not self.policy.skips:
                    break
                continue
            entries.pop(0)
            self.queued -= 1
            if not entries:
                del self.waiting[self.sort[job]]
            self._start(job, seats, now)
            again = {self.sort[job]} | {self.sort[other] for other in stopped}
            for other in stopped:
                self._queue(other, now)
            for sort in again & self.waiting.keys():
                heapq.heappush(heads, self.waiting[sort][0])

    def _make_room(self, key: float, job: int, now: int) -> tuple[list[Seat], list[int]]:
        """Stops worse jobs, the worst first, until the job fits, and restores those that need not stop. Returns the
        places and the stopped jobs; nothing is stopped if the job cannot fit."""
        if self.running is None:
            self.running = sorted(((self.key(other, now), other) for other in self.seats), reverse=True)
        worse = []
        for its, other in self.running:
            if its <= key:
                break
            worse.append(other)
        need = self.devices[job] - float(self.free.sum.sum()) / WHOLE
        if not worse or sum(self.devices[other] for other in worse) < need:
            return [], []
        stopped: list[int] = []
        seats: list[Seat] = []
        for other in worse:
            self.free.give_back(self.seats[other])
            stopped.append(other)
            need -= self.devices[other]
            if need <= 0 and (seats := self.free.seats(self.jobs, job)):
                break
        for other in stopped if not seats else list(reversed(stopped[:-1])):
            self.free.take(self.seats[other])  # it need not stop if the job fits alongside it
            if seats:
                if again := self.free.seats(self.jobs, job):
                    seats, stopped = again, [one for one in stopped if one != other]
                else:
                    self.free.give_back(self.seats[other])
        if not seats:
            return [], []
        for other in stopped:
            self.free.take(self.seats[other])
            self._stop(other, now)
            self.out.preemptions[other] += 1
        return self.free.seats(self.jobs, job), stopped

    def _start(self, job: int, seats: list[Seat], now: int) -> None:
        self.free.take(seats)
        self.running = None
        self.seats[job] = seats
        self.in_use += self.devices[job]
        again = self.out.start_ns[job] != UNKNOWN
        if not again:
            self.out.start_ns[job] = now
            self.out.waited_ns[job] = now - self.jobs.arrival_ns[job]
        self.began[job], self.factor[job] = now, self._pace(job, seats)
        self.since[job] = now + self._set_up(job, seats, now, again=again)
        self.round[job] += 1
        ends = int(self.since[job] + np.ceil(self.left[job] / self.factor[job]))
        self._note(ends, "end", job)
        if self.policy.key is las:
            self._next_queue(job, ends)

    def _pace(self, job: int, seats: list[Seat]) -> float:
        """Speed of a gang: that of the slowest of its devices."""
        of, kinds = self.pace[job], self.cluster.kinds
        return min((of.get(kinds[self.cluster.kind[seat.node]], 1.0) for seat in seats), default=1.0) if of else 1.0

    def _set_up(self, job: int, seats: list[Seat], now: int, *, again: bool) -> int:
        times, nodes = self.times, frozenset(seat.node for seat in seats)
        found = times.switch_ns if again else 0
        if again and times.migrate_ns and nodes != self.last.get(job):
            found += times.migrate_ns
        if times.start_ns and not any(now <= self.warm.get((node, self.jobs.tenant[job]), -1) for node in nodes):
            self.out.cold[job] += 1
            found += times.start_ns
        if times.keep_ns:
            for node in nodes:  # warm as long as the job is there
                self.warm[node, self.jobs.tenant[job]] = NEVER
        return found

    def _next_queue(self, job: int, ends: int) -> None:
        """Schedules again when a job reaches a worse queue, because it may have to make room."""
        devices = self.devices[job]
        for limit in QUEUES_S:
            more = limit * 1e9 - self.out.service_ns[job]
            at = int(self.since[job] + np.ceil(more / devices)) if devices and more > 0 else 0
            if self.since[job] < at < ends:
                self._note(at, "again", job)

    def _stop(self, job: int, now: int, *, lost: bool = False) -> None:
        self.running = None
        seats = self.seats.pop(job)
        self.free.give_back(seats)
        devices = self.devices[job]
        self.in_use -= devices
        done = max(now - int(self.since[job]), 0)
        start_up = min(int(self.since[job]), now) - int(self.began[job])
        work = done if self.factor[job] == 1.0 else min(int(done * self.factor[job]), int(self.left[job]))
        save, before = int(self.jobs.save_ns[job]), int(self.jobs.work_ns[job] - self.left[job])
        redo = (before + work) % save if lost and save else 0
        redo = min(redo, before + work)
        self.left[job] += redo - work
        part = redo / self.factor[job]
        self.out.service_ns[job] += (done - part) * devices
        self.out.redo_ns[job] += part * devices
        self.out.switch_ns[job] += start_up * devices
        self.round[job] += 1
        self.last[job] = frozenset(seat.node for seat in seats)
        for seat in seats:
            share = len(seat.devices) * seat.milli / WHOLE
            k = int(self.cluster.group[seat.node])
            paid = share * (
                self.supply.prices[k].paid(int(self.began[job]), now)
                if self.cluster.groups[k].spot
                else float(self.cluster.price[seat.node]) * (now - int(self.began[job])) / 3.6e12
            )
            self.out.cost[job] += paid
            self.by_group[k] += paid
        self._cool(job, now)

    def _cool(self, job: int, now: int) -> None:
        """Keeps a node warm for the tenant for `keep_ns` after its last job there."""
        if not self.times.keep_ns:
            return
        tenant = self.jobs.tenant[job]
        busy = {seat.node for other, seats in self.seats.items() if self.jobs.tenant[other] == tenant for seat in seats}
        for node in self.last[job] - busy:
            self.warm[node, tenant] = now + self.times.keep_ns


def run_gangs(
    cluster: Cluster, jobs: Jobs, policy: SharingPolicy, refused: list[int], *, times: SharingTimes, seed: int = 0
) -> Shared:
    gangs = Gangs(cluster, jobs, policy, times, Supply(cluster, seed))
    gangs.start(refused)
    run_alone(gangs, min(gangs.end_ns + 1, NEVER))
    return gangs.finish(gangs.out.series[-1][0] if gangs.out.series else 0)
