"""DualPipe and DualPipeV: forwards of one direction run together with backwards of the other.

Each rank holds two chunks. In DualPipe these are stages r and p - 1 - r of a model whose every stage is held twice:
half of the micro-batches go down the ranks and half go up. In DualPipeV they are the two legs of a V, as in ZBV.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from etude.base.errors import UsageError
from etude.make.generate.schedules.pipeline import Action, PipelineSchedule, Step, build
from etude.make.generate.schedules.zero_bubble import v_shape

F, B, I, W = Action.FORWARD, Action.BACKWARD, Action.INPUT, Action.WEIGHT  # noqa: E741


def dualpipe(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Micro-batches 0 to m/2 - 1 go from rank 0 to the last, the others from the last to rank 0."""
    where = "schedule `dualpipe`"
    if ranks % 2 or micro_batches % 2:
        hint = "half of the micro-batches go in each direction, and ranks work in mirrored pairs"
        raise UsageError(f"{ranks} ranks and {micro_batches} micro-batches: both must be even", where=where, hint=hint)
    _enough(where, ranks, micro_batches)
    held = [(rank, ranks - 1 - rank) for rank in range(ranks)]
    half, orders = micro_batches // 2, []
    for rank in range(ranks):
        # The upper half of the ranks mirrors the lower.
        near = min(rank, ranks - 1 - rank)
        chunks = held[rank] if rank == near else held[rank][::-1]
        first = (0, half) if rank == near else (half, 0)
        orders.append(_rank(near, ranks // 2, half, chunks, first))
    return build("dualpipe", ranks, micro_batches, orders, held)


def dualpipev(ranks: int, micro_batches: int) -> PipelineSchedule:
    """The half of DualPipe that remains if a rank and its mirror are merged: a V of 2p stages on p ranks."""
    _enough("schedule `dualpipev`", ranks, micro_batches)
    held = v_shape(ranks)
    orders = [_rank(rank, ranks, micro_batches, held[rank], (0, 0)) for rank in range(ranks)]
    return build("dualpipev", 2 * ranks, micro_batches, orders, held)


def _enough(where: str, ranks: int, micro_batches: int) -> None:
    if micro_batches < 2 * ranks:
        problem = f"{micro_batches} micro-batches on {ranks} ranks: at least {2 * ranks} are needed"
        hint = "with fewer the two directions do not overlap; use 1f1b, zb1p or zbv"
        raise UsageError(problem, where=where, hint=hint)


class _RankOrder:
    """One rank's order while it is built: the next micro-batch, and pending weight gradients."""

    def __init__(self, stages: Sequence[int], first: tuple[int, int]) -> None:
        self.order: list[Step] = []
        self._stages, self._first = stages, first
        self._next: Counter[tuple[bool, int]] = Counter()
        self._owed: deque[tuple[int, int]] = deque()

    def do(self, action: Action, chunk: int, paired: bool = False) -> None:
        forward = action == F
        m = self._first[chunk] + self._next[forward, chunk]
        self._next[forward, chunk] += 1
        self.order.append((action, self._stages[chunk], m, paired))
        if action == I:
            self._owed.append((self._stages[chunk], m))

    def weight(self) -> None:
        self.order.append((W, *self._owed.popleft(), False))

    def together(self, forward: int, backward: int) -> None:
        self.do(F, forward, paired=True)
        self.do(B, backward)


def _rank(near: int, half: int, count: int, stages: Sequence[int], first: tuple[int, int]) -> list[Step]:
    """The order of the rank at distance `near` from the end at which its chunk 0 begins, of `half` ranks to the middle.

    `count` micro-batches go through each chunk. In the middle of the order a forward of one chunk and a backward of the
    other run together; before and after it, weight gradients are split off where a rank would wait.
    """
    r, middle = _RankOrder(stages, first), near == half - 1
    to_middle = half - near - 1
    for _ in range(2 * to_middle):
        r.do(F, 0)
    for _ in range(near + 1):
        r.do(F, 0)
        r.do(F, 1)
    for _ in range(to_middle):
        r.do(I, 1)
        r.weight()
        r.do(F, 1)
    for i in range(count - 2 * half + near + 1):
        if i == 0 and middle:  # nothing to overlap with yet: in sequence the others start sooner
            r.do(F, 0)
            r.do(B, 1)
        else:
            r.together(0, 1)
        r.together(1, 0)
    for _ in range(to_middle):
        r.do(B, 1)
        r.together(1, 0)
    for i in range(2 * (near + 1)):  # the second half of these defers its weight gradients
        chunk = 1 - i % 2
        r.do(I if i > near else B, chunk)
    for _ in range(to_middle):
        r.weight()
        r.do(I, 0)
    while r._owed:
        r.weight()
    return r.order
