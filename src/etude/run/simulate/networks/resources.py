"""Named capacities that running nodes share: `sm`, `hbm`, `pcie` of a rank, `nic`, `dram`, `cpu` of a node, or any
other.

Each class of nodes draws a fraction of each capacity while it runs at full rate. Within a capacity, classes of a higher
priority get what they want first; those of one priority share the rest max-min fairly by weight. A node runs at the
lowest of the rates that its capacities give it; an operation at the lowest of its members'.

A class may yield only at chunk boundaries: a node in the middle of a chunk is *held*, which is a class of its own with
precedence over all others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.kernels.arrays import F64, I32, I64
from etude.kernels.compile import kernel
from etude.model.use import Use

CLASSES: Final = ("compute", "communication", "memory", "host")
COMMUNICATION: Final = 1
HELD: Final = len(CLASSES)
"""Added to the class of a node that is in the middle of a chunk."""
ALL: Final = 2 * HELD
FULL: Final = 1 << 16
"""Work of one ns at the full rate."""
FIRST: Final = -1
"""Priority of what is held."""


class Resources(NamedTuple):
    """Tables of [capacity, class], [pool, class] and [instance, class]. A pool is one capacity of a rank, or of ranks
    that share it: pool p belongs to the instances member[start[p]:start[p + 1]]."""

    class_of: I32  # of each use; -1: shares nothing
    demand: F64  # fraction that one node draws at full rate
    weight: F64
    priority: I64  # the least comes first
    pool: I32  # [capacity, instance]
    start: I64
    member: I32
    running: I64  # [pool, class]: nodes that run
    rate: I64  # [instance, class], of FULL
    share: F64  # [class]: scratch space
    chunk_ns: I64  # of each program row, at full rate; 0: yields at once. Empty: all do


def make_resources(
    demand: F64, weight: F64, priority: I64, pool: I32, *, chunk_ns: I64 | None = None, by_rate: bool = True
) -> Resources:
    """Tables of [capacity, class of CLASSES], and the pool of each capacity and instance. `by_rate`: nodes of all uses
    take part; otherwise only those that compute."""
    capacities, instances = pool.shape
    order = np.argsort(pool.ravel(), kind="stable")
    pools = int(pool.max(initial=-1)) + 1
    class_of = np.full(len(Use), -1, np.int32)
    class_of[Use.COMPUTE] = CLASSES.index("compute")
    if by_rate:
        class_of[Use.MEMORY], class_of[Use.HOST] = CLASSES.index("memory"), CLASSES.index("host")
    return Resources(
        class_of,
        np.tile(demand.reshape(capacities, HELD), 2),
        np.tile(weight.reshape(capacities, HELD), 2),
        np.hstack([priority.reshape(capacities, HELD), np.full((capacities, HELD), FIRST)]).astype(np.int64),
        pool.astype(np.int32),
        np.searchsorted(pool.ravel()[order], np.arange(pools + 1)).astype(np.int64),
        (order % max(instances, 1)).astype(np.int32),
        np.zeros((pools, ALL), np.int64),
        np.full((instances, ALL), FULL, np.int64),
        np.zeros(ALL),
        np.zeros(0, np.int64) if chunk_ns is None else chunk_ns,
    )


@kernel(allocates=False)
def count(resources: Resources, i: int, klass: int, amount: int) -> None:
    """Adds to the number of running nodes of a class on an instance."""
    for r in range(len(resources.pool)):
        resources.running[resources.pool[r, i], klass] += amount


@kernel(allocates=False)
def set_rates(resources: Resources, i: int) -> None:
    """Computes the rates of the classes on an instance, from everything that runs on instances that share a
    capacity."""
    rate, share = resources.rate, resources.share
    for c in range(ALL):
        rate[i, c] = FULL
    for r in range(len(resources.demand)):
        running = resources.running[resources.pool[r, i]]
        left = 1.0
        level, done = FIRST, FIRST - 1
        while level > done:  # one priority after another
            left = _fill(resources, running, r, level, left)
            done = level
            for c in range(ALL):
                p = resources.priority[r, c]
                if p > done and (level == done or p < level):
                    level = p
        for c in range(ALL):
            wanted = resources.demand[r, c]
            if wanted > 0.0 and running[c] > 0:
                rate[i, c] = min(rate[i, c], max(int(FULL * min(share[c] / wanted, 1.0) + 0.5), 1))


@kernel(allocates=False)
def _fill(resources: Resources, running: I64, r: int, level: int, left: float) -> float:
    """Share of `left` for one node of each class of a priority: max-min fair by weight. Returns what remains."""
    share, priority, demand, weight = resources.share, resources.priority[r], resources.demand[r], resources.weight[r]
    for c in range(ALL):
        if priority[c] == level:
            share[c] = -1.0
    while True:
        weights = 0.0
        for c in range(ALL):
            if priority[c] == level and share[c] < 0:
                weights += weight[c] * running[c]
        if weights <= 0.0:
            break
        even = left / weights
        met = False
        for c in range(ALL):
            if priority[c] == level and share[c] < 0 and (demand[c] <= even * weight[c] or running[c] == 0):
                share[c] = demand[c]
                left -= share[c] * running[c]
                met = True
        if not met:
            for c in range(ALL):
                if priority[c] == level and share[c] < 0:
                    share[c] = even * weight[c]
            return 0.0
    for c in range(ALL):
        if priority[c] == level and share[c] < 0:
            share[c] = 0.0
    return max(left, 0.0)
