"""Pool: the replicas of one model of a workflow; calls are added as they become ready."""

from __future__ import annotations

from collections.abc import Callable
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
from etude.world.serve.loop import advance
from etude.world.serve.pieces import CachePieces
from etude.world.serve.requests import Requests
from etude.world.serve.routing import there_on
from etude.world.serve.serving import NO_LOG, Group, ServingOptions, group_machines, rules_of, start_of
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
        self.name, self.on, self.requests, self.kinds = name, on, requests, kinds
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
        self.ended = np.zeros(len(requests), bool)
        self.room = int(state.replica["room"].min())
        self.loop: Callable[..., int] = advance

    def give(self, call: int, at_ns: int) -> None:
        """A call is ready."""
        r, all_ = len(self.rows), self.requests
        if -(-(all_.prompt[call] + all_.output[call]) // self.rules.block) > self.room:
            raise UsageError(
                f"a call of {all_.prompt[call] + all_.output[call]:,} tokens never fits the {self.room:,} blocks of "
                f"`{self.name}`",
                hint="use a higher tp for its role",
            )
        self.rows.append(call)
        asked = self.in_rows.request[r]
        asked.arrival_ns = asked.at_ns = at_ns
        asked.prompt, asked.output, asked.session = all_.prompt[call], all_.output[call], all_.session[call]
        asked.task, asked.tenant = self.kinds[call], all_.tenant[call]
        asked.weight = all_.weights[all_.tenant[call]] if all_.weights else 1000
        for whole, mine in self.parts:
            begin, end = whole.start[call], whole.start[call + 1]
            at = mine.start[r]
            mine.start[r + 1] = at + end - begin
            for column in ("ids", "ends", "next_use"):
                getattr(mine, column)[at : at + end - begin] = getattr(whole, column)[begin:end]

    def next_ns(self) -> int:
        """When something happens here next."""
        arriving = self.in_rows.clock[0].next
        arrival = self.state.request["at_ns"][arriving] if arriving < len(self.rows) else of.NEVER
        landing = self.state.replica["landing"]["first"]
        landed = self.state.request["ready_ns"][landing[landing != of.NOBODY]].min(initial=of.NEVER)
        ready = self.state.replica["ready_ns"]
        woken = ready[ready > self.in_rows.clock[0].now_ns].min(initial=of.NEVER)
        return int(min(self.state.replica["end_ns"].min(), arrival, landed, woken))

    def advance(self, until_ns: int, place: Any) -> list[tuple[int, int]]:
        """Runs to a time, or until calls are answered: (call, when) of these."""
        clock = self.in_rows.clock[0]
        clock.until_ns = until_ns
        while (why := self.loop(self.state, self.rules, self.machines, NO_LOG)) == of.ASKED:
            clock.chosen = place(self, self.rows[clock.about])
        if why == of.STUCK and clock.misfit != of.NOBODY:
            raise UsageError(f"a call never gets memory on `{self.name}`", hint="use a higher tp for its role")
        finish = self.state.request["finish_ns"][: len(self.rows)]
        new = np.flatnonzero((finish != of.NEVER) & ~self.ended[: len(self.rows)])
        self.ended[new] = True
        return [(self.rows[r], int(finish[r])) for r in new.tolist()]

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
