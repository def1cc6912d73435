"""What `etude fleet` shows of each kind of fleet."""

from typing import TYPE_CHECKING, Any

from etude.base.talk import say
from etude.surface.cli.output import emit

if TYPE_CHECKING:
    from etude.world.fleet import Costs
    from etude.world.fleet.shared import SharedFleet


def training_rows(record: dict[str, Any], costs: "Costs") -> dict[str, Any]:
    """What a reader wants to see first."""
    whole = record["duration_s"]
    lost = {part: seconds for part, seconds in record["lost_s"].items() if seconds}
    rows = {
        "time": f"{whole / 86400:,.2f} days, {record['steps']:,} steps of {record['step_s']:.3f} s kept",
        "useful": f"{record['useful_fraction']:.2%}",
        "lost": ", ".join(f"{part} {s / whole:.2%}" for part, s in sorted(lost.items(), key=lambda kv: -kv[1])) or None,
        "tokens/s": f"{record['goodput_tokens_per_s']:,.0f} of {record['planned_tokens_per_s']:,.0f}",
        "interruptions": record["interruptions"],
        "state": f"{costs.state_bytes / 1e12:.3g} TB",
    }
    if record["interruptions"]:
        rows["between failures"] = f"{record['mttf_s'] / 3600:.2f} h of work, then {record['mttr_s'] / 60:.1f} min down"
    if "retries" in record:
        it = record["retries"]
        ends = ", ".join(f"{n} by {name}" for name, n in it["ended"].items())
        rows["retries"] = (
            f"{it['tries']:,} tries in {it['chains']:,} chains, ended {ends}, {it['never']} never succeeded"
        )
    if "interval" in record:
        it = record["interval"]
        rows["best interval"] = (
            f"{it['best_s']:,.0f} s to {it['tier']} (Young {it['young_s']:,.0f} s, Daly {it['daly_s']:,.0f} s)"
        )
    if record["energy_j"] is not None:
        rows["energy"] = f"{record['energy_j'] / 3.6e9:,.4g} MWh"
    if plans := record.get("plans"):
        rows["other plans"] = ", ".join(f"{one['name']} {one['step_s']:.3f} s" for one in plans)
    if record["cost"] is not None:
        rows["cost"] = f"{record['cost']:,.0f} dollars"
    return rows


def group_rows(record: dict[str, Any]) -> dict[str, Any]:
    rows = {
        "group": f"{record['ranks']} ranks with {record['slots']} experts each, {record['redundant']} of them copies",
        "tokens/s": f"{record['tokens_per_s']:,.0f} of {record['planned_tokens_per_s']:,.0f}",
        "time without tokens": f"{record['down_s']:,.1f} s of {record['duration_s']:,.1f}",
    }
    for number, pause in enumerate(record["pauses"], 1):
        parts = ", ".join(f"{name} {seconds:,.2f} s" for name, seconds in pause["parts_s"].items())
        read = ", ".join(f"{size / 1e9:,.1f} GB from {place}" for place, size in pause["read_bytes"].items() if size)
        again = "" if pause["again_s"] is None else f"; back at 95% after {pause['again_s']:,.1f} s"
        told = f"{parts}{f' ({read})' if read else ''}{again}"
        rows[f"{number}: {pause['why']} at {pause['at_s']:,.1f} s"] = told
    for config in record["configs"][1:]:
        rows[f"{config['ranks']} ranks"] = (
            f"{config['tokens_per_s'] / record['planned_tokens_per_s']:.2%} of full speed, fullest rank "
            f"{config['fullest']:.3f}"
        )
    return rows


def show_shared(found: "SharedFleet") -> None:
    """Jobs on one cluster, and post-training and requests next to them."""
    record = found.figures
    if found.kind == "jobs":
        emit(_job_rows(record))
    else:
        rows = _rl_rows(record) if found.kind in ("rl", "jobs and rl") else {}
        emit(rows | (_mixed_rows(record) if found.kind != "rl" else {}))


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


def show_services(found: "SharedFleet") -> None:
    record = found.figures
    emit([_service_row(one) for one in record["services"]])
    say(
        f"{record['policy']}: {record['missed']:.2%} of {record['requests']:,} late, latency p95 "
        f"{record['latency_s']['p95'] * 1e3:,.1f} ms, device in use {record['utilisation']:.1%}"
    )


def show_backbone(found: "SharedFleet") -> None:
    record = found.figures
    emit([
        {"task": one["name"], "weight": one["weight"], "requests": one["requests"], **_in_ms(one["latency_s"])}
        for one in record["tasks"]
    ])  # fmt: skip
    say(
        f"{record['policy']}: latency p95 {record['latency_s']['p95'] * 1e3:,.1f} ms, batches of "
        f"{record['batch']:.1f}, device in use {record['utilisation']:.1%}, memory for {record['hosted']:,} tasks"
    )


def _in_ms(spread: dict[str, float] | None) -> dict[str, Any]:
    return {f"{at} ms": spread and round(spread[at] * 1e3, 2) for at in ("mean", "p95")}


def _service_row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "service": one["name"],
        "requests": one["requests"],
        "late": f"{one['missed']:.2%}",
        **_in_ms(one["latency_s"]),
        "exits taken": " ".join(str(count) for count in one["exits"]),
    }


def show_radio(found: "list[SharedFleet]") -> None:
    """Each member at one load, or each of several loads."""
    if len(found) > 1:
        emit([{"load": f"{one.figures['load']:.3g}", **_fulfilled(one.figures)} for one in found])
        return
    record = found[0].figures
    emit([_member_row(one) for one in record["members"]])
    told = ", ".join(f"{name} {value}" for name, value in _fulfilled(record).items())
    say(f"{record['policy']}: {told}")


def _fulfilled(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "fulfilled": f"{record['fulfilled']:.1%}", "radio": f"{record['radio_fulfilled']:.1%}",
        "ai": f"{record['ai_fulfilled']:.1%}", "moves": record["moves"],
    }  # fmt: skip


def _member_row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "member": one["name"], "kind": one["kind"], "asked": f"{one['asked']:,}", "on time": f"{one['fulfilled']:.2%}",
        "moves": one["moves"],
    }  # fmt: skip


def show_functions(found: "SharedFleet") -> None:
    record = found.figures
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
    emit(rows)
