"""share(cluster, jobs, policy): what becomes of jobs that come to one cluster."""

from __future__ import annotations

from etude.errors import UsageError
from etude.fleet.sharing.cluster import Cluster
from etude.fleet.sharing.fluid import run_fair
from etude.fleet.sharing.gangs import Shared, run_gangs
from etude.fleet.sharing.jobs import Jobs
from etude.fleet.sharing.place import impossible
from etude.fleet.sharing.policies import FAIR, sharing_policy


def share(cluster: Cluster, jobs: Jobs, policy: str = "fifo", *, switch_ns: int = 0) -> Shared:
    """`switch_ns`: what a job that was stopped takes to start again. Jobs that fit nowhere are left out and named."""
    refused = impossible(cluster, jobs)
    if len(refused) == len(jobs):
        raise UsageError(f"none of the {len(jobs):,} jobs fits the cluster", where=cluster.name)
    if policy == FAIR:
        return run_fair(cluster, jobs, refused)
    return run_gangs(cluster, jobs, sharing_policy(policy), refused, switch_ns=switch_ns)
