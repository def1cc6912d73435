"""Torus: rings of every dimension at once; the payload is cut into as many parts, and each starts at another one."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.hierarchical import by_dimension, dimensions, plainly, ring_level
from etude.cost.collectives.plan import SCATTERING, AlgorithmPhase, AlgorithmPlan
from etude.cost.collectives.steps import AG, AR, RS
from etude.cost.groups import GroupShape
from etude.cost.schedule import Schedule
from etude.machine.system import System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    spans, parts = shape.spans, len(shape.spans)
    scatter = []
    for turn in range(parts):
        legs = []
        for first in range(parts):
            order = [spans[(first + k) % parts] for k in range(turn + 1)]
            entering = 1 / (parts * prod(s.units for s in order[:-1]))
            leg = ring_level(system.levels[order[-1].level], replace(order[-1], below=1))
            legs.append(replace(leg, volume=leg.volume * entering))
        slowest = max(legs, key=lambda g: g.hops * system.levels[g.level].latency_ns)
        scatter.append(AlgorithmPhase(tuple(g if g is slowest else replace(g, hops=0.0) for g in legs), apart=True))
    gather = scatter[::-1]
    if kind == Collective.ALL_GATHER:
        return AlgorithmPlan(tuple(gather))
    return AlgorithmPlan(tuple(scatter if kind in SCATTERING else scatter + gather))


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    dims, inner = dimensions(layout, "torus", n, "ring_both")
    return by_dimension(collective, "torus", dims, inner, range(len(dims)))


def layout(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    return Layout(dims=dims, inner=[plainly(system.levels[span.level], span) for span in shape.spans])


ALGORITHM: Final = Algorithm(closed_form, schedule, (AR, RS, AG), layout, nested=True)
