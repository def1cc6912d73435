"""run_workflow(flow, pools): every session of a workflow, call by call, until the last has ended.

A call is ready when its dependencies have ended; in program order also when the previous call has. A tool takes its
time at an endpoint with a free slot, first come first served; a model call goes to the replicas of its model, which
work as in `etude serve`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.world.clock import NEVER, Agenda, DiscreteEntity, Event, run_alone
from etude.world.serve import state as of
from etude.world.serve.loop import advance_pools
from etude.world.serve.pieces import next_uses
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.serving import NO_LOG
from etude.world.serve.workflow.choose import Choose, chooser
from etude.world.serve.workflow.pools import Deployed, ModelPool
from etude.world.serve.workflow.seen import Seen
from etude.world.serve.workflow.sessions import TaskCall, keep_effects, unrolled
from etude.world.serve.workflow.spec import Alternative, Workflow

ORDERS: Final = ("data", "program")
"""choose(task, state) -> the number of an alternative; place(task, state) -> the number of a replica."""


@dataclass(slots=True)
class WorkflowRun:
    """What happened: a row for each call."""

    flow: Workflow
    order: str
    calls: list[TaskCall]
    begin_ns: list[int]
    way: I64
    ready_ns: I64
    begin_at_ns: I64
    """When a tool call got its slot; for a model call, when it was ready."""
    end_ns: I64
    pools: Mapping[str, ModelPool]
    needs: list[set[int]] = field(default_factory=list)
    """Data dependencies of each call."""
    came: list[int] = field(default_factory=list)
    """Model calls in the order in which they were ready."""


def run_workflow(flow: Workflow, on: Mapping[str, Deployed], **how: Any) -> WorkflowRun:
    """Every session, to the end of the last; `how` as `workflow_loop` has it."""
    return run_alone(workflow_loop(flow, on, **how)).ran


def workflow_loop(
    flow: Workflow,
    on: Mapping[str, Deployed],
    *,
    order: str = "data",
    router: str = "least",
    choose: str | Choose = "first",
    place: Choose | None = None,
    seed: int = 0,
) -> WorkflowLoop:
    """The sessions before their first call. `on` has the deployment of each role. With `belady` caches know the order
    of calls of a run with `lru`."""
    if order not in ORDERS:
        raise UsageError(f"unknown order `{order}`", hint="data, program")
    calls, begin = unrolled(flow, seed=seed)
    requests = _requests(flow, calls)
    chosen = chooser(choose)
    came = None
    if any(one.caching.policy == "belady" for one in on.values()):
        plain = {k: replace(one, caching=replace(one.caching, policy="lru")) for k, one in on.items()}
        first = WorkflowLoop(flow, calls, begin, plain, requests, order, router, chosen, place, seed)
        came = run_alone(first).ran.came
    return WorkflowLoop(flow, calls, begin, on, requests, order, router, chosen, place, seed, came)


def _requests(flow: Workflow, calls: list[TaskCall]) -> Requests:
    """Requests of all calls, including tools, which no pool gets."""
    segments = [call.segments or [("none", 1)] for call in calls]
    prompt = [max(call.prompt, 1) for call in calls]
    session = [call.session for call in calls]
    tenants = len(flow.tenants) or 1
    found = requests_of(
        np.arange(len(calls)),
        prompt,
        [c.output for c in calls],
        session=session,
        segments=segments,
        tenant=[number % tenants for number in session],
    )
    return replace(found, weights=tuple(round(weight * 1000) for weight in flow.tenants.values()))


class WorkflowLoop(DiscreteEntity):
    """Sessions on the clock."""

    name = "workflow"

    def __init__(
        self, flow: Workflow, calls: list[TaskCall], begin: list[int], on: Mapping[str, Deployed], requests: Requests,
        order: str, router: str, choose: Choose, place: Choose | None, seed: int, came: list[int] | None = None,
    ) -> None:  # fmt: skip
        asks = "" if place is not None else router
        kinds = [list(flow.tasks).index(call.task.name) for call in calls]
        self.pools = {
            name: ModelPool(name, on[name], requests, kinds, asks, seed) for name in flow.models if name in on
        }
        for pool in self.pools.values():
            for whole, _ in pool.parts if came is not None else ():
                rank = np.full(len(calls), len(calls))
                rank[np.array(came, np.int64)] = np.arange(len(came or []))
                owner = rank[np.repeat(np.arange(len(calls)), np.diff(whole.start))]
                whole.next_use[:] = next_uses(whole.ids, owner)
        n = len(calls)
        never = np.full((3, n), of.NEVER, np.int64)
        self.ran = WorkflowRun(flow, order, calls, begin, np.full(n, -1), never[0], never[1], never[2], self.pools)
        self.flow, self.choose, self.place = flow, choose, place
        self.waits = [set(call.after) for call in calls]
        keep_effects(calls, self.waits)
        self.ran.needs = [set(waits) for waits in self.waits]
        if order == "program":
            for call in calls:
                self.waits[call.number] |= {call.before} - {-1}
        self.children: list[list[int]] = [[] for _ in calls]
        for number, waits in enumerate(self.waits):
            for other in waits:
                self.children[other].append(number)
        self.missing = [len(waits) for waits in self.waits]
        self.later = Agenda()
        """Calls that are ready, or end."""
        self.free = dict(flow.endpoints)
        self.queues: dict[str, deque[int]] = {name: deque() for name in flow.endpoints}
        self.spent = [0.0] * flow.sessions
        self.seen = Seen(flow, calls)
        self.clear_ns = -1
        """No pool has anything to do before."""
        self.loop: Callable[..., tuple[int, int]] = advance_pools
        self.returns = 0
        """Times that the compiled loop came back."""

        for call in calls:
            if not self.missing[call.number]:
                self._note(begin[call.session], call.number)

    # -- on the clock --------------------------------------------------------------------------------------------------

    def advance(self, until_ns: int) -> Iterable[Event]:
        """What happens first, until nothing more happens by then: a call ends or is ready, or a pool goes on."""
        pools = list(self.pools.values())
        on = tuple(pool.on_clock() for pool in pools)
        while True:
            at = self.later.next_ns()
            if on and at > self.clear_ns:
                self.returns += 1
                first, why = self.loop(on, at, until_ns, NO_LOG)
                if first != of.NOBODY:
                    for number, when in pools[first].after(why, self.placed):
                        self.ended(number, when)
                        self.clear_ns = when
                    continue
            if at > until_ns or at >= NEVER:
                return ()
            self.clear_ns = at
            kind, number = self.later.pop()
            self.ended(number, at) if kind == "end" else self.ready(number, at)

    def _note(self, at: int, number: int, *, ends: bool = False) -> None:
        """At an instant calls come in order of their numbers."""
        self.later.note(at, "end" if ends else "ready", number, rank=2 * number + ends)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def ready(self, number: int, at: int) -> None:
        call = self.ran.calls[number]
        self.ran.ready_ns[number] = self.ran.begin_at_ns[number] = at
        self.ran.way[number] = k = self.chosen(call, at)
        way = call.task.ways[k]
        self.spent[call.session] += way.cost
        self.seen.chose(call, k)
        if way.model:
            if way.model not in self.pools:
                raise UsageError(f"nothing runs `{way.model}`", where=f"{self.flow.name}: tasks: {call.task.name}")
            self.ran.came.append(number)
            self.pools[way.model].give(number, at)
        elif self.free.get(way.tool, 1) > 0:
            self.begin(number, way, at)
        else:
            self.queues[way.tool].append(number)

    def begin(self, number: int, way: Alternative, at: int) -> None:
        if way.tool in self.free:
            self.free[way.tool] -= 1
        self.ran.begin_at_ns[number] = at
        takes = round(way.time_ns * self.ran.calls[number].slow)
        self._note(at + takes, number, ends=True)

    def ended(self, number: int, at: int) -> None:
        ran = self.ran
        ran.end_ns[number] = at
        self.seen.ended(ran.calls[number], int(ran.way[number]), at - int(ran.ready_ns[number]))
        way = ran.calls[number].task.ways[int(ran.way[number])]
        if way.tool in self.free:
            self.free[way.tool] += 1
            if self.queues[way.tool]:
                following = self.queues[way.tool].popleft()
                self.begin(following, ran.calls[following].task.ways[int(ran.way[following])], at)
        for child in self.children[number]:
            self.missing[child] -= 1
            if not self.missing[child]:
                self._note(at, child)

    def state(self, call: TaskCall, at: int, pool: ModelPool | None = None) -> dict[str, Any]:
        """What hooks see; also what a call finds in the pool where it is placed."""
        return {
            "now_s": at / 1e9,
            "models": {name: one.seen(asked=one is pool) for name, one in self.pools.items()},
            "free": dict(self.free),
            "spent": {
                "latency_s": (at - self.ran.begin_ns[call.session]) / 1e9,
                "cost": self.spent[call.session],
                "label": self.seen.label[call.session],
            },
            "budget": dict(self.flow.budget),
            "rest": self.seen.rest(call),
        }

    def task(self, call: TaskCall) -> dict[str, Any]:
        return {
            "session": call.session,
            "turn": call.turn,
            "prompt": call.prompt,
            "output": call.output,
            **self.seen.shown(call.task),
        }

    def chosen(self, call: TaskCall, at: int) -> int:
        return self._asked(self.choose, call, at, len(call.task.ways)) if len(call.task.ways) > 1 else 0

    def placed(self, pool: ModelPool, number: int) -> int:
        call = self.ran.calls[number]
        return self._asked(self.place, call, int(self.ran.ready_ns[number]), pool.on.replicas, pool)

    def _asked(self, hook: Any, call: TaskCall, at: int, below: int, pool: ModelPool | None = None) -> int:
        name, where = getattr(hook, "__name__", "hook"), f"{self.flow.name}: tasks: {call.task.name}"
        try:
            found = hook(self.task(call), self.state(call, at, pool))
        except Exception as problem:
            raise UsageError(f"`{name}` raised {type(problem).__name__}: {problem}", where=where) from problem
        if isinstance(found, bool) or not isinstance(found, int | np.integer) or not 0 <= found < below:
            raise UsageError(f"`{name}` returned {found!r}", where=where, hint=f"0 to {below - 1}")
        return int(found)
