"""`etude fleet MODEL --serve`: a wide group of expert-parallel ranks, of which some leave and join again."""

from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.surface.cli.fleet_folder import folder
from etude.surface.cli.output import emit

PLAN = ("gpus", "ep", "precision")


def served_group(
    model: str, system: str, plan: dict[str, Any], group: dict[str, Any], recovery: dict[str, Any], recover: str,
    other: dict[str, Any], out: Path | None, *, check: bool, force: bool, json: bool,
) -> int:  # fmt: skip
    from etude.machine import open_system
    from etude.surface.cli.plan_flags import figures_of, model_of
    from etude.world.fleet import Recovery
    from etude.world.fleet.experts import Group, Prices, group_tables, serve_group

    hint = "etude fleet deepseek-v3 --serve --gpus 32 --ep 32 --system dgx-h100 --fail rank7@60s"
    if given := [name for name, value in other.items() if value]:
        raise UsageError(f"{given[0]} with --serve", hint=hint)
    if given := [name for name in plan if name not in PLAN and plan[name] != 1]:
        raise UsageError(
            f"`{given[0]}` does not apply with --serve: every rank holds whole layers and its share of the experts",
            hint=hint,
        )
    if given := [name for name in ("spares", "eject") if recovery.get(name)]:
        raise UsageError(f"--{given[0]} with --serve", hint=hint)
    if not model or not system:
        raise UsageError(f"no {'system' if model else 'model'} is given", hint=hint)
    network, ranks = model_of(model), int(plan.get("ep") or plan.get("gpus") or 0)
    if not network.experts:
        raise UsageError(f"`{network.name}` has no experts", hint=hint)
    if not ranks or plan.get("gpus", ranks) != ranks:
        raise UsageError(f"experts over {plan.get('ep', 'no')} of {plan.get('gpus', 'no')} ranks", hint=hint)
    wanted = figures_of(Group, group, "group")
    precision = str(plan.get("precision") or "bf16")
    prices = Prices(network, open_system(system), wanted.sequences, wanted.context, precision, check)
    rules = figures_of(Recovery, recovery, "recovery")
    record = serve_group(prices, wanted, ranks=ranks, recover=recover, recovery=rules)
    asked = {"model": model, "system": system, **plan, **group, "recover": recover, **recovery}
    folder(out, group_tables(record), record, {name: str(value) for name, value in asked.items()}, force=force)
    emit(record if json else _shown(record), json=json)
    return 0


def _shown(record: dict[str, Any]) -> dict[str, Any]:
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
