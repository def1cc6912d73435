"""Other plans for slow and for fewer nodes: layers of each stage, sizes of groups, and the state that a change moves.

Ranks are numbered by the plan's order of axes. A rank has the layers of its stage, and its tensor-parallel part of
each. A change moves the state that a rank needs and does not have; remaining nodes take the places in the new plan for
which they have the most state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from etude.base.errors import EtudeError

if TYPE_CHECKING:
    from etude.make.generate import Plan
    from etude.make.generate.model import Model

DEEP = 8
"""Pipelines up to this depth, or twice as deep as planned, are tried."""


class StatePart(NamedTuple):
    """A part of the state: layers from `first` up to `end`, embedding and head if the stage has them, and of each the
    fraction from `low` up to `high`."""

    first: int
    end: int
    low: float
    high: float
    embedding: bool
    head: bool


class Weights(NamedTuple):
    """Bytes of state (weights and optimizer): of a layer, and of one end, taken as half of embedding and head
    together."""

    layer: float
    ends: float


def coordinates(plan: Plan, rank: int) -> dict[str, int]:
    """Coordinate of a rank on each axis."""
    sizes, found = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}, {}
    for axis in plan.order.split("-"):
        found[axis] = rank % sizes[axis]
        rank //= sizes[axis]
    return found


def layers_of(plan: Plan, layers: int) -> tuple[int, ...]:
    """Number of layers of each stage; uneven ones are split as in the generator."""
    if plan.stages:
        return plan.stages
    from etude.make.generate.train import split

    return tuple(split(layers, plan.pp))


def part_of(plan: Plan, rank: int, layers: int) -> StatePart:
    at, each = coordinates(plan, rank), layers_of(plan, layers)
    stage, part = at["pp"], at["tp"]
    first = sum(each[:stage])
    return StatePart(first, first + each[stage], part / plan.tp, (part + 1) / plan.tp, stage == 0, stage == plan.pp - 1)


def missing_bytes(needs: StatePart, has: StatePart | None, weights: Weights) -> float:
    """Bytes that a rank needs and does not have."""
    whole = needs.high - needs.low
    there = 0.0 if has is None else max(min(needs.high, has.high) - max(needs.low, has.low), 0.0)
    same = 0 if has is None else max(min(needs.end, has.end) - max(needs.first, has.first), 0)
    found = weights.layer * ((needs.end - needs.first) * whole - same * there)
    for ours, theirs in ((needs.embedding, has and has.embedding), (needs.head, has and has.head)):
        found += weights.ends * (whole - (there if theirs else 0.0)) if ours else 0.0
    return found


def moved_bytes(before: Plan, after: Plan, layers: int, weights: Weights, node: int, lost: int = 0) -> list[float]:
    """Bytes that each rank of the new plan receives. The last `lost` nodes of the old plan are gone; ranks of a node
    keep their order."""
    old = [
        [part_of(before, rank, layers) for rank in range(first, min(first + node, before.gpus))]
        for first in range(0, before.gpus, node)
    ]
    old = old[: len(old) - lost]
    found: list[float] = []
    for first in range(0, after.gpus, node):
        needs = [part_of(after, rank, layers) for rank in range(first, min(first + node, after.gpus))]
        tries = [[missing_bytes(need, has, weights) for need, has in _beside(needs, held)] for held in old] or [
            [missing_bytes(need, None, weights) for need in needs]
        ]
        best = min(range(len(tries)), key=lambda k: sum(tries[k]))
        found += tries[best]
        if old:
            old.pop(best)
    return found


def _beside(needs: list[StatePart], held: list[StatePart]) -> list[tuple[StatePart, StatePart | None]]:
    return [(need, held[k] if k < len(held) else None) for k, need in enumerate(needs)]


def weights_of(model: Model, plan: Plan, per_weight: float) -> Weights:
    """State of the model; `per_weight`: bytes of weights and optimizer for each byte of weights."""
    from etude.make.generate.train import plan_memory

    alone = plan.replace(
        gpus=1, tp=1, cp=1, pp=1, ep=1, etp=1, zero=0, dp_shard=0, stages=(), schedule="1f1b",
        global_batch=plan.micro_batch,
    )  # fmt: skip
    whole = plan_memory(model, alone)[0].weights
    each = whole - plan_memory(model.replace(layers=model.layers - 1), alone)[0].weights
    return Weights(each * per_weight, (whole - each * model.layers) / 2 * per_weight)


def plans_for(plan: Plan, gpus: int, node: int) -> list[Plan]:
    """Plans for `gpus` devices with at least the batch of this one: tensor-parallel groups of the same size, half and
    twice as large (within a node), and pipelines as deep, half and twice as deep, or such that no device is left
    over."""
    found: list[Plan] = []
    for tp in (plan.tp, plan.tp // 2, plan.tp * 2):
        if not tp or (tp > plan.tp and tp > node):
            continue
        each = gpus // (tp * plan.cp)
        even = {pp for pp in range(1, max(DEEP, 2 * plan.pp) + 1) if each and each % pp == 0}
        for pp in sorted({plan.pp, plan.pp // 2, plan.pp * 2} | even, key=lambda pp: (abs(pp - plan.pp), pp)):
            found += _planned(plan, gpus, tp, pp)
    return found


def _planned(plan: Plan, gpus: int, tp: int, pp: int) -> list[Plan]:
    inner = tp * plan.cp * pp
    dp = gpus // inner if inner else 0
    if not dp:
        return []
    if (tp, pp, dp) == (plan.tp, plan.pp, plan.dp):
        return [plan]
    each = -(-plan.batch // (dp * plan.micro_batch))
    try:
        return [plan.replace(gpus=dp * inner, tp=tp, pp=pp, global_batch=dp * plan.micro_batch * each, stages=())]
    except EtudeError:
        return []


def fastest(plans: list[Plan], one: Callable[[Plan], Any]) -> list[tuple[Any, Plan]]:
    """Results of `one` for the plans that can run, the shortest step first; ties keep their order."""
    found = []
    for plan in plans:
        try:
            found.append((one(plan), plan))
        except EtudeError:
            continue
    return sorted(found, key=lambda pair: pair[0].step_ns)


def stages_for(plan: Plan, layers: int, stage: int, factor: float) -> list[Plan]:
    """Plans with fewer layers in a stage with a slow node: as many as balance its time with the others' (on ties the
    most), and one more or fewer."""
    if plan.pp < 2 or layers_of(plan, layers)[stage] < 2:
        return []

    def others(fewer: int) -> list[int]:
        each, more = divmod(layers - fewer, plan.pp - 1)
        return [each + (k < more) for k in range(plan.pp - 1)]

    usual = layers_of(plan, layers)[stage]
    best = min(range(1, usual + 1), key=lambda fewer: (max(fewer * factor, *others(fewer)), -fewer))
    found = []
    for fewer in (best, best + 1, best - 1):
        if not 0 < fewer < usual:
            continue
        each = others(fewer)
        try:
            found.append(plan.replace(stages=(*each[:stage], fewer, *each[stage:])))
        except EtudeError:
            continue
    return found
