"""Pool: the replicas of one model of a workflow; calls are added as they become ready."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.world.serve import state as of
from etude.world.serve.cache import CacheRules
from etude.world.serve.deployment import Deployment
from etude.world.serve.energy import ReplicaPower
from etude.world.serve.engine import Engine
from etude.world.serve.hooks import Replica, seen_replica
from etude.world.serve.loop import PoolState
from etude.world.serve.pieces import CachePieces
from etude.world.serve.requests import Requests
from etude.world.serve.routing import there_on
from etude.world.serve.serving import Group, ServingOptions, group_machines, rules_of, start_of
from etude.world.serve.steps import StepCost
from etude.world.serve.wire import NO_WIRE, wire_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """Deployment of a role of a workflow."""

    cost: StepCost
    engine: Engine
    replicas: int = 1
    blocks: int = 0
    energy: ReplicaPower
    caching: CacheRules
    token_bytes: float = 0.0
    weights_bytes: float = 0.0
    """Weights of a rank."""
    prefill: int = 0
    """Replicas that read prompts alone, the first of them; the others write the answers. 0: all do both."""
    wire: of.KvWire = NO_WIRE
    """What keys and values go through between the two."""

    def groups(self) -> list[Group]:
        parts = [(self.prefill, of.PREFILL), (self.replicas - self.prefill, of.DECODE)]
        roles = parts if self.prefill else [(self.replicas, of.BOTH)]
        return [Group(self.cost, count, role, self.blocks, self.energy) for count, role in roles]


class ModelPool:
    """Rows of its state are assigned in the order in which calls come. `requests` has all calls that may come, `kinds`
    the number of the task of each; without a router the caller chooses the replica of each."""

    def __init__(self, name: str, on: Deployed, requests: Requests, kinds: list[int], router: str, seed: int) -> None:
        self.name, self.on = name, on
        options = ServingOptions(
            router=router or _nobody, caching=on.caching, token_bytes=on.token_bytes, wire=on.wire, seed=seed
        )
        groups = on.groups()
        self.rules = rules_of(on.engine, groups, options)
        self.machines = group_machines(groups)
        state = start_of(requests, on.engine, groups, self.rules, options, max(kinds) + 1)
        state.request["arrival_ns"] = state.request["at_ns"] = of.NEVER
        state.clock["stops"][0] = 1
        self.parts: list[tuple[CachePieces, CachePieces]] = []
        """Pieces of all calls, and of those added, in the order of rows."""
        if self.rules.prefix:
            self.parts.append((state.prefix.pieces, _empty(state.prefix.pieces)))
            state = state._replace(prefix=state.prefix._replace(pieces=self.parts[-1][1]))
        if on.caching.stores:
            self.parts.append((state.store.pieces, _empty(state.store.pieces)))
            state = state._replace(store=state.store._replace(pieces=self.parts[-1][1]))
        self.state, self.in_rows = state, of.in_rows(state)
        self.rows: list[int] = []
        """Call of each row."""
        weight = np.asarray(requests.weights or (1000,), np.int64)[requests.tenant]
        columns = requests.prompt, requests.output, requests.session, np.array(kinds), requests.tenant, weight
        self.calls: list[list[int]] = np.stack(columns, axis=1).tolist()
        """Of each call what a request asks for."""
        self.starts: list[list[int]] = [whole.start.tolist() for whole, _ in self.parts]
        self.room = int(state.replica["room"].min())

    def give(self, call: int, at_ns: int) -> None:
        """A call is ready."""
        r, its = len(self.rows), self.calls[call]
        if -(-(its[0] + its[1]) // self.rules.block) > self.room:
            raise UsageError(
                f"a call of {its[0] + its[1]:,} tokens never fits the {self.room:,} blocks of `{self.name}`",
                hint="use a higher tp for its role",
            )
        self.rows.append(call)
        asked = self.in_rows.request[r]
        asked.arrival_ns = asked.at_ns = at_ns
        asked.prompt, asked.output, asked.session, asked.task, asked.tenant, asked.weight = its
        for (whole, mine), start in zip(self.parts, self.starts, strict=True):
            begin, end = start[call], start[call + 1]
            at = int(mine.start[r])
            upto = mine.start[r + 1] = at + end - begin
            mine.ids[at:upto] = whole.ids[begin:end]
            mine.ends[at:upto] = whole.ends[begin:end]
            mine.next_use[at:upto] = whole.next_use[begin:end]

    def on_clock(self) -> PoolState:
        """It as the compiled loop takes it."""
        return PoolState(self.state, self.rules, self.machines)

    def after(self, why: int, place: Any) -> list[tuple[int, int]]:
        """The loop stopped: (call, when) of those that are answered."""
        clock = self.in_rows.clock[0]
        if why == of.ASKED:
            clock.chosen = place(self, self.rows[clock.about])
            return []
        if why == of.STUCK and clock.misfit != of.NOBODY:
            raise UsageError(f"a call never gets memory on `{self.name}`", hint="use a higher tp for its role")
        ended, r = [], clock.ended.first
        while r != of.NOBODY:
            ended.append(r)
            r = self.in_rows.request[r].next
        clock.ended.first, clock.ended.last, clock.ended.count = of.NO_REQUESTS
        return [(self.rows[r], self.in_rows.request[r].finish_ns) for r in sorted(ended)]

    def seen(self, *, asked: bool = False) -> list[Replica]:
        """What hooks see of its replicas; with `asked` also what they hold of the call to be placed."""
        about = self.in_rows.clock[0].about
        return [
            seen_replica(self.in_rows, i, int(there_on(self.state, self.rules, i, about)) if asked else 0)
            for i in range(self.on.replicas)
        ]


def _nobody(*_: Any) -> int:
    return of.NOBODY


def _empty(whole: CachePieces) -> CachePieces:
    zero = np.zeros_like(whole.start)
    return whole._replace(
        start=zero, ids=np.zeros_like(whole.ids), ends=np.zeros_like(whole.ends), next_use=np.zeros_like(whole.next_use)
    )


def placed_on(placed: Deployment, engine: Engine, *, ranks: int, replicas: int) -> Deployed:
    """A deployment for a role."""
    return Deployed(
        cost=placed.cost, engine=engine, replicas=replicas, blocks=placed.blocks, energy=placed.energy,
        caching=placed.caching, token_bytes=placed.token_bytes * ranks, weights_bytes=placed.weights_bytes,
    )  # fmt: skip


def split_replicas(on: Deployed, prefill: int, decode: int, bytes_per_s: float, latency_ns: int) -> Deployed:
    """The same with this many replicas that read prompts, and that write answers, for each of its replicas."""
    wire = wire_of(on.token_bytes, bytes_per_s, latency_ns, choose="best")
    return replace(on, replicas=on.replicas * (prefill + decode), prefill=on.replicas * prefill, wire=wire)
