"""Plans that change while a stream is served: different tensor parallelism, or a different split of prefill and decode,
on the same devices.

A drained change: requests that have started finish where they are; the others, and those that arrive, wait at the
replicas of the new plan, which start when the old ones are empty, groups are set up and missing weights are loaded.
Keys and values are not moved.

A live change: the old replicas continue while groups are set up and weights are copied next to theirs, which takes room
from keys and values. Then running passes end, all requests go to the replicas of the new plan with their keys and
values (`live`), and each of these starts when it has its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from etude.base.errors import UsageError
from etude.base.grammar import LinePiece, line, pairs
from etude.world.serve import state as of
from etude.world.serve.elastic.held import EVERY_NS, Arrivals, HeldTime, empty, forget, read_rule
from etude.world.serve.elastic.live import PLAIN, LivePlan, carry, listed
from etude.world.serve.elastic.moves import change_ns, moved_bytes
from etude.world.serve.engine import FOREVER
from etude.world.serve.hooks import called, number_of, seen_replica
from etude.world.serve.queues import put_last

HOW: Final = ("how", "kv")
GOODPUT: Final = "goodput"
PLAN: Final = ("tp", "split")
EXAMPLE: Final = "at=60s,tp=4;at=120s,tp=1,split=2:6, or FILE.py:name"


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a plan looks like."""

    tp: int
    split: str = ""
    """Replicas that prefill and replicas that decode: `1:3`; empty: all do both."""

    def __str__(self) -> str:
        return f"tp={self.tp}" + (f",split={self.split}" if self.split else "")

    def seen(self, ranks: int) -> dict[str, Any]:
        """What a hook is given."""
        prefill, _, decode = self.split.partition(":")
        return {"tp": self.tp, "replicas": ranks // self.tp, "prefill": int(prefill or 0), "decode": int(decode or 0)}


@dataclass(frozen=True, slots=True)
class SwitchMethod:
    live: bool = False
    move: bool = True
    """Whether keys and values are moved; otherwise they are read again."""


@dataclass(frozen=True, slots=True)
class PlanChange:
    """A time, and the number of a plan."""

    at_ns: int
    plan: int
    how: SwitchMethod = SwitchMethod()


@dataclass(frozen=True, slots=True)
class Timetable:
    """Available plans, and when to change or which function to ask."""

    plans: tuple[PlanShape, ...]
    changes: tuple[PlanChange, ...] = ()
    hook: Callable[..., Any] | None = None
    every_ns: int = EVERY_NS
    how: SwitchMethod = SwitchMethod()
    """How changes that the hook requests are made."""
    ahead: int = 0
    """Intervals of lookahead of `goodput`; 0: not used."""


def read_timetable(
    text: str, plans: str, first: PlanShape, ranks: int, hook_of: Callable[[str], Callable[..., Any]]
) -> Timetable:
    """`at=60s,tp=4;at=120s,tp=1,how=live`, or `goodput` or `FILE.py:name,every=10s` which choose among `plans`:
    `tp=1;tp=4,split=1:3`."""
    known = [first]

    def number(shape: PlanShape) -> int:
        if shape not in known:
            known.append(shape)
        return known.index(shape)

    whole = line(text, "--reconfigure", EXAMPLE)
    if not text.startswith("at="):
        head, its = read_rule(whole, ("every", *HOW, *(("ahead",) if text.startswith(GOODPUT) else ())))
        ahead = (its["ahead"].count() if "ahead" in its else 4) if head.text == GOODPUT else 0
        hook = _unbound if head.text == GOODPUT else hook_of(head.text)
        for one in line(plans, "--plans", "tp=1;tp=4,split=1:3").split(";") if plans else ():
            number(_shape(one, pairs(one.split(","), PLAN), ranks))
        if len(known) == 1:
            raise UsageError("there is no second plan", hint='--plans "tp=1;tp=4,split=1:3"')
        every = its["every"].time_ns() if "every" in its else EVERY_NS
        return Timetable(tuple(known), hook=hook, every_ns=every, how=_how(its), ahead=ahead)
    changes: list[PlanChange] = []
    for one in whole.split(";"):
        its = pairs(one.split(","), ("at", *PLAN, *HOW))
        if "at" not in its:
            raise one.wrong("`at` is not given")
        at_ns = its["at"].time_ns(zero=True)
        if changes and at_ns <= changes[-1].at_ns:
            raise its["at"].wrong(f"`{its['at'].text}` is not later than the previous change")
        changes.append(PlanChange(at_ns, number(_shape(one, its, ranks)), _how(its)))
    return Timetable(tuple(known), tuple(changes))


def _unbound(*seen: Any) -> int:
    raise UsageError("--reconfigure goodput needs a stream with limits", hint="--slo ttft=1s,tpot=50ms")


def _how(its: dict[str, LinePiece]) -> SwitchMethod:
    live = "how" in its and its["how"].choice(("drained", "live")) == "live"
    if "kv" in its and not live:
        raise its["kv"].wrong("keys and values are moved only by live changes", "how=live,kv=recompute")
    return SwitchMethod(live, "kv" not in its or its["kv"].choice(("move", "recompute")) == "move")


def _shape(text: LinePiece, its: dict[str, LinePiece], ranks: int) -> PlanShape:
    if "tp" not in its or ranks % its["tp"].count():
        raise its.get("tp", text).wrong(f"`{text.text}` has no tp that divides the {ranks} devices")
    tp, split = its["tp"].count(), its.get("split")
    if split is None:
        return PlanShape(tp)
    prefill, decode = split.cut(":")
    if decode is None:
        raise split.wrong(f"`{split.text}` is not two numbers", "split=1:3, replicas for prefill and for decode")
    if (prefill.count() + decode.count()) * tp != ranks:
        raise split.wrong(f"`{text.text}` does not use all of the {ranks} devices")
    return PlanShape(tp, f"{prefill.count()}:{decode.count()}")


@dataclass(frozen=True, slots=True)
class PlanRows:
    """A plan on its rows of the loop."""

    shape: PlanShape
    rows: range
    rank_bytes: float
    """Weights of a rank."""


class Reconfigure(HeldTime):
    """Changes plans between two calls of the loop."""

    def __init__(
        self, table: Timetable, placed: Sequence[PlanRows], ranks: int, *, set_up_ns: int, load_bytes_per_s: float
    ) -> None:
        super().__init__(placed[-1].rows.stop)
        self.table, self.placed, self.ranks = table, placed, ranks
        self.set_up_ns, self.load = set_up_ns, load_bytes_per_s
        self.plan, self.to = 0, of.NOBODY
        self.how, self.copied_ns, self.less = SwitchMethod(), 0, 0
        self.number, self.next_ns, self.asked_ns = 0, int(of.NEVER), 0

    def start(self, state: of.State, rules: of.Rules) -> None:
        self.rules, self.arrivals = rules, Arrivals(state.request)
        state.replica["shut"] = 1
        state.replica["shut"][self.placed[0].rows] = 0
        self.begin(self.placed[0].rows, 0)
        self._wait(state, 0)

    def after(self, state: of.State, why: int) -> None:
        """The loop stopped."""
        if self.to != of.NOBODY and self.how.live:
            if why == of.PAUSED:  # weights are loaded
                state.clock["halt"][0], state.clock["until_ns"][0] = 1, of.NEVER
                rows = self.placed[self.plan].rows
                mine = state.replica[rows]
                if (mine["end_ns"] == of.NEVER).all() and not mine["landing"]["count"].any():
                    self._carry(state, self.copied_ns)
            elif why == of.HALTED:
                self._carry(state, int(state.clock["now_ns"][0]))
        elif self.to != of.NOBODY:
            if empty(state, self.placed[self.plan].rows) and state.clock["hand"]["first"][0] == of.NOBODY:
                self._switch(state, int(state.clock["now_ns"][0]))
        elif why == of.PAUSED:
            to = self._wanted(state)
            self.number += 1
            if to == self.plan:
                self._wait(state, self.next_ns)
            elif self.how.live:
                self._copy(state, to)
            else:
                self._drain(state, to)

    def cost(self, before: int, after: int) -> tuple[int, int]:
        """Bytes that ranks load, and the time of a drained change."""
        if before == after:
            return 0, 0
        old, new = self.placed[before], self.placed[after]
        moved = moved_bytes(self.ranks, old.shape.tp, new.shape.tp, new.rank_bytes)
        return sum(moved), change_ns(self.set_up_ns, moved, self.load)

    def _wait(self, state: of.State, free_ns: int) -> None:
        """Waits for the next decision, not before a change is complete."""
        changes, every = self.table.changes, self.table.every_ns
        if self.table.hook is not None:
            self.number = max(self.number, 1, -(-free_ns // every))
            self.next_ns = self.number * every
        elif self.number < len(changes):
            self.next_ns = max(changes[self.number].at_ns, free_ns)
        else:
            self.next_ns = int(of.NEVER)
        state.clock["until_ns"][0] = self.next_ns - 1

    def _wanted(self, state: of.State) -> int:
        table, now = self.table, self.next_ns
        if table.hook is None:
            self.how = table.changes[self.number].how
            return table.changes[self.number].plan
        self.how = table.how
        rows = self.arrivals.between(now - table.every_ns, now)
        q = state.request[rows]
        seen = {
            "plan": self.plan,
            "replicas": [seen_replica(of.in_rows(state), i) for i in self.placed[self.plan].rows],
            "arrived": len(rows),
            "prompt": int(q["prompt"].sum()),
            "output": int(q["output"].sum()),
            "tiers": q["tier"].tolist(),
            "cost_s": [self.cost(self.plan, other)[1] / 1e9 for other in range(len(table.plans))],
            "every_s": table.every_ns / 1e9,
            "requests": rows.tolist(),
        }
        where = f"--reconfigure at {now / 1e9:g} s"
        found = called(table.hook, where, seen, [shape.seen(self.ranks) for shape in table.plans], now / 1e9)
        return number_of(found, range(len(table.plans)), table.hook, where)

    def _copy(self, state: of.State, to: int) -> None:
        """Weights of the new plan are copied next to those of the old one, into room of keys and values."""
        self.to, self.asked_ns = to, self.next_ns
        old, new = self.placed[self.plan], self.placed[to]
        moved = moved_bytes(self.ranks, old.shape.tp, new.shape.tp, new.rank_bytes)
        block_bytes = self.rules.wire.token_bytes / old.shape.tp * self.rules.block
        room = int(state.replica["room"][old.rows].min())
        if block_bytes and room < FOREVER:
            self.less = math.ceil(max(moved) / block_bytes)
            q = state.request
            need = -(-(q["prompt"] + q["output"]) // self.rules.block)
            if need.max() > room - self.less:
                raise UsageError(
                    f"weights of both plans leave {max(room - self.less, 0):,} blocks of a replica's {room:,}, and "
                    f"request {int(need.argmax())} needs {int(need.max()):,}",
                    where=f"--reconfigure at {self.asked_ns / 1e9:g} s",
                    hint="how=drained",
                )
            state.replica["room"][old.rows] -= self.less
        self.copied_ns = max(self.asked_ns + self.cost(self.plan, to)[1], int(state.clock["now_ns"][0]) + 1)
        state.clock["until_ns"][0] = self.copied_ns - 1

    def _carry(self, state: of.State, now: int) -> None:
        """No pass runs: requests continue with the new plan."""
        old, new = self.placed[self.plan], self.placed[self.to]
        state.clock["halt"][0] = 0
        state.replica["room"][old.rows] += self.less
        before, after = LivePlan(old.rows, old.shape.tp), LivePlan(new.rows, new.shape.tp)
        found = carry(of.in_rows(state), self.rules, before, after, now, move=self.how.move)
        forget(state, self.rules, old.rows)
        state.replica["shut"][old.rows] = 1
        state.replica["shut"][new.rows] = 0
        for row, ready in found.ready_ns.items():
            state.replica["ready_ns"][row] = max(ready, int(state.clock["now_ns"][0]) + 1)
        self.end(old.rows, now)
        self.begin(new.rows, now)
        self.changes.append({
            "plan": str(self.table.plans[self.to]), "asked_s": self.asked_ns / 1e9, "copied_s": self.copied_ns / 1e9,
            "halted_s": now / 1e9, "ready_s": max(found.ready_ns.values()) / 1e9,
            "bytes": self.cost(self.plan, self.to)[0], "kv_bytes": found.kv_bytes, "moved": found.moved,
            "read_again": found.read_again,
        })  # fmt: skip
        self.plan, self.to, self.less = self.to, of.NOBODY, 0
        self._wait(state, now)

    def _drain(self, state: of.State, to: int) -> None:
        """Old replicas take no more requests; new ones take them, and wait."""
        self.to, self.asked_ns = to, self.next_ns
        old, new = self.placed[self.plan].rows, self.placed[to].rows
        role = state.replica["role"]
        closing = [i for i in old if role[i] != of.DECODE]
        opening = [i for i in new if role[i] != of.DECODE]
        state.replica["shut"][closing] = 1
        state.replica["shut"][opening] = 0
        state.replica["ready_ns"][new] = of.NEVER
        _move(of.in_rows(state), closing, opening)
        state.clock["stops"][0], state.clock["until_ns"][0] = 1, of.NEVER
        if empty(state, old) and state.clock["hand"]["first"][0] == of.NOBODY:
            self._switch(state, self.asked_ns)

    def _switch(self, state: of.State, now: int) -> None:
        """The old replicas are empty."""
        moved, cost_ns = self.cost(self.plan, self.to)
        old, new = self.placed[self.plan].rows, self.placed[self.to].rows
        forget(state, self.rules, old)
        state.replica["shut"][old] = 1
        state.replica["shut"][new] = 0
        ready = max(now + cost_ns, int(state.clock["now_ns"][0]) + 1)  # the loop looks for moments after now
        state.replica["ready_ns"][new] = ready
        self.end(old, now)
        self.begin(new, now)
        self.changes.append({
            "plan": str(self.table.plans[self.to]), "asked_s": self.asked_ns / 1e9, "drained_s": now / 1e9,
            "ready_s": ready / 1e9, "bytes": moved,
        })  # fmt: skip
        self.plan, self.to = self.to, of.NOBODY
        state.clock["stops"][0] = 0
        self._wait(state, ready)


def reconfigured(
    table: Timetable, counts: Sequence[int], rank_bytes: Sequence[float], ranks: int, **options: Any
) -> Reconfigure:
    """For the loop, whose rows are those of each plan in sequence: `counts` rows each."""
    placed, first = [], 0
    for shape, count, weights in zip(table.plans, counts, rank_bytes, strict=True):
        placed.append(PlanRows(shape, range(first, first + count), weights))
        first += count
    return Reconfigure(table, placed, ranks, **options)


def _move(state: of.State, closing: Sequence[int], opening: Sequence[int]) -> None:
    """Requests that have not started move in their order, each to the replica with fewest requests. The state is
    in rows."""
    q, replicas, moving = state.request, cast(Any, state.replica), []
    for i in closing:
        mine = replicas[i]
        for queue in ("waiting", "inbox"):
            for r in listed(state, i, queue):
                if q[r].scheduled_ns != of.NEVER:
                    PLAIN[put_last](q, getattr(mine, queue), r)
                else:
                    mine.pending -= q[r].prompt + q[r].output
                    moving.append(r)
    for r in sorted(moving):
        i = min(opening, key=lambda i: int(replicas[i].inbox.count))
        q[r].replica = q[r].decoder = i
        replicas[i].pending += q[r].prompt + q[r].output
        PLAIN[put_last](q, replicas[i].inbox, r)
