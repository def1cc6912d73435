"""Named capacities of a rank that what runs there shares: `sm`, `hbm`, `pcie`, or any other name.

Each class of nodes (compute, communication, memory) draws a part of each capacity while it runs at full rate. Of one
capacity the classes of a higher priority have what they want first; those of one priority share what is left max-min
fairly by weight. A node runs at the least of the rates that its capacities give it; an operation at the least of its
members'.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel
from etude.kernels.heap import Heap, push
from etude.simulate.networks.state import I64, OperationState, Table

F64 = NDArray[np.float64]

COMPUTE, COMMUNICATION, MEMORY = 0, 1, 2
CLASSES: Final = ("compute", "communication", "memory")
FULL: Final = 1 << 16
"""Work of one ns at the full rate."""


class Resources(NamedTuple):
    demand: F64  # [capacity, class]: part that one node draws at full rate
    weight: F64  # [capacity, class]
    priority: I64  # [capacity, class]; the least comes first
    memory: I64  # of each instance: memory nodes that run
    rate: I64  # [instance, class], of FULL
    left: F64  # [class]: room for a computation


def make_resources(demand: F64, weight: F64, priority: I64, instances: int) -> Resources:
    rate = np.full((instances, len(CLASSES)), FULL, np.int64)
    return Resources(demand, weight, priority, np.zeros(instances, np.int64), rate, np.zeros(len(CLASSES)))


@kernel(allocates=False)
def set_rates(resources: Resources, instances: Table, i: int) -> None:
    """Rates of the classes on an instance, from what runs there."""
    rate, share = resources.rate, resources.left
    for c in range(3):
        rate[i, c] = FULL
    for r in range(len(resources.demand)):
        left = 1.0
        done = -1
        while True:  # one priority after another
            level = -1
            for c in range(3):
                p = resources.priority[r, c]
                if p > done and (level < 0 or p < level):
                    level = p
            if level < 0:
                break
            left = _fill(resources, instances, i, r, level, left, share)
            done = level
        for c in range(3):
            wanted = resources.demand[r, c]
            if wanted > 0.0 and _running(resources, instances, i, c) > 0:
                rate[i, c] = min(rate[i, c], max(int(FULL * min(share[c] / wanted, 1.0) + 0.5), 1))


@kernel(allocates=False)
def _running(resources: Resources, instances: Table, i: int, c: int) -> int:
    if c == COMPUTE:
        return instances[i].computing
    if c == COMMUNICATION:
        return instances[i].communicating
    return resources.memory[i]


@kernel(allocates=False)
def _fill(resources: Resources, instances: Table, i: int, r: int, level: int, left: float, share: F64) -> float:
    """What one node of each class of a priority gets of `left`: max-min fair by weight. Returns what remains."""
    for c in range(3):
        if resources.priority[r, c] == level:
            share[c] = -1.0
    while True:
        weights = 0.0
        for c in range(3):
            if resources.priority[r, c] == level and share[c] < 0:
                weights += resources.weight[r, c] * _running(resources, instances, i, c)
        if weights <= 0.0:
            break
        even = left / weights
        met = False
        for c in range(3):
            if resources.priority[r, c] == level and share[c] < 0:
                count = _running(resources, instances, i, c)
                if resources.demand[r, c] <= even * resources.weight[r, c] or count == 0:
                    share[c] = resources.demand[r, c]
                    left -= share[c] * count
                    met = True
        if not met:
            for c in range(3):
                if resources.priority[r, c] == level and share[c] < 0:
                    share[c] = even * resources.weight[r, c]
            return 0.0
    for c in range(3):
        if resources.priority[r, c] == level and share[c] < 0:
            share[c] = 0.0
    return max(left, 0.0)


@kernel(allocates=False)
def retime_work(shared: Table, rate: I64, first: int, nodes: Table, ends: Heap, now_ns: int) -> None:
    """Nodes of an instance run on at its rates; `rate` is that of each class there, `first` the head of their list."""
    node = first
    while node >= 0:
        work = shared[node]
        new = rate[work.klass]
        if new != work.rate:
            work.left -= (now_ns - work.since_ns) * work.rate
            work.since_ns = now_ns
            work.rate = new
            nodes[node].end_ns = now_ns + (max(work.left, 0) + new - 1) // new
            push(ends, nodes[node].end_ns, node)
        node = work.after


@kernel(allocates=False)
def retime_members(shared: Table, rate: I64, first: int, operations: OperationState, nodes: Table, now_ns: int) -> None:
    """Operations with members on an instance run on at the least rate of all members that have come."""
    node = first
    while node >= 0:
        op = nodes[node].op
        it = operations.table[op]
        new = FULL
        member = it.last_comer
        while member >= 0:
            new = min(new, rate[nodes[member].instance, COMMUNICATION])
            member = nodes[member].comer_before
        if new != it.slow:
            it.left -= (now_ns - it.since_ns) * it.slow
            it.since_ns = now_ns
            it.slow = new
            it.end_ns = now_ns + (max(it.left, 0) + new - 1) // new
            push(operations.ends, it.end_ns, op)
        node = shared[node].after
