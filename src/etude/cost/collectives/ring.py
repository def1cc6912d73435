"""Ring: neighbour to neighbour, in rank order or in several orders at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Final

import numpy as np

from etude.base.errors import ClusterError
from etude.cost.collectives import trees
from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.plan import (
    ONE_PASS,
    PASSES,
    ROOTED,
    AlgorithmPhase,
    AlgorithmPlan,
    Leg,
    in_line,
    port_rate,
    volume_by_level,
)
from etude.cost.collectives.steps import (
    A2A,
    AG,
    AR,
    BROADCAST,
    MOST_TRANSFERS,
    REDUCE,
    RS,
    Groups,
    Passes,
    alone,
    arrivals,
    owned,
    pair,
)
from etude.cost.groups import GroupShape, GroupSpan
from etude.cost.schedule import IN_FLIGHT, Put, Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.machine.system import LINED, Level, LevelKind, System
from etude.model.schema import Collective


def plan_around(system: System, kind: Collective, shape: GroupShape, *, both: bool) -> AlgorithmPlan:
    """Neighbour to neighbour in rank order. `both` ways halves the steps, and fills both links of a ring level. Units
    in a line have no wrap: data goes to both ends, and no link except the last carries more."""
    n = shape.size
    passes = PASSES.get(kind, 1)
    if len(shape.spans) > 1 and kind in STREAMED and not any(system.levels[s.level].kind in LINED for s in shape.spans):
        return _over_levels(system, shape, passes, both=both)
    volume = 1.0 if kind in ROOTED else passes * (n - 1) / n
    if kind == Collective.ALL_TO_ALL:
        # Each block travels on until it arrives: n(n-1)/2 block-hops per member, half of that both ways round.
        volume = (n * n // 4) / n if both else (n - 1) / 2
    share = 0.5 if both and kind not in ROOTED else 1.0
    legs: list[Leg] = []
    for span in shape.spans:
        level = system.levels[span.level]
        exchange = kind == Collective.ALL_TO_ALL  # along one ring: blocks of many have no channels
        one = exchange if level.kind == LevelKind.FULL else level.kind in LINED and not both
        rate = port_rate(level, span, peers="one" if one else "two")
        hops = passes * ceil(span.crossings * (1.0 if in_line(level, span) else share))
        if in_line(level, span) and len(shape.spans) == 1 and not (both or kind in ROOTED):
            hops += passes * max(span.units - 2, 0)  # from the end back to the beginning, along the line
        hops += passes * ceil(share * span.crossings) * sum(_way_back(system, s) for s in shape.spans[: len(legs)])
        # A unit's members share the traffic that leaves it: each channel goes out through another port.
        shared = span.below_least if not exchange else 2 if both and legs else 1  # up and down leave through another
        legs.append(Leg(span.level, hops, volume / shared, rate))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs)),))


STREAMED: Final = (*ONE_PASS, *PASSES)
"""Collectives in which every member has blocks to send from the start."""


def _over_levels(system: System, shape: GroupShape, passes: int, *, both: bool) -> AlgorithmPlan:
    """Around all members, in as many rings as the innermost unit has members: each leaves it through another member,
    with a part of the payload in n blocks. They fill a port while a block is in flight, n - 1 steps or half of them."""
    n, rings, share = shape.size, shape.spans[1].below_least, 0.5 if both else 1.0
    legs = []
    for place, (span, volume) in enumerate(zip(shape.spans, volume_by_level(shape, passes * (n - 1) / n), strict=True)):
        level = system.levels[span.level]
        one = port_rate(level, span, peers="one")
        # A ring closes at the outermost level, and the step that a pass leaves out is one at the innermost.
        crossed = span.crossings - (place == 0) + (place == len(shape.spans) - 1)
        hops = passes * ceil(share * crossed)
        if level.kind == LevelKind.FULL and place == 0:  # a link is in one of the paths through the unit, or in most
            volume = volume / (rings - 1) if rings % 2 == 0 else volume
        legs.append(Leg(span.level, hops, volume, one, way_ns_per_byte=hops / (n * rings * one)))
    return AlgorithmPlan((AlgorithmPhase(tuple(legs), apart=True, streamed=passes),))


def _way_back(system: System, span: GroupSpan) -> int:
    """Steps from the last unit of a level to the first, which a ring takes when it goes on to the next unit above."""
    level = system.levels[span.level]
    return 0 if level.kind not in LINED else 1 if span.whole else span.units - 1


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    return plan_around(system, kind, shape, both=False)


def in_turn(ready: I64, src: Groups, dst: Groups, sent: list[I64], before: I64) -> I64 | None:
    """Dependencies of a step along a ring: the block that came from `before`, and room on the connection."""
    if not sent:
        return pair(ready, src, dst)
    room = [sent[-IN_FLIGHT]] if len(sent) >= IN_FLIGHT else []
    return pair(ready, src, dst, sent[-1][:, before], *room)


def ring_reduce_scatter(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, back: bool = False
) -> I64:
    """n - 1 steps around the ring; position i ends with the sum of its blocks."""
    arrived = _around(build, group, (first, count), ready, back=back, put=Put.REDUCE)
    return arrivals(build, group, ready, arrived[-1:]) if arrived else ready


def ring_all_gather(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, back: bool = False
) -> I64:
    """n - 1 steps around the ring; each position begins with its own blocks and ends with all."""
    return arrivals(build, group, ready, _around(build, group, (first, count), ready, back=back))


def _around(
    build: ScheduleBuilder, group: Groups, blocks: tuple[I64, I64], ready: I64, *, back: bool, put: Put = Put.COPY
) -> list[I64]:
    """Arrivals in each step. For a sum, a block begins one position after its owner and ends there; for a gather, it
    begins there."""
    (first, count), n, sign = blocks, group.shape[1], -1 if back else 1
    at = np.arange(n)
    before, after = (at - sign) % n, (at + sign) % n
    ahead = 1 if put == Put.REDUCE else 0
    sent: list[I64] = []
    for step in range(n - 1):
        block = (at - sign * (ahead + step)) % n
        waits = in_turn(ready, group, group[:, after], sent, before)
        sent.append(build.add(group, group[:, after], first[:, block], count[:, block], after=waits, put=put))
    return [transfers[:, before] for transfers in sent]


STEPS: Final = Passes(ring_reduce_scatter, ring_all_gather)


def carry_around(build: ScheduleBuilder, n: int, reach: int, sign: int, part: tuple[int, int] = (0, 1)) -> None:
    """All-to-all along a ring: blocks for members up to `reach` away travel on, step by step, until they arrive.

    Block i * n + j goes from i to j; with `part` (k, parts) this is the k-th of `parts` such runs. What a member
    forwards in a step is one origin's blocks for those farther on: a run of blocks, or two if it wraps around the
    end.
    """
    number, parts = part
    at = np.arange(n)
    before, after = (at - sign) % n, (at + sign) % n
    came: list[I64] = []
    for step in range(1, reach + 1):
        origin = (at - sign * (step - 1)) % n
        near, far = origin + sign * step, origin + sign * reach  # receivers, before they wrap around the end
        low, high = np.minimum(near, far), np.maximum(near, far)
        waits = np.stack([c[before] for c in came], axis=-1) if came else None
        came = []
        for shift in (-n, 0, n):
            begin, end = np.maximum(low + shift, 0), np.minimum(high + shift, n - 1)
            some = np.flatnonzero(begin <= end)
            if len(some):
                ids = np.full(n, -1, np.int64)
                ids[some] = build.add(
                    at[some],
                    after[some],
                    (origin * n * parts + number * n + begin)[some],
                    (end - begin + 1)[some],
                    after=None if waits is None else waits[some],
                )
                came.append(ids)


def rings_of(layout: Layout, algorithm: str, n: int) -> list[list[int]]:
    """The orders of members around the rings."""
    if layout.orders is None:
        return [list(range(n))]
    if any(sorted(order) != list(range(n)) for order in layout.orders) or not layout.orders:
        raise ClusterError(f"{algorithm}: an order must have each of {n} members once")
    return [[int(m) for m in order] for order in layout.orders]


def around(
    collective: Collective, algorithm: str, rings: Sequence[tuple[Sequence[int], dict[str, Any]]], steps: Passes
) -> Schedule:
    """Around a ring, or around several with a part of each block: each an order, and extra arguments of its steps."""
    build, n = ScheduleBuilder(), len(rings[0][0])
    for part, (order, more) in enumerate(rings):
        group, ready = np.array(order, np.int64)[None, :], alone(n)
        first, count = group * len(rings) + part, np.ones((1, n), np.int64)
        if collective != AG:
            ready = steps.reduce_scatter(build, group, first, count, ready, **more)
        if collective != RS:
            steps.all_gather(build, group, first, count, ready, **more)
    return build.schedule(collective, algorithm, n, **owned(collective, n, len(rings)))


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    """Blocks around, the data along a chain (chunk it), or, for all-to-all, every block onward until it arrives."""
    orders = rings_of(layout, "ring", n)
    if collective in ROOTED:
        return trees.rooted(collective, "ring", n, layout.root, [trees.chain(order, layout.root) for order in orders])
    if collective == A2A:
        build = ScheduleBuilder()
        carry_around(build, n, n - 1, 1)
        return build.schedule(collective, "ring", n, owners=n, blocks=n * n)
    return around(collective, "ring", [(order, {}) for order in orders], STEPS)


def layout(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    """Rings such that every member's port carries its part of what leaves a unit: each leaves it through another
    member, or uses other links of a full mesh."""
    n = shape.size
    if kind == A2A:
        return Layout()
    orders = [list(range(n))]
    inner = system.levels[shape.spans[0].level] if shape.spans else None
    if len(dims) > 1 and inner is not None:
        orders = _over_units(inner, n, dims[0])
    elif len(shape.spans) == 1 and inner is not None and inner.kind == LevelKind.FULL:
        orders = trees.rings_of_full(n)
    most = len(orders) if kind in ROOTED else max(rings_that_fit(kind, n), 1)
    return Layout(orders=orders[:: -(-len(orders) // most)]) if len(orders) > 1 else Layout()


def rings_that_fit(kind: Collective, n: int) -> int:
    """Rings of n members that one schedule has room for."""
    return 2 * MOST_TRANSFERS // (PASSES.get(kind, 1) * n**2)


def _over_units(inner: Level, n: int, local: int) -> list[list[int]]:
    """As many rings as a unit has members: each leaves it through another one. Every second unit is traversed
    backwards, so that a ring enters a unit at the position at which it left the one before: on the same rail."""
    paths = [[(turn + k) % local for k in range(local)] for turn in range(local)]
    if inner.kind == LevelKind.FULL and local % 2 == 0:
        paths = trees.paths_of_full(local)
    back = 0 if inner.kind in LINED else 1
    return [
        [unit * local + m for unit in range(n // local) for m in (path[::-1] if unit % 2 * back else path)]
        for path in paths
    ]


ALGORITHM: Final = Algorithm(closed_form, schedule, (AR, RS, AG, BROADCAST, REDUCE, A2A), layout)
