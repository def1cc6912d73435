"""run_placed(sessions, place): every session, call by call, on devices that run one call at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.world.clock import LoneEntity, run_alone
from etude.world.serve.devices.graph import NEVER, NumberedCalls
from etude.world.serve.devices.policies import Policy, policy_of
from etude.world.serve.devices.state import put, start_of, terms_of
from etude.world.serve.workflow import Workflow


class PlacementRun(LoneEntity):
    """Calls on the clock, as a policy sees them. `waiting` has the calls that are ready and not placed, in the order in
    which they became ready; at an instant calls come in order of their numbers."""

    def __init__(self, sessions: NumberedCalls, flows: Sequence[Workflow], place: Policy) -> None:
        super().__init__()
        self.place, self.turn = place, 0
        self.sessions, self.flows, self.graph = sessions, flows, sessions.graph
        self.state = start_of(self.graph)
        self.devices = len(self.graph.kind)
        self.waiting: list[int] = []
        self.free = [dict(flow.endpoints) for flow in flows]
        self.queues: list[dict[str, deque[int]]] = [{name: deque() for name in flow.endpoints} for flow in flows]
        self.soon: set[int] = set()
        n = len(self.graph.model)
        self.work: NDArray[np.int64] = np.zeros((n, 4), np.int64)
        """Per model call: ns of fetching, loading and running, and tokens found, over all its parts."""
        self.parts: NDArray[np.int64] = np.ones(n, np.int64)
        self.loads = 0
        for c in np.flatnonzero(self.state.missing == 0).tolist():
            self._ready_at(c, sessions.begin_ns[sessions.session_of[c]])

    # -- what policies use ---------------------------------------------------------------------------------------------

    def fits(self, c: int, d: int) -> bool:
        return bool(self.graph.option_ns[self.graph.option_start[c + 1] - 1, self.graph.kind[d]] < NEVER)

    def put(self, c: int, devices: list[int]) -> None:
        """Places a call on a device, or its parts on several."""
        self.parts[c] = len(devices)
        for d in devices:
            t = terms_of(self.graph, self.state, c, d, len(devices), self.now_ns)
            self.work[c] += np.array([t.fetch, t.load, t.run, t.found])
            self.loads += int(self.state.used[d, self.graph.model[c]] == 0)
        end = int(put(self.graph, self.state, c, np.array(devices, np.int64), len(devices), self.now_ns))
        self.waiting.remove(c)
        self._has_end(c, end)

    def coming(self) -> list[int]:
        """Calls that are not ready yet but have a known ready time, the soonest first."""
        return sorted(self.soon, key=lambda c: (int(self.state.ready[c]), c))

    def where(self, c: int) -> str:
        return f"{self.flows[self.sessions.flow_of[c]].name}: tasks: {self.sessions.calls[c].task.name}"

    def shown(self, c: int) -> dict[str, Any]:
        """What your function sees of a call; `on` has its time on each device."""
        call = self.sessions.calls[c]
        on = []
        for d in range(self.devices):
            t = terms_of(self.graph, self.state, c, d, 1, self.now_ns)
            known = {name: getattr(t, name) / 1e9 for name in ("begin", "fetch", "load", "run", "finish")}
            on.append(
                {f"{k}_s": v for k, v in known.items()} | {"found_tokens": int(t.found)} if self.fits(c, d) else None
            )
        parents = self.graph.parent[self.graph.parent_start[c] : self.graph.parent_start[c + 1]]
        return {
            "call": c, "task": call.task.name, "session": self.sessions.session_of[c], "prompt": call.prompt,
            "output": call.output, "shards": int(self.graph.shards[c]), "tail_s": int(self.graph.tail_ns[c]) / 1e9,
            "model": self.sessions.models[int(self.graph.model[c])], "on": on,
            "parents_on": [int(self.state.place[p]) for p in parents],
        }  # fmt: skip

    def seen(self) -> dict[str, Any]:
        """What your function sees besides the call: all waiting calls, and for devices when they are free and the
        models they hold."""
        names, s = self.sessions.models, self.state
        devices = [
            {
                "name": self.sessions.names[d],
                "free_s": max(int(s.free[d]), self.now_ns) / 1e9,
                "holds": [names[m] for m in range(len(names)) if s.used[d, m]],
            }
            for d in range(self.devices)
        ]
        return {"now_s": self.now_ns / 1e9, "devices": devices, "waiting": list(self.waiting), "show": self.shown}

    # -- the loop ------------------------------------------------------------------------------------------------------

    def happen(self, kind: str, about: Any) -> None:
        if kind == "ready":
            self._ready(about)
        elif self.graph.tool_ns[about] >= 0:
            self._leave(about)

    def settle(self) -> None:
        if self.waiting:
            self.place(self)

    def _ready_at(self, c: int, at: int) -> None:
        self.state.ready[c] = at
        if self.graph.tool_ns[c] < 0:
            self.soon.add(c)
        self.later.note(at, "ready", c, rank=2 * c)

    def _ready(self, c: int) -> None:
        if self.graph.tool_ns[c] < 0:
            self.soon.discard(c)
            self.waiting.append(c)
            return
        flow, tool = self.sessions.flow_of[c], self.sessions.calls[c].task.ways[0].tool
        if self.free[flow].get(tool, 1) > 0:
            self._begin(c)
        else:
            self.queues[flow][tool].append(c)

    def _begin(self, c: int) -> None:
        flow, tool = self.sessions.flow_of[c], self.sessions.calls[c].task.ways[0].tool
        if tool in self.free[flow]:
            self.free[flow][tool] -= 1
        self.state.finish[c] = self.now_ns + self.graph.tool_ns[c]
        self._has_end(c, self.now_ns + int(self.graph.tool_ns[c]))

    def _leave(self, c: int) -> None:
        flow, tool = self.sessions.flow_of[c], self.sessions.calls[c].task.ways[0].tool
        if tool in self.free[flow]:
            self.free[flow][tool] += 1
            if self.queues[flow][tool]:
                self._begin(self.queues[flow][tool].popleft())

    def _has_end(self, c: int, end: int) -> None:
        """Sets the end of a call, and so the ready times of calls that wait for nothing else."""
        self.later.note(end, "end", c, rank=2 * c + 1)
        s, g = self.state, self.graph
        for child in g.child[g.child_start[c] : g.child_start[c + 1]].tolist():
            s.missing[child] -= 1
            if not s.missing[child]:
                parents = g.parent[g.parent_start[child] : g.parent_start[child + 1]]
                self._ready_at(child, int(s.finish[parents].max()))


def run_placed(sessions: NumberedCalls, flows: Sequence[Workflow], place: str | Callable[..., Any]) -> PlacementRun:
    run = run_alone(PlacementRun(sessions, flows, policy_of(place)))
    if run.waiting:
        raise UsageError("a call is never placed", where=run.where(run.waiting[0]), hint="return None only to wait")
    return run
