"""One-sided exchanges through windows: shared by `put` and `get`.

Every member opens a window with a place for each source. A source sends each target how much it has for it, in a
control message of 8 bytes for each expert of the target; the device issues messages, so they cost no host time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from etude.cost.collectives.algorithm import Layout
from etude.cost.collectives.direct import to_all
from etude.cost.collectives.plan import AlgorithmPlan
from etude.cost.collectives.steps import A2A
from etude.cost.groups import GroupShape
from etude.cost.schedule import Schedule, ScheduleBuilder
from etude.machine.system import System
from etude.model.schema import Collective

COUNT_BYTES: Final = 8
"""Bytes of the count, or offset, that a source has for a target."""


def plan(system: System, shape: GroupShape, *, steps: int) -> AlgorithmPlan:
    """Every block straight to its target, and a count with each; in this many sequential steps."""
    phase = to_all(system, shape, block=1 / shape.size)
    told = COUNT_BYTES * system.collectives.window_counts * shape.size  # for as many blocks as the leg has
    legs = tuple(replace(leg, hops=steps * leg.hops, fixed_bytes=told * leg.volume) for leg in phase.legs)
    return AlgorithmPlan((replace(phase, legs=legs, messages=0),))


def schedule(algorithm: str, n: int, counts: int, *, asks: bool) -> Schedule:
    """Block i * n + j goes straight from i to j, after its count. `asks`: the target requests it, once it knows the
    count."""
    build, at = ScheduleBuilder(), np.arange(n)
    control = np.zeros(0, np.int64)
    for away in range(1, n):
        to = (at + away) % n
        told = build.add(at, to, 0, 0)
        control = np.concatenate((control, told))
        waits = build.add(to, at, 0, 0, after=told[:, None])[:, None] if asks else None
        build.add(at, to, at * n + to, 1, after=waits)
    made = build.schedule(A2A, algorithm, n, owners=n, blocks=n * n)
    control_bytes = np.zeros(len(made), np.int64)
    control_bytes[control] = COUNT_BYTES * counts
    return replace(made, control_bytes=control_bytes)


def layout(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    return Layout(counts=system.collectives.window_counts)
