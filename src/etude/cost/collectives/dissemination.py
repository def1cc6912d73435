"""Dissemination: a barrier in rounds; in the k-th each member signals the one 2**k further."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.plan import AlgorithmPhase, AlgorithmPlan, Leg, bits_of, port_rate
from etude.cost.collectives.steps import BARRIER, alone
from etude.cost.groups import GroupShape
from etude.cost.schedule import Put, Schedule, ScheduleBuilder
from etude.machine.system import LINED, System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    legs = []
    for span in shape.spans:
        level, n = system.levels[span.level], span.units
        hops = float(bits_of(n))
        if level.kind in LINED:
            away = [1 << k for k in range(bits_of(n))]
            hops = float(sum(min(a, n - a) if span.whole else max(a, n - a) for a in away))
        legs.append(Leg(span.level, hops, 0.0, port_rate(level, span, peers="one")))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs)),))


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    """After ceil(log2 n) rounds every member has heard of all."""
    build, at, away, ready = ScheduleBuilder(), np.arange(n), 1, alone(n)
    while away < n:
        sent = build.add(at, (at + away) % n, 0, 1, after=ready[:, None], put=Put.REDUCE)
        ready = build.join(at, np.stack((ready, sent[(at - away) % n]), axis=-1))
        away *= 2
    return build.schedule(collective, "dissemination", n, owners=1, blocks=1)


ALGORITHM: Final = Algorithm(closed_form, schedule, (BARRIER,))
