"""Routing: where experts are not equally full, what each expert-parallel rank has to do, to keep and to receive.

Every rank sends as many tokens as every other; what an expert rank receives, works on and sends back is its load.
These are values of the ranks over one structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.generate.plan import Plan
from etude.generate.ranks import Grid
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


def loads(plan: Plan) -> F64:
    """Tokens of each expert-parallel rank over the mean: evenly from 2 - skew to skew, no more than the capacity."""
    if plan.ep == 1:
        load = np.ones(1)
    elif plan.moe_skew <= 2.0:
        load = np.linspace(2.0 - plan.moe_skew, plan.moe_skew, plan.ep)
    else:
        load = _steep(plan.moe_skew, plan.ep)
    return np.minimum(load, plan.capacity) if plan.capacity else load


def _steep(skew: float, ranks: int) -> F64:
    """Steeper than a line from 0 to 2: skew (e / n)^a for e of 1 to n, with the a whose mean is 1."""
    place = np.arange(1, ranks + 1) / ranks
    low, high = 0.0, 64.0 * ranks
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (skew * place**middle).mean() > 1.0 else (low, middle)
    return np.asarray(skew * place**low, np.float64)


def fullest(plan: Plan) -> float:
    """Load of the fullest rank: what memory is needed for."""
    return float(loads(plan).max())


def skewed(grid: Grid, traces: list[Trace], plan: Plan) -> Mapping[int, Mapping[str, I64]]:
    """Values of every rank, shared by the ranks of one stage and one expert coordinate."""
    if plan.moe_skew == 1.0 or plan.ep == 1:
        return {}
    load = loads(plan)
    made: dict[tuple[int, int], dict[str, I64]] = {}
    values: dict[int, dict[str, I64]] = {}
    for rank, key in enumerate(zip(grid.at["pp"].tolist(), grid.at["ep"].tolist(), strict=True)):
        if key not in made:
            made[key] = _loaded(traces[key[0]], float(load[key[1]]), float(load.mean()))
        values[rank] = made[key]
    return values


def _loaded(trace: Trace, load: float, kept: float) -> dict[str, I64]:
    """Figures of a rank with this load; `kept`: tokens that are sent at all, over those that there are."""
    slots = np.array([*trace.group_slots, ""])[trace.group]
    exchange, within = slots == "ep", slots == "etp"
    at_home = _named(trace, "module", lambda w: w.endswith(".experts.dispatch"))
    onward = _named(trace, "phase", lambda w: w in ("forward", "recompute"))
    # A dispatch leaves home and a combine comes back; their gradients go the other way.
    leaves = exchange & (at_home == onward)
    work = _named(trace, "module", lambda w: ".experts." in w and w.rpartition(".")[2] in ROUTED)
    work &= (trace.kind == int(Kind.COMP)) & (trace.flops != UNKNOWN)
    found = {name: _times(getattr(trace, name), work, load) for name in ("flops", "tensor_bytes")}
    found["in_bytes"] = _times(trace.in_bytes, within | (exchange & ~leaves), load)
    found["in_bytes"] = _times(found["in_bytes"], leaves, kept)
    found["out_bytes"] = _times(trace.out_bytes, within | leaves, load)
    found["out_bytes"] = _times(found["out_bytes"], exchange & ~leaves, kept)
    return found


ROUTED = ("up", "down", "activation", "sort")
"""Parts of a mixture that work on what was received."""


def _named(trace: Trace, column: str, wanted: Any) -> Bool:
    codes, words = trace.coded(column)
    return np.array([wanted(w) for w in words] + [False])[codes]


def _times(column: I64, rows: Bool, factor: float) -> I64:
    """No less than 1: readers divide by operations."""
    out = column.copy()
    out[rows] = np.maximum(np.rint(column[rows] * factor), 1).astype(np.int64)
    return out
