"""`etude fleet train`: days of a training job, where they are written, and what a reader sees of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import part
from etude.base.outputs import Printed, Written
from etude.base.parameters import request_of, spelled
from etude.cost.estimates import range_of, said_range
from etude.world.fleet.asked.kept import FleetInputs, kept, tell
from etude.world.fleet.costs import REPLAN
from etude.world.fleet.days.request import TrainInputs, TrainRequest, train, train_inputs
from etude.world.fleet.training import spares_of
from etude.world.scenario import PrintedScenario, ScenarioText, only_workload, workload_of


@dataclass(frozen=True, kw_only=True)
class TrainFleet(PrintedScenario, Written, TrainRequest):
    """Days of a training job on a cluster: faults, checkpoints and recovery

    etude fleet train llama3-405b --gpus 16384 --tp 8 --pp 16 --system dgx-h100 \\
        --days 54 --faults llama3 --checkpoint "local:5min,remote:1h"
    etude fleet train llama3-8b --gpus 512 --tp 8 --system dgx-h100 \\
        --faults "node:mtbf=2000h,repair=4h" --checkpoint remote:auto \\
        --recover spare --spares 4
    etude fleet train llama3-8b --gpus 64 --cp 2 --pp 4 --system dgx-h100 \\
        --faults "slow:at=50s,every=50s,times=32,factor=2,duration=20s" \\
        --checkpoint remote:10min --recover redistribute
    etude fleet train mixtral-8x7b --gpus 64 --tp 2 --ep 8 --zero 1 \\
        --lengths 1024:0.5,4096:0.5 --system dgx-h100 -o fleet/

    A step is predicted once for every state that the plan can be in; the loop over days uses these times. The same
    seed gives the same faults to every policy. `etude report`, `compare` and `query` read the folder of --out.
    """

    output: Printed = part(Printed)


def _inputs(asked: TrainFleet) -> tuple[TrainInputs, float]:
    return train_inputs(asked), asked.price


def train_scenario(asked: TrainFleet, given: FleetInputs) -> ScenarioText:
    """This job alone on a machine."""
    days: TrainInputs = given.inputs[0]
    spares = spares_of(days.recover, days.recovery)
    if days.faults and spares is None:
        said = f"{spelled(asked, 'scenario')} needs the number of spare nodes"
        raise UsageError(said, hint=f"{spelled(asked, 'spares')} 4")
    node = min(days.system.levels[0].size, days.plan.gpus)
    more: dict[str, Any] = {"horizon": f"{days.days:.12g}d"}
    more |= {"events": {"faults": days.faults}, "seed": days.seed} if days.faults else {}
    nodes = -(-days.plan.gpus // node) + (spares or 0)
    apart = ("price", "retry", "exclude", "sweep")
    workload = workload_of(asked, "train", but=("days", "faults", "seed"), apart=apart)
    return only_workload("train", workload, system=str(request_of(asked).given["system"]), nodes=nodes, **more)


inputs = kept(_inputs)
"""What the days are, and the price of a device."""


@dataclass(frozen=True, slots=True)
class DaysRecord:
    """The record of the days, and the bytes of the job's state."""

    record: dict[str, Any]
    state_bytes: float


def run(given: FleetInputs) -> DaysRecord:
    days, price = given.inputs
    made = train(days)
    tell(made.notes)
    found, costs = made.fleet, made.costs
    record = found.record(name=given.asked.given["model"], price=price) | {"excluded": list(made.excluded)}
    if days.recover == REPLAN and not days.faults and costs.planned is not None:
        record["plans"] = [{"name": one.name, "step_s": one.step_ns / 1e9} for one in costs.planned()]
    given.write(found.tables(record), record)
    return DaysRecord(record, costs.state_bytes)


def readable(found: DaysRecord) -> Any:
    """What a reader wants to see first."""
    record = found.record
    whole = record["duration_s"]
    lost = {part: seconds for part, seconds in record["lost_s"].items() if seconds}
    step, goodput = (range_of(record, name) for name in ("step_s", "goodput_tokens_per_s"))
    rows = {
        "time": f"{whole / 86400:,.2f} days, {record['steps']:,} steps of {record['step_s']:.3f} s{step} kept",
        "useful": f"{record['useful_fraction']:.2%}",
        "lost": ", ".join(f"{part} {s / whole:.2%}" for part, s in sorted(lost.items(), key=lambda kv: -kv[1])) or None,
        "tokens/s": f"{record['goodput_tokens_per_s']:,.0f}{goodput} of {record['planned_tokens_per_s']:,.0f}",
        "range": said_range(record, "goodput_tokens_per_s"),
        "interruptions": record["interruptions"],
        "state": f"{found.state_bytes / 1e12:.3g} TB",
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
