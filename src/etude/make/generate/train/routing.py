"""Routing with unequal expert load: what each expert-parallel rank computes, keeps and receives.

Every rank sends equally many tokens; what an expert rank receives, works on and sends back is proportional to its load.
The structure of the job is the same for all ranks; only values differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.kernels.arrays import F64, I64, Bool
from etude.make.generate.blocks.loads import loads_of
from etude.make.generate.blocks.shard import Block
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRouting:
    """Load of expert-parallel ranks in each layer with experts."""

    layers: tuple[str, ...]
    """Names of the layers' blocks; empty: all layers are alike."""
    load: F64
    """Tokens of each rank over the mean, layers x ranks."""

    def fullest(self, blocks: Iterable[Block]) -> float:
        """Largest load of a rank on average over these layers; memory is sized by it."""
        names = {b.name for b in blocks}
        mine = [i for i, name in enumerate(self.layers) if name in names]
        load = self.load[mine] if mine else self.load[:1]
        return float(load.mean(axis=0).max())

    def rows(self, paths: Sequence[str]) -> I64:
        """Row of `load` for each module path, and 0 for none."""
        number = {name: i for i, name in enumerate(self.layers)}
        return np.array([number.get(path.partition(".experts.")[0], 0) for path in paths] + [0], np.int64)


def routing_of(plan: Plan, blocks: Sequence[Block], experts: int, tokens: int) -> ExpertRouting | None:
    """Load of each rank; None if equal. `tokens`: token copies that a rank sends to experts in a layer, one per
    choice."""
    if plan.moe_loads:
        names = tuple(b.name for b in blocks if any(op.expert for op in b.ops))
        each = expert_tokens(plan, experts, len(names), tokens)
        return ExpertRouting(names, each.reshape(len(names), plan.ep, -1).sum(axis=2) / tokens)
    if plan.moe_skew == 1.0 or plan.ep == 1:
        return None
    load = _steep(plan.moe_skew, plan.ep)
    if plan.moe_skew <= 2.0:
        load = np.linspace(2.0 - plan.moe_skew, plan.moe_skew, plan.ep)
    return ExpertRouting((), np.minimum(load, plan.capacity or np.inf)[None])


def expert_tokens(plan: Plan, experts: int, layers: int, tokens: int) -> I64:
    """Tokens of each expert from all ranks, layers x experts. Remainders of rounding go to the experts with the largest
    fractions, so that only tokens over the capacity are lost."""
    loads = loads_of(plan.moe_loads, experts, layers, plan.moe_seed)
    exact = loads * (tokens * plan.ep / experts)
    found = np.floor(exact).astype(np.int64)
    over = tokens * plan.ep - found.sum(axis=1)
    turn = np.argsort(np.argsort(found - exact, axis=1, kind="stable"), axis=1, kind="stable")
    found += turn < over[:, None]
    if plan.capacity:
        found = np.minimum(found, int(plan.capacity * tokens * plan.ep / experts))
    return found


def is_uneven(plan: Plan, experts: int) -> bool:
    """Whether experts have unequal work."""
    return bool(plan.moe_loads) and not np.allclose(loads_of(plan.moe_loads, experts, 1, plan.moe_seed), 1.0)


def _steep(skew: float, ranks: int) -> F64:
    """Loads for a skew of more than 2: skew (e / n)^a for e = 1 to n, with the a for which the mean is 1."""
    place = np.arange(1, ranks + 1) / ranks
    low, high = 0.0, 64.0 * ranks
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (skew * place**middle).mean() > 1.0 else (low, middle)
    return np.asarray(skew * place**low, np.float64)


def routed(grid: RankGrid, traces: list[Trace], routing: ExpertRouting | None) -> Mapping[int, Mapping[str, I64]]:
    """Values of every rank, shared by ranks of the same stage and expert coordinate."""
    if routing is None or (routing.load == 1.0).all():
        return {}
    made: dict[tuple[int, int], dict[str, I64]] = {}
    values: dict[int, dict[str, I64]] = {}
    for rank, key in enumerate(zip(grid.at["pp"].tolist(), grid.at["ep"].tolist(), strict=True)):
        if key not in made:
            made[key] = _loaded(traces[key[0]], routing, key[1])
        values[rank] = made[key]
    return values


def _loaded(trace: Trace, routing: ExpertRouting, rank: int) -> dict[str, I64]:
    """Values of an expert rank. The fraction of tokens that is sent is the mean of the loads; the rest is over
    capacity."""
    slots = np.array([*trace.group_slots, ""])[trace.group]
    exchange, within = slots == "ep", slots == "etp"
    codes, paths = trace.coded("module")
    layer = routing.rows(paths)[codes]
    load, kept = routing.load[layer, rank], routing.load.mean(axis=1)[layer]
    at_home = _named(trace, "module", lambda w: w.endswith(".experts.dispatch"))
    onward = _named(trace, "phase", lambda w: w in ("forward", "recompute"))
    # Dispatches leave the tokens' rank and combines return to it; their gradients go the other way.
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
"""Parts of an expert layer that work on received tokens."""


def _named(trace: Trace, column: str, wanted: Any) -> Bool:
    codes, words = trace.coded(column)
    return np.array([wanted(w) for w in words] + [False])[codes]


def _times(column: I64, rows: Bool, factor: F64) -> I64:
    """The column with these rows scaled; at least 1, because readers divide by operations."""
    out = column.copy()
    out[rows] = np.maximum(np.rint(column[rows] * factor[rows]), 1).astype(np.int64)
    return out
