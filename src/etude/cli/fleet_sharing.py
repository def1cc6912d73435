"""`etude fleet CLUSTER --jobs FILE`: many jobs on one cluster."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.cli.fleet_folder import folder, notes_of
from etude.cli.output import emit, say
from etude.errors import UsageError


def shared(
    cluster: str, jobs: Path, policy: str, switch: str, first: int, out: Path | None, *, seed: int, force: bool,
    json: bool,
) -> int:  # fmt: skip
    from etude.fleet.sharing import Times, read_cluster, read_jobs, share

    if not cluster.endswith((".yaml", ".yml", ".csv")):
        raise UsageError("--jobs needs a cluster: a YAML file, or a CSV file of nodes", hint="cluster.yaml")
    policy, given = policy or "fifo", read_jobs(jobs, first=first)
    found = share(read_cluster(cluster), given, policy, times=Times(switch_ns=switch_of(switch or "0s")), seed=seed)
    asked = {"cluster": cluster, "jobs": str(jobs), "policy": policy, "switch": switch, "first": first}
    return _told(found, policy, asked, out, force=force, json=json)


def pooled(
    path: str, policy: str, switch: str, out: Path | None, *, seed: int, force: bool, json: bool
) -> int:  # fmt: skip
    """`etude fleet POOL.yaml`: what a file says runs there."""
    from etude.fleet.sharing import read_pool, share

    pool = read_pool(path)
    beside = pool.rl is not None or bool(pool.streams)
    if pool.jobs is None and beside:
        from etude.cli.fleet_rl import post_trained

        if policy or switch:
            raise UsageError(
                "--policy and --switch apply only to jobs, and the file has none", where=path, hint="jobs: jobs.csv"
            )
        return post_trained(pool, out, seed=seed, force=force, json=json)
    if pool.jobs is None:
        raise UsageError("the file has no jobs", where=path, hint="jobs: jobs.csv")
    times = replace(pool.times, switch_ns=switch_of(switch)) if switch else pool.times
    policy = policy or pool.policy
    if beside:
        from etude.cli.fleet_rl import with_jobs

        return with_jobs(pool, policy, times, out, seed=seed, force=force, json=json)
    found = share(pool.cluster, pool.jobs, policy, times=times, seed=seed)
    asked = {"cluster": path, "policy": policy, "switch": switch, "seed": seed}
    return _told(found, policy, asked, out, force=force, json=json)


def switch_of(text: str) -> int:
    from etude.units import parse_time

    switch_ns = parse_time(text)
    if switch_ns < 0:
        raise UsageError(f"--switch: {text} is negative", hint="--switch 30s")
    return switch_ns


def _told(
    found: Any, policy: str, asked: dict[str, Any], out: Path | None, *, force: bool, json: bool
) -> int:  # fmt: skip
    from etude.fleet.sharing import shared_record, shared_tables

    record = shared_record(found, policy=policy)
    for note in notes_of(found):
        say(f"note: {note}")
    tables = shared_tables(found)
    folder(out, tables, record, asked, force=force)
    emit(record | {"jobs": tables["jobs"]} if json else _shown(record), json=json)
    return 0


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    def spread(name: str) -> str | None:
        of = record[name]
        return of and f"mean {of['mean']:,.1f} s, p50 {of['p50']:,.1f} s, p99 {of['p99']:,.1f} s"

    rows = {
        "jobs": f"{record['jobs_done']:,} on {record['devices']:,} devices in {record['duration_s'] / 86400:,.2f} days",
        "devices in use": f"{record['utilisation']:.2%}",
        "waiting": spread("wait_s"),
        "recorded for it": spread("recorded_wait_s"),
        "from arrival to end": spread("jct_s"),
        "preemptions": record["interruptions"],
        "restarting, lost work": f"{record['lost_s']['restart'] / record['duration_s']:.2%}, "
        f"{record['lost_s']['redo'] / record['duration_s']:.2%} of the device time",
        "fairness of slowdowns": f"{record['fairness']:.3f}",
    }
    if record["cost"] is not None:
        rows["cost"] = f"{record['cost']:,.0f} dollars"
    return {name: value for name, value in rows.items() if value is not None}
