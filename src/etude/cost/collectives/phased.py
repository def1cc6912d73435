"""Phased: all-to-all in n - 1 phases, in each of which every member sends to one other and receives from one.

Partners differ by a fixed number of places along each level, the innermost varying fastest, so that the phases inside a
unit come first and every port has one message at a time. A phase begins when both sides are done with the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import numpy as np

from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.hierarchical import dimensions
from etude.cost.collectives.plan import AlgorithmPhase, AlgorithmPlan, Leg, port_rate
from etude.cost.collectives.steps import A2A
from etude.cost.groups import GroupShape, GroupSpan
from etude.cost.schedule import Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.machine.ports import is_product
from etude.machine.system import LINED, System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    """The phases that cross a level and none above it, one after another, combined into one for each level."""
    phases = []
    for place, span in enumerate(shape.spans):
        legs = []
        crossed = shape.spans[: place + 1] if is_product(system.levels) else (span,)
        for other in crossed:
            # One for each partner at this level and position at the levels below.
            often = prod(s.units for s in shape.spans[:place] if s is not other)
            often *= span.units - 1 if other is not span else 1
            legs.append(_shifts(system, shape, other, often, waits=other is span))
        phases.append(AlgorithmPhase(tuple(legs), apart=True))
    return AlgorithmPlan(tuple(phases))


def _shifts(system: System, shape: GroupShape, span: GroupSpan, often: int, *, waits: bool) -> Leg:
    """Every shift along a level except 0, `often` times. `waits`: its steps are not those of a level above."""
    level, away = system.levels[span.level], np.arange(1, span.units)
    lined = level.kind in LINED
    back = span.units - away
    load = np.minimum(away, back) if lined else np.ones(span.units - 1)
    steps = load if span.whole or not lined else np.maximum(away, back)
    hops = often * float(steps.sum()) if lined or waits else 0.0
    return Leg(span.level, hops, often * float(load.sum()) / shape.size, port_rate(level, span, peers="one"))


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    """Block i * n + j goes straight from i to j."""
    build, member = ScheduleBuilder(), np.arange(n)
    waits: I64 | None = None
    for to in _partners(dimensions(layout, "phased", n, "ring")[0]):
        after = None if waits is None else np.concatenate((waits, waits[to]), axis=-1)
        sent = build.add(member, to, member * n + to, 1, after=after)
        waits = np.stack((sent, sent[np.argsort(to)]), axis=-1)  # what each sends and receives in this phase
    return build.schedule(A2A, "phased", n, owners=n, blocks=n * n)


def _partners(dims: tuple[int, ...]) -> Iterator[I64]:
    """For each phase, the target of every member."""
    n, member = prod(dims), np.arange(prod(dims))
    for phase in range(1, n):
        to, unit = np.zeros(n, np.int64), 1
        for size in dims:
            to += (member // unit + phase // unit) % size * unit
            unit *= size
        yield to


def layout(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    return Layout(dims=dims or None)


ALGORITHM: Final = Algorithm(closed_form, schedule, (A2A,), layout)
