"""`etude fleet EDGE.yaml` where the file has `services`: small networks that take turns on one device."""

from pathlib import Path
from typing import Any

from etude.cli.output import emit, say
from etude.errors import UsageError


def served_in_turns(path: str, policy: str, switch: str, out: Path | None, *, seed: int, json: bool) -> int:
    from etude.fleet.services import read_services, serve_services, services_record

    if switch:
        raise UsageError("--switch is of jobs that share a cluster", where=path)
    if out is not None:
        raise UsageError("services have no folder", where=path, hint="--json")
    spec, services = read_services(path, policy)
    record = services_record(serve_services(spec, services, seed=seed))
    if json:
        emit(record, json=True)
        return 0
    emit([_row(one) for one in record["services"]])
    say(
        f"{record['policy']}: {record['missed']:.2%} of {record['requests']:,} late, latency p95 "
        f"{record['latency_s']['p95'] * 1e3:,.1f} ms, device in use {record['utilisation']:.1%}"
    )
    return 0


def _row(one: dict[str, Any]) -> dict[str, Any]:
    spread = one["latency_s"]
    return {
        "service": one["name"],
        "requests": one["requests"],
        "late": f"{one['missed']:.2%}",
        "mean ms": spread and round(spread["mean"] * 1e3, 2),
        "p95 ms": spread and round(spread["p95"] * 1e3, 2),
        "exits taken": " ".join(str(count) for count in one["exits"]),
    }
