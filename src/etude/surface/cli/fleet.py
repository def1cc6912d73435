from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.make.generate import Plan
from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, say
from etude.surface.cli.plan_flags import ModelName, given_of, with_fields
from etude.world.fleet import Recovery
from etude.world.fleet.experts import Group

if TYPE_CHECKING:
    from etude.world.fleet import Costs

EXAMPLE = """Days of jobs on a cluster: faults, checkpoints and recovery, or many jobs that share its devices

[bold]Example[/bold]

  etude fleet llama3-405b --gpus 16384 --tp 8 --pp 16 --system dgx-h100 --days 54 --faults llama3 \\
      --checkpoint "local:5min,remote:1h" --recover restart
  etude fleet llama3-8b --gpus 512 --tp 8 --system dgx-h100 --days 30 --faults "node:mtbf=2000h,repair=4h" \\
      --checkpoint "remote:auto" --recover spare --spares 4
  etude fleet llama3-8b --gpus 512 --tp 8 --system dgx-h100 --days 1 --faults "kill:at=50s,every=50s,times=32" \\
      --checkpoint remote:10min --recover redistribute
  etude fleet deepseek-v3 --serve --gpus 32 --ep 32 --precision fp8 --redundant 32 --system dgx-h100 \\
      --fail rank7@60s --recover shrink --detect 5s --regroup 5s --replace 30s
  etude fleet cluster.yaml --jobs alibaba_2023_pods.csv --policy fair
  etude fleet pool.yaml --policy harvest     # nodes, spot nodes, jobs, request streams and RL jobs in one file
  etude fleet edge.yaml --policy stability   # services that take turns on one device, with early exits
  etude fleet airan.yaml --policy haf --load 0.5..1.2   # radio functions and AI services: shares and moves
  etude fleet backbone.yaml --policy shared  # tasks that share one backbone, its batches and its memory
  etude fleet moe.yaml                       # experts as functions: cold starts, keep-alive, scale to zero
  etude fleet ... -o fleet/; etude report fleet/ -o fleet.html; etude query fleet/ "select state, ... from states"

A step is predicted once for every state that the plan can be in; the loop over days uses these times. The same seed
gives the same faults to every policy.
"""
TIMES = "Recovery"
PLAN = "The plan"
SHARING = "Jobs that share a cluster"
SERVING = "A serving group of experts"


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_fields(Recovery, "recovery", TIMES)
@with_fields(Group, "group", SERVING)
@with_fields(Plan, "flags", PLAN, but=("checkpoint", "steps", "samples", "join"))
def fleet(
    flags: dict[str, Any],
    recovery: dict[str, Any],
    group: dict[str, Any],
    model: ModelName = "",
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there: a name of `etude systems`, or a file.")
    ] = "",
    stack: Annotated[str, typer.Option(help="Software stack: a name that `etude stacks` lists, or a YAML file.")] = "",
    plan: Annotated[Path | None, typer.Option(help="YAML file with the plan; flags override it.")] = None,
    days: Annotated[float, typer.Option(min=0.0, help="How long the job runs.")] = 30.0,
    faults: Annotated[
        str, typer.Option(help="`llama3`, `node:mtbf=2000h,repair=4h;slow:...`, a YAML of kinds, a CSV of events.")
    ] = "none",
    checkpoint: Annotated[
        str, typer.Option(help="`local:5min,remote:1h`; `remote:500:async:rate=2GB/s`; `remote:auto`.")
    ] = "none",
    recover: Annotated[
        str, typer.Option(help="restart, spare, shrink, redistribute, replan, or FILE.py:name.")
    ] = "restart",
    retry: Annotated[
        str,
        typer.Option(
            help="Attempts until a restart succeeds, stage by stage: `auto:p=0.055,every=11min,tries=6;"
            "manual:p=0.125,every=1h`. p: success probability of an attempt; tries=0: no limit; first=0s: the first "
            "attempt is immediate. "
            "Default: the first restart succeeds.",
            rich_help_panel=TIMES,
        ),
    ] = "",
    exclude: Annotated[
        str,
        typer.Option(
            help="Nodes that are not used: `3,17-20`; spares (`--spares`) replace them.", rich_help_panel=TIMES
        ),
    ] = "",
    sweep: Annotated[
        Path | None,
        typer.Option(
            help="Folder of `etude qualify -o node3.json`, one for each node: those with a slow part are not used.",
            rich_help_panel=TIMES,
        ),
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(help="CSV file of jobs that share the cluster of a YAML file.", rich_help_panel=SHARING),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            help="fifo, backfill, sjf, srtf, las, deadline, priority, fair, elastic, harvest, gavel, or FILE.py:name; "
            "for services fifo, edf, stability; for a backbone partition, colocate, shared; for radio functions "
            "static, greedy, strict, haf; default: as the file says, or fifo.",
            rich_help_panel=SHARING,
        ),
    ] = "",
    switch: Annotated[
        str, typer.Option(help="Time that a stopped job needs to start again: `30s`.", rich_help_panel=SHARING)
    ] = "",
    migrate: Annotated[
        str,
        typer.Option(
            help="Interruption of a radio function or AI service that moves to another node: `2s`, or `endless`.",
            rich_help_panel=SHARING,
        ),
    ] = "",
    load: Annotated[
        str,
        typer.Option(
            help="Rates of AI requests next to radio functions, relative to those of the file: `1.2`, or a range "
            "`0.5..1.2`.",
            rich_help_panel=SHARING,
        ),
    ] = "",
    first: Annotated[
        int, typer.Option(min=0, help="Use only the first jobs, this many; 0: all.", rich_help_panel=SHARING)
    ] = 0,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Serve requests on ranks that share their experts; --recover shrink (the others continue) or restart.",
            rich_help_panel=SERVING,
        ),
    ] = False,
    price: Annotated[
        float, typer.Option(min=0.0, help="Price of a device in dollars per hour; 0: as the system says.")
    ] = 0,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the faults, and of everything that a pool draws.")
    ] = 0,
    memory_check: Annotated[bool, typer.Option(help="Refuse plans that do not fit the memory of the device.")] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for `etude query`, `compare` and `report`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder.")] = False,
    json: AsJson = False,
) -> int:
    from etude.surface.api.fleets import days_of, kind_of, recovery_of
    from etude.surface.cli.fleet_folder import shared
    from etude.world.fleet import write_fleet

    if serve:
        from etude.surface.cli.fleet_experts import served_group

        other = {
            "--stack": stack, "--days": days != 30.0, "--faults": faults != "none", "--exclude": exclude,
            "--checkpoint": checkpoint != "none", "--sweep": sweep, "--jobs": jobs, "--policy": policy,
            "--switch": switch, "--migrate": migrate, "--load": load, "--first": first, "--price": price,
            "--seed": seed,
        }  # fmt: skip
        given = given_of(flags, plan, model)
        return served_group(
            model, system, given, group, recovery, recover, other, out, check=memory_check, force=force, json=json
        )
    if group:
        named = "--" + next(iter(group)).removesuffix("_ns").removesuffix("_bytes_per_s").replace("_", "-")
        raise UsageError(f"{named} applies only with --serve", hint="--serve")
    if jobs is not None or kind_of(model):
        more = {"jobs": jobs, "policy": policy, "switch": switch, "migrate": migrate, "first": first, "seed": seed}
        return shared(model, load, out, force=force, json=json, **more)
    if migrate or load:
        raise UsageError("--migrate and --load need a file with `radio` functions", hint="examples/airan.yaml")
    if policy or switch:
        raise UsageError(
            "--policy and --switch apply only to jobs that share a cluster", hint="cluster.yaml --jobs jobs.csv"
        )
    if not model:
        raise UsageError("no model is given", hint="etude fleet llama3-8b --gpus 64 --system dgx-h100 --days 30")
    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    made = days_of(
        model, system, given_of(flags, plan, model), days=days, faults=faults, checkpoint=checkpoint, recover=recover,
        recovery=recovery_of(recovery), exclude=exclude, sweep=sweep, retry=retry, stack=stack, check=memory_check,
        seed=seed, where=str(plan or "plan"),
    )  # fmt: skip
    for note in made.notes:
        say(f"note: {note}")
    found, costs = made.fleet, made.costs
    record = found.record(name=model, price=price) | {"excluded": list(made.excluded)}
    if json and recover == "replan" and faults == "none" and costs.planned is not None:
        record["plans"] = [{"name": one.name, "step_s": one.step_ns / 1e9} for one in costs.planned()]
    if out is not None:
        asked = {
            "model": model, "system": system, "days": days, "faults": faults, "checkpoint": checkpoint,
            "recover": recover, "seed": seed, "stack": stack, **({"retry": retry} if retry else {}),
        }  # fmt: skip
        said = {name: str(value) for name, value in (flags | recovery).items()}
        write_fleet(found.tables(record), record | {"asked": asked | said}, out, force=force)
        say(f"wrote {out}")
    emit(record if json else shown(record, costs), json=json)
    return 0


def shown(record: dict[str, Any], costs: "Costs") -> dict[str, Any]:
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
    if record["cost"] is not None:
        rows["cost"] = f"{record['cost']:,.0f} dollars"
    return rows
