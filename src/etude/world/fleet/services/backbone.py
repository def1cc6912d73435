"""Tasks that share one backbone, on one device.

system: dgx-a100
backbone: vit-l16
tasks: 13              # or a list: [{name: a, weight: 3, rate: 50}, {name: b, rate: 50}]
extension: 8MB         # memory of a task beyond the backbone
extension_time: 0.1ms  # of the whole device, for each task that has requests in a batch
load: 0.8              # of the backbone in the largest batch, as many requests for each; or a rate for each task
batch: 8               # largest batch: 1, 2, 4, ... up to it are predicted
count: 5000            # total number of requests
memory: 16GB           # for weights; else that of the device
policy: shared         # partition, colocate, shared
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, usage_errors
from etude.kernels.arrays import I64
from etude.world.fleet.contract import contract, flat
from etude.world.fleet.services.costs import forward_costs
from etude.world.fleet.services.loop import Taken, drawn, in_turns, largest

POLICIES: Final = ("partition", "colocate", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneTask:
    name: str = figure("text", "name of the task; else its number", "")
    weight: float = figure("number", "its share of the backbone while all wait, or of a partition", 1.0)
    rate: float = figure("number", "requests per second, Poisson", 0.0, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    system: str = figure("text", "system whose device they share")
    backbone: str = figure("text", "model that all tasks share")
    tasks: Any = figure("one", "number of tasks, or a list of them", None)
    extension_bytes: int = figure("bytes", "memory of a task beyond the backbone", 8_000_000)
    extension_time_ns: int = figure("time", "time for each task in a batch, on the whole device", 100_000, zero=True)
    load: float = figure("number", "load of the backbone in the largest batch, with equal rates", 0.0, zero=True)
    batch: int = figure("count", "largest batch", 8)
    count: int = figure("count", "total number of requests", 5000)
    memory_bytes: int = figure("bytes", "memory for weights; 0: that of the device", 0, zero=True)
    policy: str = figure("text", "partition, colocate, shared", "shared")

    @property
    def sizes(self) -> list[int]:
        """Batch sizes: powers of two."""
        return [1 << k for k in range(self.batch.bit_length())]


@dataclass(frozen=True, slots=True, eq=False)
class Hosted:
    """Times of each request; ns."""

    spec: Backbone
    tasks: list[BackboneTask]
    costs: I64
    """Time by batch size, on the whole device."""
    weight_bytes: int
    memory_bytes: int
    task: I64
    arrival_ns: I64
    start_ns: I64
    end_ns: I64
    batches: int
    busy_ns: int
    """Busy time of the device; with slices, their mean weighted by share."""

    @property
    def fit(self) -> int:
        return fitting_tasks(self.spec.policy, self.memory_bytes, self.weight_bytes, self.spec.extension_bytes)


def read_backbone(path: str | PathLike[str], policy: str = "") -> tuple[Backbone, list[BackboneTask]]:
    """Reads a file; `policy` overrides its value. Raises UsageError."""
    where = str(path)
    with usage_errors():
        spec = read(Backbone, read_mapping(path), where)
        given = spec.tasks
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            given = [{} for _ in range(given)]
        if not isinstance(given, list) or not given:
            raise UsageError("tasks: give a number or a list", where=where, hint="tasks: 13")
        found = [read(BackboneTask, one, f"{where}: tasks[{k}]") for k, one in enumerate(given)]
    spec = replace(spec, policy=policy or spec.policy)
    if spec.policy not in POLICIES:
        raise UsageError(f"unknown policy `{spec.policy}`", where=where, hint=f"known: {', '.join(POLICIES)}")
    found = [replace(one, name=one.name or str(k)) for k, one in enumerate(found)]
    if len({one.name for one in found}) < len(found):
        raise UsageError("two tasks have the same name", where=where, hint="name: second")
    rates = [one.rate > 0 for one in found]
    if any(rates) if spec.load else not all(rates):
        raise UsageError("either load, or a rate for each task", where=where, hint="load: 0.8")
    if spec.batch & (spec.batch - 1):
        raise UsageError(f"batch: {spec.batch} is not a power of two", where=where, hint="batch: 8")
    return spec, found


def fitting_tasks(policy: str, memory: int, weights: int, extension: int) -> int:
    """Number of tasks that fit the memory. A shared backbone is loaded once; otherwise each task has its own."""
    if policy == "shared":
        return max((memory - weights) // extension, 0)
    return memory // (weights + extension)


def serve_backbone(spec: Backbone, tasks: list[BackboneTask], *, seed: int = 0) -> Hosted:
    from etude.machine import open_system

    weights = _weight_bytes(spec.backbone)
    memory = spec.memory_bytes or open_system(spec.system).device.memory_bytes
    fit = fitting_tasks(spec.policy, memory, weights, spec.extension_bytes)
    if len(tasks) > fit:
        raise UsageError(
            f"{len(tasks)} tasks, but memory has room for {fit} under `{spec.policy}`",
            where=spec.backbone,
            hint=f"tasks: {fit}" if fit else "memory: 16GB",
        )
    shares = _shares(tasks) if spec.policy == "partition" else []
    costs = {s: forward_costs(spec.backbone, spec.system, 1, spec.sizes, s)[-1] for s in {1.0, *shares}}
    rates = [one.rate for one in tasks]
    if spec.load:
        rates = [spec.load * 1e9 * spec.sizes[-1] / int(costs[1.0][-1]) / len(tasks)] * len(tasks)
    task, arrival = drawn(rates, spec.count, seed)
    return run_backbone(spec, tasks, costs, task, arrival, weights, memory)


def run_backbone(
    spec: Backbone, tasks: list[BackboneTask], costs: dict[float, I64], task: I64, arrival_ns: I64,
    weights: int = 0, memory: int = 0,
) -> Hosted:  # fmt: skip
    """Serves all requests; `costs`: ns by share of the device, then by batch size."""
    if spec.policy == "partition":
        start, end, batches, busy = _in_slices(spec, tasks, costs, task, arrival_ns)
    else:
        fair = Fair([one.weight for one in tasks])
        of, whole, extra = task.tolist(), costs[1.0], spec.extension_time_ns

        def act(queues: list[list[int]], now: int) -> Taken:
            batch = (fair.batch if spec.policy == "shared" else _own)(queues, spec.sizes)
            different = len({of[r] for r in batch})
            return batch, int(whole[spec.sizes.index(len(batch))]) + extra * different, 0

        start, end, _, batches, busy = in_turns(task, arrival_ns, len(tasks), act)
    return Hosted(spec, tasks, costs[1.0], weights, memory, task, arrival_ns, start, end, batches, busy)


class Fair:
    """Weighted fair queueing by start tags: a task's tag grows by requests over weight, the lowest tag goes first, and
    a task that was not waiting begins at the tag that was served last. Ties: the earlier request."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.tags = [0.0] * len(weights)
        self.waits = [False] * len(weights)
        self.last = 0.0

    def batch(self, queues: list[list[int]], sizes: list[int]) -> list[int]:
        """Takes the next batch out of the queues, request by request over all tasks."""
        for k, queue in enumerate(queues):
            if queue and not self.waits[k]:
                self.tags[k] = max(self.tags[k], self.last)
            self.waits[k] = bool(queue)
        size = sizes[largest(sizes, sum(len(queue) for queue in queues))]
        return [self._next(queues) for _ in range(size)]

    def _next(self, queues: list[list[int]]) -> int:
        k = min((self.tags[k], queue[0], k) for k, queue in enumerate(queues) if queue)[2]
        self.last = self.tags[k]
        self.tags[k] += 1 / self.weights[k]
        self.waits[k] = len(queues[k]) > 1
        return queues[k].pop(0)


def _own(queues: list[list[int]], sizes: list[int]) -> list[int]:
    """Takes the request that has waited longest, and as many of the same task as fit."""
    k = min((queue[0], k) for k, queue in enumerate(queues) if queue)[1]
    size = sizes[largest(sizes, len(queues[k]))]
    taken, queues[k] = queues[k][:size], queues[k][size:]
    return taken


def _shares(tasks: list[BackboneTask]) -> list[float]:
    whole = sum(one.weight for one in tasks)
    return [one.weight / whole for one in tasks]


def _in_slices(
    spec: Backbone, tasks: list[BackboneTask], costs: dict[float, I64], task: I64, arrival_ns: I64
) -> tuple[I64, I64, int, int]:
    """Serves each task alone on its slice of the device. Returns starts, ends, number of batches, and busy time."""
    start, end = np.zeros_like(arrival_ns), np.zeros_like(arrival_ns)
    batches, busy = 0, 0.0
    for k, share in enumerate(_shares(tasks)):
        mine = np.flatnonzero(task == k)
        cost, extra = costs[share], round(spec.extension_time_ns / share)

        def act(queues: list[list[int]], now: int, cost: I64 = cost, extra: int = extra) -> Taken:
            j = largest(spec.sizes, len(queues[0]))
            batch, queues[0] = queues[0][: spec.sizes[j]], queues[0][spec.sizes[j] :]
            return batch, int(cost[j]) + extra, 0

        start[mine], end[mine], _, more, used = in_turns(np.zeros_like(mine), arrival_ns[mine], 1, act)
        batches, busy = batches + more, busy + share * used
    return start, end, batches, round(busy)


def _weight_bytes(model: str) -> int:
    """Bytes of all weights in 16 bits, including the head."""
    from etude.make.generate import Plan, generate
    from etude.make.generate.model import open_model

    plan = Plan.from_dict({"gpus": 1, "micro_batch": 1, "global_batch": 1}, model)
    return 2 * generate(open_model(model), plan).params


def backbone_record(found: Hosted) -> dict[str, Any]:
    """The record that `etude fleet --json` prints."""
    from etude.world.fleet.services.results import spread

    spec, latency = found.spec, found.end_ns - found.arrival_ns
    whole = int(found.end_ns.max())
    rows = []
    for k, one in enumerate(found.tasks):
        mine = found.task == k
        rows.append({
            "name": one.name, "weight": one.weight, "requests": int(mine.sum()), "latency_s": spread(latency[mine]),
        })  # fmt: skip
    return contract(whole / 1e9, found.busy_ns / 1e9, flat(rows)) | {
        "kind": "backbone", "policy": spec.policy, "requests": len(found.task), "latency_s": spread(latency),
        "wait_s": spread(found.start_ns - found.arrival_ns), "batch": len(found.task) / found.batches,
        "hosted": found.fit, "backbone_bytes": found.weight_bytes, "extension_bytes": spec.extension_bytes,
        "memory_bytes": found.memory_bytes, "backlogged": backlogged(found),
        "backbone_s": {str(size): int(found.costs[j]) / 1e9 for j, size in enumerate(spec.sizes)},
        "device_s": {"busy": found.busy_ns / 1e9, "idle": (whole - found.busy_ns) / 1e9, "there": whole / 1e9},
        "utilisation": found.busy_ns / whole, "tasks": rows,
    }  # fmt: skip


def backbone_tables(found: Hosted, record: dict[str, Any]) -> dict[str, pa.Table]:
    """Tables of requests, batches (`states`) and tasks. Batches that tasks share have the name of the backbone."""
    from etude.world.fleet.services.results import batches, request_columns

    names = pa.array([*(one.name for one in found.tasks), found.spec.backbone], pa.string())
    shared = found.spec.policy == "shared"
    of = np.full_like(found.task, len(found.tasks)) if shared else found.task
    requests = pa.table(
        {
            "task": names.take(pa.array(found.task)),
            **request_columns(found.arrival_ns, found.start_ns, found.end_ns),
        }
    )
    states = batches(found.start_ns, found.end_ns, of, names)
    return {"requests": requests, "states": states, "jobs": pa.Table.from_pylist(record["jobs"])}


def backlogged(found: Hosted) -> dict[str, Any] | None:
    """For the longest time in which requests of every task were waiting after each batch: the number of each that was
    served, and the largest deviation of a task from its share, in requests, after any batch. None without such a
    time."""
    if found.spec.policy != "shared":
        return None
    at = np.unique(found.start_ns)
    waits = np.ones(len(at), bool)
    served = np.zeros((len(at), len(found.tasks)), np.int64)
    for k in range(len(found.tasks)):
        mine = found.task == k
        served[:, k] = np.searchsorted(found.start_ns[mine], at, "right")
        waits &= np.searchsorted(found.arrival_ns[mine], at, "right") > served[:, k]
    edges = np.flatnonzero(np.diff(np.concatenate(([0], waits.view(np.int8), [0]))))
    if not len(edges):
        return None
    first, past = max(edges.reshape(-1, 2).tolist(), key=lambda span: span[1] - span[0])
    got = served[first:past] - (served[first - 1] if first else 0)
    fair = np.outer(got.sum(1), _shares(found.tasks))
    return {
        "requests": got[-1].tolist(),
        "share": (got[-1] / got[-1].sum()).tolist(),
        "off": float(abs(got - fair).max()),
        "time_s": int(at[past - 1] - at[first]) / 1e9,
    }
