"""`etude world run`: a scenario, where its outcome is written, and what a reader sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from etude.base.figures import argument, part, usage_errors
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.talk import say
from etude.cost.estimates import range_of, said_range
from etude.world.build import run_scenario
from etude.world.headlines import headline
from etude.world.makers import is_kind, kinds
from etude.world.outcome import WorldOutcome, outcome_of
from etude.world.scenario import Scenario, WorkloadKinds, read_scenario, scenario_of


@dataclass(frozen=True, kw_only=True)
class RunWorld(Written):
    """Training, serving, faults, prices and power on one machine and one clock, from one file

    etude world run monday.yaml
    etude world run monday.yaml --json
    etude world run monday.yaml -o out/

    A scenario has a machine, workloads, events and policies:

        machine: {system: dgx-h100, nodes: 16, power: 80kW, regions: [sweden]}
        horizon: 1d
        workloads:
          pretrain: {train: llama3-8b, gpus: 64, tp: 4,
                     checkpoint: ["remote:30min"], recover: shrink, lend_to: chat}
          chat: {serve: llama3-8b, replicas: 4..64, scale: queue, rate: 40,
                 count: 1000000, slo: {ttft: 1s, tpot: 50ms}}
        events: {faults: llama3, prices: spot.csv}
        policies: {place: pack, share: lend}

    Besides its kind, a workload says the parameters of `etude fleet train` or `etude serve`. The account lists device
    time, energy and money of every holder; its parts add up to the nanosecond and the millijoule.
    """

    file: str = argument("path", "YAML file of the scenario", like="monday.yaml")
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class WorldInputs:
    scenario: Scenario
    place: OutputPlace | None


def world_inputs(asked: RunWorld) -> WorldInputs:
    return WorldInputs(read_scenario(asked.file, WorkloadKinds(is_kind, kinds)), OutputPlace.of(asked))


def run_world(given: WorldInputs) -> WorldOutcome:
    found = outcome_of(run_scenario(given.scenario))
    for note in found.notes:
        say(f"note: {note}")
    if given.place is not None:
        found.write(given.place.path, force=given.place.force)
        say(f"wrote {given.place.path}")
    return found


# -- for a reader ------------------------------------------------------------------------------------------------------


def readable(found: WorldOutcome) -> dict[str, Any]:
    """A line for each workload, then the account."""
    record = found.record
    rows: dict[str, Any] = {"time": f"{record['horizon_s'] / 3600:,.2f} h"}
    for name, its in record["workloads"].items():
        rows[name] = _said(its)
        rows |= {f"{name}: range": text for text in _ranges(its)}
    parts = record["account"]["device_ns"]["parts"]
    whole = record["account"]["device_ns"]["total"]
    rows["device time"] = ", ".join(f"{who} {sum(its.values()) / whole:.1%}" for who, its in parts.items())
    if energy := record["account"]["energy_mj"]:
        rows["energy"] = f"{energy['total'] / 3.6e9:,.1f} kWh"
    if cost := record["account"]["cost"]:
        rows["cost"] = f"{cost['total']:,.0f} dollars"
    if carbon := record["account"]["carbon_g"]:
        rows["emissions"] = f"{carbon['total'] / 1e3:,.1f} kg of CO2, in {carbon['region']}"
    if (power := record.get("power")) and power["mean_w"] is not None:
        rows["power"] = (
            f"{power['mean_w'] / 1e3:,.1f} kW on average, cap {power['cap_w'] / 1e3:,.1f} kW, above it in "
            f"{power['over_cap']:.1%} of the minutes"
        )
        if any("steps" in its for its in record["workloads"].values()):
            rows["power"] += f"; training at {power['training_speed']:.0%} of its speed"
    rows["events"] = f"{len(record['events']):,}"
    return rows


FIRST: Final = ("step_s", "ttft_s", "latency_s", "round_s", "goodput_tokens_per_s")
"""Figures whose range a reader sees, the first that is there."""


def _ranges(its: dict[str, Any]) -> list[str]:
    """What the range of the first of its figures is."""
    basis = its.get("basis", {})
    name = next((name for name in (*FIRST, *basis) if name in basis), "")
    return [f"{name}{range_of(its, name)}: {said_range(its, name)}"] if name else []


def _said(its: dict[str, Any]) -> str:
    used = its["useful_share"]
    return "; ".join(filter(None, [headline(its).line.strip(), "" if used is None else f"devices used {used:.0%}"]))


def run_mapping(given: Mapping[str, Any], where: str) -> WorldOutcome:
    """The outcome of a scenario as the file `where` would have it."""
    with usage_errors():
        return outcome_of(run_scenario(scenario_of(given, where, WorkloadKinds(is_kind, kinds))))
