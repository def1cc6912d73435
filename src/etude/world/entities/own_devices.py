"""Workloads on devices of their own: they are on the clock of the machine, hold nothing of it, and feel none of its
faults. Calls of functions of experts, and calls of workflows on devices of several kinds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.world.clock import NEVER, Event
from etude.world.entities.machine import PlainWorkload
from etude.world.fleet.functions.loop import FunctionRequests
from etude.world.fleet.functions.results import functions_record, functions_tables
from etude.world.serve.devices.results import placed_summary
from etude.world.serve.devices.run import PlacementRun
from etude.world.serve.results import spread

OTHERS = ("jobs", "cost", "energy_j", "kind")
"""Figures that the account has, or that are about several."""


class OwnDevicesWorkload(PlainWorkload):
    """What they have in common."""

    __slots__ = ()
    run: Any

    def advance(self, until_ns: int) -> Iterable[Event]:
        found: Iterable[Event] = self.run.advance(until_ns)
        return found

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        return {"busy": 0, "idle": 0}

    def work_j(self, horizon_ns: int) -> float | None:
        return 0.0


@dataclass(slots=True)
class FunctionsWorkload(OwnDevicesWorkload):
    name: str
    run: FunctionRequests

    def done_ns(self) -> int:
        return self.run.duration_ns if (self.run.end_ns > 0).all() else NEVER

    def tables(self) -> dict[str, pa.Table]:
        if self.done_ns() == NEVER:
            return {}
        found = functions_tables(self.run, functions_record(self.run))
        return {name: table for name, table in found.items() if name != "jobs"}

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        """Of requests that are answered by the horizon; all of `etude fleet functions` if every one is."""
        run = self.run
        ended = (run.end_ns > 0) & (run.end_ns <= horizon_ns)
        if ended.all() and run.duration_ns <= horizon_ns:
            found = functions_record(run)
            return {key: value for key, value in found.items() if key not in OTHERS} | {"finished": int(ended.sum())}
        called = np.array(run.times, np.int64) < horizon_ns
        return {
            "requests": int((run.arrival_ns < horizon_ns).sum()),
            "finished": int(ended.sum()),
            "latency_s": spread((run.end_ns - run.arrival_ns)[ended] / 1e9),
            "invocations": int(called.sum()),
            "cold": int(np.array(run.colds, bool)[called].sum()),
        }


@dataclass(slots=True)
class PlacedWorkload(OwnDevicesWorkload):
    name: str
    run: PlacementRun
    place: str

    def close(self) -> None:
        if self.run.waiting and self.run.due_ns() == NEVER:
            hint = "return None only to wait"
            raise UsageError("a call is never placed", where=self.run.where(self.run.waiting[0]), hint=hint)

    def done_ns(self) -> int:
        return int(self.run.state.finish.max()) if (self.run.state.finish > 0).all() else NEVER

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        """Of sessions that have ended by the horizon; all of `etude serve devices` if every one has."""
        sessions, finish = self.run.sessions, self.run.state.finish
        last = np.zeros(len(sessions.begin_ns), np.int64)
        np.maximum.at(last, np.array(sessions.session_of), np.where(finish > 0, finish, NEVER))
        ended = last <= horizon_ns
        counts = {"sessions": len(last), "sessions_done": int(ended.sum())}
        if ended.all():
            return placed_summary(self.run, self.place) | counts
        return counts | {"latency_s": spread((last - np.array(sessions.begin_ns))[ended] / 1e9)}
