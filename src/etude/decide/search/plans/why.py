"""Where the time of the best plans goes, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from etude.analyse.breakdown import breakdown
from etude.decide.search.found import Row
from etude.decide.search.placement_best import seated
from etude.decide.search.plans.candidates import Candidate
from etude.decide.search.plans.space import PlanSpace
from etude.decide.search.plans.tasks import predicted

SHOWN: Final = 3
PARTS: Final = ("span_ns", "compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")


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
