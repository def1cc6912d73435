"""Recursive halving and doubling, nearest partners first."""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.cost.collectives.algorithm import Algorithm, Layout
from etude.cost.collectives.plan import AlgorithmPlan, Leg, bits_of, by_level, port_rate
from etude.cost.collectives.steps import AG, AR, RS, Groups, Passes, arrivals, pair, scattered
from etude.cost.groups import GroupShape, GroupSpan
from etude.cost.schedule import Put, Schedule, ScheduleBuilder
from etude.kernels.arrays import I64
from etude.machine.system import LINED, Level, LevelKind, System
from etude.model.schema import Collective


def closed_form(system: System, kind: Collective, shape: GroupShape) -> AlgorithmPlan:
    return AlgorithmPlan(tuple(by_level(system, kind, shape, _halving_level)))


def _halving_level(level: Level, span: GroupSpan) -> Leg:
    """Recursive halving; members beyond the last power of two hand their payload to a partner first."""
    n, rate = span.units, port_rate(level, span, peers="one")
    core = 1 << (n.bit_length() - 1)
    odd = n > core
    volume = (core - 1) / core if level.kind not in LINED else bits_of(core) / 2
    if level.kind == LevelKind.RING and span.whole and core == n > 2:
        volume -= 1 / 4  # the farthest partners are reached both ways round
    steps = bits_of(core) if level.kind not in LINED else core - 1  # 1, 2, 4, ... away
    return Leg(span.level, steps + odd, (volume + odd) / span.below, rate)


def halving_order(n: int) -> list[int]:
    """Positions in the order of their blocks: those that separate last are neighbours.

    With 2**k participants that is bit reversal. For other n, the first n - 2**k participants represent two neighbours
    each, whose blocks are adjacent.
    """
    bits = n.bit_length() - 1
    extra = n - (1 << bits)
    order = []
    for slot in range(1 << bits):
        who = int(f"{slot:0{bits}b}"[::-1], 2) if bits else 0
        order += [2 * who, 2 * who + 1] if who < extra else [who + extra]
    return order


class _Halves:
    """The power of two of participants in a group of any size, in the order of their blocks."""

    def __init__(self, group: Groups, first: I64, count: I64) -> None:
        n = group.shape[1]
        self.size = 1 << (n.bit_length() - 1)
        self.extra = n - self.size
        order = np.array(halving_order(n))
        guest = (order % 2 == 1) & (order < 2 * self.extra)
        self.guest = np.arange(self.extra) * 2 + 1
        self.member = group[:, order[~guest]]
        self.first = first[:, order[~guest]]
        last = np.append(~guest[1:], True)
        self.end = first[:, order[last]] + count[:, order[last]]

    def span(self, low: I64, high: I64) -> tuple[I64, I64]:
        """Blocks of participants low..high-1: (first, count)."""
        begin = self.first[:, low]
        return begin, self.end[:, high - 1] - begin


def halving_reduce_scatter(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, give_back: bool = True
) -> I64:
    """Recursive halving, nearest first: the far ones get the small messages. Positions beyond a power of two first hand
    their data to a neighbour."""
    half, ready = _Halves(group, first, count), ready.copy()
    if half.extra:
        host, guest = group[:, half.guest - 1], group[:, half.guest]
        all_first, all_count = half.span(np.zeros(half.extra, np.int64), np.full(half.extra, half.size))
        sent = build.add(guest, host, all_first, all_count, after=pair(ready, guest, host), put=Put.REDUCE)
        ready = arrivals(build, host, ready, [sent])
    who = np.arange(half.size)
    distance = half.size // 2
    while distance:
        other = who ^ distance
        low = other // distance * distance
        sent = build.add(
            half.member,
            half.member[:, other],
            *half.span(low, low + distance),
            after=pair(ready, half.member, half.member[:, other]),
            put=Put.REDUCE,
        )
        ready = arrivals(build, half.member, ready, [sent[:, other]])
        distance //= 2
    if half.extra and give_back:
        sent = build.add(host, guest, first[:, half.guest], count[:, half.guest], after=pair(ready, host, guest))
        ready = arrivals(build, guest, ready, [sent])
    return ready


def doubling_all_gather(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, collect: bool = True
) -> I64:
    """Recursive doubling, farthest first: the reverse of halving."""
    half, ready = _Halves(group, first, count), ready.copy()
    if half.extra:
        host, guest = group[:, half.guest - 1], group[:, half.guest]
        if collect:
            sent = build.add(guest, host, first[:, half.guest], count[:, half.guest], after=pair(ready, guest, host))
            ready = arrivals(build, host, ready, [sent])
    who = np.arange(half.size)
    distance = 1
    while distance < half.size:
        other = who ^ distance
        low = who // distance * distance
        sent = build.add(
            half.member,
            half.member[:, other],
            *half.span(low, low + distance),
            after=pair(ready, half.member, half.member[:, other]),
        )
        ready = arrivals(build, half.member, ready, [sent[:, other]])
        distance *= 2
    if half.extra:
        all_first, all_count = half.span(np.zeros(half.extra, np.int64), np.full(half.extra, half.size))
        sent = build.add(host, guest, all_first, all_count, after=pair(ready, host, guest))
        ready = arrivals(build, guest, ready, [sent])
    return ready


STEPS: Final = Passes(halving_reduce_scatter, doubling_all_gather, halving_order)


def schedule(collective: Collective, n: int, layout: Layout) -> Schedule:
    """An all-reduce does not hand blocks to positions beyond a power of two, since it would collect them again."""
    both = collective == AR
    scatter, gather = ({"give_back": False}, {"collect": False}) if both else ({}, {})
    return scattered(collective, "halving_doubling", n, STEPS, scatter, gather)


ALGORITHM: Final = Algorithm(closed_form, schedule, (AR, RS, AG))
