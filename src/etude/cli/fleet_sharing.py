"""`etude fleet CLUSTER --jobs FILE`: many jobs on one cluster."""

from pathlib import Path
from typing import Any

from etude.cli.output import emit, say
from etude.errors import UsageError


def shared(
    cluster: str, jobs: Path, policy: str, switch: str, first: int, out: Path | None, *, force: bool, json: bool
) -> int:
    from etude.fleet import write_fleet
    from etude.fleet.sharing import read_cluster, read_jobs, share, shared_record, shared_tables
    from etude.units import parse_time

    if not cluster.endswith((".yaml", ".yml", ".csv")):
        raise UsageError("--jobs is of a cluster, which a YAML file or a CSV of nodes says", hint="cluster.yaml")
    switch_ns = parse_time(switch)
    if switch_ns < 0:
        raise UsageError(f"--switch: {switch} is negative", hint="--switch 30s")
    given = read_jobs(jobs, first=first)
    found = share(read_cluster(cluster), given, policy, switch_ns=switch_ns)
    record = shared_record(found, policy=policy)
    for note in given.notes:
        say(f"note: {note}")
    if found.refused:
        names = ", ".join(given.name[job] for job in found.refused[:3])
        say(f"note: {len(found.refused):,} jobs fit no node and are left out: {names}")
    tables = shared_tables(found)
    if out is not None:
        asked = {"cluster": cluster, "jobs": str(jobs), "policy": policy, "switch": switch, "first": first}
        write_fleet(tables, record | {"asked": asked}, out, force=force)
        say(f"wrote {out}")
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
        "... recorded": spread("recorded_wait_s"),
        "from arrival to end": spread("jct_s"),
        "preemptions": record["interruptions"],
        "fairness of slow-downs": f"{record['fairness']:.3f}",
    }
    if record["cost"] is not None:
        rows["cost"] = f"{record['cost']:,.0f} dollars"
    return {name: value for name, value in rows.items() if value is not None}
