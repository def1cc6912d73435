"""Jobs that change their size, on groups of nodes whose devices come and go.

At every event a policy decides how many devices of each group a job has. `elastic` and `harvest` give a job whole
devices of one group; `gavel` and `fair` share devices, exactly between events. At the same instant, jobs end first,
then jobs arrive, then nodes come and go, then devices are distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.world.fleet.sharing.cluster import WHOLE, Cluster
from etude.world.fleet.sharing.gangs import UNKNOWN, Shared, SharingTimes, nothing_yet
from etude.world.fleet.sharing.jobs import Jobs, pairs_of
from etude.world.fleet.sharing.levels import max_min
from etude.world.fleet.sharing.supply import Supply


class Sizes(NamedTuple):
    """For one job: the numbers of devices it can run on, and its speed on each; 1 is its speed on `gpus`."""

    devices: I64
    speed: F64


class ElasticView(NamedTuple):
    """Input of a policy. Rows are present jobs, in order of arrival; columns are groups of nodes."""

    sizes: list[Sizes]
    rates: F64
    weight: F64
    most: F64
    gpus: F64
    harvest: NDArray[np.bool_]
    spot: NDArray[np.bool_]
    capacity: F64
    held: F64
    """Devices that each job has."""
    left_ns: F64
    """Remaining work on `gpus` devices, ns."""
    switch_ns: float


Allocate = Callable[[ElasticView], F64]


def sizes_of(jobs: Jobs, job: int) -> Sizes:
    where = f"job `{jobs.name[job]}`: speed"
    if not jobs.speed[job]:
        devices = np.arange(jobs.least[job], jobs.most[job] + 1)
        return Sizes(devices, devices / max(int(jobs.gpus[job]), 1))
    pairs = pairs_of(jobs.speed[job], where)
    if not all(name.isdecimal() and int(name) for name in pairs):
        raise UsageError(f"`{jobs.speed[job]}`", where=where, hint="8:1;16:1.8: devices, then speed")
    devices = np.array(sorted(map(int, pairs)), np.int64)
    speed = np.array([pairs[str(n)] for n in devices.tolist()])
    if int(jobs.gpus[job]) not in devices.tolist():
        raise UsageError(f"has no speed for {jobs.gpus[job]} devices, which the job requests", where=where)
    inside = (devices >= jobs.least[job]) & (devices <= jobs.most[job])
    own = float(speed[devices == jobs.gpus[job]][0])
    return Sizes(devices[inside], speed[inside] / own)


def rates_of(jobs: Jobs, cluster: Cluster) -> F64:
    """Speed of each job on a device of each group; 0: it cannot run there."""
    found = np.ones((len(jobs), len(cluster.groups)))
    kinds = [cluster.kinds[int(cluster.kind[cluster.group == k][0])] for k in range(len(cluster.groups))]
    for job in range(len(jobs)):
        pairs = pairs_of(jobs.rates[job], f"job `{jobs.name[job]}`: rates")
        wanted = jobs.kind[job].split("|") if jobs.kind[job] else kinds
        found[job] = [(pairs.get(kind, 0.0) if pairs else 1.0) * (kind in wanted) for kind in kinds]
    return found


# -- policies ----------------------------------------------------------------------------------------------------------


def elastic(view: ElasticView) -> F64:
    """First come, first served for the smallest size of each job; the rest goes, size by size, to the job with the
    largest weighted gain per device. A running job grows only if that pays for the change."""
    return _dealt(view, list(range(len(view.sizes))), np.zeros_like(view.held), view.capacity.copy())


def _dealt(view: ElasticView, order: list[int], out: F64, free: F64) -> F64:
    size = dict[int, int]()
    group = dict[int, int]()
    for job in order:
        least = int(view.sizes[job].devices[0])
        had = int(np.argmax(view.held[job])) if view.held[job].any() else -1
        fits = [k for k in range(len(free)) if free[k] >= least and view.rates[job, k] > 0]
        if not fits:
            continue
        k = had if had in fits else max(fits, key=lambda k: (_reach(view, job, k, float(free[k])), -k))
        size[job], group[job] = 0, k
        out[job, k] = least
        free[k] -= least
    while size:
        best, whom = 0.0, -1
        for job, at in size.items():
            gain = _gain(view, job, at, group[job], free)
            if gain > best:
                best, whom = gain, job
        if whom < 0:
            break
        its, k = view.sizes[whom].devices, group[whom]
        free[k] -= its[size[whom] + 1] - its[size[whom]]
        size[whom] += 1
        out[whom, k] = its[size[whom]]
    return out


def _reach(view: ElasticView, job: int, k: int, free: float) -> float:
    """The best speed that a job could have on a group."""
    its = view.sizes[job]
    return float(its.speed[its.devices <= free].max(initial=0.0) * view.rates[job, k])


def _gain(view: ElasticView, job: int, at: int, k: int, free: F64) -> float:
    """Weighted gain in speed of the next size, per device; 0 if it does not fit or does not pay for the change."""
    its = view.sizes[job]
    if at + 1 == len(its.devices) or its.devices[at + 1] - its.devices[at] > free[k]:
        return 0.0
    held = view.held[job, k]
    if view.switch_ns and 0 < held < its.devices[at + 1]:
        before = view.left_ns[job] / float(its.speed[its.devices <= held].max(initial=1e-9) * view.rates[job, k])
        after = view.left_ns[job] / float(its.speed[at + 1] * view.rates[job, k])
        if view.switch_ns + after >= before:
            return 0.0
    more = its.speed[at + 1] - its.speed[at]
    return float(view.weight[job] * view.rates[job, k] * more / (its.devices[at + 1] - its.devices[at]))


def harvest(view: ElasticView) -> F64:
    """Jobs that do not harvest get what they request, on nodes that are never reclaimed if there are any, running jobs
    before waiting ones; the others get the rest, and give it back at once."""
    out, free = np.zeros_like(view.held), view.capacity.copy()
    stays = ~view.spot if (~view.spot).any() else np.ones_like(view.spot)
    firm = np.flatnonzero(~view.harvest)
    for job in sorted(firm.tolist(), key=lambda job: (not view.held[job].any(), job)):
        had = int(np.argmax(view.held[job])) if view.held[job].any() else -1
        fits = [k for k in range(len(free)) if stays[k] and free[k] >= view.gpus[job] and view.rates[job, k] > 0]
        if fits:
            k = had if had in fits else max(fits, key=lambda k: (view.rates[job, k], -k))
            out[job, k] = view.gpus[job]
            free[k] -= view.gpus[job]
    return _dealt(view, np.flatnonzero(view.harvest).tolist(), out, free)


def fair(view: ElasticView) -> F64:
    """Devices in proportion to weights, max-min, over the groups that a job can run on."""
    return max_min((view.rates > 0).astype(np.float64), view.weight, view.most, view.capacity)


def gavel(view: ElasticView) -> F64:
    """Effective throughput relative to an equal share of every group, max-min with weights."""
    usual = view.rates @ view.capacity / max(float(view.capacity.sum()), 1.0)
    usual = np.where(usual > 0, usual, 1.0)
    return max_min(view.rates / usual[:, None], view.weight, view.most, view.capacity)


ELASTIC: Final[dict[str, tuple[Allocate, bool]]] = {
    "elastic": (elastic, True), "harvest": (harvest, True), "fair": (fair, False), "gavel": (gavel, False),
}  # fmt: skip
"""Policies by name, and whether they distribute whole devices."""


# -- the loop ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ElasticLoop:
    cluster: Cluster
    jobs: Jobs
    allocate: Allocate
    whole: bool
    times: SharingTimes
    supply: Supply
    out: Shared
    capacity: F64 = field(init=False)
    rates: F64 = field(init=False)
    sizes: list[Sizes] = field(init=False)
    left: F64 = field(init=False)
    """Remaining work of each job, ns on `gpus` devices."""
    since: F64 = field(init=False)
    """Time from which a running job does work."""
    held: F64 = field(init=False)
    active: list[int] = field(default_factory=list)
    now: float = 0.0
    spent: F64 = field(init=False)

    def __post_init__(self) -> None:
        jobs, groups = self.jobs, len(self.cluster.groups)
        if (jobs.gpu_milli < WHOLE).any() or (jobs.gpus == 0).any():
            job = int(np.flatnonzero((jobs.gpu_milli < WHOLE) | (jobs.gpus == 0))[0])
            raise UsageError("requests a part of a device, or no device", where=f"job `{jobs.name[job]}`",
                             hint="--policy fifo, backfill, las, ...")  # fmt: skip
        if not self.whole and any(jobs.speed):
            raise UsageError("speeds by size need whole devices", hint="--policy elastic or harvest")
        self.capacity = np.array([float(self.cluster.gpus[self.cluster.group == k].sum()) for k in range(groups)])
        for node in self.supply.away:
            self.capacity[self.cluster.group[node]] -= self.cluster.gpus[node]
        self.rates = rates_of(jobs, self.cluster)
        self.sizes = [sizes_of(jobs, job) for job in range(len(jobs))]
        self.left = jobs.work_ns.astype(np.float64)
        self.since, self.held = np.zeros(len(jobs)), np.zeros((len(jobs), groups))
        self.now, self.spent = float(jobs.arrival_ns.min()), np.zeros(groups)

    def run(self) -> Shared:
        gone = set(self.out.refused)
        end = self.times.end_ns(int(self.now), self.supply)
        coming = [job for job in range(len(self.jobs)) if job not in gone][::-1]
        while coming or self.active:
            then = self._next(coming)
            if then is None or then > end:
                break
            self._pass(then)
            ended = [job for job in self.active if self.left[job] <= 0.5]
            for job in ended:
                self.out.end_ns[job] = round(self.now)
                self.held[job] = 0
                self.active.remove(job)
            while coming and self.jobs.arrival_ns[coming[-1]] <= self.now:
                self.active.append(coming.pop())
            taken = np.zeros(len(self.capacity))
            while self.supply.next_ns is not None and self.supply.next_ns <= self.now:
                _, node, there = self.supply.pop()
                k = int(self.cluster.group[node])
                self.capacity[k] += self.cluster.gpus[node] * (1 if there else -1)
                taken[k] += 0 if there else self.cluster.gpus[node]
            self._deal(taken)
        self.out.stuck = len(self.active) + len(coming)
        first = int(self.jobs.arrival_ns.min())
        for k, group in enumerate(self.cluster.groups):
            if not group.spot:
                held = self.cluster.gpus[self.cluster.group == k] @ self.cluster.present_ns(k, first, round(self.now))
                self.out.idle_cost += float(group.price * float(held) / 3.6e12 - self.spent[k])
        return self.out

    def _speed(self, job: int) -> float:
        held = self.held[job]
        if not held.any():
            return 0.0
        if not self.whole:
            return float(self.rates[job] @ held) / float(self.jobs.gpus[job])
        its, k = self.sizes[job], int(np.argmax(held))
        return float(its.speed[its.devices == held[k]][0] * self.rates[job, k])

    def _next(self, coming: list[int]) -> float | None:
        found = [float(self.jobs.arrival_ns[coming[-1]])] if coming else []
        for job in self.active:
            speed = self._speed(job)
            if speed > 0:
                found.append(max(self.since[job], self.now) + self.left[job] / speed)
        if self.supply.next_ns is not None:
            found.append(float(self.supply.next_ns))
        return min(found, default=None)

    def _pass(self, then: float) -> None:
        """Advances the time: work is done, start-ups continue, devices are paid for."""
        out, start = self.out, self.now
        for job in self.active:
            devices, speed = float(self.held[job].sum()), self._speed(job)
            begins = min(max(self.since[job], start), then)
            self.left[job] = max(self.left[job] - (then - begins) * speed, 0.0)
            if self.left[job] < 1e-3:
                self.left[job] = 0.0
            out.service_ns[job] += (then - begins) * devices
            out.switch_ns[job] += (begins - start) * devices
            for k in np.flatnonzero(self.held[job]).tolist():
                paid = self.held[job, k] * self.supply.prices[k].paid(round(start), round(then))
                out.cost[job] += paid
                self.spent[k] += paid
        out.there_ns += (then - start) * float(self.capacity.sum())
        self.now = then

    def _deal(self, taken: F64) -> None:
        active, out = self.active, self.out
        view = ElasticView(
            [self.sizes[job] for job in active], self.rates[active], self.jobs.weight[active],
            self.jobs.most[active].astype(np.float64), self.jobs.gpus[active].astype(np.float64),
            self.jobs.harvest[active], np.array([group.spot for group in self.cluster.groups]), self.capacity,
            self.held[active], self.left[active], float(self.times.switch_ns),
        )  # fmt: skip
        dealt = self.allocate(view) if active else np.zeros((0, len(self.capacity)))
        for row, job in enumerate(active):
            before, after = self.held[job], dealt[row]
            if self.whole and not np.array_equal(before, after):
                self._changed(job, before, after, taken)
            if out.start_ns[job] == UNKNOWN and after.any():
                out.start_ns[job] = round(self.now)
                out.waited_ns[job] = round(self.now) - self.jobs.arrival_ns[job]
            self.held[job] = after
        running = int((self.held[active].sum(axis=1) > 1e-9).sum()) if active else 0
        out.series.append((round(self.now), running, len(active) - running, float(self.held[active].sum())))

    def _changed(self, job: int, before: F64, after: F64, taken: F64) -> None:
        out, times = self.out, self.times
        if before.any():
            k = int(np.argmax(before))
            out.preemptions[job] += float(after.sum()) < float(before.sum())
            save = int(self.jobs.save_ns[job])
            if save and taken[k] and after[k] < before[k]:
                speed, done = self._speed(job), float(self.jobs.work_ns[job] - self.left[job])
                redo = done % save
                self.left[job] += redo
                lost = redo / speed * float(before.sum())
                out.redo_ns[job] += lost
                out.service_ns[job] -= lost
        again = out.start_ns[job] != UNKNOWN
        moves = again and before.any() and int(np.argmax(before)) != int(np.argmax(after))
        self.since[job] = self.now + (
            (times.switch_ns if again else 0)
            + (times.start_ns if not again else 0)
            + (times.migrate_ns if moves else 0)
        )


def run_elastic(
    cluster: Cluster, jobs: Jobs, policy: str, refused: list[int], *, times: SharingTimes, seed: int = 0
) -> Shared:
    allocate, whole = ELASTIC[policy]
    return ElasticLoop(
        cluster, jobs, allocate, whole, times, Supply(cluster, seed), nothing_yet(cluster, jobs, refused)
    ).run()
