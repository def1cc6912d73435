"""`etude fleet POOL.yaml` where the file has `rl` or `streams`: post-training and requests on one set of devices."""

from pathlib import Path
from typing import Any

from etude.cli.output import emit, say
from etude.errors import UsageError


def post_trained(pool: Any, out: Path | None, *, seed: int, force: bool, json: bool) -> int:
    from etude.fleet import write_fleet
    from etude.fleet.rl import read_rl, rl_record, rl_tables, run_rl

    if pool.rl is None:
        raise UsageError("no rl runs there", where=pool.path, hint="rl: {...}")
    spec = read_rl(pool.rl, pool.path)
    found = run_rl(pool.cluster, spec, pool.path, seed=seed, horizon_ns=pool.times.horizon_ns)
    record = rl_record(found)
    for note in found.notes:
        say(f"note: {note}")
    if out is not None:
        asked = {"cluster": pool.path, "seed": seed}
        write_fleet(rl_tables(found, record), record | {"asked": asked}, out, force=force)
        say(f"wrote {out}")
    emit(record if json else _shown(record), json=json)
    return 0


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    rows = {
        "updates": f"{record['updates']:,} of {record['tenants']:,} tenants in {record['duration_s']:,.1f} s",
        "a step": f"{record['step_s']:,.2f} s: rollouts {record['rollout_s']:,.2f}, update {record['train_s']:,.2f}",
        "devices in use": f"{record['utilisation']:.2%} of {record['devices']:,}",
        "tokens made": f"{record['goodput_tokens_per_s']:,.0f} a second, {record['lost_tokens']:,.0f} lost",
        "staleness": f"{record['staleness']} updates at most",
        "weights sent": f"{record['sync_bytes'] / 1e9:,.3g} GB in {record['sync_s']:,.3g} s after an update",
    }
    if record["interruptions"]:
        rows["nodes taken away"] = f"{record['interruptions']:,} times"
    if record["cost"] is not None:
        rows["cost"] = f"{record['cost']:,.2f} dollars"
    return rows
