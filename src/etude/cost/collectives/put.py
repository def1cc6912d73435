"""Put: all-to-all through windows; a source writes its counts and its block into the window of each target."""

from __future__ import annotations

from typing import Final

from etude.cost.collectives import windows
from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.plan import AlgorithmPlan
from etude.cost.collectives.steps import A2A
from etude.cost.groups import GroupShape
from etude.cost.schedule import Schedule
from etude.machine.system import System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    return windows.plan(system, shape, steps=1)


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    return windows.schedule("put", n, layout.counts, asks=False)


ALGORITHM: Final = Algorithm(closed_form, schedule, (A2A,), windows.layout)
