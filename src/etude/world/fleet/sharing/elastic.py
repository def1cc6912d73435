"""Jobs that change their size, on groups of nodes whose devices come and go.

At every event a policy decides how many devices of each group a job has. `elastic` and `harvest` give a job whole
devices of one group; `gavel` and `fair` share devices, exactly between events. At the same instant, jobs end first,
then jobs arrive, then nodes come and go, then devices are distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.world.clock import NEVER, DiscreteEntity, run_alone
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
        speeds = [_reach(view, job, k, float(free[k])) for k in range(len(free))]
        k = _group(view, job, least, free, speeds)
        if k >= 0:
            size[job], group[job] = 0, k
            out[job, k] = least
            free[k] -= least
    while size:
        gains = {job: _gain(view, job, at, group[job], free) for job, at in size.items()}
        whom = max(gains, key=gains.__getitem__)
        if gains[whom] <= 0:
            break
        its, k = view.sizes[whom].devices, group[whom]
        free[k] -= its[size[whom] + 1] - its[size[whom]]
        size[whom] += 1
        out[whom, k] = its[size[whom]]
    return out


def _group(view: ElasticView, job: int, devices: float, free: F64, speeds: Sequence[float]) -> int:
    """The group with room for a job: the one that it has, else the one where it is fastest; -1: none has."""
    fits = [k for k in range(len(free)) if free[k] >= devices and view.rates[job, k] > 0]
    had = int(np.argmax(view.held[job])) if view.held[job].any() else -1
    return had if had in fits else max(fits, key=lambda k: (speeds[k], -k), default=-1)


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
        k = _group(view, job, view.gpus[job], np.where(stays, free, -1.0), view.rates[job])
        if k >= 0:
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
    "elastic": (elastic, True),
    "harvest": (harvest, True),
    "fair": (fair, False),
    "gavel": (gavel, False),
}
"""Policies by name, and whether they distribute whole devices."""


# -- on the clock ------------------------------------------------------------------------------------------------------


class ElasticJobs(DiscreteEntity):
    name = "jobs"

    def __init__(self, cluster: Cluster, jobs: Jobs, policy: str, times: SharingTimes, out: Shared, seed: int) -> None:
        self.allocate, self.whole = ELASTIC[policy]
        self.cluster, self.jobs, self.times, self.out = cluster, jobs, times, out
        self._check()
        groups = range(len(cluster.groups))
        self.supply = Supply(cluster, seed)
        self.capacity = np.array([float(cluster.gpus[cluster.group == k].sum()) for k in groups])
        for node in self.supply.away:
            self.capacity[cluster.group[node]] -= cluster.gpus[node]
        self.rates, self.sizes = rates_of(jobs, cluster), [sizes_of(jobs, job) for job in range(len(jobs))]
        self.left = jobs.work_ns.astype(np.float64)
        """Remaining work of each job, ns on `gpus` devices."""
        self.since, self.held = np.zeros(len(jobs)), np.zeros((len(jobs), len(groups)))
        """Time from which a running job does work; devices that it has of each group."""
        self.coming, self.active = sorted(set(range(len(jobs))) - set(out.refused), reverse=True), list[int]()
        self.first_ns = int(jobs.arrival_ns.min())
        self.now, self.spent = float(self.first_ns), np.zeros(len(groups))
        self.then = self._next()

    def _check(self) -> None:
        jobs = self.jobs
        parts = np.flatnonzero((jobs.gpu_milli < WHOLE) | (jobs.gpus == 0))
        if len(parts):
            problem = "requests a part of a device, or no device"
            raise UsageError(problem, where=f"job `{jobs.name[parts[0]]}`", hint="--policy fifo, backfill, las, ...")
        if not self.whole and any(jobs.speed):
            raise UsageError("speeds by size need whole devices", hint="--policy elastic or harvest")

    def due_ns(self) -> int:
        return min(ceil(self.then), NEVER)

    def instant(self, now: int) -> None:
        self._pass(self.then)
        for job in [job for job in self.active if self.left[job] <= 0.5]:
            self.out.end_ns[job] = round(self.now)
            self.held[job] = 0
            self.active.remove(job)
        while self.coming and self.jobs.arrival_ns[self.coming[-1]] <= self.now:
            self.active.append(self.coming.pop())
        taken = np.zeros(len(self.capacity))
        for node, there in self.supply.due(self.now):
            k = int(self.cluster.group[node])
            self.capacity[k] += self.cluster.gpus[node] * (1 if there else -1)
            taken[k] += 0 if there else self.cluster.gpus[node]
        self._deal(taken)
        self.then = self._next()

    def finish(self) -> Shared:
        """The end: jobs that run have not ended, and idle devices are paid for too."""
        cluster = self.cluster
        self.out.stuck = len(self.active) + len(self.coming)
        for k, group in enumerate(cluster.groups):
            if not group.spot:
                held = cluster.gpus[cluster.group == k] @ cluster.present_ns(k, self.first_ns, round(self.now))
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

    def _next(self) -> float:
        """When a job ends or arrives, or a node comes or goes; NEVER after the last job."""
        if not self.coming and not self.active:
            return NEVER
        found = [float(self.supply.next_ns())]
        if self.coming:
            found.append(float(self.jobs.arrival_ns[self.coming[-1]]))
        for job in self.active:
            speed = self._speed(job)
            if speed > 0:
                found.append(max(self.since[job], self.now) + self.left[job] / speed)
        return min(found)

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
        self.since[job] = self.now + (times.switch_ns if again else times.start_ns) + (times.migrate_ns if moves else 0)


def run_elastic(
    cluster: Cluster, jobs: Jobs, policy: str, refused: list[int], *, times: SharingTimes, seed: int = 0
) -> Shared:
    its = ElasticJobs(cluster, jobs, policy, times, nothing_yet(cluster, jobs, refused), seed)
    return run_alone(its, times.end_ns(its.first_ns, its.supply)).finish()
