"""A replica that fails: its keys and values are lost, and its requests go to others and read their tokens again."""

from __future__ import annotations

from collections.abc import Sequence

from etude.world.serve import state as of
from etude.world.serve.elastic.live import LivePlan, begun_and_fresh, pending, waits
from etude.world.serve.queues import put_last


def fail(state: of.State, rules: of.Rules, row: int, others: Sequence[int], now: int) -> int:
    """Replica `row` loses all that it has, its pass in progress included. Its requests go to the one of `others` with
    the fewest tokens to do; with no others they wait there until it is back. Returns how many."""
    mine = state.replica[row]
    if mine[of.END] != of.NEVER:
        mine[of.BUSY] -= mine[of.END] - now
    for k in range(int(mine[of.BATCH]) if mine[of.BATCH] != of.NOBODY else 0):
        r = int(state.batch[row, 0, k])
        state.request[r, of.PLANNED] = state.request[r, of.OUT]
    for k in range(int(mine[of.AHEAD]) if mine[of.AHEAD] != of.NOBODY else 0):
        r = int(state.batch[row, 1, k])
        state.request[r, of.PLANNED] = state.request[r, of.OUT]
    mine[[of.BATCH, of.AHEAD]], mine[of.END] = of.NOBODY, of.NEVER
    begun, fresh = begun_and_fresh(state, LivePlan(range(row, row + 1), 1))
    mine[of.PENDING] = 0
    for r, _ in begun:
        q = state.request[r]
        q[[of.COMPUTED, of.REUSED, of.LESS, of.LEFT, of.HELD, of.THERE]] = 0
        q[of.PLANNED] = q[of.OUT]
        q[of.PREEMPTED] += 1
        there = _fewest(state, others, row)
        q[[of.REPLICA, of.DECODER]] = there
        waits(state, rules, there, r)
        state.replica[there, of.PENDING] += pending(q)
        wake(state, there, now)
    for r in fresh:
        there = _fewest(state, others, row)
        state.request[r, [of.REPLICA, of.DECODER]] = there
        state.replica[there, of.PENDING] += pending(state.request[r])
        put_last.py_func(state.request, state.replica[there], of.INBOX, r)
        wake(state, there, now)
    return len(begun) + len(fresh)


def wake(state: of.State, row: int, now: int) -> None:
    """An idle replica looks at what it has got: now, or just after if the loop has been at this moment already."""
    mine = state.replica[row]
    if mine[of.END] == of.NEVER and mine[of.READY] <= now:
        mine[of.READY] = now + (state.clock[of.NOW] >= now)


def _fewest(state: of.State, others: Sequence[int], row: int) -> int:
    return min(others, key=lambda i: (int(state.replica[i, of.PENDING]), i), default=row)
