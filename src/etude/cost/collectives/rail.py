"""Rail: all-to-all over rails; bytes first move to the neighbour on the right rail, both levels at once."""

from __future__ import annotations

from typing import Final

from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.hierarchical import all_to_all_by_level, dimensions, in_two, two_levels
from etude.cost.collectives.plan import AlgorithmPlan
from etude.cost.collectives.steps import A2A
from etude.cost.groups import GroupShape
from etude.cost.schedule import Schedule
from etude.machine.system import System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    return all_to_all_by_level(system, shape, pipelined=True)


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    return in_two("rail", n, dimensions(layout, "rail", n, "ring")[0])


def layout(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    return two_levels(shape, dims)


ALGORITHM: Final = Algorithm(closed_form, schedule, (A2A,), layout, nested=True)
