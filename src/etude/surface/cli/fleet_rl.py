"""`etude fleet POOL.yaml` where the file has `rl` or `streams`: post-training and requests on one set of devices."""

from typing import TYPE_CHECKING, Any

from etude.surface.cli.output import emit

if TYPE_CHECKING:
    from etude.surface.api.fleets import SharedFleet


def show_post_trained(found: "SharedFleet", *, json: bool) -> None:
    emit(found.figures if json else _shown(found.figures), json=json)


def show_mixed(found: "SharedFleet", *, json: bool) -> None:
    """Jobs beside `rl` and streams."""
    rows = _shown(found.figures) if found.kind == "jobs and rl" else {}
    emit(found.figures if json else rows | _shown_jobs(found.figures), json=json)


def _shown_jobs(record: dict[str, Any]) -> dict[str, Any]:
    jobs, held = record["shared"], record["device_s"]
    return {
        "jobs": f"{jobs['jobs_done']:,}, waited {jobs['wait_s']['mean']:,.1f} s on average",
        "total": f"{record['duration_s']:,.1f} s on {record['devices']:,} devices, {record['utilisation']:.2%} "
        f"in use, {held['streams'] / held['there']:.2%} used by streams",
    }


def _shown(record: dict[str, Any]) -> dict[str, Any]:
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
