"""What shares one set of devices, `etude fleet share` and its like: where it is written, and what a reader sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import part
from etude.base.outputs import Printed, Written
from etude.world.fleet.asked.kept import FleetInputs, kept, tell
from etude.world.fleet.shared.request import (
    KINDS,
    BackboneRequest,
    FileRequest,
    RadioRequest,
    ServicesRequest,
    SharedFleet,
    ShareRequest,
)
from etude.world.scenario import PrintedScenario, ScenarioText, only_workload, workload_of


@dataclass(frozen=True, kw_only=True)
class Share(Written, ShareRequest):
    """Jobs, request streams and RL jobs that share the devices of a cluster

    etude fleet share cluster.yaml --jobs jobs.csv --policy las --switch 30s
    etude fleet share pool.yaml --policy harvest
    etude fleet share spot.yaml --jobs jobs.csv
    etude fleet share rl.yaml -o rl/

    A pool is one file: nodes, spot nodes, jobs, request streams and RL jobs.
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ServicesFleet(Written, ServicesRequest):
    """Services that take turns on one device, with early exits

    etude fleet services edge.yaml --policy stability
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class BackboneFleet(Written, BackboneRequest):
    """Tasks that share one backbone, its batches and its memory

    etude fleet backbone backbone.yaml --policy shared
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class RadioFleet(Written, RadioRequest):
    """Radio functions and AI services on one set of nodes: shares and moves

    etude fleet radio airan.yaml --policy haf --migrate 2s
    etude fleet radio airan.yaml --load 0.5..1.2
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class FunctionsFleet(PrintedScenario, Written, FileRequest):
    """Experts as functions: cold starts, keep-alive, scale to zero

    etude fleet functions moe.yaml
    """

    output: Printed = part(Printed)


def inputs_of(kind: str) -> Callable[[Any], FleetInputs]:
    """Inputs of a kind of file. Several loads have no folder."""
    _, build, _ = KINDS[kind]

    def inputs(asked: Any) -> FleetInputs:
        given = kept(build)(asked)
        if kind == "radio" and given.place is not None and len(given.inputs.pools) > 1:
            raise UsageError("-o needs a single load", where=str(given.place.path), hint="--load 1.0, without --out")
        return given

    return inputs


def functions_scenario(asked: FunctionsFleet, given: FleetInputs) -> ScenarioText:
    """These functions alone; their instances have devices of their own, beside a machine."""
    system = str(given.inputs.spec.system)
    return only_workload("calls", workload_of(asked, "functions", of="file"), system=system, nodes=1)


def run_of(kind: str) -> Callable[[FleetInputs], list[SharedFleet]]:
    """Runs what shares devices, says its notes and writes it; several loads are several results."""
    _, _, share = KINDS[kind]

    def run(given: FleetInputs) -> list[SharedFleet]:
        found = share(given.inputs)
        every = found if isinstance(found, list) else [found]
        for one in every:
            tell(one.notes)
            given.write(one.tables, one.figures)
        return every

    return run


def record(found: list[SharedFleet]) -> Any:
    if len(found) > 1:
        return [one.figures for one in found]
    return found[0].figures | ({"jobs": found[0].tables["jobs"]} if found[0].kind == "jobs" else {})


# -- for a reader ------------------------------------------------------------------------------------------------------


def readable(found: list[SharedFleet]) -> Any:
    """Rows or figures, by the kind of what shares; a row for each of several loads."""
    if len(found) > 1:
        return [{"load": f"{one.figures['load']:.3g}", **_fulfilled(one.figures)} for one in found]
    return SHOWN[found[0].kind](found[0].figures)


def lines(found: list[SharedFleet]) -> list[str]:
    """Figures of all members together."""
    one = found[0]
    return [SUMS[one.kind](one.figures)] if one.kind in SUMS and len(found) == 1 else []


def _job_rows(record: dict[str, Any]) -> dict[str, Any]:
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


def _mixed_rows(record: dict[str, Any]) -> dict[str, Any]:
    jobs, held = record["shared"], record["device_s"]
    return {
        "jobs": f"{jobs['jobs_done']:,}, waited {jobs['wait_s']['mean']:,.1f} s on average",
        "total": f"{record['duration_s']:,.1f} s on {record['devices']:,} devices, {record['utilisation']:.2%} "
        f"in use, {held['streams'] / held['there']:.2%} used by streams",
    }


def _rl_rows(record: dict[str, Any]) -> dict[str, Any]:
    took = record.get("rl_s", record["duration_s"])
    rows = {
        "updates": f"{record['updates']:,} of {record['tenants']:,} tenants in {took:,.1f} s",
        "time per step": f"{record['step_s']:,.2f} s: rollouts {record['rollout_s']:,.2f}, update "
        f"{record['train_s']:,.2f}",
        "devices in use": f"{record['utilisation']:.2%} of {record['devices']:,}",
        "tokens generated": f"{record['goodput_tokens_per_s']:,.0f} per second, {record['lost_tokens']:,.0f} lost",
        "staleness": f"{record['staleness']} updates at most",
        "weights sent": f"{record['sync_bytes'] / 1e9:,.3g} GB in {record['sync_s']:,.3g} s after an update",
    }
    if record["interruptions"]:
        rows["nodes reclaimed"] = f"{record['interruptions']:,} times"
    for name, served in record.get("streams", {}).items():
        kept = served.get("within_limits")
        within = "" if kept is None else f", {kept:.2%} within their limits"
        rows[name] = f"{served['requests']:,} requests, first token {served['ttft_s']['mean']:.3f} s{within}"
    if record["device_s"]["lent"]:
        rows["lent"] = f"{record['device_s']['lent'] / record['duration_s']:,.2f} devices on average"
    if record["cost"] is not None:
        rows["cost"] = f"{record['cost']:,.2f} dollars"
    return rows


def _both_rows(record: dict[str, Any]) -> dict[str, Any]:
    return _rl_rows(record) | _mixed_rows(record)


def _services_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "service": one["name"],
            "requests": one["requests"],
            "late": f"{one['missed']:.2%}",
            **_in_ms(one["latency_s"]),
            "exits taken": " ".join(str(count) for count in one["exits"]),
        }
        for one in record["services"]
    ]


def _services_sum(record: dict[str, Any]) -> str:
    return (
        f"{record['policy']}: {record['missed']:.2%} of {record['requests']:,} late, latency p95 "
        f"{record['latency_s']['p95'] * 1e3:,.1f} ms, device in use {record['utilisation']:.1%}"
    )


def _backbone_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"task": one["name"], "weight": one["weight"], "requests": one["requests"], **_in_ms(one["latency_s"])}
        for one in record["tasks"]
    ]


def _backbone_sum(record: dict[str, Any]) -> str:
    return (
        f"{record['policy']}: latency p95 {record['latency_s']['p95'] * 1e3:,.1f} ms, batches of "
        f"{record['batch']:.1f}, device in use {record['utilisation']:.1%}, memory for {record['hosted']:,} tasks"
    )


def _in_ms(spread: dict[str, float] | None) -> dict[str, Any]:
    return {f"{at} ms": spread and round(spread[at] * 1e3, 2) for at in ("mean", "p95")}


def _radio_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "member": one["name"],
            "kind": one["kind"],
            "asked": f"{one['asked']:,}",
            "on time": f"{one['fulfilled']:.2%}",
            "moves": one["moves"],
        }
        for one in record["members"]
    ]


def _radio_sum(record: dict[str, Any]) -> str:
    return f"{record['policy']}: " + ", ".join(f"{name} {value}" for name, value in _fulfilled(record).items())


def _fulfilled(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "fulfilled": f"{record['fulfilled']:.1%}",
        "radio": f"{record['radio_fulfilled']:.1%}",
        "ai": f"{record['ai_fulfilled']:.1%}",
        "moves": record["moves"],
    }


def _functions_rows(record: dict[str, Any]) -> dict[str, Any]:
    held, took = record["resident_byte_s"], record["latency_s"]
    rows = {
        "requests": f"{record['requests']:,} of {record['tenants']:,} tenants in {record['duration_s']:,.0f} s",
        "functions": f"{record['functions']:,} of {record['function_bytes'] / 1e9:,.3g} GB",
        "calls": f"{record['invocations']:,}, {record['cold']:,} cold, {record['invocation_s']:,.2f} s to send the "
        "tokens",
        "resident": f"{held['all'] / 1e9:,.0f} GB s, of which {held['dense'] / 1e9:,.0f} always",
        "compared with the full model": f"{record['of_full']:.1%}",
    }
    if took:
        rows["latency"] = (
            f"{took['mean']:,.3f} s, p95 {took['p95']:,.3f} s; first token {record['first_s']['mean']:,.3f} s"
        )
    return rows


SHOWN: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "jobs": _job_rows, "rl": _rl_rows, "jobs and rl": _both_rows, "jobs and streams": _mixed_rows,
    "services": _services_rows, "backbone": _backbone_rows, "radio": _radio_rows, "functions": _functions_rows,
}  # fmt: skip
"""Kind of result -> its rows, or its figures."""
SUMS: Final = {"services": _services_sum, "backbone": _backbone_sum, "radio": _radio_sum}
