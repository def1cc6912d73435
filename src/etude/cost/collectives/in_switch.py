"""In the switch: it reduces and multicasts (NVLS, SHARP), and each port carries the payload about once."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.plan import PASSES, ROOTED, AlgorithmPhase, AlgorithmPlan, Leg, port_rate
from etude.cost.collectives.steps import AG, AR, BARRIER, BROADCAST, REDUCE, RS, Groups, Passes, arrivals, owned
from etude.cost.groups import GroupShape, GroupSpan
from etude.cost.schedule import Put, Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.machine.system import Level, System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    legs = []
    for span in shape.spans:
        level = system.levels[span.level]
        _need_switch(level)
        rate = port_rate(level, span, peers="all") / level.efficiency_of(span.units) * level.in_switch_efficiency
        # All-reduce: a port gives its whole buffer and its share of the result, and takes as much.
        volume = 1 + 1 / span.units if kind == Collective.ALL_REDUCE else 1.0
        below = 1 if kind in ROOTED else span.below_least
        legs.append(Leg(span.level, PASSES.get(kind, 1), volume / below, rate, in_switch=True))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs)),), in_switch=True)


def _need_switch(level: Level) -> None:
    if not level.in_switch_efficiency:
        raise UsageError(
            f"level `{level.name}` cannot reduce in its switch", hint="set `in_switch_efficiency` of the level"
        )


def reduces_in_switch(level: Level, span: GroupSpan) -> bool:
    """Whether a level of `hierarchical` does its part in its switch."""
    return level.in_switch_efficiency > 0 and span.units > 2


def switch_level(level: Level, span: GroupSpan, volume: float) -> Leg:
    rate = level.rate_bytes_per_ns / level.efficiency * level.in_switch_efficiency
    # A scatter gives everything and takes a share; a gather the other way round.
    return Leg(span.level, 1.0, volume / span.below, rate, in_switch=True, inward=1 / span.units)


def switch_reduce_scatter(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, switch: I64
) -> I64:
    """Every group has a switch, which adds up the blocks of a position and hands the sum to it."""
    n, came = group.shape[1], []
    for block in range(n):
        at = np.broadcast_to(switch[:, None], group.shape)
        mine = first[:, [block]], count[:, [block]]
        sent = build.add(group, at, *mine, after=ready[group][..., None], put=Put.REDUCE)
        summed = build.join(switch, sent)
        goal = group[:, block]
        came.append(build.add(switch, goal, mine[0][:, 0], mine[1][:, 0], after=np.stack((summed, ready[goal]), -1)))
    return arrivals(build, group, ready, [np.stack(came, axis=1)])


def switch_all_gather(build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, switch: I64) -> I64:
    """Every position hands its blocks to the switch of its group, which sends copies to all."""
    n = group.shape[1]
    at = np.broadcast_to(switch[:, None], group.shape)
    sent = build.add(group, at, first, count, after=ready[group][..., None])
    got = []
    for block in range(n):
        waits = np.stack((np.broadcast_to(sent[:, [block]], group.shape), ready[group]), axis=-1)
        got.append(build.add(at, group, first[:, [block]], count[:, [block]], after=waits))
    return arrivals(build, group, ready, got)


STEPS: Final = Passes(switch_reduce_scatter, switch_all_gather)


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    """A switch (member n) adds up what comes and sends copies on: NVLS, SHARP. Blocks are served independently."""
    build, at, switch, root = ScheduleBuilder(), np.arange(n), n, layout.root
    blocks = n if collective in (AR, RS, AG) else 1
    for block in range(blocks if n > 1 else 0):
        senders = {AG: [block], BROADCAST: [root]}.get(collective, list(at))
        receivers = {RS: [block], REDUCE: [root]}.get(collective, list(at))
        put = Put.COPY if collective in (AG, BROADCAST) else Put.REDUCE
        sent = build.add(senders, [switch] * len(senders), block, 1, put=put)
        ready = sent if len(sent) == 1 else build.join([switch], sent[None, :])
        build.add([switch] * len(receivers), receivers, block, 1, after=np.full((len(receivers), 1), ready[0]))
    more = owned(collective, n) if collective in (AR, RS, AG) else {"owners": 1, "blocks": 1}
    return build.schedule(collective, "in_switch", n, helpers=1, root=root, **more)


ALGORITHM: Final = Algorithm(closed_form, schedule, (AR, RS, AG, BROADCAST, REDUCE, BARRIER))
