"""Requests that continue with another plan: where each of them goes, which keys and values move, and when the replicas
of the new plan have theirs.

No pass runs meanwhile. Keys and values are split over the ranks of a replica as weights are (`moves.part_of`), so a
rank that has a part of them keeps it. A request that finds no room on its new replica reads its tokens again.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from etude.world.serve import queues
from etude.world.serve import state as of
from etude.world.serve.elastic.moves import part_of
from etude.world.serve.hooks import plain_form
from etude.world.serve.pass_content import blocks_of
from etude.world.serve.prefix import release
from etude.world.serve.queues import put_by_key, put_last
from etude.world.serve.transfers import through_ns

QUEUES = ("waiting", "inbox", "coming")
PLAIN = plain_form((queues,), {}, {})
"""Functions of queues, for a state in rows."""


class LivePlan(NamedTuple):
    """Rows of the loop, and how many neighbouring ranks each has."""

    rows: range
    tp: int

    def ranks(self, row: int) -> range:
        first = (row - self.rows.start) * self.tp
        return range(first, first + self.tp)


class Carried(NamedTuple):
    ready_ns: dict[int, int]
    """When each new replica has its keys and values."""
    kv_bytes: int
    moved: int
    """Requests whose keys and values moved along."""
    read_again: int


def listed(state: of.State, i: int, queue: str) -> list[int]:
    """The requests of a queue, which is emptied."""
    mine = getattr(state.replica[i], queue)
    found, r = [], mine.first
    while r != of.NOBODY:
        found.append(r)
        r = state.request[r].next
    mine.first, mine.last, mine.count = of.NO_REQUESTS
    return found


def pending(row: Any) -> int:
    """Tokens that a request still needs, while no pass of it runs."""
    past = 1 if row.out else 0  # its last token is its own next input
    return int(row.prompt + row.output - past - row.computed)


def carry(state: of.State, rules: of.Rules, old: LivePlan, new: LivePlan, now: int, *, move: bool) -> Carried:
    """Moves all requests of the old replicas to the new ones. The state is in rows."""
    begun, fresh = begun_and_fresh(state, old)
    load = dict.fromkeys(new.rows, 0)
    moved_bytes = {row: dict.fromkeys(new.ranks(row), Fraction(0)) for row in new.rows}
    moved = again = 0
    for r, here in begun:
        q = state.request[r]
        there = _destination(state, load, new, old.ranks(here), answers=bool(q.out))
        load[there] += int(q.prompt + q.out)
        computed = int(q.computed)
        q.replica = q.decoder = there
        if q.there:  # in the host's memory
            waits(state, rules, there, r)
        elif move and computed and _seated(state, rules, there, r):
            _count(moved_bytes[there], computed, new.tp, old.tp, old.ranks(here))
            moved += 1
        else:
            again += computed > 0
            q.computed = q.reused = q.less = q.left = 0
            waits(state, rules, there, r)
        state.replica[there].pending += pending(q)
    replicas: Any = state.replica
    opening = [i for i in new.rows if replicas[i].role != of.DECODE]
    for r in fresh:
        there = min(opening, key=lambda i: int(replicas[i].inbox.count + replicas[i].running))
        state.request[r].replica = state.request[r].decoder = there
        state.replica[there].pending += pending(state.request[r])
        PLAIN[put_last](state.request, state.replica[there].inbox, r)
    for row in old.rows:
        state.replica[row].pending = 0
    wire, ready = rules.wire, {}
    for row, of_ranks in moved_bytes.items():
        most = float(max(of_ranks.values())) * wire.token_bytes
        ready[row] = int(through_ns(wire, now, most)) + int(wire.latency_ns) if most else now
    total = float(sum(sum(of_ranks.values()) for of_ranks in moved_bytes.values())) * wire.token_bytes
    return Carried(ready, round(total), moved, again)


def begun_and_fresh(state: of.State, old: LivePlan) -> tuple[list[tuple[int, int]], list[int]]:
    """Started requests with the row that holds their state, in the order in which they started; and the others, in
    order of arrival."""
    begun, fresh = [], []
    for i in old.rows:
        running = [int(r) for r in state.running[i, : state.replica[i].running]]
        state.replica[i].running = 0
        for r in [*running, *(r for queue in QUEUES for r in listed(state, i, queue))]:
            if state.request[r].scheduled_ns == of.NEVER:
                fresh.append(r)
                continue
            here = int(state.request[r].replica) if state.request[r].held else i
            if r in running:
                here = i
            release.py_func(state, here, r)
            begun.append((r, here))
    return sorted(begun, key=lambda one: (int(state.request[one[0]].scheduled_ns), one[0])), sorted(fresh)


def _destination(state: of.State, load: dict[int, int], new: LivePlan, ranks: range, *, answers: bool) -> int:
    """The new replica for a request: among those of the right kind, those on its own ranks, and of these the one with
    fewest tokens."""
    wrong = of.PREFILL if answers else of.DECODE
    right = [i for i in new.rows if state.replica[i].role != wrong]
    own = [i for i in right if set(new.ranks(i)) & set(ranks)]
    return min(own or right, key=lambda i: (load[i], i))


def _seated(state: of.State, rules: of.Rules, i: int, r: int) -> bool:
    """The request runs on replica i at once, if there is room."""
    q, mine = state.request[r], state.replica[i]
    tokens = q.prompt + q.output if rules.reserve else q.computed + 1
    need = blocks_of.py_func(tokens, rules.block)
    if mine.used + need > mine.room or mine.running >= rules.max_seqs:
        return False
    q.held = need
    mine.used += need
    mine.taken += need
    mine.peak = max(mine.peak, mine.used)
    state.running[i, mine.running] = r
    mine.running += 1
    mine.most = max(mine.most, mine.running)
    return True


def waits(state: of.State, rules: of.Rules, i: int, r: int) -> None:
    put = put_last if rules.order == of.FCFS else put_by_key
    PLAIN[put](state.request, state.replica[i].waiting, r)


def _count(ranks: dict[int, Fraction], tokens: int, after: int, before: int, had: Sequence[int]) -> None:
    """Adds the keys and values that each rank lacks of a request, in tokens of all ranks."""
    for rank in ranks:
        low, high = part_of(rank, after)
        there = Fraction(0)
        if rank in had:
            first, last = part_of(rank, before)
            there = max(min(high, last) - max(low, first), Fraction(0))
        ranks[rank] += tokens * (high - low - there)
