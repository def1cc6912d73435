"""`etude fleet EDGE.yaml` where the file has `services` or a `backbone`: small networks or tasks on one device."""

from pathlib import Path
from typing import Any

from etude.cli.fleet_folder import folder
from etude.cli.output import emit, say
from etude.errors import UsageError


def served_in_turns(
    path: str, policy: str, switch: str, out: Path | None, *, seed: int, force: bool, json: bool
) -> int:  # fmt: skip
    from etude.fleet.services import read_services, serve_services, services_record, services_tables

    _no_switch(path, switch)
    spec, services = read_services(path, policy)
    found = serve_services(spec, services, seed=seed)
    record = services_record(found)
    asked = {"file": path, "policy": record["policy"], "seed": seed}
    folder(out, services_tables(found, record), record, asked, force=force)
    if json:
        emit(record, json=True)
        return 0
    emit([_row(one) for one in record["services"]])
    say(
        f"{record['policy']}: {record['missed']:.2%} of {record['requests']:,} late, latency p95 "
        f"{record['latency_s']['p95'] * 1e3:,.1f} ms, device in use {record['utilisation']:.1%}"
    )
    return 0


def served_on_a_backbone(
    path: str, policy: str, switch: str, out: Path | None, *, seed: int, force: bool, json: bool
) -> int:  # fmt: skip
    from etude.fleet.services import backbone_record, backbone_tables, read_backbone, serve_backbone

    _no_switch(path, switch)
    spec, tasks = read_backbone(path, policy)
    found = serve_backbone(spec, tasks, seed=seed)
    record = backbone_record(found)
    asked = {"file": path, "policy": record["policy"], "seed": seed}
    folder(out, backbone_tables(found, record), record, asked, force=force)
    if json:
        emit(record, json=True)
        return 0
    emit([
        {"task": one["name"], "weight": one["weight"], "requests": one["requests"], **_in_ms(one["latency_s"])}
        for one in record["tasks"]
    ])  # fmt: skip
    say(
        f"{record['policy']}: latency p95 {record['latency_s']['p95'] * 1e3:,.1f} ms, batches of "
        f"{record['batch']:.1f}, device in use {record['utilisation']:.1%}, memory for {record['hosted']:,} tasks"
    )
    return 0


def _no_switch(path: str, switch: str) -> None:
    if switch:
        raise UsageError("--switch applies only to jobs that share a cluster", where=path)


def _in_ms(spread: dict[str, float] | None) -> dict[str, Any]:
    return {f"{at} ms": spread and round(spread[at] * 1e3, 2) for at in ("mean", "p95")}


def _row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "service": one["name"],
        "requests": one["requests"],
        "late": f"{one['missed']:.2%}",
        **_in_ms(one["latency_s"]),
        "exits taken": " ".join(str(count) for count in one["exits"]),
    }
