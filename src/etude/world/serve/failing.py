"""A replica that fails: its keys and values are lost, and its requests go to others and read their tokens again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.world.serve import state as of
from etude.world.serve.elastic.live import PLAIN, LivePlan, begun_and_fresh, pending, waits
from etude.world.serve.queues import put_last


def fail(state: of.State, rules: of.Rules, row: int, others: Sequence[int], now: int) -> int:
    """Replica `row` loses all that it has, its pass in progress included. Its requests go to the one of `others` with
    the fewest tokens to do; with no others they wait there until it is back. Returns how many."""
    rows: Any = of.in_rows(state)
    mine = rows.replica[row]
    if mine.end_ns != of.NEVER:
        mine.busy_ns -= mine.end_ns - now
    mine.batch = mine.ahead = of.NOBODY
    mine.end_ns = of.NEVER
    begun, fresh = begun_and_fresh(rows, LivePlan(range(row, row + 1), 1))
    mine.pending = 0
    for r, _ in begun:
        q = rows.request[r]
        q.computed = q.reused = q.less = q.left = q.held = q.there = 0
        q.planned = q.out
        q.preempted += 1
        there = _fewest(rows, others, row)
        q.replica = q.decoder = there
        waits(rows, rules, there, r)
        rows.replica[there].pending += pending(q)
        wake(state, there, now)
    for r in fresh:
        there = _fewest(rows, others, row)
        q = rows.request[r]
        q.replica = q.decoder = there
        rows.replica[there].pending += pending(q)
        PLAIN[put_last](rows.request, rows.replica[there].inbox, r)
        wake(state, there, now)
    return len(begun) + len(fresh)


def wake(state: of.State, row: int, now: int) -> None:
    """An idle replica looks at what it has got: now, or just after if the loop has been at this moment already."""
    rows: Any = of.in_rows(state)
    mine = rows.replica[row]
    if mine.end_ns == of.NEVER and mine.ready_ns <= now:
        mine.ready_ns = now + (rows.clock[0].now_ns >= now)


def _fewest(rows: Any, others: Sequence[int], row: int) -> int:
    return min(others, key=lambda i: (rows.replica[i].pending, i), default=row)
