"""Replicas partly lent to others, and taken back, while requests are served.

At each tick an external function says which replicas are lent. From then on their passes have the cost of another,
slower kind of machine; a pass in progress continues unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.world.serve import state as of
from etude.world.serve.hooks import Replica, seen_replica

Decide = Callable[[list[Replica], int], Sequence[bool]]
"""From the visible state of the replicas, and the time in ns: which of them are lent until the next tick."""


class Lending:
    """`slow_kind` is the number of the group whose step costs apply to lent replicas."""

    def __init__(self, decide: Decide, every_ns: int, slow_kind: int) -> None:
        self.decide, self.every_ns, self.slow_kind = decide, every_ns, slow_kind
        self.next_ns = 0
        self.changes: list[dict[str, Any]] = []

    def start(self, state: of.State, rules: of.Rules) -> None:
        self.own = state.replica["kind"].copy()
        self._tick(state)

    def after(self, state: of.State, why: int) -> None:
        if why == of.PAUSED:
            self._tick(state)

    def _tick(self, state: of.State) -> None:
        rows = of.in_rows(state)
        seen = [seen_replica(rows, i) for i in range(len(state.replica))]
        lent = np.array(self.decide(seen, self.next_ns), bool)
        state.replica["kind"] = np.where(lent, self.slow_kind, self.own)
        self.next_ns += self.every_ns
        state.clock["until_ns"][0] = self.next_ns - 1

    def held_ns(self, now: int) -> NDArray[np.int64]:
        return np.full(len(self.own), now, np.int64)
