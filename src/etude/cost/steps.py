"""The steps that collectives are made of, on many groups of members at once.

Groups are rows: `group[g, i]` is the member at position i of group g; `first[g, i]`, `count[g, i]` are the blocks that
belong to that position; they lie in the order that `block_order` says. `ready[m]` is the transfer after which member m
may begin (-1: at once); every step returns the new `ready`. The receiver must be ready too: it owns the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.cost.schedule import I64, Put, ScheduleBuilder

Groups = NDArray[np.int64]
Step = Callable[..., I64]


def _arrivals(build: ScheduleBuilder, group: Groups, ready: I64, ids: list[I64]) -> I64:
    """Every member is ready when what it was ready for, and all of `ids` (by receiving position), have come."""
    out = ready.copy()
    waits = np.stack([ready[group], *ids], axis=-1)
    if waits.shape[-1] == 2 and (waits[..., 0] < 0).all():
        out[group] = waits[..., 1]
    elif ids:
        out[group] = build.join(group, waits)
    return out


def _pair(ready: I64, src: Groups, dst: Groups, *more: I64) -> I64 | None:
    if not more and (ready < 0).all():
        return None
    return np.stack([ready[src], ready[dst], *more], axis=-1)


IN_FLIGHT = 4
"""Blocks that one connection of a ring has under way at most: what piles up before a slow link must not share it."""


def _in_turn(ready: I64, src: Groups, dst: Groups, sent: list[I64], before: I64) -> I64 | None:
    """What a step along a ring waits for: the block that came from `before`, and room on the connection."""
    if not sent:
        return _pair(ready, src, dst)
    room = [sent[-IN_FLIGHT]] if len(sent) >= IN_FLIGHT else []
    return _pair(ready, src, dst, sent[-1][:, before], *room)


def ring_reduce_scatter(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, back: bool = False
) -> I64:
    """n - 1 steps around the ring; position i ends with the sum of its blocks."""
    n, sign = group.shape[1], -1 if back else 1
    at = np.arange(n)
    before, after = (at - sign) % n, (at + sign) % n
    sent: list[I64] = []
    for step in range(n - 1):
        block = (at - sign * (1 + step)) % n
        waits = _in_turn(ready, group, group[:, after], sent, before)
        sent.append(build.add(group, group[:, after], first[:, block], count[:, block], after=waits, put=Put.REDUCE))
    return _arrivals(build, group, ready, [sent[-1][:, before]]) if sent else ready


def ring_all_gather(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, back: bool = False
) -> I64:
    n, sign = group.shape[1], -1 if back else 1
    at = np.arange(n)
    before, after = (at - sign) % n, (at + sign) % n
    sent: list[I64] = []
    for step in range(n - 1):
        block = (at - sign * step) % n
        waits = _in_turn(ready, group, group[:, after], sent, before)
        sent.append(build.add(group, group[:, after], first[:, block], count[:, block], after=waits))
    return _arrivals(build, group, ready, [s[:, before] for s in sent])


def _ways(n: int, mirrored: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """(sign, steps) up and down a ring: half of the way each; of an even number one goes a step farther."""
    far, near = n // 2, (n - 1) // 2
    return ((1, near), (-1, far)) if mirrored else ((1, far), (-1, near))


def both_reduce_scatter(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, mirrored: bool = False
) -> I64:
    """Sums come to position i from both sides, each half of the way round."""
    n, last = group.shape[1], []
    at = np.arange(n)
    for sign, steps in _ways(n, mirrored):
        before, after = (at - sign) % n, (at + sign) % n
        sent: list[I64] = []
        for step in range(steps):
            block = (at + sign * (steps - step)) % n
            waits = _in_turn(ready, group, group[:, after], sent, before)
            sent.append(
                build.add(group, group[:, after], first[:, block], count[:, block], after=waits, put=Put.REDUCE)
            )
        last += [s[:, before] for s in sent[-1:]]
    return _arrivals(build, group, ready, last) if last else ready


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
            waits = _in_turn(ready, group, group[:, after], sent, before)
            sent.append(build.add(group, group[:, after], first[:, block], count[:, block], after=waits))
        came += [s[:, before] for s in sent]
    return _arrivals(build, group, ready, came) if came else ready


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
            waits = _pair(ready, group[:, some], group[:, some + sign], came[:, some])
            sent = build.add(
                group[:, some], group[:, some + sign], first[:, block], count[:, block], after=waits, put=Put.REDUCE
            )
            came = np.full(group.shape, -1, np.int64)
            came[:, some + sign] = sent
            if step == n - 2:
                last.append(came)
    return _arrivals(build, group, ready, last) if last else ready


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
            waits = _pair(ready, group[:, some], group[:, some + sign], came[:, some])
            sent = build.add(group[:, some], group[:, some + sign], first[:, block], count[:, block], after=waits)
            came = np.full(group.shape, -1, np.int64)
            came[:, some + sign] = sent
            got.append(came)
    return _arrivals(build, group, ready, got) if got else ready


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
    return _arrivals(build, group, ready, [np.stack(came, axis=1)])


def switch_all_gather(build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, switch: I64) -> I64:
    """Every position hands its blocks to the switch of its group, which sends copies to all."""
    n = group.shape[1]
    at = np.broadcast_to(switch[:, None], group.shape)
    sent = build.add(group, at, first, count, after=ready[group][..., None])
    got = []
    for block in range(n):
        waits = np.stack((np.broadcast_to(sent[:, [block]], group.shape), ready[group]), axis=-1)
        got.append(build.add(at, group, first[:, [block]], count[:, [block]], after=waits))
    return _arrivals(build, group, ready, got)


def carry_around(build: ScheduleBuilder, n: int, reach: int, sign: int, part: tuple[int, int] = (0, 1)) -> None:
    """All-to-all along a ring: what goes to members up to `reach` away travels on, step by step, until it is home.

    Block i * n + j goes from i to j; of `part` (k, parts) there are as many such runs, and this is the k-th. What a
    member passes on in a step is one origin's blocks for those farther on: a run of blocks, or two where it goes round
    the end.
    """
    number, parts = part
    at = np.arange(n)
    before, after = (at - sign) % n, (at + sign) % n
    came: list[I64] = []
    for step in range(1, reach + 1):
        origin = (at - sign * (step - 1)) % n
        near, far = origin + sign * step, origin + sign * reach  # of the receivers, before they go round the end
        low, high = np.minimum(near, far), np.maximum(near, far)
        waits = np.stack([c[before] for c in came], axis=-1) if came else None
        came = []
        for shift in (-n, 0, n):
            begin, end = np.maximum(low + shift, 0), np.minimum(high + shift, n - 1)
            some = np.flatnonzero(begin <= end)
            if len(some):
                ids = np.full(n, -1, np.int64)
                ids[some] = build.add(
                    at[some], after[some],
                    (origin * n * parts + number * n + begin)[some], (end - begin + 1)[some],
                    after=None if waits is None else waits[some],
                )  # fmt: skip
                came.append(ids)


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


def direct_reduce_scatter(build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64) -> I64:
    """Everyone sends each its part, at once."""
    n = group.shape[1]
    at = np.arange(n)
    came = []
    for away in range(1, n):
        to = (at + away) % n
        waits = _pair(ready, group, group[:, to])
        sent = build.add(group, group[:, to], first[:, to], count[:, to], after=waits, put=Put.REDUCE)
        came.append(sent[:, (at - away) % n])
    return _arrivals(build, group, ready, came)


def direct_all_gather(build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64) -> I64:
    n = group.shape[1]
    at = np.arange(n)
    came = []
    for away in range(1, n):
        to = (at + away) % n
        sent = build.add(group, group[:, to], first, count, after=_pair(ready, group, group[:, to]))
        came.append(sent[:, (at - away) % n])
    return _arrivals(build, group, ready, came)


def halving_order(n: int) -> list[int]:
    """Positions in the order of their blocks: those that part last lie side by side.

    With 2**k participants that is bit reversal. Of n in between, the first n - 2**k participants stand for two
    neighbours each, whose blocks lie together.
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
    """Recursive halving, nearest first: the far ones get the small messages. Positions beyond a power of two hand
    their data to a neighbour before."""
    half, ready = _Halves(group, first, count), ready.copy()
    if half.extra:
        host, guest = group[:, half.guest - 1], group[:, half.guest]
        all_first, all_count = half.span(np.zeros(half.extra, np.int64), np.full(half.extra, half.size))
        sent = build.add(guest, host, all_first, all_count, after=_pair(ready, guest, host), put=Put.REDUCE)
        ready = _arrivals(build, host, ready, [sent])
    who = np.arange(half.size)
    distance = half.size // 2
    while distance:
        other = who ^ distance
        low = other // distance * distance
        sent = build.add(
            half.member, half.member[:, other], *half.span(low, low + distance),
            after=_pair(ready, half.member, half.member[:, other]), put=Put.REDUCE,
        )  # fmt: skip
        ready = _arrivals(build, half.member, ready, [sent[:, other]])
        distance //= 2
    if half.extra and give_back:
        sent = build.add(host, guest, first[:, half.guest], count[:, half.guest], after=_pair(ready, host, guest))
        ready = _arrivals(build, guest, ready, [sent])
    return ready


def doubling_all_gather(
    build: ScheduleBuilder, group: Groups, first: I64, count: I64, ready: I64, *, collect: bool = True
) -> I64:
    """Recursive doubling, farthest first: the reverse of halving."""
    half, ready = _Halves(group, first, count), ready.copy()
    if half.extra:
        host, guest = group[:, half.guest - 1], group[:, half.guest]
        if collect:
            sent = build.add(guest, host, first[:, half.guest], count[:, half.guest], after=_pair(ready, guest, host))
            ready = _arrivals(build, host, ready, [sent])
    who = np.arange(half.size)
    distance = 1
    while distance < half.size:
        other = who ^ distance
        low = who // distance * distance
        sent = build.add(
            half.member, half.member[:, other], *half.span(low, low + distance),
            after=_pair(ready, half.member, half.member[:, other]),
        )  # fmt: skip
        ready = _arrivals(build, half.member, ready, [sent[:, other]])
        distance *= 2
    if half.extra:
        all_first, all_count = half.span(np.zeros(half.extra, np.int64), np.full(half.extra, half.size))
        sent = build.add(host, guest, all_first, all_count, after=_pair(ready, host, guest))
        ready = _arrivals(build, guest, ready, [sent])
    return ready


REDUCE_SCATTER: dict[str, Step] = {
    "ring": ring_reduce_scatter,
    "ring_both": both_reduce_scatter,
    "line": line_reduce_scatter,
    "in_switch": switch_reduce_scatter,
    "direct": direct_reduce_scatter,
    "halving_doubling": halving_reduce_scatter,
}
ALL_GATHER: dict[str, Step] = {
    "ring": ring_all_gather,
    "ring_both": both_all_gather,
    "line": line_all_gather,
    "in_switch": switch_all_gather,
    "direct": direct_all_gather,
    "halving_doubling": doubling_all_gather,
}


def block_order(algorithm: str, n: int) -> list[int]:
    """The positions of a group, in the order in which their blocks must lie for this algorithm."""
    return halving_order(n) if algorithm == "halving_doubling" else list(range(n))


def flat(members: int) -> Groups:
    return np.arange(members, dtype=np.int64)[None, :]


def lines(sizes: tuple[int, ...], dimension: int) -> tuple[Groups, NDArray[Any]]:
    """(members of every line along the dimension, coordinates of each member): the first dimension varies fastest."""
    total = int(np.prod(sizes))
    member = np.arange(total)
    step = int(np.prod(sizes[:dimension]))
    coordinates = np.stack([member // int(np.prod(sizes[:d])) % sizes[d] for d in range(len(sizes))])
    begin = member[coordinates[dimension] == 0]
    return begin[:, None] + np.arange(sizes[dimension]) * step, coordinates
