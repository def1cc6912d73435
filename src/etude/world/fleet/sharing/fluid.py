"""Fair shares: devices in proportion to weights, no job more than it requests, and none idle while a job wants more.

Shares change when a job arrives or ends and are exact in between: max-min shares with weights, as in generalised
processor sharing. Placement is ignored, so no device is lost to fragmentation; jobs without devices do not wait. A job
pays for its share over time, at the mean price of a device; what no job holds is paid for too, as idle.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from etude.kernels.arrays import F64
from etude.world.clock import NEVER, DiscreteEntity, run_alone
from etude.world.fleet.sharing.cluster import Cluster
from etude.world.fleet.sharing.gangs import Shared, nothing_yet
from etude.world.fleet.sharing.jobs import Jobs


def shares(wanted: F64, weight: F64, capacity: float) -> F64:
    """Devices of each job: weight times a common level, or all that it wants if that is less."""
    out = np.zeros(len(wanted))
    if wanted.sum() <= capacity:
        return wanted.copy()
    order = np.argsort(wanted / weight, kind="stable")
    left, weights = capacity, float(weight.sum())
    for k in order:
        level = left / weights
        if wanted[k] > level * weight[k]:
            rest = order[np.flatnonzero(order == k)[0] :]
            out[rest] = level * weight[rest]
            break
        out[k] = wanted[k]
        left -= wanted[k]
        weights -= float(weight[k])
    return out


class FairJobs(DiscreteEntity):
    """Jobs with all devices as one pool."""

    name = "jobs"

    def __init__(self, cluster: Cluster, jobs: Jobs, out: Shared) -> None:
        self.jobs, self.out, self.capacity, self.wanted = jobs, out, float(cluster.devices), jobs.devices
        self.left: F64 = jobs.work_ns.astype(np.float64) * np.where(self.wanted > 0, self.wanted, 1.0)
        """Device nanoseconds; for a job without devices its own time."""
        self.coming = sorted(set(range(len(jobs))) - set(out.refused), reverse=True)
        self.active, self.now = np.zeros(0, np.int64), 0.0
        self._share()

    def _share(self) -> None:
        """Shares until the next job arrives or ends."""
        active, wanted = self.active, self.wanted[self.active]
        self.rate = shares(wanted, self.jobs.weight[active], self.capacity)
        self.speed = np.where(wanted > 0, self.rate, 1.0)
        never = np.full(len(active), np.inf)
        self.ends = self.now + np.divide(self.left[active], self.speed, out=never, where=self.speed > 0)
        arrives = float(self.jobs.arrival_ns[self.coming[-1]]) if self.coming else np.inf
        self.then = min(float(self.ends.min(initial=np.inf)), arrives)

    def due_ns(self) -> int:
        return ceil(min(self.then, NEVER))

    def instant(self, now: int) -> None:
        out, active, elapsed = self.out, self.active, self.then - self.now
        self.left[active] -= elapsed * self.speed
        out.service_ns[active] += elapsed * self.rate
        self.now, now = self.then, round(self.then)
        done = self.ends <= self.now
        out.end_ns[active[done]] = now
        came = list[int]()
        while self.coming and self.jobs.arrival_ns[self.coming[-1]] <= self.now:
            came.append(self.coming.pop())
        out.start_ns[came], out.waited_ns[came] = now, 0
        self.active = np.append(active[~done], came).astype(np.int64)
        used = float(np.minimum(self.wanted[self.active].sum(), self.capacity))
        out.series.append((now, len(self.active), 0, used))
        self._share()


def run_fair(cluster: Cluster, jobs: Jobs, refused: list[int]) -> Shared:
    """Runs all jobs with all devices as one pool."""
    out = nothing_yet(cluster, jobs, refused)
    run_alone(FairJobs(cluster, jobs, out))
    hourly, devices = float(cluster.price @ cluster.gpus), cluster.devices
    out.cost[:] = out.service_ns * (hourly / devices if devices else 0.0) / 3.6e12
    all_of_it = hourly * (out.series[-1][0] - int(jobs.arrival_ns.min())) / 3.6e12
    out.idle_cost = all_of_it - float(out.cost.sum())
    return out
