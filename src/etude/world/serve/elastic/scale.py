"""Replicas added and removed with the load.

A requested replica is held at once, and takes requests after the lag, the set-up and the time to load its weights. A
released one takes no more, and is held until its requests are answered; requested again before that, it continues at
once. Requests stay where they were routed. With separate replicas for prefill and decode, each kind has its own rule.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.grammar import LinePiece
from etude.kernels.arrays import I64
from etude.kernels.rows import Table
from etude.world.serve import state as of
from etude.world.serve.elastic.held import EVERY_NS, WAITING, Arrivals, HeldTime, empty, forget, read_rule
from etude.world.serve.hooks import called, number_of, seen_replica

KNOWN: Final = ("most", "least", "every", "lag", "seen", "noise", "seed", "down", "tolerance")
EXAMPLE: Final = "queue:2..16,most=8,least=1"
TARGET: Final = ("down", "tolerance")
"""Options of `target` only. Kubernetes' autoscaler has 15 s, 300 s and 0.1 by default, and no window for scaling up."""


@dataclass(frozen=True, slots=True)
class ScaleRule:
    most: int
    least: int = 1
    every_ns: int = EVERY_NS
    lag_ns: int = 0
    low: float = 0.0
    """Mean requests per replica below which one is removed."""
    high: float = math.inf
    """... above which as many are added as bring it back to this."""
    hook: Callable[..., Any] | None = None
    target: float = 0.0
    """Target for the mean requests per replica; 0: `low` and `high` are used."""
    down_ns: int = 300_000_000_000
    """Replicas are only removed if fewer were wanted for this long."""
    tolerance: float = 0.1
    """Fraction of the target within which nothing changes."""
    seen_ns: int = 0
    """Age of the load figures."""
    noise: float = 0.0
    """Noise of the load figures: standard deviation of their logarithm."""
    seed: int = 0

    def aimed(self, requests: float, replicas: int) -> int:
        """As Kubernetes' horizontal autoscaler, before its window."""
        part = requests / (replicas * self.target)
        found = replicas if abs(part - 1) <= self.tolerance else math.ceil(requests / self.target - 1e-9)
        return min(max(found, self.least), self.most)

    def wanted(self, requests: float, replicas: int) -> int:
        if requests > self.high * replicas:
            return min(math.ceil(requests / self.high), self.most)
        return max(replicas - (requests < self.low * replicas), self.least)


def scale_rule(text: LinePiece, replicas: int, hook_of: Callable[[str], Callable[..., Any]]) -> ScaleRule:
    """`queue:2..16,most=8,least=1,every=10s,lag=0s`, `target:8,most=8`, or `FILE.py:name,most=8,every=10s`."""
    head, its = read_rule(text, KNOWN)
    if "most" not in its:
        raise text.wrong("`most` is not given")
    given: dict[str, Any] = {name: its[name].count() for name in ("most", "least") if name in its}
    if not given.get("least", 1) <= replicas <= given["most"]:
        raise UsageError(
            f"--scale: {replicas} replicas at the start are out of range", hint="use --replicas between least and most"
        )
    if "every" in its:
        given["every_ns"] = its["every"].time_ns()
    given |= {f"{name}_ns": its[name].time_ns(zero=True) for name in ("lag", "seen") if name in its}
    given |= {name: its[name].number(0, 3) for name in ("noise",) if name in its}
    given |= {name: int(its[name].number(0, 2**31)) for name in ("seed",) if name in its}
    kind, load = head.cut(":")
    if load is not None and kind.text == "target":
        return ScaleRule(**given, **_target(load, its))
    if wrong := [its[name] for name in TARGET if name in its]:
        raise wrong[0].wrong("this applies only to `target`", "target:8,most=16,down=300s,tolerance=0.1")
    if load is None or kind.text != "queue":
        return ScaleRule(**given, hook=hook_of(head.text))
    low, high = load.cut("..")
    most = 0.0 if high is None else math.inf if high.text == "inf" else high.number()
    if not low.number() < most:
        raise load.wrong(f"`{load.text}` is not a range of requests per replica", "queue:2..16, requests per replica")
    return ScaleRule(**given, low=low.number(), high=most)


def _target(load: LinePiece, its: dict[str, LinePiece]) -> dict[str, Any]:
    found: dict[str, Any] = {"target": load.number(0.001, 1e9)}
    if "down" in its:
        found["down_ns"] = its["down"].time_ns(zero=True)
    if "tolerance" in its:
        found["tolerance"] = its["tolerance"].number(0, 1)
    return found


class Scale(HeldTime):
    """Opens and closes replicas between two calls of the loop: as many rows as the rule allows, of `total`, from
    `begin_row` on."""

    def __init__(
        self, rule: ScaleRule, replicas: int, cold_ns: int, *, begin_row: int = 0, total: int = 0, role: str = ""
    ) -> None:
        super().__init__(total or rule.most)
        self.rule, self.first, self.cold_ns, self.role = rule, replicas, cold_ns, role
        self.rows = np.arange(begin_row, begin_row + rule.most)
        self.ready = np.full(len(self.since), of.NEVER, np.int64)
        """When a requested one is ready."""
        self.shut_at: dict[int, int] = {}
        """Released replicas that are not empty yet."""
        self.decide_ns = self.next_ns = rule.every_ns
        self.random = np.random.default_rng([rule.seed, begin_row])
        self.observed: deque[tuple[int, dict[str, Any]]] = deque()
        """Observations with their times, from the newest that is old enough to be known."""
        self.aims: deque[tuple[int, int]] = deque()
        """Requests of a target within its window."""

    def start(self, state: of.State, rules: of.Rules) -> None:
        self.state, self.rules = state, rules
        self.arrivals = Arrivals(state.request)
        state.replica["shut"][self.rows[self.first :]] = 1
        self.begin(self.rows[: self.first], 0)
        state.clock["until_ns"][0] = self.next_ns - 1

    def after(self, state: of.State, why: int) -> None:
        """The loop stopped."""
        if why != of.PAUSED:
            return
        now = self.next_ns
        self._released(state)
        for i in np.flatnonzero(self.ready == now):
            self.ready[i] = of.NEVER
            state.replica["shut"][i] = 0
        if now == self.decide_ns:
            self.decide_ns += self.rule.every_ns
            self._change(state, now)
        self.next_ns = int(min(self.decide_ns, self.ready.min()))
        state.clock["until_ns"][0] = self.next_ns - 1

    def granted(self, rows: I64, now: int) -> I64:
        """Which of these rows can be held: all, unless devices are shared with others."""
        return rows

    def held_ns(self, now: int) -> Any:
        self._released(self.state)
        return super().held_ns(now)

    def _released(self, state: of.State) -> None:
        for i, shut_ns in list(self.shut_at.items()):
            if empty(state, [i]):
                self.end(i, max(shut_ns, _left_ns(state.request, i)))
                forget(state, self.rules, [i])
                del self.shut_at[i]

    def _change(self, state: of.State, now: int) -> None:
        open_ = self.rows[state.replica["shut"][self.rows] == 0]
        coming = np.flatnonzero(self.ready != of.NEVER)
        wanted, before = self._wanted(state, open_, len(coming), now), len(open_) + len(coming)
        if wanted == before:
            return
        self.changes.append(({"role": self.role} if self.role else {}) | {"replicas": wanted, "asked_s": now / 1e9})
        more = wanted - before
        for i in sorted(self.shut_at)[: max(more, 0)]:
            state.replica["shut"][i] = 0
            del self.shut_at[i]
            more -= 1
        free = self.granted(self.rows[self.since[self.rows] == of.NEVER][: max(more, 0)], now)
        self.begin(free, now)
        self.ready[free] = max(now + self.rule.lag_ns + self.cold_ns, now + 1)
        for i in [*coming[::-1], *open_[::-1]][: max(-more, 0)]:
            if self.ready[i] != of.NEVER:
                self.ready[i] = of.NEVER
                self.end(i, now)
            else:
                state.replica["shut"][i] = 1
                self.shut_at[int(i)] = now

    def _wanted(self, state: of.State, open_: Any, coming: int, now: int) -> int:
        rule, replicas = self.rule, len(open_) + coming
        known = self._known(state, open_, now)
        if known is None:
            return replicas
        if rule.target:
            return self._aimed(rule.aimed(known["requests"], replicas), replicas, now)
        if rule.hook is None:
            return rule.wanted(known["requests"], replicas)
        given = known | {"coming": coming, "there": len(open_), "every_s": rule.every_ns / 1e9}
        if self.role:
            given["role"] = self.role
        where = f"--scale at {now / 1e9:g} s"
        found = called(rule.hook, where, given, now / 1e9)
        return number_of(found, range(rule.least, rule.most + 1), rule.hook, where)

    def _known(self, state: of.State, open_: Any, now: int) -> dict[str, Any] | None:
        """The known load: as it was `seen_ns` ago, with noise; None before there is anything that old."""
        rule, mine = self.rule, state.replica[open_]
        requests = sum(int(mine[queue]["count"].sum()) for queue in WAITING) + int(mine["running"].sum())
        came = len(self.arrivals.between(now - rule.every_ns, now))
        found: dict[str, Any] = {
            name: count * float(np.exp(self.random.normal(0.0, rule.noise))) if rule.noise else count
            for name, count in (("requests", requests), ("arrived", came))
        }
        if rule.hook is not None:
            rows = of.in_rows(state)
            found["replicas"] = [seen_replica(rows, int(i)) for i in open_]
        self.observed.append((now, found))
        while len(self.observed) > 1 and self.observed[1][0] <= now - rule.seen_ns:
            self.observed.popleft()
        when, known = self.observed[0]
        return known if when <= now - rule.seen_ns else None

    def _aimed(self, aim: int, replicas: int, now: int) -> int:
        self.aims.append((now, aim))
        while self.aims[0][0] < now - self.rule.down_ns:
            self.aims.popleft()
        return max(aim, min(replicas, max(one for _, one in self.aims)))


def _left_ns(q: Table, i: int) -> int:
    """When the last request of a replica was answered, or its prompt's keys and values were sent elsewhere."""
    read, decoded = q["replica"] == i, q["decoder"] == i
    sent = q["ready_ns"][read & ~decoded]
    return int(max(q["finish_ns"][decoded].max(initial=0), sent[sent < of.NEVER].max(initial=0)))


class Scales:
    """Several rules, each with its own rows."""

    def __init__(self, rules: Sequence[Scale]) -> None:
        self.rules = rules

    @property
    def changes(self) -> list[dict[str, Any]]:
        return sorted((one for rule in self.rules for one in rule.changes), key=lambda one: one["asked_s"])

    def start(self, state: of.State, rules: of.Rules) -> None:
        for rule in self.rules:
            rule.start(state, rules)
        self._wait(state)

    def after(self, state: of.State, why: int) -> None:
        now = min(rule.next_ns for rule in self.rules)
        for rule in self.rules:
            if rule.next_ns == now:
                rule.after(state, why)
        self._wait(state)

    def held_ns(self, now: int) -> I64:
        return np.sum([rule.held_ns(now) for rule in self.rules], axis=0)

    def _wait(self, state: of.State) -> None:
        state.clock["until_ns"][0] = min(rule.next_ns for rule in self.rules) - 1


def scaled(rules: Sequence[ScaleRule], replicas: Sequence[int], cold_ns: int) -> Scale | Scales:
    """For equal replicas, or separately for those that prefill and those that decode."""
    if len(rules) == 1:
        return Scale(rules[0], replicas[0], cold_ns)
    total, made, first = sum(rule.most for rule in rules), [], 0
    for rule, count, role in zip(rules, replicas, ("prefill", "decode"), strict=True):
        made.append(Scale(rule, count, cold_ns, begin_row=first, total=total, role=role))
        first += rule.most
    return Scales(made)
