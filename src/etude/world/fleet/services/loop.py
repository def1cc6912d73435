"""One device that serves in turns: an action is a service, an exit and a batch, chosen whenever the device is free.

Ties: the lower request number first, which is the earlier arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from etude.kernels.arrays import I64
from etude.world.clock import NEVER, DiscreteEntity, run_alone
from etude.world.fleet.services.costs import forward_costs
from etude.world.fleet.services.spec import Service, Services
from etude.world.fleet.services.stability import by_shortening, stable_action

Queues = list[list[int]]
Action = tuple[int, int, int]
"""(service, exit, index of the batch size)."""
Taken = tuple[list[int], int, int]
"""(requests of the batch, ns, exit)."""
Act = Callable[[Queues, int], Taken]
"""Takes a batch out of the queues."""


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

    def act(queues: Queues, now: int) -> Taken:
        if spec.policy == "stability":
            k, taken, j = stable_action(queues, aimed, costs, shortened, spec.sizes, now)
        else:
            k, taken, j = (_edf if spec.policy == "edf" else _fifo)(queues, aimed, costs, spec.sizes, now)
        return take(queues, k, spec.sizes[j]), int(costs[k][taken, j]), taken

    device = run_alone(DeviceTurns(len(services), service, arrival_ns, act))
    return ServiceTurns(
        spec, services, costs, service, arrival_ns, device.start_ns, device.end_ns, device.exit, deadline,
        device.batches, device.busy_ns,
    )  # fmt: skip


class DeviceTurns(DiscreteEntity):
    """A device, or a slice of one, that takes a batch out of its queues whenever it is free and requests wait."""

    name = "device"

    def __init__(self, queues: int, queue: I64, arrival_ns: I64, act: Act) -> None:
        self.act = act
        self.start_ns, self.end_ns, self.exit = (np.zeros_like(arrival_ns) for _ in range(3))
        self.queues: Queues = [[] for _ in range(queues)]
        self.coming = deque(zip(arrival_ns.tolist(), queue.tolist(), range(len(queue)), strict=True))
        self.free_ns = self.busy_ns = self.batches = 0

    def due_ns(self) -> int:
        if any(self.queues):
            return self.free_ns
        return max(self.free_ns, self.coming[0][0]) if self.coming else NEVER

    def instant(self, now: int) -> None:
        while self.coming and self.coming[0][0] <= now:
            _, queue, request = self.coming.popleft()
            self.queues[queue].append(request)
        batch, took, taken = self.act(self.queues, now)
        self.free_ns = now + took
        self.start_ns[batch], self.end_ns[batch], self.exit[batch] = now, self.free_ns, taken
        self.busy_ns += took
        self.batches += 1


def take(queues: Queues, k: int, count: int) -> list[int]:
    """Takes the first requests out of a queue."""
    batch, queues[k] = queues[k][:count], queues[k][count:]
    return batch


def oldest(queues: Queues) -> int:
    """The queue whose request has waited longest."""
    return min((queue[0], k) for k, queue in enumerate(queues) if queue)[1]


def largest(sizes: list[int], waiting: int) -> int:
    return max(j for j, size in enumerate(sizes) if size <= waiting)


def _fifo(queues: Queues, deadline: I64, costs: list[I64], sizes: list[int], now: int) -> Action:
    """The service whose request has waited longest, with the whole network and as many of its requests as fit."""
    k = oldest(queues)
    return k, len(costs[k]) - 1, largest(sizes, len(queues[k]))


def _edf(queues: Queues, deadline: I64, costs: list[I64], sizes: list[int], now: int) -> Action:
    """The service with the earliest deadline, with the last exit at which its first request is in time. Other queues
    are ignored."""
    k = min((deadline[queue[0]], queue[0], k) for k, queue in enumerate(queues) if queue)[2]
    j = largest(sizes, len(queues[k]))
    inside = np.flatnonzero(now + costs[k][:, j] <= deadline[queues[k][0]])
    return k, int(inside[-1]) if len(inside) else 0, j
