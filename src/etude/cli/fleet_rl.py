"""`etude fleet POOL.yaml` where the file has `rl` or `streams`: post-training and requests on one set of devices."""

from pathlib import Path
from typing import Any

from etude.cli.fleet_folder import folder, notes_of
from etude.cli.output import emit, say
from etude.errors import UsageError


def post_trained(pool: Any, out: Path | None, *, seed: int, force: bool, json: bool) -> int:
    from etude.fleet.rl import beside, read_borrow, read_rl, rl_record, rl_tables

    if pool.rl is None:
        raise UsageError(
            "request streams alone are simulated by `etude serve`", where=pool.path, hint="rl: {...}, jobs: [...]"
        )
    spec, where = read_rl(pool.rl, pool.path), pool.path
    borrow = read_borrow(pool.borrow, pool.streams, where)
    found, more = beside(pool.cluster, spec, pool.streams, borrow, where, seed=seed, horizon_ns=pool.times.horizon_ns)
    record = rl_record(found)
    for note in found.notes:
        say(f"note: {note}")
    asked = {"cluster": where, "borrow": borrow.how.value, "seed": seed}
    folder(out, rl_tables(found, record) | more, record, asked, force=force)
    emit(record if json else _shown(record), json=json)
    return 0


def with_jobs(pool: Any, policy: str, times: Any, out: Path | None, *, seed: int, force: bool, json: bool) -> int:
    """Jobs beside `rl` and streams: these have their nodes until they are done, jobs the others, and then all."""
    from etude.fleet.rl import mixed

    found = mixed(pool, policy, times, seed=seed)
    for note in (*found.notes, *notes_of(found.shared)):
        say(f"note: {note}")
    asked = {"cluster": pool.path, "policy": policy, "seed": seed}
    folder(out, found.tables, found.record, asked, force=force)
    rows = _shown(found.record) if pool.rl is not None else {}
    emit(found.record if json else rows | _shown_jobs(found.record), json=json)
    return 0


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
