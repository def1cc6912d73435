"""Get: all-to-all through windows; a source sends each target its counts, and the target reads its block."""

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
    """A count there, a request back, a block there."""
    return windows.plan(system, shape, steps=3)


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    return windows.schedule("get", n, layout.counts, asks=True)


ALGORITHM: Final = Algorithm(closed_form, schedule, (A2A,), windows.layout)
