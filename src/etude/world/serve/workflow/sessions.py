"""Sessions of a workflow, unrolled: which tasks run, what each waits for, and the text of its prompt. Random draws do
not depend on timing, so all policies see the same sessions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from etude.base.errors import UsageError
from etude.world.serve.workflow.spec import Loop, Task, Workflow


@dataclass(slots=True)
class TaskCall:
    """One run of a task."""

    number: int
    session: int
    task: Task
    turn: int
    """Turn of its loop, from 0."""
    after: list[int]
    """Numbers of the calls whose end it waits for."""
    segments: list[tuple[str, int]] = field(default_factory=list)
    """Segments of its prompt, if it calls a model."""
    output: int = 1
    slow: float = 1.0
    """Factor on the time of a tool."""
    before: int = -1
    """The call ahead of it in the program."""

    @property
    def name(self) -> str:
        return f"{self.session}/{self.task.name}#{self.turn}"

    @property
    def prompt(self) -> int:
        return sum(tokens for _, tokens in self.segments)


def program(flow: Workflow) -> list[tuple[Loop | None, list[Task]]]:
    """Tasks and whole loops in topological order; ties in the order of the file."""
    home = {name: k for k, loop in enumerate(flow.loops) for name in loop.of}
    parts: dict[str, list[str]] = {}
    for name in flow.tasks:
        parts.setdefault(f"loop {home[name]}" if name in home else name, []).append(name)
    of = {name: part for part, names in parts.items() for name in names}
    waits = {
        part: {of[other] for name in names for other in flow.tasks[name].after} - {part}
        for part, names in parts.items()
    }
    order: list[str] = []
    while len(order) < len(parts):
        ready = next((part for part in parts if part not in order and waits[part] <= set(order)), None)
        if ready is None:
            stuck = next(part for part in parts if part not in order and part.startswith("loop "))
            names = ", ".join(parts[stuck])
            problem = f"a task outside is between tasks of the loop of {names}"
            hint = "put it into the loop"
            raise UsageError(problem, where=f"{flow.name}: loops[{stuck.removeprefix('loop ')}]", hint=hint)
        order.append(ready)
    found: list[tuple[Loop | None, list[Task]]] = []
    for part in order:
        loop = flow.loops[int(part.removeprefix("loop "))] if part not in flow.tasks else None
        found.append((loop, _sorted(flow, parts[part])))
    return found


def _sorted(flow: Workflow, names: list[str]) -> list[Task]:
    done: list[str] = []
    while len(done) < len(names):
        done.append(
            next(n for n in names if n not in done and all(a in done or a not in names for a in flow.tasks[n].after))
        )
    return [flow.tasks[name] for name in done]


class _Session:
    """The calls of one session, as they are put together."""

    def __init__(self, flow: Workflow, number: int, first: int, random: np.random.Generator) -> None:
        self.flow, self.number, self.first, self.random = flow, number, first, random
        self.calls: list[TaskCall] = []
        self.latest: dict[str, TaskCall] = {}
        self.chosen: dict[str, str] = {}

    def tokens(self, mean: float) -> int:
        return max(round(mean * self.factor()), 1) if mean else 0

    def factor(self) -> float:
        cv = self.flow.vary
        return float(self.random.gamma(1 / cv**2, cv**2)) if cv else 1.0

    def leads(self, other: str, name: str, turn: int) -> bool:
        """Whether a task waits for the last call of another: one in the same turn of a loop that branched to it."""
        if other not in self.latest or (name in self.flow.tasks[other].branch and self.chosen[other] != name):
            return False
        return self.latest[other].turn == turn or not any({other, name} <= set(loop.of) for loop in self.flow.loops)

    def run(self, task: Task, turn: int, more: list[TaskCall]) -> None:
        """One call of a task, unless it is on a branch that was not taken; `more` are additional dependencies."""
        live = [self.latest[other] for other in task.after if self.leads(other, task.name, turn)]
        live += [call for call in more if call not in live]
        drawn = self.tokens(task.message), self.tokens(task.output), self.factor(), float(self.random.random())
        if task.after and not live:
            return
        call = TaskCall(self.first + len(self.calls), self.number, task, turn, [c.number for c in live])
        call.output, call.slow = drawn[1], drawn[2]
        call.before = self.calls[-1].number if self.calls else -1
        if any(way.model for way in task.ways):
            call.segments = self.prompt(task, live, drawn[0], call.name)
        if task.branch:
            edges = np.cumsum(list(task.branch.values()))
            self.chosen[task.name] = [*task.branch, ""][int(np.searchsorted(edges, drawn[3], side="right"))]
        self.calls.append(call)
        self.latest[task.name] = call

    def prompt(self, task: Task, live: list[TaskCall], message: int, name: str) -> list[tuple[str, int]]:
        known = [self.latest[other] for other in task.follows if other in self.latest]
        base = max(known, key=lambda call: call.number, default=None)
        said: list[tuple[str, int]] = []
        if base is not None:
            said = [*base.segments, (f"{base.name} out", base.output)]
        elif task.system:
            said = [(f"system/{task.name}", task.system)]
        there = {segment for segment, _ in said}
        said += [
            (f"{call.name} out", call.output)
            for call in live
            if f"{call.name} out" not in there and (call.task.name in task.reads or call.task.name not in task.after)
        ]
        return [*said, (name, message)] if message else said


def unrolled(flow: Workflow, *, seed: int = 0) -> tuple[list[TaskCall], list[int]]:
    """The calls of all sessions, session by session, each in the order of the program; and when sessions begin, ns."""
    random = np.random.default_rng(seed)
    begin = np.round(np.cumsum(random.exponential(1 / flow.rate_per_s, flow.sessions)) * 1e9).astype(np.int64)
    order = program(flow)
    calls: list[TaskCall] = []
    for number in range(flow.sessions):
        session = _Session(flow, number, len(calls), np.random.default_rng([seed, number]))
        for loop, tasks in order:
            if loop is None:
                session.run(tasks[0], 0, [])
                continue
            ends: list[TaskCall] = []
            for turn in range(loop.times or loop.most):
                roots = [t for t in tasks if not set(t.after) & set(loop.of)]
                for task in tasks:
                    session.run(task, turn, ends if task in roots else [])
                here = [call for call in session.calls if call.turn == turn and call.task.name in loop.of]
                if not here:
                    break
                waited = {number for call in here for number in call.after}
                ends = [call for call in here if call.number not in waited]
                if not loop.times and session.random.random() < loop.stop:
                    break
        calls += session.calls
    return calls, begin.tolist()


def keep_effects(calls: list[TaskCall], waits: list[set[int]]) -> None:
    """Calls of a session that write one object wait for the previous writer."""
    last: dict[tuple[int, str], int] = {}
    for call in calls:
        if call.task.writes:
            key = call.session, call.task.writes
            if key in last:
                waits[call.number].add(last[key])
            last[key] = call.number
