"""One shot: every member sends all it has to every other, and each reduces for itself."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.direct import to_all
from etude.cost.collectives.plan import AlgorithmPlan
from etude.cost.collectives.steps import AR
from etude.cost.groups import GroupShape
from etude.cost.schedule import Put, Schedule, ScheduleBuilder
from etude.machine.system import System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    return AlgorithmPlan((to_all(system, shape, block=1.0),))


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    """n - 1 times the bytes, one latency."""
    build, at = ScheduleBuilder(), np.arange(n)
    for away in range(1, n):
        build.add(at, (at + away) % n, 0, 1, put=Put.REDUCE_INPUT)
    return build.schedule(collective, "one_shot", n, owners=1, blocks=1)


ALGORITHM: Final = Algorithm(closed_form, schedule, (AR,), straight=True)
