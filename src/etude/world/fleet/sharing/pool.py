"""A pool: one file that describes the nodes of a cluster and what runs there.

nodes: [{name: own, count: 2, gpus: 8, price: 2.5}, {name: spot, count: 4, gpus: 8, price: 0.8, capacity: spot.csv}]
jobs: jobs.csv                  # or a list: [{name: a, arrival_s: 0, gpus: 8, min_gpus: 2, duration_s: 3600}]
policy: harvest                 # as --policy
switch: 30s                     # to restart a job that was stopped
start: 60s                      # a cold start ...
keep: 10min                     # ... unless a job of its tenant was on the node within this time
migrate: 60s                    # in addition, if a stopped job continues on other nodes
horizon: 30d
streams: [...]                  # requests that are served: streams.py
rl: {...}                       # post-training by reinforcement: fleet/rl
borrow: {...}                   # rollouts on devices of a stream
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import keys_in, read_mapping
from etude.base.units import parse_time
from etude.world.fleet.sharing.cluster import POOL_KEYS, Cluster, cluster_of
from etude.world.fleet.sharing.gangs import SharingTimes
from etude.world.fleet.sharing.jobs import COLUMNS, Jobs, jobs_of, read_jobs
from etude.world.fleet.sharing.predicted import KEYS as PREDICTED
from etude.world.fleet.sharing.predicted import predicted_job
from etude.world.fleet.sharing.streams import PoolStream, read_streams

RUNS: Final = ("jobs", "streams", "rl")
"""Keys that make a cluster a pool."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedPool:
    path: str
    cluster: Cluster
    jobs: Jobs | None
    policy: str
    times: SharingTimes
    streams: list[PoolStream]
    rl: dict[str, Any] | None
    """The unparsed key: fleet/rl reads it, and `borrow`."""
    borrow: dict[str, Any] | None


def is_pool(path: str | PathLike[str]) -> bool:
    """Whether a file describes nodes and what runs there."""
    given = keys_in(path)
    return ("nodes" in given or "gpus" in given) and any(key in given for key in POOL_KEYS)


def read_pool(path: str | PathLike[str]) -> SharedPool:
    given = read_mapping(path)
    cluster, where = cluster_of(given, path), str(path)
    if not any(given.get(key) for key in RUNS):
        raise UsageError(
            "the file has no jobs, streams or rl", where=where, hint="jobs: jobs.csv, streams: [...], rl: {...}"
        )
    streams, rl, borrow = given.get("streams") or [], given.get("rl"), given.get("borrow")
    if not isinstance(streams, list) or not all(isinstance(one, dict) for one in streams):
        raise UsageError(
            "streams: a list of keys and values", where=where, hint="streams: [{model: llama3-8b, rate: 4}]"
        )
    for key, value in (("rl", rl), ("borrow", borrow)):
        if value is not None and not isinstance(value, dict):
            raise UsageError(f"{key}: expected keys and values", where=where)
    policy = given.get("policy", "fifo")
    if not isinstance(policy, str):
        raise UsageError(f"policy: {policy!r}", where=where, hint="policy: fifo")
    jobs, times = _jobs(given.get("jobs"), Path(path)), times_of(given, where)
    return SharedPool(where, cluster, jobs, policy, times, read_streams(streams, cluster, where), rl, borrow)


def times_of(given: Mapping[str, Any], where: str) -> SharingTimes:
    found = {}
    for key in ("switch", "start", "keep", "migrate", "horizon"):
        if key in given:
            time_ns = parse_time(given[key])
            if time_ns < 0 or (key == "horizon" and not time_ns):
                raise UsageError(f"{key}: {given[key]} is out of range", where=where, hint=f"{key}: 30s")
            found[f"{key}_ns"] = time_ns
    return SharingTimes(**found)


def _jobs(given: Any, path: Path) -> Jobs | None:
    if given is None:
        return None
    if isinstance(given, str):
        return read_jobs(path.parent / given)
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise UsageError("jobs: a CSV file, or a list of keys and values", where=str(path))
    rows = []
    for number, one in enumerate(given):
        where = f"{path}: jobs[{number}]"
        row = predicted_job(one, where) if any(key in one for key in PREDICTED) else one
        if unknown := [key for key in row if key not in COLUMNS]:
            raise UsageError(
                f"unknown key `{unknown[0]}`", where=where, hint=f"known: {', '.join(COLUMNS)}, {', '.join(PREDICTED)}"
            )
        if missing := [key for key in ("gpus", "duration_s") if key not in row]:
            raise UsageError(f"key `{missing[0]}` is missing", where=where)
        plain = {key: str(int(value) if isinstance(value, bool) else value) for key, value in row.items()}
        rows.append({"arrival_s": "0"} | plain)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return jobs_of(columns, rows, f"{path}: jobs")
