"""Requests go through their layers; each layer calls the functions of the experts that its tokens chose.

A call goes to the idle instance that was used last. If none is idle it starts a new one, or waits if their number is
limited. Calls of a layer are sent one after another, and the layer ends with the last answer. Ties: the lower request
number first, then the lower number of the function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.kernels.arrays import I64
from etude.world.clock import NEVER, LoneEntity, run_alone
from etude.world.fleet.functions.costs import ExpertPieces, expert_pieces
from etude.world.fleet.functions.spec import Functions


@dataclass(slots=True, eq=False)
class FunctionRequests(LoneEntity):
    """Requests on the clock, each in one layer of one of its passes; ns."""

    spec: Functions
    pieces: ExpertPieces
    tenant: I64
    arrival_ns: I64
    groups: list[I64]
    """Of each request: time of (pass, layer, function), 0 where it is not called."""
    sizes: I64 = field(init=False)
    """Experts of each function; functions are separate by tenant if not shared."""
    first_ns: I64 = field(init=False)
    """Time of the first output token."""
    end_ns: I64 = field(init=False)
    keep: int = field(init=False)
    there: list[list[list[int]]] = field(init=False)
    """[time when free, start] of each instance of a function."""
    held: list[int] = field(init=False)
    """Instance time of each function, from start to end, of instances that have ended."""
    times: list[int] = field(default_factory=list)
    """Time at which each call reaches its function."""
    colds: list[bool] = field(default_factory=list)
    waited_ns: int = 0
    """Time that calls waited for a busy instance."""
    busy_ns: int = 0
    """Compute time of all instances."""
    starting_ns: int = 0
    """Time of all instances in cold starts."""

    def __post_init__(self) -> None:
        own = np.append(np.arange(0, self.pieces.experts, self.spec.experts_per_function), self.pieces.experts)
        self.sizes = np.tile(np.diff(own), self.pieces.layers * (1 if self.spec.shared else self.spec.tenants))
        keep = self.spec.keep_ns
        self.keep, self.there = (
            NEVER if keep is None else keep,
            [[] if keep is not None else [[0, 0]] for _ in self.sizes],
        )
        self.held = [0] * len(self.sizes)
        self.first_ns, self.end_ns = np.zeros_like(self.arrival_ns), np.zeros_like(self.arrival_ns)
        for request, at in enumerate(self.arrival_ns.tolist()):
            self._layer(at, request, 0, 0)

    def _layer(self, at: int, request: int, number: int, layer: int) -> None:
        """The request will reach the experts of a layer, after what comes before them."""
        ready = at + int(self.pieces.beside_ns[number, layer])
        self.later.note(ready, "layer", (request, number, layer), rank=request)

    def happen(self, kind: str, about: Any) -> None:
        request, number, layer = about
        done = self._called(request, number, layer)
        if layer + 1 < self.pieces.layers:
            self._layer(done, request, number, layer + 1)
            return
        done += int(self.pieces.beside_ns[number, layer + 1])
        if number == 0:
            self.first_ns[request] = done
        if number + 1 < self.spec.output:
            self._layer(done, request, number + 1, 0)
        else:
            self.end_ns[request] = done

    def _called(self, request: int, number: int, layer: int) -> int:
        """Sends the calls of a layer; when the last is answered."""
        done, row = self.now_ns, self.groups[request][number, layer]
        first = ((0 if self.spec.shared else int(self.tenant[request]) * self.pieces.layers) + layer) * len(row)
        for sent, k in enumerate(np.flatnonzero(row).tolist(), 1):
            at, takes = self.now_ns + sent * self.spec.invoke_ns, int(row[k])
            one = self._instance(first + k, at)
            self.waited_ns += max(one[0] - at, 0) if not self.colds[-1] else 0
            one[0] = max(one[0], at) + takes
            self.busy_ns += takes
            done = max(done, one[0])
        return done

    def _instance(self, function: int, at: int) -> list[int]:
        """The one that a call gets."""
        self._end_idle(function, at)
        there = self.there[function]
        idle = [one for one in there if one[0] <= at]
        cold = not idle and (not self.spec.instances or len(there) < self.spec.instances)
        self.times.append(at)
        self.colds.append(cold)
        if not cold:
            return max(idle) if idle else min(there)
        load_ns = 1e9 * self.pieces.expert_bytes / self.spec.load_bytes_per_s if self.spec.load_bytes_per_s else 0.0
        starts = self.spec.cold_ns + round(load_ns * int(self.sizes[function]))
        self.starting_ns += starts
        there.append([at + starts, at])
        return there[-1]

    def _end_idle(self, function: int, now: int) -> None:
        """Ends instances that were idle for longer than they are kept."""
        there = self.there[function]
        for one in [one for one in there if one[0] + self.keep < now]:
            self.held[function] += one[0] + self.keep - one[1]
            there.remove(one)

    @property
    def duration_ns(self) -> int:
        return max(int(self.end_ns.max(initial=0)), self.spec.duration_ns)

    def held_ns(self) -> I64:
        """Instance time of each function, up to the end."""
        for function in range(len(self.there)):
            self._end_idle(function, self.duration_ns)
        still = [sum(self.duration_ns - start for _, start in there) for there in self.there]
        return np.array(self.held, np.int64) + still


def call_functions(spec: Functions, pieces: ExpertPieces | None = None, *, seed: int = 0) -> FunctionRequests:
    return run_alone(function_requests(spec, pieces, seed=seed))


def function_requests(spec: Functions, pieces: ExpertPieces | None = None, *, seed: int = 0) -> FunctionRequests:
    """All requests before the first arrives."""
    pieces = pieces or expert_pieces(spec)
    tenant, arrival = arrivals(spec, seed)
    groups = [work(spec, pieces, np.random.default_rng([seed, 1, r])) for r in range(len(arrival))]
    return FunctionRequests(spec, pieces, tenant, arrival, groups)


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
