"""The contents of a learned model, in words and numbers, for those who want to share it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from etude.make.synth.grammar import size
from etude.make.synth.learned import Knots, Learned

KEPT = (
    "order of nodes by class, and what each waits for",
    "numbers of ranks, groups, peers, lanes, steps and repeats",
    "kinds of collectives",
    "quantiles of times, FLOPs and bytes of each class, to 1%",
    "by how much ranks and steps differ",
    "by how much simulated copies differ",
)


def about(learned: Learned) -> dict[str, Any]:
    """The size of a model, its contents, and how many nodes its rarest number represents."""
    return {
        "jobs": len(learned.templates),
        "ranks": [t.ranks for t in learned.templates],
        "nodes": sum(t.nodes for t in learned.templates),
        "roles": [len(t.roles) for t in learned.templates],
        "steps": [max(sum(times for times, _ in role.order) for role in t.roles) for t in learned.templates],
        "classes": len(learned.classes),
        "symbols": len(learned.symbols),
        "length": sum(size(one) for t in learned.templates for role in t.roles for _, one in role.order),
        "spread_of_ranks": {"host": _spread(learned.host.rank), "device": _spread(learned.device.rank)},
        "spread_of_steps": {"host": _spread(learned.host.step), "device": _spread(learned.device.step)},
        "nodes_behind_a_number": learned.at_least,
        "classes_of_fewer_than_5_nodes": learned.rare,
        "copies": [msgspec.structs.asdict(one) for one in learned.copies],
    }


def _spread(knots: Knots) -> float:
    """Standard deviation of the factors, as a fraction of their mean."""
    if len(knots) < 2:
        return 0.0
    score, factor = np.array(knots).T
    return round(float(np.polyfit(score, np.log(factor), 1)[0]), 4)
