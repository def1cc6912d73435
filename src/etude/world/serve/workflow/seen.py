"""What choosers see of a session: observed times of its alternatives, and what may still come."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from math import inf
from typing import Any, Final

from etude.world.serve.workflow.sessions import TaskCall
from etude.world.serve.workflow.spec import Task, Workflow

LATE: Final = 0.95
"""Percentile of the observed times of alternatives."""


class Seen:
    """Updated by the run: `chose` when a call is ready, `ended` when it has ended."""

    def __init__(self, flow: Workflow, calls: list[TaskCall]) -> None:
        self.order = in_order(flow)
        self.took: dict[tuple[str, int], list[int]] = defaultdict(list)
        """ns from ready to end of each (task, alternative), in order of size."""
        self.label = [inf] * flow.sessions
        """Lowest label of the calls so far."""
        self.begun: list[set[str]] = [set() for _ in range(flow.sessions)]
        self.over: list[set[str]] = [set() for _ in range(flow.sessions)]
        self.runs: list[set[str]] = [set() for _ in range(flow.sessions)]
        """Tasks that the session has; those of a branch count as known once the branch was taken."""
        self.last: list[dict[str, int]] = [{} for _ in range(flow.sessions)]
        for call in calls:
            self.runs[call.session].add(call.task.name)
            self.last[call.session][call.task.name] = call.number

    def chose(self, call: TaskCall, way: int) -> None:
        self.begun[call.session].add(call.task.name)
        self.label[call.session] = min(self.label[call.session], call.task.ways[way].label)

    def ended(self, call: TaskCall, way: int, took_ns: int) -> None:
        insort(self.took[call.task.name, way], took_ns)
        if self.last[call.session][call.task.name] == call.number:
            self.over[call.session].add(call.task.name)

    def late_s(self, task: Task, way: int) -> float:
        """Time of an alternative that is exceeded one time in twenty; before it was observed, the value of the file."""
        seen = self.took.get((task.name, way))
        if not seen:
            return task.ways[way].time_ns / 1e9
        return seen[min(int(LATE * len(seen)), len(seen) - 1)] / 1e9

    def shown(self, task: Task) -> dict[str, Any]:
        ways = [
            {
                "model": w.model,
                "tool": w.tool,
                "time_s": w.time_ns / 1e9,
                "cost": w.cost,
                "label": w.label,
                "late_s": self.late_s(task, k),
            }
            for k, w in enumerate(task.ways)
        ]
        return {"task": task.name, "after": list(task.after), "alternatives": ways}

    def rest(self, call: TaskCall) -> list[dict[str, Any]]:
        """Tasks of the session that may still come, in topological order. Undecided branches count as taken, and
        further turns of loops are not counted."""
        s = call.session
        skipped: set[str] = set()
        found: list[dict[str, Any]] = []
        for task in self.order:
            if task.name in self.begun[s] or task.name == call.task.name:
                continue
            known = all(other in skipped or other in self.over[s] for other in task.after)
            if task.name not in self.runs[s] and task.after and known:
                skipped.add(task.name)
            else:
                found.append(self.shown(task))
        return found


def in_order(flow: Workflow) -> list[Task]:
    """Tasks in topological order; ties in the order of the file."""
    done: dict[str, Task] = {}
    while len(done) < len(flow.tasks):
        for task in flow.tasks.values():
            if task.name not in done and all(other in done for other in task.after):
                done[task.name] = task
    return list(done.values())
