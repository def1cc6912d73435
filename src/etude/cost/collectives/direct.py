"""Direct: every member to every other at once, or the root to all and all to the root."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from etude.cost.collectives import trees
from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.plan import (
    PASSES,
    ROOTED,
    AlgorithmPhase,
    AlgorithmPlan,
    Leg,
    detour,
    farthest_hops,
    port_rate,
)
from etude.cost.collectives.steps import (
    A2A,
    AG,
    AR,
    BROADCAST,
    GATHER,
    REDUCE,
    RS,
    SCATTER,
    Groups,
    Passes,
    arrivals,
    pair,
    scattered,
)
from etude.cost.groups import GroupShape, GroupSpan
from etude.cost.schedule import Put, Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.machine.ports import is_product
from etude.machine.system import LINED, System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """A block to each other; an all-reduce is a scatter and a gather (two shots)."""
    if kind in (*ROOTED, GATHER, SCATTER):
        return fan(system, kind, shape)
    phase = to_all(system, shape, block=1 / shape.size)
    return AlgorithmPlan((phase, phase) if PASSES.get(kind, 1) == 2 else (phase,))


def to_all(system: System, shape: GroupShape, *, block: float) -> AlgorithmPhase:
    legs = []
    for place, span in enumerate(shape.spans):
        level = system.levels[span.level]
        members = shape.spans[place + 1].below if place + 1 < len(shape.spans) else shape.size
        outside = max(members - span.below_least, 1) * block
        if is_product(system.levels) and shape.regular:  # on the way to units farther out it is crossed as well
            outside = shape.size * (span.units - 1) / span.units * block
        rate = port_rate(level, span, peers="all")
        last = place + 1 == len(shape.spans)
        hops = farthest_hops(level, span) if level.kind in LINED else 1.0 if last else 0.0
        legs.append(Leg(span.level, hops, outside * detour(level, span), rate))
    return AlgorithmPhase(tuple(legs), messages=shape.size - 1, apart=True)


def fan(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """One root and all others: what the root's port carries. A broadcast sends the whole to each, a scatter a block."""
    phase = to_all(system, shape, block=1.0 if kind in ROOTED else 1 / shape.size)
    legs = tuple(
        replace(leg, volume=leg.volume / detour(system.levels[leg.level], span) / _rails(system, kind, span))
        for leg, span in zip(phase.legs, shape.spans, strict=True)
    )
    return AlgorithmPlan((replace(phase, legs=legs),))


def _rails(system: System, kind: Collective, span: GroupSpan) -> int:
    """Ports through which the root's data leaves its unit: over rails, that of every member's rail."""
    outwards = kind in (Collective.BROADCAST, Collective.SCATTER)
    return span.below_least if outwards and system.levels[span.level].rails else 1


def direct_reduce_scatter(build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64) -> I64:
    """Every member sends each other one its part, at once."""
    n = group.shape[1]
    at = np.arange(n)
    came = []
    for away in range(1, n):
        to = (at + away) % n
        waits = pair(ready, group, group[:, to])
        sent = build.add(group, group[:, to], first[:, to], count[:, to], after=waits, put=Put.REDUCE)
        came.append(sent[:, (at - away) % n])
    return arrivals(build, group, ready, came)


def direct_all_gather(build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64) -> I64:
    n = group.shape[1]
    at = np.arange(n)
    came = []
    for away in range(1, n):
        to = (at + away) % n
        sent = build.add(group, group[:, to], first, count, after=pair(ready, group, group[:, to]))
        came.append(sent[:, (at - away) % n])
    return arrivals(build, group, ready, came)


STEPS: Final = Passes(direct_reduce_scatter, direct_all_gather)


def _exchange(n: int) -> Schedule:
    """Block i * n + j goes straight from i to j."""
    build, at = ScheduleBuilder(), np.arange(n)
    for away in range(1, n):
        to = (at + away) % n
        build.add(at, to, at * n + to, 1)
    return build.schedule(A2A, "direct", n, owners=n, blocks=n * n)


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    if collective == A2A:
        return _exchange(n)
    if collective in ROOTED:
        return trees.rooted(collective, "direct", n, layout.root, [trees.straight(n, layout.root)])
    if collective in (GATHER, SCATTER):
        each = np.ones(n, np.int64)
        return trees.parts(collective, "direct", n, layout.root, trees.straight(n, layout.root), each)
    return scattered(collective, "direct", n, STEPS, {}, {})


ALGORITHM: Final = Algorithm(
    closed_form, schedule, (AR, RS, AG, BROADCAST, REDUCE, GATHER, SCATTER, A2A), straight=True
)
