"""share(cluster, jobs, policy): runs jobs that arrive at one cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.world.fleet.sharing.cluster import Cluster
from etude.world.fleet.sharing.elastic import ELASTIC, rates_of, run_elastic
from etude.world.fleet.sharing.fluid import run_fair
from etude.world.fleet.sharing.gangs import Shared, SharingTimes, run_gangs
from etude.world.fleet.sharing.jobs import Jobs
from etude.world.fleet.sharing.place import impossible
from etude.world.fleet.sharing.policies import FAIR, sharing_policy


def share(
    cluster: Cluster,
    jobs: Jobs,
    policy: str = "fifo",
    *,
    times: SharingTimes | None = None,
    seed: int = 0,
    **given: Any,
) -> Shared:
    """Runs jobs on a cluster. `times` has the times of starts and moves, or `given` does (`switch_ns=...`). Jobs that
    fit nowhere are left out and listed. Raises UsageError if none fits."""
    times = times or SharingTimes(**given)
    plain = not jobs.elastic and not any(jobs.rates) and not any(group.spot for group in cluster.groups)
    plain = plain and cluster.free_ns is None
    dealt = policy in ELASTIC and not (policy == FAIR and plain)
    refused = _too_large(cluster, jobs, policy) if dealt else impossible(cluster, jobs)
    if len(refused) == len(jobs):
        raise UsageError(f"none of the {len(jobs):,} jobs fits the cluster", where=cluster.name)
    if dealt:
        return run_elastic(cluster, jobs, policy, refused, times=times, seed=seed)
    if policy == FAIR:
        return run_fair(cluster, jobs, refused)
    return run_gangs(cluster, jobs, sharing_policy(policy), refused, times=times, seed=seed)


def _too_large(cluster: Cluster, jobs: Jobs, policy: str) -> list[int]:
    """Jobs for which no group of nodes has enough devices; with shares, jobs without any device that they can run
    on."""
    usable = rates_of(jobs, cluster) > 0
    if not ELASTIC[policy][1]:
        return np.flatnonzero(~usable.any(axis=1)).tolist()
    devices = np.array([cluster.gpus[cluster.group == k].sum() for k in range(len(cluster.groups))])
    stays = np.array([not group.spot for group in cluster.groups])
    firm = ~jobs.harvest if policy == "harvest" else np.zeros(len(jobs), bool)
    least = np.where(firm, jobs.gpus, jobs.least)
    allowed = usable & (stays | ~stays.any() | ~firm[:, None])
    return np.flatnonzero(~(allowed & (devices >= least[:, None])).any(axis=1)).tolist()
