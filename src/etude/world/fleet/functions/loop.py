"""Requests go through their layers; each layer calls the functions of the experts that its tokens chose.

A call goes to the idle instance that was used last. If none is idle it starts a new one, or waits if their number is
limited. Calls of a layer are sent one after another, and the layer ends with the last answer. Ties: the lower request
number first, then the lower number of the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.world.fleet.functions.costs import ExpertPieces, expert_pieces
from etude.world.fleet.functions.spec import Functions


@dataclass(frozen=True, slots=True, eq=False)
class FunctionRequests:
    """Times of requests and totals of functions; ns."""

    spec: Functions
    pieces: ExpertPieces
    tenant: I64
    arrival_ns: I64
    first_ns: I64
    """Time of the first output token."""
    end_ns: I64
    time_ns: I64
    """Time at which each call reaches its function."""
    cold: NDArray[np.bool_]
    waited_ns: int
    """Time that calls waited for a busy instance."""
    held_ns: I64
    """Instance time of each function, from start to end, summed over instances; separate by tenant if not shared."""
    sizes: I64
    """Number of experts in each of these functions."""
    started: int
    """Number of instances, including those present from the beginning."""
    busy_ns: int
    """Compute time of all instances."""
    starting_ns: int
    """Time of all instances in cold starts."""
    duration_ns: int


def call_functions(spec: Functions, pieces: ExpertPieces | None = None, *, seed: int = 0) -> FunctionRequests:
    pieces = pieces or expert_pieces(spec)
    tenant, arrival = arrivals(spec, seed)
    groups = [work(spec, pieces, np.random.default_rng([seed, 1, r])) for r in range(len(arrival))]
    return run_calls(spec, pieces, tenant, arrival, groups)


def arrivals(spec: Functions, seed: int) -> tuple[I64, I64]:
    """Tenant and time of each request, in order of time. Each tenant has its own random stream."""
    times, of = [], []
    for k in range(spec.tenants):
        draws, mean = np.random.default_rng([seed, 0, k]), spec.duration_ns / spec.every_ns
        gaps = draws.exponential(spec.every_ns, int(mean + 8 * mean**0.5) + 20)
        own = np.cumsum(gaps).astype(np.int64)
        own = own[own < spec.duration_ns]
        times.append(own)
        of.append(np.full(len(own), k, np.int64))
    arrival, tenant = np.concatenate(times), np.concatenate(of)
    order = np.lexsort((tenant, arrival))
    return tenant[order], arrival[order]


def work(spec: Functions, pieces: ExpertPieces, draws: np.random.Generator) -> I64:
    """Time in ns of (pass, layer, function) for one request; 0: not called. Tokens choose experts uniformly, and
    independently of how experts are grouped into functions."""
    tokens, shape = np.zeros((spec.output, pieces.layers, pieces.experts), np.int64), (pieces.layers, pieces.experts)
    for at, count in ((0, spec.prompt), *((p, 1) for p in range(1, spec.output))):
        drawn = draws.random((count, *shape), np.float32)
        chosen = np.argpartition(drawn, pieces.top_k - 1, axis=2)[..., : pieces.top_k]
        met = np.zeros((count, *shape), np.bool_)
        np.put_along_axis(met, chosen, True, axis=2)
        tokens[at] = met.sum(axis=0)
    edges = np.arange(0, pieces.experts, spec.experts_per_function)
    number, rows = (np.add.reduceat(a, edges, axis=2) for a in ((tokens > 0).astype(np.int64), tokens))
    return np.where(number > 0, np.maximum(pieces.service_ns(number, rows), 1), 0)


def run_calls(
    spec: Functions, pieces: ExpertPieces, tenant: I64, arrival_ns: I64, groups: list[I64]
) -> FunctionRequests:
    layers, edges = pieces.layers, np.arange(0, pieces.experts, spec.experts_per_function)
    width = len(edges)
    sizes = np.tile(np.diff(np.append(edges, pieces.experts)), layers * (1 if spec.shared else spec.tenants))
    load = 1e9 * pieces.expert_bytes / spec.load_bytes_per_s if spec.load_bytes_per_s else 0.0
    cold_ns = (spec.cold_ns + np.rint(load * sizes).astype(np.int64)).tolist()
    keep, most, invoke = spec.keep_ns, spec.instances, spec.invoke_ns
    beside = pieces.beside_ns.tolist()
    # [time when free, start] of every instance of a function
    there: list[list[list[int]]] = [[[0, 0]] if keep is None else [] for _ in sizes]
    held = [0] * len(sizes)
    first, end = np.zeros_like(arrival_ns), np.zeros_like(arrival_ns)
    times: list[int] = []
    colds: list[bool] = []
    started, waited, busy, starting = (len(sizes) if keep is None else 0), 0, 0, 0
    queue = [(int(t) + beside[0][0], r, 0, 0) for r, t in enumerate(arrival_ns)]
    heapify(queue)
    while queue:
        now, request, p, layer = queue[0]
        done, base = now, (0 if spec.shared else int(tenant[request]) * layers * width) + layer * width
        row = groups[request][p, layer]
        for sent, k in enumerate(np.flatnonzero(row).tolist(), 1):
            at, f = now + sent * invoke, base + k
            mine = there[f]
            if keep is not None:
                for one in [one for one in mine if one[0] + keep < at]:
                    held[f] += one[0] + keep - one[1]
                    mine.remove(one)
            idle = [one for one in mine if one[0] <= at]
            cold = not idle and (not most or len(mine) < most)
            if cold:
                taken = [at + cold_ns[f], at]
                mine.append(taken)
                started, starting = started + 1, starting + cold_ns[f]
            else:
                taken = max(idle) if idle else min(mine)
                waited += max(taken[0] - at, 0)
            taken[0] = max(taken[0], at) + int(row[k])
            busy += int(row[k])
            done = max(done, taken[0])
            times.append(at)
            colds.append(cold)
        if layer + 1 < layers:
            heapreplace(queue, (done + beside[p][layer + 1], request, p, layer + 1))
            continue
        done += beside[p][layers]
        if p == 0:
            first[request] = done
        if p + 1 < spec.output:
            heapreplace(queue, (done + beside[p + 1][0], request, p + 1, 0))
        else:
            end[request] = done
            heappop(queue)
    whole = max(int(end.max(initial=0)), spec.duration_ns)
    for f, mine in enumerate(there):
        for one in mine:
            held[f] += (whole if keep is None else min(one[0] + keep, whole)) - one[1]
    return FunctionRequests(
        spec, pieces, tenant, arrival_ns, first, end, np.array(times, np.int64), np.array(colds, np.bool_), waited,
        np.array(held, np.int64), sizes, started, busy, starting, whole,
    )  # fmt: skip
