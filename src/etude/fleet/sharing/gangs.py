"""Jobs on places: each runs with all that it asks for or not at all, in the order of a policy.

What ends at an instant ends before what arrives at it; then the queue is gone through once.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.fleet.sharing.cluster import WHOLE, Cluster
from etude.fleet.sharing.jobs import Jobs
from etude.fleet.sharing.place import Free, Seat, sort_of
from etude.fleet.sharing.policies import QUEUES_S, JobView, Policy, las

I64 = NDArray[np.int64]
END, ARRIVE, AGAIN = range(3)
UNKNOWN: Final = -1


@dataclass(slots=True)
class Shared:
    """What became of jobs."""

    jobs: Jobs
    cluster: Cluster
    start_ns: I64
    """The first time; -1: never."""
    end_ns: I64
    waited_ns: I64
    """Until the first start."""
    service_ns: NDArray[np.float64]
    """Device nanoseconds, those of switches left out."""
    preemptions: I64
    switch_ns: NDArray[np.float64]
    """Device nanoseconds of stops and starts."""
    series: list[tuple[int, int, int, float]]
    """Time, jobs that run, jobs that wait, devices in use."""
    refused: list[int]


@dataclass(slots=True)
class Gangs:
    cluster: Cluster
    jobs: Jobs
    policy: Policy
    switch_ns: int
    free: Free = field(init=False)
    left: I64 = field(init=False)
    since: I64 = field(init=False)
    """When the job that runs began to do work: the end of its start-up."""
    round: I64 = field(init=False)
    """How often a job was started: ends of earlier starts are void."""
    seats: dict[int, list[Seat]] = field(default_factory=dict)
    sort: list[int] = field(init=False)
    """Jobs of one sort fit where the others do."""
    waiting: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """By sort, in order of their keys."""
    queued: int = 0
    running: list[tuple[float, int]] | None = None
    """Keys of jobs that run, as long as nothing changed."""
    events: list[tuple[int, int, int, int]] = field(default_factory=list)
    out: Shared = field(init=False)
    devices: list[float] = field(init=False)
    in_use: float = 0.0

    def __post_init__(self) -> None:
        n = len(self.jobs)
        self.free = Free(self.cluster)
        self.left, self.since = self.jobs.work_ns.copy(), np.zeros(n, np.int64)
        self.round = np.zeros(n, np.int64)
        known: dict[tuple[object, ...], int] = {}
        self.sort = [known.setdefault(sort_of(self.jobs, job), len(known)) for job in range(n)]
        self.devices = self.jobs.devices.tolist()
        self.out = Shared(
            self.jobs, self.cluster, np.full(n, UNKNOWN, np.int64), np.full(n, UNKNOWN, np.int64),
            np.full(n, UNKNOWN, np.int64), np.zeros(n), np.zeros(n, np.int64), np.zeros(n), [], [],
        )  # fmt: skip

    def view(self, job: int, now: int) -> JobView:
        jobs, done = self.jobs, max(now - int(self.since[job]), 0) if job in self.seats else 0
        devices = self.devices[job]
        return JobView(
            jobs.name[job], jobs.arrival_ns[job] / 1e9, devices, jobs.work_ns[job] / 1e9,
            (int(self.left[job]) - done) / 1e9, (self.out.service_ns[job] + done * devices) / 1e9,
            float(jobs.weight[job]), float(jobs.priority[job]), jobs.deadline_ns[job] / 1e9, jobs.tenant[job],
        )  # fmt: skip

    def key(self, job: int, now: int) -> float:
        try:
            return float(self.policy.key(self.view(job, now), now / 1e9))
        except Exception as problem:
            raise UsageError(
                f"the policy failed: {type(problem).__name__}: {problem}", where=self.policy.name
            ) from None

    def run(self, refused: list[int]) -> Shared:
        self.out.refused = refused
        gone = set(refused)
        self.events = [(int(t), ARRIVE, k, 0) for k, t in enumerate(self.jobs.arrival_ns) if k not in gone]
        heapq.heapify(self.events)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, what, job, number = heapq.heappop(self.events)
                if what == ARRIVE:
                    self._queue(job, now)
                elif what == END and number == self.round[job]:
                    self._stop(job, now)
                    self.left[job] = 0
                    self.out.end_ns[job] = now
            self._schedule(now)
            self.out.series.append((now, len(self.seats), self.queued, self.in_use))
        return self.out

    def _queue(self, job: int, now: int) -> tuple[float, int]:
        entry = self.key(job, now), job
        insort(self.waiting.setdefault(self.sort[job], []), entry)
        self.queued += 1
        return entry

    def _schedule(self, now: int) -> None:
        """The best of each sort, in order, until nothing more fits: where the first does not, no other of its sort
        does."""
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
                continue  # another of its sort came before it
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
        """The worst of the jobs that are worse stop, one by one, until the job fits; none if it never does."""
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
            self.free.take(self.seats[other])  # they need not have stopped, if the job fits beside them
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
        self.since[job] = now + (self.switch_ns if again else 0)
        self.round[job] += 1
        ends = int(self.since[job] + self.left[job])
        heapq.heappush(self.events, (ends, END, job, int(self.round[job])))
        if self.policy.key is las:
            self._next_queue(job, ends)

    def _next_queue(self, job: int, ends: int) -> None:
        """A job that gets into a worse queue may have to make room."""
        devices = self.devices[job]
        for limit in QUEUES_S:
            more = limit * 1e9 - self.out.service_ns[job]
            at = int(self.since[job] + np.ceil(more / devices)) if devices and more > 0 else 0
            if self.since[job] < at < ends:
                heapq.heappush(self.events, (at, AGAIN, job, int(self.round[job])))

    def _stop(self, job: int, now: int) -> None:
        self.running = None
        self.free.give_back(self.seats.pop(job))
        devices = self.devices[job]
        self.in_use -= devices
        done = max(now - int(self.since[job]), 0)
        begun = min(int(self.since[job]), now)
        start_up = begun - (int(self.since[job]) - self.switch_ns) if self.out.preemptions[job] else 0
        self.left[job] -= done
        self.out.service_ns[job] += done * devices
        self.out.switch_ns[job] += start_up * devices
        self.round[job] += 1


def run_gangs(cluster: Cluster, jobs: Jobs, policy: Policy, refused: list[int], *, switch_ns: int = 0) -> Shared:
    return Gangs(cluster, jobs, policy, switch_ns).run(refused)
