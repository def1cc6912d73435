"""Fair shares: devices in proportion to weights, no job more than it requests, and none idle while a job wants more.

Shares change when a job arrives or ends and are exact in between: max-min shares with weights, as in generalised
processor sharing. Placement is ignored, so no device is lost to fragmentation; jobs without devices do not wait. A job
pays for its share over time, at the mean price of a device; what no job holds is paid for too, as idle.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import F64
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


def run_fair(cluster: Cluster, jobs: Jobs, refused: list[int]) -> Shared:
    """Runs all jobs with all devices as one pool."""
    n = len(jobs)
    out = nothing_yet(cluster, jobs, refused)
    gone, devices = np.zeros(n, bool), jobs.devices
    gone[refused] = True
    left: F64 = jobs.work_ns.astype(np.float64) * np.where(
        devices > 0, devices, 1.0
    )  # device nanoseconds; for a job without devices its own time
    arrival, capacity = jobs.arrival_ns.astype(np.float64), float(cluster.devices)
    active = np.zeros(0, np.int64)
    coming = [k for k in range(n) if not gone[k]]
    now, next_job = 0.0, 0
    while next_job < len(coming) or len(active):
        wanted = devices[active]
        rate = shares(wanted, jobs.weight[active], capacity) if len(active) else np.zeros(0)
        speed = np.where(wanted > 0, rate, 1.0)
        ends = now + np.divide(left[active], speed, out=np.full(len(active), np.inf), where=speed > 0)
        soonest = float(ends.min(initial=np.inf))
        arrives = arrival[coming[next_job]] if next_job < len(coming) else np.inf
        then = min(soonest, arrives)
        elapsed = then - now
        left[active] -= elapsed * speed
        out.service_ns[active] += elapsed * rate
        now = then
        done = ends <= now
        out.end_ns[active[done]] = round(now)
        active = active[~done]
        while next_job < len(coming) and arrival[coming[next_job]] <= now:
            job = coming[next_job]
            out.start_ns[job], out.waited_ns[job] = round(now), 0
            active = np.append(active, job)
            next_job += 1
        used = float(np.minimum(devices[active].sum(), capacity))
        out.series.append((round(now), len(active), 0, used))
    hourly = float(cluster.price @ cluster.gpus)
    out.cost[:] = out.service_ns * (hourly / capacity if capacity else 0.0) / 3.6e12
    all_of_it = hourly * (out.series[-1][0] - int(jobs.arrival_ns.min())) / 3.6e12
    out.idle_cost = all_of_it - float(out.cost.sum())
    return out
