"""Which replicas are held and since when; parsing of change rules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from etude.base.grammar import LinePiece, pairs
from etude.kernels.arrays import I64
from etude.kernels.rows import Table
from etude.world.serve import state as of
from etude.world.serve.adapters import USERS
from etude.world.serve.rings import ABSENT, empty_ring
from etude.world.serve.store import drop_tiers

EVERY_NS: Final = 10_000_000_000
WAITING: Final = ("inbox", "waiting", "coming", "landing")
"""Queues of a replica, besides the requests that run."""


class HeldTime:
    """Time that each replica is held, and the changes."""

    def __init__(self, replicas: int) -> None:
        self.since = np.full(replicas, of.NEVER, np.int64)
        self.total = np.zeros(replicas, np.int64)
        self.changes: list[dict[str, Any]] = []

    def begin(self, rows: Any, now: int) -> None:
        self.since[rows] = now

    def end(self, rows: Any, now: int) -> None:
        self.total[rows] += now - self.since[rows]
        self.since[rows] = of.NEVER

    def held_ns(self, now: int) -> I64:
        """Held time of each replica until now."""
        return self.total + np.where(self.since == of.NEVER, 0, np.maximum(now - self.since, 0))


def empty(state: of.State, rows: Any) -> bool:
    """Whether nothing is in progress there, and no keys and values wait to be sent."""
    mine = state.replica[rows]
    queued = any(mine[queue]["count"].any() for queue in WAITING)
    return not (queued or mine["running"].any() or mine["used"].any()) and bool((mine["end_ns"] == of.NEVER).all())


def forget(state: of.State, rules: of.Rules, rows: Any) -> None:
    """Drops what empty replicas have on their nodes: cached prefixes, pieces of a store, adapters."""
    for i in rows:
        if rules.prefix:
            prefix, mine = state.prefix, state.replica
            mine["evicted"][i] += (prefix.refs[i] != ABSENT).sum()
            prefix.refs[i], mine["cached"][i] = ABSENT, 0
            empty_ring(prefix.ring, i, len(prefix.blocks))
        if state.store.tiers:
            drop_tiers(state.store, i)
        if rules.lora_slots:
            state.adapter[i] = state.replica["adapters"][i] = state.replica["resident"][i] = 0
            state.adapter[i, :, USERS] = of.NOBODY


class Arrivals:
    """Requests by their arrival; one that waits for others arrives when these are answered."""

    def __init__(self, request: Table) -> None:
        alone = np.flatnonzero(request["parents"] == 0)
        arrival = request["arrival_ns"][alone]
        order = np.argsort(arrival, kind="stable")
        self._rows, self._times = alone[order], arrival[order]
        self._request, self._children = request, np.flatnonzero(request["parents"])

    def between(self, since_ns: int, until_ns: int) -> I64:
        """Those that arrived in between, as rows."""
        begin, end = np.searchsorted(self._times, (since_ns, until_ns))
        children = self._request[self._children]
        came = (children["missing"] == 0) & (children["arrival_ns"] >= since_ns) & (children["arrival_ns"] < until_ns)
        return np.sort(np.concatenate([self._rows[begin:end], self._children[came]]))


def read_rule(text: LinePiece, known: Collection[str]) -> tuple[LinePiece, dict[str, LinePiece]]:
    """`HEAD,name=value,...`."""
    head, *parts = text.split(",")
    return head, pairs(parts, known)
