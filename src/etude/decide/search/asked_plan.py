"""`etude plan`: what is asked of it, the space that is searched, and its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure, part
from etude.base.outputs import Printed
from etude.base.parameters import given_in, spelled
from etude.base.shapes import names_in
from etude.base.talk import progress, say
from etude.base.units import format_bytes, format_time
from etude.make.generate import Plan
from etude.steps.asked.plans import ModelOrConfig, PlanInput, model_asked, plan_keys
from etude.steps.asked.simulation import OnSystem

if TYPE_CHECKING:
    from etude.decide.search.plans import PlanSpace

COLUMNS = names_in("""
    step_time_ns tokens_per_s_per_gpu mfu memory_peak_bytes global_batch tp pp cp dp ep zero schedule micro_batch
    recompute step_time_low_ns step_time_high_ns step_basis
""")


@dataclass(frozen=True, kw_only=True)
class PlanRequest(ModelOrConfig, PlanInput, OnSystem):
    """The plans of a model that fit a cluster, ranked by simulated step time

    etude plan llama3-405b --gpus 16384 --global-batch 2048 --system dgx-h100
    etude plan llama3-70b --gpus 64 --global-batch 128 --system dgx-h100 --tp 8
    etude plan qwen3-30b-a3b --gpus 64 --global-batch 256 --system dgx-h100 --ep 8
    etude plan --hf config.json --gpus 64 --system dgx-h100

    Values given by flags are kept, the others are searched: `etude search MODEL` has more axes, scores and limits.
    Without `--global-batch` a step has a sample for each GPU, 16 Mi tokens at most."""

    stack: str = figure(
        "text",
        "software stack whose efficiency is used; `etude stacks` lists them",
        "default",
        like="nemo",
        panel="Machine",
    )
    tries: int = figure("count", "number of plans to simulate, the most promising first", 24, panel="Search")
    output: Printed = part(Printed)


def plan_inputs(asked: PlanRequest) -> PlanSpace:
    from etude.decide.search.plans import NARROW, space_of

    model, name = model_asked(asked)
    given = plan_keys(asked, name)
    Plan.refuse_experts(given_in(asked.axes), model, lambda axis: spelled(asked, axis))
    over = {axis: values for axis, values in NARROW.items() if axis not in given}
    return space_of(
        model=name, system=asked.system, fixed=given, over=over, stack=asked.stack, tries=asked.tries, recipe=False
    )


def run_plan(given: PlanSpace) -> list[dict[str, Any]]:
    from etude.decide.search import SearchRequest
    from etude.decide.search.plans import search_plans

    found = search_plans(given, SearchRequest(progress=progress))
    rows = [{key: row[key] for key in COLUMNS} for row in found.rows]
    for note in found.notes:
        say(note)
    say(f"{len(rows)} plans simulated, the best first; a step has {rows[0]['global_batch']:,} samples")
    return [
        row | {"tokens_per_s_per_gpu": round(row["tokens_per_s_per_gpu"], 1), "mfu": round(row["mfu"], 4)}
        for row in rows
    ]


def readable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as people read them."""
    hidden = names_in(
        "step_time_ns memory_peak_bytes global_batch step_time_low_ns step_time_high_ns step_basis",
    )
    return [
        {
            "step": format_time(row["step_time_ns"]),
            "memory": format_bytes(row["memory_peak_bytes"]),
            **{key: value for key, value in row.items() if key not in hidden},
        }
        for row in rows
    ]
