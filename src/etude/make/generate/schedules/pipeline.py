"""PipelineSchedule: the order of actions on each pipeline rank. The builders are in `schedules`.

A model is cut into `stages`; a rank holds one or more of them (its chunks). For each stage and micro-batch there is one
forward, and either one whole backward or a backward for the input and one for the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.base.errors import DeadlockError, UsageError
from etude.kernels.arrays import F64, I32, I64
from etude.make.generate.schedules.action import Action as Action
from etude.make.generate.schedules.action import Step as Step


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PipelineSchedule:
    """Rank r does the actions start[r]:start[r + 1], in order."""

    name: str
    ranks: int
    stages: int
    micro_batches: int
    start: I64
    action: NDArray[np.uint8]
    stage: I32
    micro_batch: I32
    paired: NDArray[np.bool_]
    """True where the action runs together with the next one, a forward and a backward that overlap."""
    held: tuple[tuple[int, ...], ...]
    """Stages that each rank holds, chunk by chunk."""
    window: int = 0
    """Micro-batches of an update if the order contains updates (R, U); 0: one at the end."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __len__(self) -> int:
        return len(self.action)

    def rows(self, rank: int) -> slice:
        return slice(int(self.start[rank]), int(self.start[rank + 1]))

    def chunk(self) -> I32:
        """Chunk of each action: which of its rank's stages it works on."""
        out = np.empty(len(self), np.int32)
        for rank, held in enumerate(self.held):
            number = np.zeros(self.stages, np.int32)
            number[list(held)] = np.arange(len(held))
            out[self.rows(rank)] = number[self.stage[self.rows(rank)]]
        return out

    @property
    def works(self) -> NDArray[np.bool_]:
        """Actions on a micro-batch: all except those of windows."""
        return self.action <= Action.WEIGHT

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that hold each stage."""
        return tuple(tuple(r for r, held in enumerate(self.held) if s in held) for s in range(self.stages))

    @property
    def goes_back(self) -> int:
        """The first stage with a backward pass; the number of stages if none has one."""
        return int(self.stage[self.works & (self.action != Action.FORWARD)].min(initial=self.stages))

    def back_to(self, first: int) -> PipelineSchedule:
        """The same without the backward passes of the stages before `first`, which have no work in them."""
        if not first:
            return self
        kept = (self.action == Action.FORWARD) | (self.action == Action.UPDATE) | (self.stage >= first)
        start = np.concatenate([[0], np.cumsum(kept)])[self.start].astype(np.int64)
        # A pair that lost one action is no longer a pair: the next action kept is not the original next one.
        paired = self.paired & np.roll(kept, -1)
        columns = {name: getattr(self, name)[kept] for name in ("action", "stage", "micro_batch")}
        return replace(self, start=start, paired=paired[kept], **columns)

    def order(self, rank: int) -> list[str]:
        """One rank's actions as text: `0F0`, `1B0` (stage, action, micro-batch); for people."""
        rows = self.rows(rank)
        columns = (self.stage[rows].tolist(), self.action[rows].tolist(), self.micro_batch[rows].tolist())
        return [f"{s}{Action(a).letter}{m}" for s, a, m in zip(*columns, strict=True)]

    def times(self, **costs: Any) -> PipelineTimes:
        """Its timing, as `times` gives it: `forward`, `input`, `weight`, `hop`, `overlap`."""
        return times(self, **costs)

    def in_flight(self) -> I64:
        """The most activations that each rank holds at a time, in chunks."""
        return in_flight(self)


def build(
    name: str,
    stages: int,
    micro_batches: int,
    orders: Sequence[Sequence[Step]],
    held: Sequence[Sequence[int]],
    *,
    window: int = 0,
) -> PipelineSchedule:
    """The schedule of these orders, one per rank; checked, so that no order that deadlocks is returned."""
    flat = [step for order in orders for step in order]
    columns = list(zip(*flat, strict=True)) if flat else [()] * 4
    schedule = PipelineSchedule(
        name=name,
        ranks=len(orders),
        stages=stages,
        micro_batches=micro_batches,
        start=np.cumsum([0, *map(len, orders)]).astype(np.int64),
        action=np.array(columns[0], np.uint8),
        stage=np.array(columns[1], np.int32),
        micro_batch=np.array(columns[2], np.int32),
        paired=np.array(columns[3], bool),
        held=tuple(tuple(h) for h in held),
        window=window,
    )
    check(schedule)
    return schedule


def check(schedule: PipelineSchedule) -> None:
    """Checks that every action occurs once, on a rank that holds its stage, and that no order deadlocks; raises
    otherwise."""
    s, m = schedule.stages, schedule.micro_batches
    where = f"schedule `{schedule.name}`"
    if len(schedule) and not (
        0 <= schedule.stage.min() <= schedule.stage.max() < s
        and 0 <= schedule.micro_batch.min() <= schedule.micro_batch.max() < m
        and schedule.action.min() > Action.NONE
        and schedule.action.max() <= (Action.UPDATE if schedule.window else Action.WEIGHT)
    ):
        raise UsageError(f"an action is outside {s} stages and {m} micro-batches", where=where)
    for rank in range(schedule.ranks):
        rows = schedule.rows(rank)
        other = np.setdiff1d(schedule.stage[rows][schedule.action[rows] != Action.UPDATE], schedule.held[rank])
        if len(other):
            raise UsageError(f"rank {rank} does not have stage {other[0]}, which it works on", where=where)
    _check_counts(schedule, where)
    _check_homes(schedule, where)
    _check_pairs(schedule, where)
    _check_windows(schedule, where)
    times(schedule)


def _check_counts(schedule: PipelineSchedule, where: str) -> None:
    s, m = schedule.stages, schedule.micro_batches
    count, works = np.zeros((5, s, m), np.int64), schedule.works
    np.add.at(count, (schedule.action[works], schedule.stage[works], schedule.micro_batch[works]), 1)
    forward, whole, inputs, weights = count[1:]
    split = (whole == 0) & (inputs == 1) & (weights == 1)
    bad = (forward != 1) | ~(split | ((whole == 1) & (inputs == 0) & (weights == 0)))
    if bad.any():
        stage, micro_batch = np.argwhere(bad)[0].tolist()
        found = ", ".join(f"{Action(a).letter}: {count[a, stage, micro_batch]}" for a in range(1, 5))
        problem = f"stage {stage}, micro-batch {micro_batch} is not done exactly once ({found})"
        raise UsageError(problem, where=where, hint="each needs one F and one B, or one F, one I and one W")


def _check_homes(schedule: PipelineSchedule, where: str) -> None:
    """A backward needs the activations of its forward, so both are on one rank."""
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.start))
    home = np.zeros((schedule.stages, schedule.micro_batches), np.int64)
    forward = schedule.action == Action.FORWARD
    home[schedule.stage[forward], schedule.micro_batch[forward]] = rank[forward]
    away = np.flatnonzero((home[schedule.stage, schedule.micro_batch] != rank) & schedule.works)
    if len(away):
        i = int(away[0])
        raise UsageError(
            f"stage {schedule.stage[i]}, micro-batch {schedule.micro_batch[i]} goes backward on rank {rank[i]}, "
            f"its forward is on rank {home[schedule.stage[i], schedule.micro_batch[i]]}",
            where=where,
        )


def _check_pairs(schedule: PipelineSchedule, where: str) -> None:
    """Two actions that run together are a forward and a backward of one rank."""
    first = np.flatnonzero(schedule.paired)
    if not len(first):
        return
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.start))
    alone = first[(first + 1 == len(schedule)) | (rank[np.minimum(first + 1, len(schedule) - 1)] != rank[first])]
    if len(alone):
        raise UsageError(f"the last action of rank {rank[alone[0]]} has no partner to run with", where=where)
    kinds = np.sort(np.stack([schedule.action[first], schedule.action[first + 1]]), 0)
    odd = (kinds[0] != Action.FORWARD) | (kinds[1] == Action.FORWARD) | schedule.paired[first + 1]
    if odd.any():
        i = int(first[odd.argmax()])
        words = schedule.order(int(rank[i]))[i - int(schedule.start[rank[i]]) :][:2]
        raise UsageError(f"{' and '.join(words)} cannot run together: a forward and a backward can", where=where)


def _check_windows(schedule: PipelineSchedule, where: str) -> None:
    """Every rank sums the gradients of each of its stages and updates its weights once per window, in order."""
    if not schedule.window:
        return
    windows = range(-(-schedule.micro_batches // schedule.window))
    for rank, held in enumerate(schedule.held):
        rows = schedule.rows(rank)
        action, number = schedule.action[rows], schedule.micro_batch[rows]
        sums = list(zip(number[action == Action.REDUCE], schedule.stage[rows][action == Action.REDUCE], strict=True))
        if number[action == Action.UPDATE].tolist() != list(windows) or sorted(sums) != [
            (w, s) for w in windows for s in sorted(held)
        ]:
            raise UsageError(f"rank {rank} does not update its stages once per window", where=where)


@dataclass(frozen=True, slots=True, eq=False)
class PipelineTimes:
    """Start and end of each action, in the unit of the given costs."""

    begin: F64
    end: F64
    rank_begin: F64
    rank_end: F64
    busy: F64
    """Time in which each rank works."""

    @property
    def makespan(self) -> float:
        return float(self.rank_end.max(initial=0.0))

    @property
    def bubble(self) -> float:
        """The longest idle time of a rank between its first and its last action.

        By this measure ZB2P and ZBV have none: their ranks begin and end one after another.
        """
        return float((self.rank_end - self.rank_begin - self.busy).max(initial=0.0))

    @property
    def bubble_share(self) -> float:
        """Fraction of all ranks' time that is idle, from the first action to the last."""
        whole = self.makespan * len(self.busy)
        return 1.0 - float(self.busy.sum()) / whole if whole else 0.0

    @property
    def idle(self) -> float:
        """The longest idle time of a rank until all are done."""
        return float((self.makespan - self.busy).max(initial=0.0))


def times(
    schedule: PipelineSchedule,
    *,
    forward: ArrayLike = 1.0,
    input: ArrayLike = 1.0,
    weight: ArrayLike = 1.0,
    hop: float = 0.0,
    overlap: float = 0.0,
) -> PipelineTimes:
    """The schedule's timing. Costs are numbers, or one for each stage; a whole backward costs input plus weight.

    `hop` is the time from a stage to a stage on another rank; `overlap` the time saved by a forward and a backward that
    run together. Raises DeadlockError if ranks wait for one another.
    """
    from etude.make.generate.schedules.pipeline_kernels import ActionCosts, Actions, run

    cost = np.zeros((len(Action), max(schedule.stages, 1)))
    cost[Action.FORWARD], cost[Action.INPUT], cost[Action.WEIGHT] = forward, input, weight
    cost[Action.BACKWARD] = cost[Action.INPUT] + cost[Action.WEIGHT]
    s = schedule
    actions = Actions(s.start, s.action, s.stage, s.micro_batch, s.paired, s.window, s.goes_back)
    costs = ActionCosts(cost, -float(overlap), float(hop))
    begin, end, at = run(actions, costs, s.micro_batches)
    stuck = np.flatnonzero(at < schedule.start[1:])
    if len(stuck):
        raise _deadlock(schedule, at, stuck)
    worked = np.diff(schedule.start) > 0
    first, last = schedule.start[:-1], schedule.start[1:] - 1
    rank_begin, rank_end = np.zeros(schedule.ranks), np.zeros(schedule.ranks)
    rank_begin[worked], rank_end[worked] = begin[first[worked]], end[last[worked]]
    # The second action of a pair takes no time: both are one stretch of work.
    second = np.append(False, schedule.paired[:-1]) if len(schedule) else np.zeros(0, bool)
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.start))
    busy = np.bincount(rank, np.where(second, 0.0, end - begin), schedule.ranks).astype(np.float64)
    return PipelineTimes(begin, end, rank_begin, rank_end, busy)


def _deadlock(schedule: PipelineSchedule, at: I64, stuck: NDArray[Any]) -> DeadlockError:
    waiting = tuple({"rank": int(r), "action": schedule.order(int(r))[int(at[r] - schedule.start[r])]} for r in stuck)
    shown = ", ".join(f"rank {w['rank']} at {w['action']}" for w in waiting[:4])
    return DeadlockError(
        f"the order deadlocks: {shown}{', ...' if len(waiting) > 4 else ''} (stage, action, micro-batch)",
        where=f"schedule `{schedule.name}`",
        waiting=waiting,
        hint="an action comes before one that it waits for, directly or through other ranks",
    )


def in_flight(schedule: PipelineSchedule) -> I64:
    """The most activations each rank holds at once, in chunks: from the forward to the end of the backward."""
    change = np.zeros(len(schedule), np.int64)
    change[(schedule.action == Action.FORWARD) & (schedule.stage >= schedule.goes_back)] = 1
    # Freed with the whole backward or with the weight gradient, so the peak is right after a forward.
    change[(schedule.action == Action.BACKWARD) | (schedule.action == Action.WEIGHT)] = -1
    return np.array([np.cumsum(change[schedule.rows(r)]).max(initial=0) for r in range(schedule.ranks)], np.int64)


def under_way(schedule: PipelineSchedule) -> int:
    """The most micro-batches in flight at once, if all actions take equally long."""
    begun = times(schedule)
    first = (schedule.stage == 0) & (schedule.action == Action.FORWARD)
    back = (schedule.stage == schedule.goes_back) & np.isin(schedule.action, (Action.BACKWARD, Action.INPUT))
    if not back.any():  # it ends with its last forward
        back = (schedule.stage == schedule.stages - 1) & (schedule.action == Action.FORWARD)
    moments = np.concatenate([begun.begin[first], begun.end[back]])
    change = np.concatenate([np.ones(first.sum(), np.int64), -np.ones(back.sum(), np.int64)])
    return int(np.cumsum(change[np.lexsort((change, moments))]).max(initial=0))


def staleness(schedule: PipelineSchedule) -> int:
    """The most updates of a rank's weights between the forward and the backward of a micro-batch there."""
    worst = 0
    for rank in range(schedule.ranks):
        rows = schedule.rows(rank)
        action, stage, micro = schedule.action[rows], schedule.stage[rows], schedule.micro_batch[rows]
        version = np.cumsum(action == Action.UPDATE)
        seen = np.zeros((2, schedule.stages, schedule.micro_batches), np.int64)
        for place, kinds in enumerate(((Action.FORWARD,), (Action.BACKWARD, Action.WEIGHT))):
            these = np.isin(action, kinds)
            seen[place, stage[these], micro[these]] = version[these]
        worst = max(worst, int((seen[1] - seen[0]).max(initial=0)))
    return worst
