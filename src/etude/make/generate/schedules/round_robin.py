"""`roundrobin`: no rank owns a stage. The j-th dispatched stage, forward stages first and then backward ones, runs on
rank j mod n with all micro-batches of the step; its weights come from the host's memory for the visit.

Forward and backward are split separately: a backward stage recomputes its forward, so a forward stage of equal time has
more layers. The number of stages is independent of n. Counting continues over steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.base.grammar import line
from etude.kernels.arrays import F64
from etude.make.generate.schedules.pipeline import Action, PipelineSchedule

SLACK = 1.1
"""A stage may be a tenth heavier than its limit, so that small blocks (an embedding, a norm) do not become separate
stages."""
EXAMPLE = "roundrobin, roundrobin:2 (blocks of a backward stage), roundrobin:1,fused"


@dataclass(frozen=True, slots=True)
class StageCut:
    """One stage: blocks from `first` up to, not including, `last`."""

    back: bool
    first: int
    last: int
    fused: bool = False
    """Its forward happens only here: no forward stage has these blocks."""


@dataclass(frozen=True, slots=True)
class RoundRobinOptions:
    """The options in `roundrobin:2,fused`."""

    blocks: int = 1
    """Work of a stage, in multiples of the heaviest block."""
    fused: bool = False

    @classmethod
    def parse(cls, text: str) -> RoundRobinOptions:
        """Of the whole name of a schedule."""
        options = line(text, f"schedule `{text}`", EXAMPLE).cut(":")[1]
        if options is None:
            return cls()
        first, *rest = options.split(",")
        blocks = 1 if first.text == "fused" else first.count(most=9999)
        for word in rest:
            word.choice(("fused",))
        return cls(blocks, first.text == "fused" or bool(rest))


@dataclass(frozen=True, slots=True)
class DispatchRounds:
    """The stages dispatched in a step, and the ranks of those of all steps."""

    cuts: tuple[StageCut, ...]
    ranks: int
    micro_batches: int
    steps: int

    def rank(self, step: int, number: int) -> int:
        return (step * len(self.cuts) + number) % self.ranks

    def visits(self, rank: int) -> list[tuple[int, int]]:
        """(step, number of the cut) in the order in which a rank executes them."""
        each = len(self.cuts)
        return [divmod(j, each) for j in range(rank, self.steps * each, self.ranks)]

    def schedule(self) -> PipelineSchedule:
        """As columns: stage is the number of the cut, micro-batches count through all steps."""
        m = self.micro_batches
        visits = [self.visits(rank) for rank in range(self.ranks)]
        flat = np.array([v for mine in visits for v in mine], np.int64).reshape(-1, 2)
        back = np.array([cut.back for cut in self.cuts])
        action = np.where(back[flat[:, 1]], int(Action.BACKWARD), int(Action.FORWARD)).astype(np.uint8)
        micro = (flat[:, 0] * m)[:, None] + np.arange(m)
        return PipelineSchedule(
            name="roundrobin",
            ranks=self.ranks,
            stages=len(self.cuts),
            micro_batches=m * self.steps,
            start=np.cumsum([0, *(len(mine) * m for mine in visits)]).astype(np.int64),
            action=np.repeat(action, m),
            stage=np.repeat(flat[:, 1], m).astype(np.int32),
            micro_batch=micro.ravel().astype(np.int32),
            paired=np.zeros(len(flat) * m, bool),
            held=tuple(tuple(sorted({cut for _, cut in mine})) for mine in visits),
        )

    def times(self, cost: Sequence[float]) -> tuple[F64, F64]:
        """(begin, end) of each (dispatched stage, micro-batch), if a micro-batch of cut c takes cost[c]."""
        each, m = len(self.cuts), self.micro_batches
        end = np.zeros((each * self.steps, m))
        for j in range(len(end)):
            number = j % each
            ready = end[j - 1] if number else np.zeros(m)
            free = end[j - self.ranks, -1] if j >= self.ranks else 0.0
            # A micro-batch begins after the one before it: end[k] = max(ready[k], end[k - 1]) + cost.
            ahead = np.maximum(ready, free) - cost[number] * np.arange(m)
            end[j] = np.maximum.accumulate(ahead) + cost[number] * np.arange(1, m + 1)
        return end - np.tile(np.asarray(cost, np.float64), self.steps)[:, None], end


def cut(
    forward: Sequence[float], backward: Sequence[float], options: RoundRobinOptions, first: int = 0
) -> tuple[StageCut, ...]:
    """Stages of one step from the work of each block: none has more than the heaviest backward block (times `blocks`)
    plus a tenth. `backward` includes the recomputed forward; `first`: the first block with a backward, or their number
    if none has one."""
    room = SLACK * options.blocks * max(backward[first:] or forward)
    count = len(forward)
    fused = _ranges(backward, first, count, room)[-1][0] if options.fused and first < count else count
    found = [StageCut(False, *r) for r in _ranges(forward, 0, fused, room)]
    if fused < count:
        found.append(StageCut(True, fused, count, fused=True))
    return (*found, *(StageCut(True, *r) for r in reversed(_ranges(backward, first, fused, room))))


def _ranges(work: Sequence[float], first: int, last: int, room: float) -> list[tuple[int, int]]:
    """(first, last) of stages in model order, filled from the last block on."""
    found: list[tuple[int, int]] = []
    end, total = last, 0.0
    for at in reversed(range(first, last)):
        if at + 1 < end and total + work[at] > room:
            found.append((at + 1, end))
            end, total = at + 1, 0.0
        total += work[at]
    return [*([(first, end)] if end > first else []), *reversed(found)]
