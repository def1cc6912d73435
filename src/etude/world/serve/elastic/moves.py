"""What a change of plan moves, and whether it pays.

Ranks are numbered so that the parts of one replica are neighbours. Which part each has is its position with the digits
reversed: with tensor parallelism of 2 and then 4, rank 1 of four has the second half, then the third quarter, which is
inside it. So a rank whose part shrinks moves nothing, and one whose part grows keeps what it has.
"""

from __future__ import annotations

import math
from fractions import Fraction


def part_of(rank: int, tp: int) -> tuple[Fraction, Fraction]:
    """The part of the weights that a rank has, as a stretch of [0, 1)."""
    place, part, width = rank % tp, Fraction(0), Fraction(1)
    for factor in _factors(tp):
        width /= factor
        part += (place % factor) * width
        place //= factor
    return part, part + width


def moved_bytes(ranks: int, before: int, after: int, rank_bytes: float) -> list[int]:
    """For each rank: bytes that it needs with tensor parallelism `after` and does not have with `before`. `rank_bytes`
    are the weights of a rank afterwards; before = 0: it has none."""
    found = []
    for rank in range(ranks):
        low, high = part_of(rank, after)
        there = Fraction(0)
        if before:
            first, last = part_of(rank, before)
            there = max(min(high, last) - max(low, first), Fraction(0))
        found.append(math.ceil(Fraction(rank_bytes) * (1 - there / (high - low))))
    return found


def change_ns(set_up_ns: int, moved: list[int], bytes_per_s: float) -> int:
    """Ranks load at the same time: the set-up, plus the rank that moves most."""
    return set_up_ns + math.ceil(max(moved, default=0) * 1e9 / bytes_per_s)


def pays(cost_ns: float, step_before_ns: float, step_after_ns: float, remaining_ns: float) -> bool:
    """Whether a drained change of this cost finishes the remaining work sooner; it takes `remaining_ns` with the
    current plan."""
    return cost_ns < (1.0 - step_after_ns / step_before_ns) * remaining_ns


def _factors(number: int) -> list[int]:
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found
