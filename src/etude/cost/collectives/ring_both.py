"""Ring in both directions: half of the steps, and both links of a ring. On a line without a wrap: to both ends."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.cost.collectives import ring, trees
from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.plan import ROOTED, AlgorithmPlan, in_line
from etude.cost.collectives.ring import in_turn
from etude.cost.collectives.steps import A2A, AG, AR, BROADCAST, REDUCE, RS, Groups, Passes, arrivals, pair
from etude.cost.groups import GroupShape
from etude.cost.schedule import Put, Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.machine.system import System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    return ring.plan_around(system, kind, shape, both=True)


def _ways(n: int, mirrored: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """(sign, steps) up and down a ring: half of the way each; for an even number one goes a step farther."""
    far, near = n // 2, (n - 1) // 2
    return ((1, near), (-1, far)) if mirrored else ((1, far), (-1, near))


def both_reduce_scatter(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, mirrored: bool = False
) -> I64:
    """Sums arrive at position i from both sides, each half of the way round."""
    n, last = group.shape[1], []
    at = np.arange(n)
    for sign, steps in _ways(n, mirrored):
        before, after = (at - sign) % n, (at + sign) % n
        sent: list[I64] = []
        for step in range(steps):
            block = (at + sign * (steps - step)) % n
            waits = in_turn(ready, group, group[:, after], sent, before)
            sent.append(
                build.add(group, group[:, after], first[:, block], count[:, block], after=waits, put=Put.REDUCE)
            )
        last += [s[:, before] for s in sent[-1:]]
    return arrivals(build, group, ready, last) if last else ready


def both_all_gather(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, mirrored: bool = False
) -> I64:
    n = group.shape[1]
    at, came = np.arange(n), []
    for sign, steps in _ways(n, mirrored):
        before, after = (at - sign) % n, (at + sign) % n
        sent: list[I64] = []
        for step in range(steps):
            block = (at - sign * step) % n
            waits = in_turn(ready, group, group[:, after], sent, before)
            sent.append(build.add(group, group[:, after], first[:, block], count[:, block], after=waits))
        came += [s[:, before] for s in sent]
    return arrivals(build, group, ready, came) if came else ready


def _line_ways(n: int) -> list[tuple[int, I64]]:
    """(sign, positions counted from the end that it leaves) up and down a line."""
    at = np.arange(n)
    return [(1, at), (-1, n - 1 - at)]


def line_reduce_scatter(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, mirrored: bool = False
) -> I64:
    """Along a line that no wrap closes: sums come to position i from both ends, those for the farthest first."""
    n, last = group.shape[1], []
    for sign, place in _line_ways(n):
        came = np.full(group.shape, -1, np.int64)  # by position: the sum that came last
        for step in range(n - 1):
            some = np.flatnonzero(place <= step)  # `place` from its end sends what is for n - 1 - (step - place)
            block = some + sign * (n - 1 - step)
            waits = pair(ready, group[:, some], group[:, some + sign], came[:, some])
            sent = build.add(
                group[:, some], group[:, some + sign], first[:, block], count[:, block], after=waits, put=Put.REDUCE
            )
            came = np.full(group.shape, -1, np.int64)
            came[:, some + sign] = sent
            if step == n - 2:
                last.append(came)
    return arrivals(build, group, ready, last) if last else ready


def line_all_gather(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, mirrored: bool = False
) -> I64:
    """The reverse: every position passes on its own block, and then what comes, towards both ends."""
    n, got = group.shape[1], []
    for sign, place in _line_ways(n):
        came = np.full(group.shape, -1, np.int64)
        for step in range(n - 1):
            some = np.flatnonzero((place >= step) & (place < n - 1))
            block = some - sign * step
            waits = pair(ready, group[:, some], group[:, some + sign], came[:, some])
            sent = build.add(group[:, some], group[:, some + sign], first[:, block], count[:, block], after=waits)
            came = np.full(group.shape, -1, np.int64)
            came[:, some + sign] = sent
            got.append(came)
    return arrivals(build, group, ready, got) if got else ready


STEPS: Final = Passes(both_reduce_scatter, both_all_gather)
IN_LINE: Final = Passes(line_reduce_scatter, line_all_gather)


def carry_along(build: ScheduleBuilder, n: int, reach: int, sign: int, part: tuple[int, int] = (0, 1)) -> None:
    """The same along a line that no wrap closes: up to its end, those for the farthest with the others."""
    number, parts = part
    came = np.full(n, -1, np.int64)
    for step in range(1, reach + 1):
        at = np.arange(n)
        origin = at - sign * (step - 1)
        some = np.flatnonzero((origin >= 0) & (origin < n) & (at + sign >= 0) & (at + sign < n))
        low = some + 1 if sign > 0 else np.zeros(len(some), np.int64)
        count = n - 1 - some if sign > 0 else some
        begin = origin[some] * n * parts + number * n + low
        sent = build.add(some, some + sign, begin, count, after=came[some][:, None])
        came = np.full(n, -1, np.int64)
        came[some + sign] = sent


def _exchange(n: int, *, line: bool) -> Schedule:
    """Every block takes the shorter way until it arrives; for an even number half of the data for the opposite member
    goes up, half down."""
    build = ScheduleBuilder()
    far, near = n // 2, (n - 1) // 2
    if line:
        ways = [[(n - 1, 1), (n - 1, -1)]]
    else:
        ways = [[(far, 1), (near, -1)], [(near, 1), (far, -1)]] if far > near else [[(far, 1), (near, -1)]]
    for number, part in enumerate(ways):
        for reach, sign in part:
            carry = carry_along if line else ring.carry_around
            carry(build, n, reach, sign, (number, len(ways)))
    return build.schedule(A2A, "ring_both", n, owners=n, blocks=n * n * len(ways))


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    """Each half of the way round; for an even number, one half of a block goes a step farther up, the other down."""
    orders = ring.rings_of(layout, "ring_both", n)
    if collective == A2A:
        return _exchange(n, line=layout.line)
    if collective in ROOTED:
        ways = orders if layout.line else [*orders, *(order[::-1] for order in orders)]
        along = trees.from_middle if layout.line else trees.chain
        return trees.rooted(collective, "ring_both", n, layout.root, [along(order, layout.root) for order in ways])
    if layout.line:
        return ring.around(collective, "ring_both", [(order, {}) for order in orders], IN_LINE)
    rings = [(order, {"mirrored": mirrored}) for order in orders for mirrored in (False, True)]
    return ring.around(collective, "ring_both", rings, STEPS)


def layout(system: System, kind: Collective, shape: GroupShape, dims: tuple[int, ...]) -> Layout:
    """Like a ring, except for members in a line."""
    if len(shape.spans) == 1 and in_line(system.levels[shape.spans[0].level], shape.spans[0]):
        return Layout(line=True)
    return ring.layout(system, kind, shape, dims)


ALGORITHM: Final = Algorithm(closed_form, schedule, (AR, RS, AG, BROADCAST, REDUCE, A2A), layout)
