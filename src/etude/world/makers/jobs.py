"""Jobs of a file that share whole nodes: `{jobs: jobs.csv, nodes: 8, policy: las}`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.figures import figure, part
from etude.base.parameters import refuse_unread, whole
from etude.machine import open_system
from etude.world.devices import DevicePool
from etude.world.entities.jobs import JobsWorkload
from etude.world.fleet.events import FleetEvents
from etude.world.fleet.sharing.cluster import cluster_of
from etude.world.fleet.sharing.gangs import Gangs, SharingTimes
from etude.world.fleet.sharing.jobs import read_jobs
from etude.world.fleet.sharing.place import impossible
from etude.world.fleet.sharing.policies import sharing_policy
from etude.world.fleet.sharing.supply import Supply
from etude.world.makers import Made, refused, request
from etude.world.scenario import Scenario, WorkloadSpec


@dataclass(frozen=True, kw_only=True)
class JobTimes:
    switch_ns: int = figure("time", "time that a stopped job needs to start again", 0)
    start_ns: int = figure("time", "time of a cold start", 0)
    keep_ns: int = figure("time", "how long a node stays warm for a tenant", 0)
    migrate_ns: int = figure("time", "additional time of a job that continues on other nodes", 0)


@dataclass(frozen=True, kw_only=True)
class JobsRequest:
    nodes: int = figure("count", "nodes that the jobs share")
    policy: str = figure("text", "fifo, backfill, sjf, srtf, las, deadline, priority, or FILE.py:name", "fifo")
    first: int = figure("count", "only the first jobs, this many; 0: all", 0)
    times: JobTimes = part(JobTimes)


def make(spec: WorkloadSpec, scenario: Scenario, devices: DevicePool, events: FleetEvents) -> Made:
    asked = request(JobsRequest, spec, spec.given, scenario, "fleet share")
    path = Path(spec.subject)
    file = path if path.is_absolute() else Path(scenario.where).parent / path
    jobs = read_jobs(file, first=asked.first)
    nodes, name = asked.nodes, asked.policy
    times: Any = whole(asked.times)
    refuse_unread(asked)
    device = open_system(scenario.machine.system).device.name
    asked_kinds = sorted({one for text in jobs.kind for one in text.split("|") if one})
    kind = next((one for one in asked_kinds if one.lower() in device.lower()), device)  # `h100`, as files have it
    cluster = cluster_of({"nodes": [{"count": nodes, "gpus": devices.per_node, "kind": kind}]}, spec.name)
    got = devices.take_nodes(spec.name, nodes, 0)
    if len(got) < nodes:
        raise refused(f"needs {nodes} nodes, and {len(got)} are free", spec, scenario, "machine: nodes: more")
    left_out = impossible(cluster, jobs)
    if len(left_out) == len(jobs):
        raise refused(f"none of the {len(jobs):,} jobs fits {nodes} nodes", spec, scenario)
    sharing = SharingTimes(
        switch_ns=times.switch_ns, start_ns=times.start_ns, keep_ns=times.keep_ns, migrate_ns=times.migrate_ns
    )
    gangs = Gangs(cluster, jobs, sharing_policy(name), sharing, Supply(cluster), left_out)
    notes = [f"{len(left_out):,} jobs fit no node and are left out"] if left_out else []
    return JobsWorkload(spec.name, gangs, devices, dict(enumerate(got)), name), (*jobs.notes, *notes)
