"""Blocks of steps with a delay and without, in turn, and what they differ by.

The mean of the blocks before and after is what a block with a delay would have taken without it: a machine that gets
slower meanwhile is in both.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from etude.capture.collect.delays import NONE, StepBlock


@dataclass(frozen=True, slots=True)
class Pair:
    """A block with a delay against its neighbours without one, per step."""

    change_ns: float
    injected_ns: float


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """What a delay changed, per step: the median of pairs, and half the distance between their quartiles."""

    injected_ns: int
    change_ns: int
    spread_ns: int
    pairs: int


def turns(missing: Sequence[int]) -> tuple[int, ...]:
    """The delay of each block: every delay as often as it is missing, in rounds, the most missing first, every
    other round backwards, with a block without delay before and after each."""
    blocks = [NONE]
    for number in range(max(missing, default=0)):
        of_round = sorted((d for d, count in enumerate(missing) if count > number), key=lambda d: -missing[d])
        for delay in of_round[:: -1 if number % 2 else 1]:
            blocks += [delay, NONE]
    return tuple(blocks)


def pairs_of(blocks: Sequence[StepBlock], steps: int) -> list[tuple[int, Pair]]:
    """(Delay, pair) of each block that has a delay in each of its steps and a neighbour without."""
    found = []
    for k, block in enumerate(blocks):
        beside = [one.took_ns for one in (*blocks[max(k - 1, 0) : k], *blocks[k + 1 : k + 2]) if one.delay == NONE]
        if block.delay == NONE or not beside or block.count != steps:
            continue
        change = (block.took_ns - statistics.mean(beside)) / steps
        found.append((block.delay, Pair(change, block.injected_ns / steps)))
    return found


def measured_change(pairs: Sequence[Pair]) -> MeasuredChange:
    changes = [pair.change_ns for pair in pairs]
    low, _, high = statistics.quantiles(changes, n=4, method="inclusive") if len(changes) > 1 else (0.0, 0.0, 0.0)
    injected = statistics.median(pair.injected_ns for pair in pairs)
    return MeasuredChange(round(injected), round(statistics.median(changes)), round((high - low) / 2), len(pairs))


def undelayed_step_ns(blocks: Sequence[StepBlock], steps: int) -> int:
    """The median step of the blocks without a delay."""
    return round(statistics.median(block.took_ns for block in blocks if block.delay == NONE) / steps)
