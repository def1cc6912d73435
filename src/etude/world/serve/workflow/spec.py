"""Workflow: tasks that call models, tools and environments, from a file.

    tasks:
      plan: {model: planner, system: 3000, message: 400, output: 300}
      edit: {model: worker, after: plan, follows: [edit, plan], output: 250}
      test: {tool: shell, time: 8s, after: edit, output: 600}
    loops: [{of: [edit, test], stop: 0.3, most: 8}]

A task waits for those it is `after`. The prompt of a model call is the system's, or the prompt and the answer of the
last call that it `follows`, then what the tasks it is after put out (or those of them that it `reads`), then `message`
tokens of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, text, usage_errors

LIBRARY: Final = Path(__file__).parent / "library"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRole:
    """A model that tasks call, on its own replicas."""

    model: str = figure("text", "name of the catalogue, or a file")
    tp: int = figure("count", "ranks of a replica", 1)
    replicas: int = figure("count", "replicas", 1)
    also: str = text("another name of the role, for `models` of a scenario")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way to do a task: a model of the file, or an endpoint that takes a time."""

    model: str = text("a role of `models`")
    tool: str = text("an endpoint: a tool, an environment, a model elsewhere")
    time_ns: int = figure("time", "time of a call of an endpoint", 0)
    cost: float = figure("number", "cost of a call, in any unit", 0.0)
    label: float = figure("number", "quality label: passed through, not computed", 1.0, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    name: str
    ways: tuple[Alternative, ...]
    after: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    branch: Mapping[str, float] = field(default_factory=dict)
    """One of these tasks, which are after this one, is taken with these probabilities."""
    reads: tuple[str, ...] = ()
    """Tasks, among those it is after, whose output is part of its prompt."""
    writes: str = ""
    """An object: tasks that write the same one keep the order of the program."""
    system: int = 0
    message: int = 0
    output: int = 1
    shards: int = 1
    """Devices that its work may be split over; used with `--devices`, like `bytes`."""
    bytes: int = 0
    """Output passed to each task after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    of: tuple[str, ...]
    times: int = 0
    """0: until `stop` is drawn, `most` times at most."""
    stop: float = 0.0
    most: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    name: str
    tasks: Mapping[str, Task]
    """In the order of the program."""
    models: Mapping[str, WorkflowRole]
    endpoints: Mapping[str, int]
    """Concurrent calls of a tool; endpoints that are not named have no limit."""
    loops: tuple[Loop, ...] = ()
    sessions: int = 20
    rate_per_s: float = 1.0
    vary: float = 0.0
    """Coefficient of variation of tokens and of the times of tools."""
    budget: Mapping[str, float] = field(default_factory=dict)
    """`latency_s` and `cost` of a session, and the lowest `label`."""
    tenants: Mapping[str, float] = field(default_factory=dict)
    """Weights of the tenants of sessions, in turn; used with `--scheduling-policy fair`."""
    system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkflowHead:
    name: str = text("name")
    title: str = text("description")
    system: str = text("system that its models run on")
    sessions: int = figure("count", "sessions", 20)
    rate: float = figure("number", "sessions per second", 1.0)
    vary: float = figure("number", "coefficient of variation of tokens and of the times of tools", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Budget:
    latency_ns: int = figure("time", "of a session", 0)
    cost: float = figure("number", "of a session", 0.0)
    label: float = figure("number", "least value for a session", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    system: int = figure("count", "tokens of the system prompt, the same in all sessions", 0)
    message: int = figure("count", "its own tokens in a prompt", 0)
    output: int = figure("count", "tokens out", 1)
    shards: int = figure("count", "devices that its work may be split over", 1)
    bytes: int = figure("bytes", "bytes that it passes to each task after it", 0)
    writes: str = text("object that it changes")


PARTS: Final = ("tasks", "models", "endpoints", "loops", "budget", "tenants")
OF_A_TASK: Final = ("after", "reads", "follows", "branch", "alternatives")
WAY: Final = ("model", "tool", "time", "cost", "label")


def open_workflow(path: str | PathLike[str]) -> Workflow:
    """A file, or one that comes with Etude: `swe_agent`."""
    place = Path(path)
    if not place.is_file():
        own = LIBRARY / f"{place.stem}.yaml"
        if not own.is_file():
            known = ", ".join(sorted(file.stem for file in LIBRARY.glob("*.yaml")))
            raise UsageError("there is no such workflow", where=str(path), hint=f"a YAML file, or one of: {known}")
        place = own
    with usage_errors():
        return workflow_of(read_mapping(place), str(place))


def workflow_of(given: Mapping[str, Any], where: str) -> Workflow:
    head = read(_WorkflowHead, {k: v for k, v in given.items() if k not in PARTS}, where)
    if not isinstance(given.get("tasks"), Mapping) or not given["tasks"]:
        raise UsageError("no `tasks`", where=where, hint="tasks: {answer: {model: chat, message: 500, output: 100}}")
    models = {
        str(k): read(WorkflowRole, {"model": v} if isinstance(v, str) else v, f"{where}: models: {k}")
        for k, v in _mapping(given.get("models"), f"{where}: models").items()
    }
    ends = _mapping(given.get("endpoints"), f"{where}: endpoints")
    wrong = next((k for k, v in ends.items() if not isinstance(v, int) or v < 1), None)
    if wrong is not None:
        raise UsageError(f"{ends[wrong]!r} calls at a time", where=f"{where}: endpoints: {wrong}")
    tasks = {str(k): _task(str(k), v, f"{where}: tasks: {k}") for k, v in given["tasks"].items()}
    made = Workflow(
        name=head.name or Path(where).stem, tasks=tasks, models=models, endpoints=dict(ends),
        loops=tuple(_loop(one, f"{where}: loops[{k}]") for k, one in enumerate(given.get("loops") or ())),
        sessions=head.sessions, rate_per_s=head.rate, vary=head.vary, system=head.system,
        tenants=_weights(given.get("tenants"), f"{where}: tenants"),
        budget=budget_of(_mapping(given.get("budget"), f"{where}: budget"), f"{where}: budget"),
    )  # fmt: skip
    _check(made, where)
    return made


def budget_of(given: Mapping[str, Any], where: str) -> dict[str, float]:
    """`{latency: 2s, cost: 0.01, label: 0.8}` of a session: `latency_s`, `cost` and `label`; 0 means no limit."""
    found = read(_Budget, given, where)
    limits = {"latency_s": found.latency_ns / 1e9, "cost": found.cost, "label": found.label}
    return {name: limit for name, limit in limits.items() if limit}


def _weights(given: Any, where: str) -> dict[str, float]:
    found = _mapping(given, where)
    for name, weight in found.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.001 <= weight <= 1e6:
            raise UsageError(
                f"{weight!r} is not a weight", where=f"{where}: {name}", hint="tenants: {chat: 3, batch: 1}"
            )
    return {str(name): float(weight) for name, weight in found.items()}


def _mapping(given: Any, where: str) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"expected keys and values, not {given!r}", where=where)
    return given


def _names(given: Any, where: str) -> tuple[str, ...]:
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise UsageError(f"expected names of tasks, not {given!r}", where=where)
    return tuple(listed)


def _task(name: str, given: Any, where: str) -> Task:
    said = dict(_mapping(given, where))
    lists = {key: said.pop(key) for key in OF_A_TASK if key in said}
    plain = {key: said.pop(key) for key in WAY if key in said}
    if ("alternatives" in lists) == bool(plain):
        raise UsageError("either `model` or `tool`, or `alternatives` of them", where=where)
    listed = lists.get("alternatives", [plain])
    if not isinstance(listed, list) or not listed:
        raise UsageError("`alternatives` is a list", where=where)
    ways = []
    for k, one in enumerate(listed):
        place = where if plain else f"{where}: alternatives[{k}]"
        way = read(Alternative, one, place)
        if bool(way.model) == bool(way.tool):
            raise UsageError("either a `model` or a `tool`", where=place)
        if way.model and way.time_ns:
            raise UsageError("the time of a model is that of its passes", where=place, hint="`tool` needs a time")
        ways.append(way)
    sizes = read(_Sizes, said, where)
    branch = _mapping(lists.get("branch"), f"{where}: branch")
    for other, part in branch.items():
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
            raise UsageError(f"{part!r} is not a probability", where=f"{where}: branch: {other}")
    if sum(branch.values()) > 1 + 1e-9:
        raise UsageError(f"probabilities add up to {sum(branch.values()):g}", where=f"{where}: branch")
    after = _names(lists.get("after", []), f"{where}: after")
    reads = _names(lists.get("reads", list(after)), f"{where}: reads")
    if unknown := [other for other in reads if other not in after]:
        raise UsageError(f"reads `{unknown[0]}`, but is not after it", where=where)
    return Task(
        name=name, ways=tuple(ways), after=after, reads=reads,
        follows=_names(lists.get("follows", []), f"{where}: follows"), branch=dict(branch), writes=sizes.writes,
        system=sizes.system, message=sizes.message, output=sizes.output, shards=sizes.shards, bytes=sizes.bytes,
    )  # fmt: skip


def _loop(given: Any, where: str) -> Loop:
    said = dict(_mapping(given, where))
    of = _names(said.pop("of", []), f"{where}: of")
    numbers = {"times": (int, 1, 10_000), "most": (int, 1, 10_000), "stop": (float, 0, 1)}
    for key, value in said.items():
        kind, low, high = numbers.get(key, (None, 0, 0))
        if kind is None:
            raise UsageError(f"unknown key `{key}`", where=where, hint="known: of, times, stop, most")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise UsageError(f"{key}: {value!r}", where=where, hint=f"{low} to {high}")
    if not of or ("times" in said) == ("stop" in said):
        raise UsageError("`of` tasks, and either `times` or `stop`", where=where, hint="{of: [edit, test], stop: 0.3}")
    return Loop(of=of, **said)


def _check(flow: Workflow, where: str) -> None:
    """Checks that every name exists, branches lead to later tasks, and nothing waits for itself."""
    for task in flow.tasks.values():
        place = f"{where}: tasks: {task.name}"
        for other in (*task.after, *task.follows, *task.branch):
            if other not in flow.tasks:
                raise UsageError(f"`{other}` is not a task", where=place, hint=f"known: {', '.join(flow.tasks)}")
        for other in task.branch:
            if task.name not in flow.tasks[other].after:
                raise UsageError(f"branches to `{other}`, which is not after it", where=place)
        for way in task.ways:
            if way.model and way.model not in flow.models:
                hint = f"known: {', '.join(flow.models)}" if flow.models else "models: {chat: llama3-8b}"
                raise UsageError(f"`{way.model}` is not one of the models", where=place, hint=hint)
        if any(way.model for way in task.ways) and not (task.system or task.message or task.reads or task.follows):
            raise UsageError("a model call with an empty prompt", where=place, hint="message: 500")
    inside: set[str] = set()
    for k, loop in enumerate(flow.loops):
        for name in loop.of:
            if name not in flow.tasks or name in inside:
                raise UsageError(f"`{name}` is not a task, or is in two loops", where=f"{where}: loops[{k}]")
            inside.add(name)
    _no_cycle(flow, where)


def _no_cycle(flow: Workflow, where: str) -> None:
    done: set[str] = set()
    for first in flow.tasks:
        path, walk = [first], [iter(flow.tasks[first].after)]
        while walk and first not in done:
            other = next(walk[-1], None)
            if other is None:
                done.add(path.pop())
                walk.pop()
            elif other in path:
                circle = [*path[path.index(other) :], other]
                hint = f"use a loop for repeated tasks: loops: [{{of: [{', '.join(circle[:-1])}], times: 3}}]"
                raise UsageError(f"a cycle: {' after '.join(circle)}", where=f"{where}: tasks: {other}", hint=hint)
            elif other not in done:
                path.append(other)
                walk.append(iter(flow.tasks[other].after))
