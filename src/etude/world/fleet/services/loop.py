"""One device that serves in turns: an action is a service, an exit and a batch, chosen whenever the device is free.

Ties: the lower request number first, which is the earlier arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import I64
from etude.world.fleet.services.costs import forward_costs
from etude.world.fleet.services.spec import Service, Services
from etude.world.fleet.services.stability import by_shortening, stable_action

Action = tuple[int, int, int]
"""(service, exit, index of the batch size)."""
Taken = tuple[list[int], int, int]
"""(requests of the batch, ns, exit)."""


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTurns:
    """Times of each request; ns."""

    spec: Services
    services: list[Service]
    costs: list[I64]
    service: I64
    arrival_ns: I64
    start_ns: I64
    end_ns: I64
    exit: I64
    deadline_ns: I64
    batches: int
    busy_ns: int


def serve_services(spec: Services, services: list[Service], *, seed: int = 0) -> ServiceTurns:
    costs = [forward_costs(one.model, spec.system, one.exits, spec.sizes) for one in services]
    rates = [one.rate for one in services]
    if spec.load:
        rates = [spec.load * 1e9 * spec.sizes[-1] / sum(int(cost[-1, -1]) for cost in costs)] * len(services)
    service, arrival = drawn(rates, spec.count, seed)
    return run_turns(spec, services, costs, service, arrival)


def drawn(rates: list[float], count: int, seed: int) -> tuple[I64, I64]:
    """Service and time of Poisson arrivals; each service has its own random stream, the same for every policy."""
    horizon = count / sum(rates)
    times, of = [], []
    for k, rate in enumerate(rates):
        draws = np.random.default_rng([seed, k])
        gaps = draws.exponential(1e9 / rate, int(rate * horizon * 1.5) + 100)
        times.append(np.cumsum(gaps).astype(np.int64))
        of.append(np.full(len(gaps), k, np.int64))
    arrival, service = np.concatenate(times), np.concatenate(of)
    order = np.lexsort((service, arrival))[:count]
    return service[order], arrival[order]


def run_turns(spec: Services, services: list[Service], costs: list[I64], service: I64, arrival_ns: I64) -> ServiceTurns:
    limit = np.array([one.deadline_ns for one in services], np.int64)
    deadline = arrival_ns + limit[service]
    aimed = arrival_ns + np.floor(limit[service] * (1 - spec.headroom)).astype(np.int64)
    shortened = by_shortening(costs)

    def act(queues: list[list[int]], now: int) -> Taken:
        if spec.policy == "stability":
            k, taken, j = stable_action(queues, aimed, costs, shortened, spec.sizes, now)
        else:
            k, taken, j = (_edf if spec.policy == "edf" else _fifo)(queues, aimed, costs, spec.sizes, now)
        size = spec.sizes[j]
        batch, queues[k] = queues[k][:size], queues[k][size:]
        return batch, int(costs[k][taken, j]), taken

    start, end, exits, batches, busy = in_turns(service, arrival_ns, len(services), act)
    return ServiceTurns(spec, services, costs, service, arrival_ns, start, end, exits, deadline, batches, busy)


def in_turns(
    of_queue: I64, arrival_ns: I64, queues_in_all: int, act: Callable[[list[list[int]], int], Taken]
) -> tuple[I64, I64, I64, int, int]:
    """Start, end and exit of each request; number of batches; busy time. `act` takes a batch out of the queues."""
    start, end, exits = np.zeros_like(arrival_ns), np.zeros_like(arrival_ns), np.zeros_like(arrival_ns)
    queues: list[list[int]] = [[] for _ in range(queues_in_all)]
    came, of = arrival_ns.tolist(), of_queue.tolist()
    now = coming = batches = busy = done = 0
    while done < len(came):
        if not any(queues):
            now = max(now, came[coming])
        while coming < len(came) and came[coming] <= now:
            queues[of[coming]].append(coming)
            coming += 1
        batch, took, taken = act(queues, now)
        start[batch], end[batch], exits[batch] = now, now + took, taken
        now, busy, batches, done = now + took, busy + took, batches + 1, done + len(batch)
    return start, end, exits, batches, busy


def largest(sizes: list[int], waiting: int) -> int:
    return max(j for j, size in enumerate(sizes) if size <= waiting)


def _fifo(queues: list[list[int]], deadline: I64, costs: list[I64], sizes: list[int], now: int) -> Action:
    """The service whose request has waited longest, with the whole network and as many of its requests as fit."""
    k = min((queue[0], k) for k, queue in enumerate(queues) if queue)[1]
    return k, len(costs[k]) - 1, largest(sizes, len(queues[k]))


def _edf(queues: list[list[int]], deadline: I64, costs: list[I64], sizes: list[int], now: int) -> Action:
    """The service with the earliest deadline, with the last exit at which its first request is in time. Other queues
    are ignored."""
    k = min((deadline[queue[0]], queue[0], k) for k, queue in enumerate(queues) if queue)[2]
    j = largest(sizes, len(queues[k]))
    inside = np.flatnonzero(now + costs[k][:, j] <= deadline[queues[k][0]])
    return k, int(inside[-1]) if len(inside) else 0, j
