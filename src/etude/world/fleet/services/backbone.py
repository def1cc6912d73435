"""Tasks that share one backbone, on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.world.clock import run_alone
from etude.world.fleet.contract import contract, flat
from etude.world.fleet.services.costs import forward_costs
from etude.world.fleet.services.loop import Act, DeviceTurns, Queues, Taken, drawn, largest, oldest, take
from etude.world.fleet.services.results import batches, request_columns, spread
from etude.world.fleet.services.spec import Backbone, BackboneTask


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
        problem = f"{len(tasks)} tasks, but memory has room for {fit} under `{spec.policy}`"
        raise UsageError(problem, where=spec.backbone, hint=f"tasks: {fit}" if fit else "memory: 16GB")
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
    apart = spec.policy == "partition"
    start, end, made, busy = np.zeros_like(arrival_ns), np.zeros_like(arrival_ns), 0, 0.0
    for k, share in enumerate(_shares(tasks) if apart else [1.0]):
        mine = np.flatnonzero(task == k) if apart else np.arange(len(task))
        act = _act(spec, tasks, task[mine], costs[share], round(spec.extension_time_ns / share))
        device = run_alone(DeviceTurns(len(tasks), task[mine], arrival_ns[mine], act))
        start[mine], end[mine] = device.start_ns, device.end_ns
        made, busy = made + device.batches, busy + share * device.busy_ns
    return Hosted(spec, tasks, costs[1.0], weights, memory, task, arrival_ns, start, end, made, round(busy))


def _act(spec: Backbone, tasks: list[BackboneTask], task: I64, cost: I64, extra_ns: int) -> Act:
    """Batches of a device: over all tasks if they share the backbone, else as many of the same task as fit."""
    fair, sizes = Fair([one.weight for one in tasks]), spec.sizes

    def act(queues: Queues, now: int) -> Taken:
        if spec.policy == "shared":
            batch = fair.batch(queues, sizes)
        else:
            k = oldest(queues)
            batch = take(queues, k, sizes[largest(sizes, len(queues[k]))])
        return batch, int(cost[sizes.index(len(batch))]) + extra_ns * len(np.unique(task[batch])), 0

    return act


class Fair:
    """Weighted fair queueing by start tags: a task's tag grows by requests over weight, the lowest tag goes first, and
    a task that was not waiting begins at the tag that was served last. Ties: the earlier request."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.tags = [0.0] * len(weights)
        self.waits = [False] * len(weights)
        self.last = 0.0

    def batch(self, queues: Queues, sizes: list[int]) -> list[int]:
        """Takes the next batch out of the queues, request by request over all tasks."""
        for k, queue in enumerate(queues):
            if queue and not self.waits[k]:
                self.tags[k] = max(self.tags[k], self.last)
            self.waits[k] = bool(queue)
        size = sizes[largest(sizes, sum(len(queue) for queue in queues))]
        return [self._next(queues) for _ in range(size)]

    def _next(self, queues: Queues) -> int:
        k = min((self.tags[k], queue[0], k) for k, queue in enumerate(queues) if queue)[2]
        self.last = self.tags[k]
        self.tags[k] += 1 / self.weights[k]
        self.waits[k] = len(queues[k]) > 1
        return queues[k].pop(0)


def _shares(tasks: list[BackboneTask]) -> list[float]:
    whole = sum(one.weight for one in tasks)
    return [one.weight / whole for one in tasks]


def _weight_bytes(model: str) -> int:
    """Bytes of all weights in 16 bits, including the head."""
    from etude.make.generate import Plan, generate
    from etude.make.generate.model import open_model

    plan = Plan.from_dict({"gpus": 1, "micro_batch": 1, "global_batch": 1}, model)
    return 2 * generate(open_model(model), plan).params


def backbone_record(found: Hosted) -> dict[str, Any]:
    """The record that `etude fleet --json` prints."""
    spec, latency = found.spec, found.end_ns - found.arrival_ns
    whole = int(found.end_ns.max())
    rows = []
    for k, one in enumerate(found.tasks):
        mine = found.task == k
        rows.append(
            {"name": one.name, "weight": one.weight, "requests": int(mine.sum()), "latency_s": spread(latency[mine])}
        )
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
    names = pa.array([*(one.name for one in found.tasks), found.spec.backbone], pa.string())
    shared = found.spec.policy == "shared"
    of = np.full_like(found.task, len(found.tasks)) if shared else found.task
    requests = pa.table(
        {"task": names.take(pa.array(found.task)), **request_columns(found.arrival_ns, found.start_ns, found.end_ns)}
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
