"""Jobs together with post-training and streams in one pool.

`rl` and streams have the nodes that they name until they are done; jobs have all others, and these from then on. Nodes
that may be reclaimed and that `rl` or a stream uses are never given to jobs. Device time adds up: what each of the
three held plus what was unused is all that was available.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.world.fleet.contract import contract
from etude.world.fleet.rl.lend import Borrow, LendMethod, beside, read_borrow
from etude.world.fleet.rl.results import rl_record, rl_tables
from etude.world.fleet.rl.run import makings
from etude.world.fleet.rl.spec import BORROWED, RlSpec, read_rl
from etude.world.fleet.sharing import share, shared_record, shared_tables
from etude.world.fleet.sharing.cluster import Cluster
from etude.world.fleet.sharing.gangs import UNKNOWN, Shared, SharingTimes
from etude.world.fleet.sharing.pool import SharedPool
from etude.world.fleet.sharing.streams import PoolStream, serve_streams


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    shared: Shared
    record: dict[str, Any]
    tables: dict[str, pa.Table]
    notes: tuple[str, ...]


def mixed(pool: SharedPool, policy: str, times: SharingTimes, *, seed: int = 0) -> Mixed:
    where, cluster, streams, jobs_of = pool.path, pool.cluster, pool.streams, pool.jobs
    assert jobs_of is not None
    spec = None if pool.rl is None else read_rl(pool.rl, where)
    borrow = read_borrow(pool.borrow, streams, where)
    notes: tuple[str, ...] = ()
    tables: dict[str, pa.Table] = {}
    rl: dict[str, Any] | None = None
    if spec is None:
        if borrow.how is not LendMethod.NONE:
            raise UsageError("borrow: there are no rollouts", where=where, hint="rl: {...}")
        served = serve_streams(streams, seed=seed)
    else:
        ran, more = beside(cluster, spec, streams, borrow, where, seed=seed, horizon_ns=times.horizon_ns)
        rl, served, notes = rl_record(ran), ran.beside.get("streams", {}), ran.loop.priced.notes
        tables = rl_tables(ran, rl) | more
        tables["tenants"] = tables.pop("jobs")
    until = held_until(spec, 0.0 if rl is None else rl["duration_s"], streams, served, borrow)
    shared = share(left_to_jobs(cluster, until, where), jobs_of, policy, times=times, seed=seed)
    jobs, own = shared_record(shared, policy=policy), shared_tables(shared)
    tables |= {"jobs": own["jobs"], "job_states" if spec is not None else "states": own["states"]}
    return Mixed(shared, mixed_record(rl, shared, jobs, streams, served, until, cluster), tables, notes)


def held_until(
    spec: RlSpec | None, end_s: float, streams: list[PoolStream], served: dict[str, Any], borrow: Borrow | None
) -> dict[str, int]:
    """Time in ns, by group of nodes, until `rl` has made its last update and a stream has given its last answer. Nodes
    of a stream whose devices are lent are its own until both are done. Raises UsageError if `rl` and a stream have the
    same nodes."""
    found: dict[str, int] = {}
    if spec is not None:
        names = {name for making in makings(spec) for name in making.nodes} | {spec.train.nodes}
        found = dict.fromkeys(names - {BORROWED}, round(end_s * 1e9))
    for stream in streams:
        if stream.nodes in found and borrow is not None and borrow.how is LendMethod.NONE:
            raise UsageError(f"rl and the stream `{stream.name}` have the same nodes", hint="use separate nodes")
        until = round(served[stream.name]["duration_s"] * 1e9)
        lends = borrow is not None and borrow.how is not LendMethod.NONE and borrow.stream == stream.name
        found[stream.nodes] = max(found.get(stream.nodes, 0), until, round(end_s * 1e9) if lends else 0)
    return found


def left_to_jobs(cluster: Cluster, until: dict[str, int], where: str) -> Cluster:
    """The nodes of jobs, and from when on each is available. Raises UsageError if there are none."""
    names = [group.name for group in cluster.groups]
    free = np.array([until.get(names[k], 0) for k in cluster.group.tolist()], np.int64)
    never = np.array([names[k] in until and cluster.groups[k].spot for k in cluster.group.tolist()])
    if never.all():
        raise UsageError("no nodes are left for jobs", where=where, hint="add nodes that neither rl nor a stream uses")
    groups = tuple(
        replace(group, capacity="", mtbf_ns=0) if group.spot and group.name in until else group
        for group in cluster.groups
    )
    kept = {name: getattr(cluster, name)[~never] for name in ("gpus", "cpu_milli", "memory_mib", "kind", "price")}
    return replace(cluster, **kept, group=cluster.group[~never], groups=groups, free_ns=free[~never])


def mixed_record(
    rl: dict[str, Any] | None, shared: Shared, jobs: dict[str, Any], streams: list[PoolStream], served: dict[str, Any],
    until: dict[str, int], cluster: Cluster,
) -> dict[str, Any]:  # fmt: skip
    """The record of all; `rl` and `jobs` are the records of each alone. `device_s` covers all nodes over the whole
    time."""
    first, last = int(shared.jobs.arrival_ns.min()), _last(shared)
    whole = max(last, *until.values())
    of_rl = {} if rl is None else rl["device_s"]
    lent = of_rl.get("lent", 0.0)
    parts = {
        name: of_rl.get(name, 0.0) + jobs["device_s"][name] for name in ("useful", "redone", "set_up", "idle", "there")
    }
    nobody, for_nobody = _nobody(shared.cluster, first, last, whole)
    kept, used, for_streams = _streams(streams, served, until, cluster, lent)
    parts["useful"] += used
    parts["idle"] += nobody + kept - used
    parts["there"] += nobody + kept
    mean = {name: whole / 1e9 * value / parts["there"] for name, value in parts.items()}
    cost = sum(one or 0.0 for one in (rl and rl["cost"], jobs["cost"])) + for_nobody + for_streams
    rows = [{"kind": "tenant"} | row for row in (rl or {}).get("jobs", [])]
    ended = np.where(shared.end_ns == UNKNOWN, -1, shared.end_ns).tolist()
    rows += [
        {"kind": "job", "name": name, "end_s": None if end < 0 else end / 1e9}
        for name, end in zip(shared.jobs.name, ended, strict=True)
    ]
    base = contract(
        whole / 1e9,
        mean["useful"],
        rows,
        lost={"restart": mean["set_up"], "redo": mean["redone"]},
        tokens=None if rl is None else rl["tokens"],
        cost=cost or None,
        interruptions=jobs["interruptions"] + (0 if rl is None else rl["interruptions"]),
    )
    nested = {name: value for name, value in jobs.items() if name not in ("goodput_tokens_per_s", "energy_j")}
    return (rl or jobs) | base | {
        "device_s": parts | {"lent": lent, "streams": kept}, "utilisation": base["useful_fraction"],
        "devices": cluster.devices, "streams": served, "shared": nested,
        "rl_s": None if rl is None else rl["duration_s"],
    }  # fmt: skip


def _last(shared: Shared) -> int:
    return max(int(shared.end_ns.max()), shared.series[-1][0] if shared.series else 0)


def _nobody(cluster: Cluster, first: int, last: int, whole: int) -> tuple[float, float]:
    """Device seconds of nodes that are never reclaimed, before the first job arrived and after the last one ended; and
    their cost in dollars."""
    found = paid = 0.0
    for k, group in enumerate(cluster.groups):
        if not group.spot:
            mine = cluster.group == k
            each = (cluster.present_ns(k, 0, first) + cluster.present_ns(k, last, whole)) * cluster.gpus[mine] / 1e9
            found, paid = found + float(each.sum()), paid + float(each @ cluster.price[mine]) / 3600
    return found, paid


def _streams(
    streams: list[PoolStream], served: dict[str, Any], until: dict[str, int], cluster: Cluster, lent: float
) -> tuple[float, float, float]:
    """Device seconds of streams without what they lent, those of them in which a pass ran, and the cost in dollars."""
    kept = used = paid = 0.0
    for stream in streams:
        one, nodes = served[stream.name], cluster.nodes_of(stream.nodes)
        kept += float(cluster.gpus[nodes].sum()) * until[stream.nodes] / 1e9
        paid += float(cluster.gpus[nodes] @ cluster.price[nodes]) * until[stream.nodes] / 3.6e12
        used += one["busy"] * stream.replicas * stream.tp * one["duration_s"]
    return kept - lent, min(used, kept - lent), paid
