"""Calls of all sessions of all workflows as arrays: what each waits for, and its time on each kind of device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.world.serve.devices.costs import Costs
from etude.world.serve.devices.spec import Devices
from etude.world.serve.workflow import Workflow
from etude.world.serve.workflow.sessions import TaskCall, keep_effects, unrolled

NEVER: Final = 2**62


class Graph(NamedTuple):
    """Row c is call c. Times in ns."""

    tool_ns: I64
    """Time of a tool call; -1 for a model call."""
    model: I64
    shards: I64
    """Devices that it may be split over."""
    hand_ns: I64
    """Transfer of its output to another device."""
    parent_start: I64
    parent: I64
    child_start: I64
    child: I64
    option_start: I64
    """Options of a call: prefixes that a device may hold, the longest first, and none."""
    option_node: I64
    """Node of the tree of prefixes; -1: none is needed."""
    option_found: I64
    """Tokens found then."""
    option_ns: I64
    """[option, kind]; NEVER where the model does not fit."""
    path_start: I64
    path: I64
    """Nodes of the prompt and the answer of a call, which its device holds afterwards."""
    kept_bytes: I64
    """[call, kind]: keys and values of its prompt and answer."""
    tail_ns: I64
    """The longest chain after it, with times without prefixes, averaged over kinds."""
    mean_ns: I64
    """Its own time, averaged likewise."""
    kind: I64
    """Kind of each device."""
    memory: I64
    keep: I64
    weights: I64
    """[model, kind], bytes."""
    load_ns: I64
    """[model, kind]."""


@dataclass(frozen=True, slots=True)
class NumberedCalls:
    """Calls of all workflows, numbered consecutively, with their arrays."""

    graph: Graph
    calls: list[TaskCall]
    flow_of: list[int]
    """Workflow of each call."""
    session_of: list[int]
    """Number of the session of each call, over all workflows."""
    begin_ns: list[int]
    """Start of each session."""
    names: list[str]
    """Names of devices."""
    models: list[str]


def sessions_of(flows: Sequence[Workflow], devices: Devices, costs: Costs, *, seed: int = 0) -> NumberedCalls:
    calls: list[TaskCall] = []
    flow_of: list[int] = []
    session_of: list[int] = []
    waits: list[set[int]] = []
    begin: list[int] = []
    for number, flow in enumerate(flows):
        _refuse(flow)
        mine, starts = unrolled(flow, seed=seed + number)
        before = [set(call.after) for call in mine]
        keep_effects(mine, before)
        waits += [{len(calls) + other for other in one} for one in before]
        flow_of += [number] * len(mine)
        session_of += [len(begin) + call.session for call in mine]
        begin += starts
        calls += mine
    models = sorted({model for model, _ in costs})
    graph = _arrays(flows, calls, flow_of, waits, devices, costs, models)
    return NumberedCalls(graph, calls, flow_of, session_of, begin, devices.names, models)


def _refuse(flow: Workflow) -> None:
    for task in flow.tasks.values():
        if len(task.ways) > 1:
            problem = "alternatives cannot be placed on devices"
            hint = "give one `model` or `tool` per task"
            raise UsageError(problem, where=f"{flow.name}: tasks: {task.name}", hint=hint)


def _arrays(
    flows: Sequence[Workflow], calls: list[TaskCall], flow_of: list[int], waits: list[set[int]], devices: Devices,
    costs: Costs, models: list[str],
) -> Graph:  # fmt: skip
    kinds = len(devices.kinds)
    named = [_model(flows[f], call) for f, call in zip(flow_of, calls, strict=True)]
    children: list[list[int]] = [[] for _ in calls]
    for number, before in enumerate(waits):
        for other in sorted(before):
            children[other].append(number)
    link = devices.link_bytes_per_s
    hand = [_ns(call.task.bytes, link) if call.task.bytes else 0 for call in calls]
    options, found, times, paths, kept = _prefixes(calls, flow_of, named, costs, kinds)
    tool = [
        -1 if name else round(call.task.ways[0].time_ns * call.slow) for name, call in zip(named, calls, strict=True)
    ]
    mean = _means(np.array([one[-1] for one in times], np.int64).reshape(len(calls), kinds), tool)
    weights = np.array([[_of(costs, m, k, "weights_bytes") for k in range(kinds)] for m in models], np.int64)
    load = np.array([[_ns(int(weights[m, k]), devices.kinds[k].load_bytes_per_s) for k in range(kinds)]
                     for m in range(len(models))], np.int64)  # fmt: skip
    of_kind = np.array(devices.kind_of, np.int64)
    return Graph(
        tool_ns=_int(tool), model=_int([models.index(name) if name else -1 for name in named]),
        shards=_int([min(call.task.shards, len(of_kind)) for call in calls]), hand_ns=_int(hand),
        parent_start=_starts(waits), parent=_flat([sorted(one) for one in waits]),
        child_start=_starts(children), child=_flat(children),
        option_start=_starts(options), option_node=_flat(options), option_found=_flat(found),
        option_ns=np.array([row for one in times for row in one], np.int64).reshape(-1, kinds),
        path_start=_starts(paths), path=_flat(paths), kept_bytes=np.array(kept, np.int64).reshape(-1, kinds),
        tail_ns=_tails(mean, children, hand), mean_ns=mean, kind=of_kind,
        memory=_int([devices.kinds[k].memory_bytes or NEVER for k in of_kind]),
        keep=_int([devices.kinds[k].keep_bytes for k in of_kind]),
        weights=weights.reshape(len(models), kinds), load_ns=load.reshape(len(models), kinds),
    )  # fmt: skip


def _prefixes(
    calls: list[TaskCall], flow_of: list[int], named: list[str], costs: Costs, kinds: int
) -> tuple[list[list[int]], list[list[int]], list[list[list[int]]], list[list[int]], list[list[int]]]:
    """For each call: nodes of its options, tokens found, times by kind; the nodes that it leaves; their bytes."""
    tree: dict[tuple[Any, ...], int] = {}
    paths: list[list[int]] = []
    users: dict[int, int] = {}
    for f, call, name in zip(flow_of, calls, named, strict=True):
        path, at = [], -1
        for segment, _ in [*call.segments, (f"{call.name} out", call.output)] if name else []:
            at = tree.setdefault((f, name, at, segment), len(tree))
            path.append(at)
            users[at] = users.get(at, 0) + 1
        paths.append(path)
    options, found, times, kept = [], [], [], []
    for call, name, path in zip(calls, named, paths, strict=True):
        ends = np.cumsum([tokens for _, tokens in call.segments]).tolist() if name else []
        shared = [(path[k], min(ends[k], call.prompt - 1)) for k in range(len(ends)) if users[path[k]] > 1]
        mine = [*reversed(shared), (-1, 0)]
        options.append([node for node, _ in mine])
        found.append([tokens for _, tokens in mine])
        times.append([_times(costs, name, kinds, call, tokens) for _, tokens in mine])
        tokens = call.prompt + call.output
        kept.append([_of(costs, name, k, "token_bytes") * tokens if name else 0 for k in range(kinds)])
    return options, found, times, paths, kept


def _times(costs: Costs, name: str, kinds: int, call: TaskCall, found: int) -> list[int]:
    known = [costs.get((name, k)) for k in range(kinds)]
    return [NEVER if one is None else one.call_ns(call.prompt, found, call.output) for one in known]


def _model(flow: Workflow, call: TaskCall) -> str:
    way = call.task.ways[0]
    return flow.models[way.model].model if way.model else ""


def _of(costs: Costs, model: str, kind: int, name: str) -> int:
    return int(getattr(costs[model, kind], name)) if (model, kind) in costs else 0


def _ns(size: int, bytes_per_s: float) -> int:
    return ceil(size * 1e9 / bytes_per_s) if bytes_per_s else 0


def _means(plain: I64, tool: list[int]) -> I64:
    """Mean time of each call over the kinds that it fits."""
    fits = plain < NEVER
    total = np.where(fits, plain, 0).sum(axis=1) // np.maximum(fits.sum(axis=1), 1)
    return np.where(np.array(tool) >= 0, np.array(tool), total).astype(np.int64)


def _tails(mean: I64, children: list[list[int]], hand: list[int]) -> I64:
    """Calls come after those that they wait for, so one backward pass is enough."""
    tails = np.zeros(len(mean), np.int64)
    for c in range(len(mean) - 1, -1, -1):
        tails[c] = max((hand[c] + mean[child] + tails[child] for child in children[c]), default=0)
    return tails


def _int(values: Sequence[int]) -> I64:
    return np.array(values, np.int64)


def _starts(lists: Sequence[Any]) -> I64:
    return np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)


def _flat(lists: Sequence[Sequence[int]]) -> I64:
    return np.array([value for one in lists for value in one], np.int64)
