"""When each action of a pipeline schedule runs, if every rank executes its order as fast as possible."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import F64
from etude.kernels.compile import kernel
from etude.make.generate.schedules.action import Action

_BLOCKED = -1.0
FORWARD, WEIGHT, REDUCE, UPDATE = int(Action.FORWARD), int(Action.WEIGHT), int(Action.REDUCE), int(Action.UPDATE)


class Actions(NamedTuple):
    """Rank r does the actions start[r]:start[r + 1]."""

    start: NDArray[np.int64]
    action: NDArray[np.uint8]
    stage: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    paired: NDArray[np.bool_]  # runs together with the next one
    window: int  # micro-batches of an update
    back: int  # the first stage that goes backward


class ActionCosts(NamedTuple):
    action: F64  # of each (action, stage)
    pair: float  # additional time of a pair; negative if they overlap
    hop: float  # transfer time of a result to another rank


class Done(NamedTuple):
    """When the forward and the backward of each (stage, micro-batch) were done, below 0 if not yet, and on which
    rank."""

    forward: F64
    backward: F64
    forward_rank: NDArray[np.int64]
    backward_rank: NDArray[np.int64]


@kernel
def run(actions, costs, micro_batches):
    """Start and end of each action, and how many ranks' positions were reached.

    A forward waits for the stage before, a backward for its own forward and for the backward of the next stage, a
    weight gradient for its backward, an update for all backwards of its window. The actions of a pair begin together
    and end together.
    """
    start, n, shape = actions.start, len(actions.action), (costs.action.shape[1], micro_batches)
    begin, end = np.full(n, -1.0), np.full(n, -1.0)
    done = Done(np.full(shape, -1.0), np.full(shape, -1.0), np.full(shape, -1), np.full(shape, -1))
    at = start[:-1].copy()
    free = np.zeros(len(at))
    moved = True
    while moved:
        moved = False
        for r in range(len(at)):
            while at[r] < start[r + 1]:
                first = at[r]
                last = first + 1 if actions.paired[first] else first
                ready = free[r]
                for i in range(first, last + 1):
                    since = _ready(actions, i, r, costs.hop, done)
                    ready = max(ready, since) if since >= 0.0 and ready >= 0.0 else _BLOCKED
                if ready < 0.0:
                    break
                finish = ready + (costs.pair if last > first else 0.0)
                for i in range(first, last + 1):
                    finish += costs.action[actions.action[i], actions.stage[i]]
                for i in range(first, last + 1):
                    begin[i], end[i] = ready, finish
                    _mark(actions, i, r, finish, done)
                free[r] = finish
                at[r] = last + 1
                moved = True
    return begin, end, at


@kernel(allocates=False)
def _ready(actions, i, rank, hop, done):
    """When everything an action waits for is done and has arrived; below 0 if not done yet."""
    s, m, action = actions.stage[i], actions.micro_batch[i], actions.action[i]
    if action == WEIGHT:
        return done.backward[s, m]
    if action == REDUCE:
        return 0.0
    if action == UPDATE:
        return _updated(done, actions.back, m * actions.window, (m + 1) * actions.window)
    if action == FORWARD:
        if s == 0:
            return 0.0
        since = done.forward[s - 1, m]
        return since + hop * (done.forward_rank[s - 1, m] != rank) if since >= 0.0 else _BLOCKED
    since = done.forward[s, m]
    if s + 1 < len(done.backward) and since >= 0.0:
        behind = done.backward[s + 1, m]
        return max(since, behind + hop * (done.backward_rank[s + 1, m] != rank)) if behind >= 0.0 else _BLOCKED
    return since


@kernel(allocates=False)
def _updated(done, stage, first, last):
    """When the last stage of the backward was done with these micro-batches, of which the last may be missing."""
    latest = 0.0
    for m in range(first, min(last, done.backward.shape[1]) if stage < len(done.backward) else first):
        if done.backward[stage, m] < 0.0:
            return _BLOCKED
        latest = max(latest, done.backward[stage, m])
    return latest


@kernel(allocates=False)
def _mark(actions, i, rank, finish, done):
    s, m = actions.stage[i], actions.micro_batch[i]
    if actions.action[i] == FORWARD:
        done.forward[s, m], done.forward_rank[s, m] = finish, rank
    elif actions.action[i] < WEIGHT:
        done.backward[s, m], done.backward_rank[s, m] = finish, rank
