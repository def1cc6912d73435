"""Replicas that come and go with the load, on devices that they share with other workloads."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.kernels.arrays import I64
from etude.world.devices import DevicePool, DeviceSeat
from etude.world.serve import state as of
from etude.world.serve.elastic.scale import Scale, ScaleRule
from etude.world.serve.failing import fail, wake


class SeatedScale(Scale):
    """A rule for replicas of which each needs a seat: devices of one node. A fixed number of them decides nothing, and
    replaces what is lost."""

    def __init__(self, rule: ScaleRule, replicas: int, cold_ns: int, *, who: str, tp: int, devices: DevicePool) -> None:
        super().__init__(rule, replicas, cold_ns)
        self.who, self.tp, self.devices = who, tp, devices
        self.seats: dict[int, DeviceSeat] = {}
        self.missing = 0
        """Replicas that the rule wanted and that got no devices."""
        self.gave = False
        """Whether devices were given back since it was last asked."""
        self.starting: dict[int, int] = {}
        """Replicas that load their weights, and since when."""
        self.started_ns = 0
        """Replica time of that, of those that are done."""
        self.parked: set[int] = set()
        """Rows without devices that take requests while no replica is there that does the same."""
        self.moved = 0
        """Requests that a fault sent to another replica."""
        self.failures = 0
        self.at_ns = 0
        """The present."""
        if self.fixed:
            self.decide_ns = self.next_ns = int(of.NEVER)

    @property
    def fixed(self) -> bool:
        return self.rule.least == self.rule.most

    def begin(self, rows: Any, now: int) -> None:
        super().begin(rows, now)
        if now:
            self.starting.update(dict.fromkeys(np.atleast_1d(rows).tolist(), now))

    def end(self, rows: Any, now: int) -> None:
        now = max(now, self.at_ns)  # devices are free once the rule has seen it
        super().end(rows, now)
        for row in np.atleast_1d(rows).tolist():
            self.devices.give(self.seats.pop(row), now)
            self.started_ns += now - self.starting.pop(row, now)
            self.gave = True

    def granted(self, rows: I64, now: int) -> I64:
        found = []
        for row in rows.tolist():
            seat = self.devices.take_seat(self.who, self.tp, now)
            if seat is None:
                break
            self.seats[row] = seat
            found.append(row)
        self.missing = len(rows) - len(found)
        return rows[: len(found)]

    def _change(self, state: of.State, now: int) -> None:
        self.missing = 0
        super()._change(state, now)

    def after(self, state: of.State, why: int) -> None:
        self.at_ns = self.next_ns
        now, came = self.next_ns, np.flatnonzero(self.ready == self.next_ns).tolist()
        super().after(state, why)
        for row in came:
            self.started_ns += now - self.starting.pop(row, now)
        if state.store.tiers:
            state.store.gone[came] = 0
        for row in sorted(self.parked):
            there = [i for i in self._peers(state, row) if i not in self.parked]
            if row in came:
                state.replica["ready_ns"][row] = 0
                wake(state, row, now)
            elif there:
                state.replica["shut"][row], state.replica["ready_ns"][row] = 1, 0
                fail(state, self.rules, row, there, now)
            else:
                continue
            self.parked.remove(row)

    def _peers(self, state: of.State, row: int) -> list[int]:
        """Other open replicas that do the same."""
        alike = (state.replica["shut"] == 0) & (state.replica["role"] == state.replica["role"][row])
        return [int(i) for i in self.rows[alike[self.rows]] if i != row]

    def lose(self, state: of.State, nodes: set[int], now: int) -> None:
        """Replicas on nodes that failed are gone; their requests go to the others."""
        self.at_ns = now
        lost = [row for row, seat in self.seats.items() if seat.node in nodes]
        if not lost:
            return
        were_open = [row for row in lost if not state.replica["shut"][row]]
        state.replica["shut"][lost] = 1
        for row in lost:
            self.failures += 1
            self.ready[row] = of.NEVER
            self.shut_at.pop(row, None)
            self.end(row, now)
            others = self._peers(state, row)
            if not others and row in were_open:
                self.parked.add(row)
                state.replica["shut"][row], state.replica["ready_ns"][row] = 0, of.NEVER
            self.moved += fail(state, self.rules, row, others, now)
        if self.fixed:
            self.missing += len(lost)
            self.retry(now)

    def held_ns(self, now: int) -> Any:
        self.at_ns = max(self.at_ns, now)
        return super().held_ns(now)

    def parts_ns(self, state: of.State, horizon_ns: int) -> dict[str, int]:
        """Device time that was held, by use; a pass in progress counts up to the horizon."""
        end = state.replica["end_ns"][self.rows]
        over = np.where(end == of.NEVER, 0, end - horizon_ns)
        busy = int((state.replica["busy_ns"][self.rows] - np.maximum(over, 0)).sum()) * self.tp
        begun = sum(horizon_ns - since for since in self.starting.values())
        starting = (self.started_ns + begun) * self.tp
        held = int(self.held_ns(horizon_ns).sum()) * self.tp
        return {"busy": busy, "starting": starting, "idle": held - busy - starting}

    def retry(self, now: int) -> None:
        """Starts replicas that got no devices before, as far as there are some now."""
        free = self.granted(self.rows[self.since[self.rows] == of.NEVER][: self.missing], now)
        self.begin(free, now)
        self.ready[free] = max(now + self.rule.lag_ns + self.cold_ns, now + 1)
        self.next_ns = int(min(self.decide_ns, self.ready.min()))
