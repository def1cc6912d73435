"""A replica that fails: its keys and values are lost, and its requests go to others and read their tokens again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.world.serve import state as of
from etude.world.serve.adapters import leave_adapter
from etude.world.serve.elastic.held import forget
from etude.world.serve.elastic.live import PLAIN, LivePlan, begun_and_fresh, listed, pending, waits
from etude.world.serve.prefix import release
from etude.world.serve.queues import put_last

PORTS = ("encoder_ns", "port_out_ns", "port_in_ns", "decoder_ns")


def fail(state: of.State, rules: of.Rules, row: int, others: Sequence[int], now: int) -> int:
    """Replica `row` loses all that it has, its pass in progress included. Its requests go to the one of `others` that
    does the same and has the fewest tokens to do; with no others they wait there until it is back. Returns how many.

    Keys and values that other replicas hold for it are sent again, to where the answer is written now. An answer whose
    keys and values it held is written where it was to be, after its tokens are read again there. Of a store of which
    replicas have parts its part is lost, and nothing is kept in its place. Others do not wait for it at a barrier."""
    rows: Any = of.in_rows(state)
    mine = rows.replica[row]
    if mine.end_ns != of.NEVER:
        mine.busy_ns -= mine.end_ns - now
    mine.batch = mine.ahead = of.NOBODY
    mine.end_ns = of.NEVER
    peers = [i for i in others if rows.replica[i].role == mine.role]
    landing = listed(rows, row, "landing")
    mine.used -= sum(int(rows.request[r].coming) for r in landing)
    sent = [*landing, *listed(rows, row, "coming")]
    begun, fresh = begun_and_fresh(rows, LivePlan(range(row, row + 1), 1))
    mine.pending = 0
    for r, _ in begun:
        there = _fewest(rows, peers, row)
        rows.request[r].replica = there
        _read_again(rows, rules, there, r)
        wake(state, there, now)
    for r in sent:
        q, there = rows.request[r], _fewest(rows, peers, row)
        q.decoder, q.coming, q.sent, q.ready_ns = there, 0, 0, of.NEVER
        rows.replica[there].pending += q.output - q.out
        PLAIN[put_last](rows.request, rows.replica[there].coming, r)
        wake(state, there, now)
    for r in fresh:
        there = _fewest(rows, peers, row)
        q = rows.request[r]
        q.replica = q.decoder = there
        rows.replica[there].pending += pending(q)
        PLAIN[put_last](rows.request, rows.replica[there].inbox, r)
        wake(state, there, now)
    if mine.role == of.PREFILL:
        for there in range(len(rows.replica)):
            _lose_source(state, rules, row, there, now)
    for port in PORTS:
        setattr(mine, port, 0)
    state.link_ns[row] = 0.0
    forget(state, rules, [row])
    if state.store.tiers:
        state.store.gone[row] = 1
    for there in others if rules.barrier else ():  # no barrier waits for it any more
        wake(state, there, now)
    return len(begun) + len(sent) + len(fresh)


def wake(state: of.State, row: int, now: int) -> None:
    """An idle replica looks at what it has got: now, or just after if the loop has been at this moment already."""
    rows: Any = of.in_rows(state)
    mine = rows.replica[row]
    if mine.end_ns == of.NEVER and mine.ready_ns <= now:
        mine.ready_ns = now + (rows.clock[0].now_ns >= now)


def _read_again(rows: Any, rules: of.Rules, there: int, r: int) -> None:
    """A request without keys and values waits on a replica."""
    q = rows.request[r]
    q.computed = q.reused = q.less = q.left = q.held = q.there = 0
    q.planned = q.out
    q.preempted += 1
    q.decoder = there
    waits(rows, rules, there, r)
    rows.replica[there].pending += pending(q)


def _lose_source(state: of.State, rules: of.Rules, row: int, there: int, now: int) -> None:
    """Keys and values that replica `there` waits for were on replica `row`."""
    rows: Any = of.in_rows(state)
    for queue in ("coming", "landing"):
        for r in listed(rows, there, queue):
            q, mine = rows.request[r], rows.replica[there]
            if q.replica != row:
                PLAIN[put_last](rows.request, getattr(mine, queue), r)
                continue
            release.py_func(rows, row, r)
            if queue == "landing":
                mine.used -= q.coming
                if rules.lora_slots:
                    leave_adapter.py_func(rows.request, mine, rows.adapter[there], r, now)
            mine.pending -= q.output - q.out
            q.coming, q.sent, q.ready_ns = 0, 0, of.NEVER
            _read_again(rows, rules, there, r)
            wake(state, there, now)


def _fewest(rows: Any, peers: Sequence[int], row: int) -> int:
    return min(peers, key=lambda i: (rows.replica[i].pending, i), default=row)
