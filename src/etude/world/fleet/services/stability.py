"""The best action for all queues: for each candidate, the service of all waiting requests is simulated to its end."""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import I64
from etude.kernels.compile import kernel


def by_shortening(costs: list[I64]) -> I64:
    """Times in ns by (service, number of exits before the last, batch size). A service with fewer exits stays at its
    first."""
    deepest = max(len(cost) for cost in costs)
    return np.stack([[cost[max(len(cost) - 1 - less, 0)] for less in range(deepest)] for cost in costs])


def stable_action(
    queues: list[list[int]], deadline: I64, costs: list[I64], shortened: I64, sizes: list[int], now: int
) -> tuple[int, int, int]:
    """(service, exit, index of the batch size) after which the fewest waiting requests would be late, if the rest were
    served by deadline, in the largest batches, at the same depth. A request ends with its batch. Ties: the deepest
    exit, then the earliest deadline, then the largest batch."""
    start = np.zeros(len(queues) + 1, np.int64)
    start[1:] = np.cumsum([len(queue) for queue in queues])
    limits = deadline[np.array([request for queue in queues for request in queue], np.int64)]
    first = sorted((int(deadline[queue[0]]), queue[0], k) for k, queue in enumerate(queues) if queue)
    order = np.array([k for _, _, k in first], np.int64)
    exits = np.array([len(cost) for cost in costs], np.int64)
    k, less, j = _fewest_late(limits, start, order, exits, shortened, np.array(sizes, np.int64), now)
    return int(k), len(costs[k]) - 1 - int(less), int(j)


@kernel
def _fewest_late(
    limits: I64, start: I64, order: I64, exits: I64, costs: I64, sizes: I64, now: int
) -> tuple[int, int, int]:
    fewest, found = -1, (0, 0, 0)
    for less in range(costs.shape[1]):
        for k in order:
            if less >= exits[k]:
                continue
            for j in range(_largest(sizes, start[k + 1] - start[k]), -1, -1):
                late = _late_after(limits, start, costs[:, less], sizes, k, j, now)
                if fewest < 0 or late < fewest:
                    fewest, found = late, (k, less, j)
                if late == 0:
                    return found
    return found


@kernel
def _late_after(limits: I64, start: I64, costs: I64, sizes: I64, first: int, first_size: int, now: int) -> int:
    """Number of waiting requests that are late if `first` goes first. `limits` of queue k are in order, from
    `start[k]`."""
    head, late, k, j = start[:-1].copy(), 0, first, first_size
    while k >= 0:
        now += costs[k, j]
        late += int(np.sum(limits[head[k] : head[k] + sizes[j]] < now))
        head[k] += sizes[j]
        k = -1
        for other in range(len(head)):
            if head[other] < start[other + 1] and (k < 0 or limits[head[other]] < limits[head[k]]):
                k = other
        if k >= 0:
            j = _largest(sizes, start[k + 1] - head[k])
    return late


@kernel
def _largest(sizes: I64, waiting: int) -> int:
    found = 0
    while found + 1 < len(sizes) and sizes[found + 1] <= waiting:
        found += 1
    return found
