"""`etude fleet experts`: a serving group of experts, where its record is written, and what a reader sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from etude.base.figures import part
from etude.base.outputs import Printed, Written
from etude.base.parameters import request_of
from etude.world.fleet.asked.kept import FleetInputs, kept, tell
from etude.world.fleet.experts.request import ExpertsInputs, ExpertsRequest, experts_inputs, run_experts
from etude.world.fleet.experts.run import group_tables
from etude.world.scenario import PrintedScenario, ScenarioText, only_workload, workload_of


@dataclass(frozen=True, kw_only=True)
class Experts(PrintedScenario, Written, ExpertsRequest):
    """A serving group of experts, of which ranks leave and join again

    etude fleet experts deepseek-v3 --ep 32 --precision fp8 --redundant 32 \\
        --system dgx-h100 --fail rank7@60s --recover shrink --detect 5s \\
        --regroup 5s --replace 30s
    etude fleet experts mixtral-8x7b --gpus 8 --ep 8 --system dgx-h100 \\
        --fail rank1@60s --recover shrink
    etude fleet experts mixtral-8x7b --ep 8 --system dgx-h100 \\
        --fail node0@60s --restart 20s
    etude fleet experts mixtral-8x7b --ep 8 --system dgx-h100

    Every rank has its own sequences; experts are spread over all ranks, some of them as redundant copies.
    """

    output: Printed = part(Printed)


inputs = kept(experts_inputs)


def experts_scenario(asked: Experts, given: FleetInputs) -> ScenarioText:
    """This group alone on a machine; what fails is said of the machine."""
    group: ExpertsInputs = given.inputs
    nodes = -(-group.ranks // min(group.system.levels[0].size, group.ranks))
    workload = workload_of(asked, "experts", but=("horizon",), apart=("fail",))
    horizon = f"{group.group.horizon_ns / 1e9:.12g}s"
    return only_workload("group", workload, system=str(request_of(asked).given["system"]), nodes=nodes, horizon=horizon)


def run(given: FleetInputs) -> dict[str, Any]:
    assumed = given.inputs.model.assumed
    tell([f"assumed {assumed}"] if assumed else [])
    record = run_experts(given.inputs)
    given.write(group_tables(record), record)
    return record


def readable(record: dict[str, Any]) -> dict[str, Any]:
    """The group, its pauses, and its speed with fewer ranks."""
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
