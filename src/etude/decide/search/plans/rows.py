"""What is said of a plan: its row, its best possible scores, and where its time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from etude.analyse.breakdown import breakdown
from etude.decide.search.found import Row
from etude.decide.search.placements.best import seated
from etude.decide.search.plans.candidates import Candidate
from etude.decide.search.plans.scores import AtBest
from etude.decide.search.plans.space import PlanSpace
from etude.decide.search.plans.tasks import predicted
from etude.make.generate import Plan
from etude.make.generate.train import model_flops, sequence_of

ALWAYS: Final = ("tp", "pp", "cp", "ep", "zero", "schedule", "micro_batch", "recompute")
"""Fields of a plan that a row has, whether they are searched or not."""
SHOWN: Final = 3
PARTS: Final = ("span_ns", "compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")


def plan_row(space: PlanSpace, c: Candidate, scored: Mapping[str, Any]) -> Row:
    """Description of a candidate: its position on the axes, and its score."""
    row: Row = {"system": c.system, "gpus": c.plan.gpus}
    row |= {name: _said(c, name) for name in dict.fromkeys([*space.axes, *ALWAYS]) if name != "system"}
    row |= {"dp": c.plan.dp, "global_batch": c.plan.batch, **scored}
    if (price := space.prices.get(c.system)) is not None:
        for end in ("", "_low", "_high"):
            time_ns = scored[f"step_time{end}_ns"]
            row[f"cost_usd{end}"] = None if time_ns is None else price * c.plan.gpus * time_ns / 3.6e12
    return row | {"flags": flags_of(c)}


def _said(c: Candidate, name: str) -> Any:
    value = getattr(c.plan, {"memory_budget": "memory_budget_bytes"}.get(name, name), c.given.get(name))
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value) if isinstance(value, str) else value


def flags_of(c: Candidate) -> str:
    """The plan as flags of `etude predict`."""
    words = []
    for name, value in c.given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag} {','.join(map(str, value)) if isinstance(value, list) else value}")
    return " ".join(words)


def at_best(space: PlanSpace, plan: Plan, system: str) -> AtBest:
    """What the scores of a plan are worked out from, of its shortest step and its memory."""
    price = space.prices.get(system)
    return AtBest(
        plan.gpus,
        plan.batch * (plan.seq or sequence_of(space.opened)),
        model_flops(space.opened, plan) / plan.steps if "mfu" in space.scores else 0.0,
        space.systems[system].peak(plan.dtype, plan.gpus),
        None if price is None else price * plan.gpus,
    )


def side_by_side(space: PlanSpace, some: Sequence[tuple[Row, Candidate]]) -> list[dict[str, Any]]:
    """A row for each plan: means over the GPUs, as `etude breakdown` has them of the same step."""
    found = []
    for number, (row, c) in enumerate(some[:SHOWN], 1):
        there = predicted(space.model, c.system, space.stack, space.network, c.given, recipe=space.recipe)
        if "placement" in row:
            there = there.elsewhere(seated(there.system, tuple(row["placement"])), network=space.network)
        table = breakdown(there.simulated).to_pydict()
        means = {name: sum(table[name]) / len(table[name]) for name in PARTS}
        varied = [n for n in space.axes if len({str(r.get(n)) for r, _ in some[:SHOWN]}) > 1]
        name = ", ".join(f"{n.replace('_', ' ')} {row[n]}" for n in varied) or c.system
        found.append({"name": f"{number}. {name}", "flags": row["flags"], **means})
    return found
