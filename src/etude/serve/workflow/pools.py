"""Pool: the replicas of one model of a workflow, which calls are given to as they become ready."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.errors import UsageError
from etude.serve import state as of
from etude.serve.cache import CacheRules
from etude.serve.deployment import Deployment
from etude.serve.energy import Energy
from etude.serve.engine import Engine
from etude.serve.loop import advance, there_on
from etude.serve.pieces import Pieces, pieces_of
from etude.serve.prefix import no_prefix, prefix_of
from etude.serve.requests import Requests
from etude.serve.serving import Replica
from etude.serve.steps import StepCost
from etude.serve.store import no_store, store_of

NO_LOG = np.zeros((0, len(of.Logged)), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What a role of a workflow runs on."""

    cost: StepCost
    engine: Engine
    replicas: int = 1
    blocks: int = 0
    energy: Energy
    caching: CacheRules
    token_bytes: float = 0.0


class Pool:
    """Rows of its state are given out in the order in which calls come. `requests` has all calls that may come."""

    def __init__(self, name: str, on: Deployed, requests: Requests, router: str, seed: int) -> None:
        self.name, self.on, self.requests = name, on, requests
        self.rules = on.engine.rules(router, on.blocks)
        caching, block = on.caching, self.rules.block
        prefix: Any = no_prefix()
        store: Any = no_store()
        self.parts: list[tuple[Pieces, Pieces]] = []
        if self.rules.prefix:
            prefix = prefix_of(requests, caching, on.replicas, block)
            mine = _empty(prefix.pieces)
            self.parts.append((pieces_of(requests, caching, block, way="prefix"), mine))
            prefix = prefix._replace(pieces=mine)
        if caching.stores:
            store = store_of(requests, caching, on.replicas, block, on.token_bytes)
            mine = _empty(store.pieces)
            self.parts.append((pieces_of(requests, caching, block), mine))
            store = store._replace(pieces=mine)
        columns = np.full((len(requests), 4), of.NEVER, np.int64)
        self.state = of.start(columns, on.replicas, on.engine.max_num_seqs, prefix, store, seed)
        self.state.clock[of.STOPS] = 1
        self.rows: list[int] = []
        """Call of each row."""
        self.ended = np.zeros(len(requests), bool)
        most = requests.prompt + requests.output
        wrong = np.flatnonzero(-(-most // block) > self.rules.blocks)
        if len(wrong):
            raise UsageError(
                f"a call of {most[wrong[0]]:,} tokens never fits the {self.rules.blocks:,} blocks of `{name}`",
                hint="a higher tp of its role",
            )

    def give(self, call: int, at_ns: int) -> None:
        """A call is ready."""
        r, all_ = len(self.rows), self.requests
        self.rows.append(call)
        self.state.request[r, :4] = at_ns, all_.prompt[call], all_.output[call], all_.session[call]
        for whole, mine in self.parts:
            begin, end = whole.start[call], whole.start[call + 1]
            at = mine.start[r]
            mine.start[r + 1] = at + end - begin
            for column in ("ids", "ends", "next_use"):
                getattr(mine, column)[at : at + end - begin] = getattr(whole, column)[begin:end]

    def next_ns(self) -> int:
        """When something happens here next."""
        clock, q = self.state.clock, self.state.request
        arrival = q[clock[of.NEXT], of.ARRIVAL] if clock[of.NEXT] < len(self.rows) else of.NEVER
        return int(min(self.state.replica[:, of.END].min(), arrival))

    def advance(self, until_ns: int, place: Any) -> list[tuple[int, int]]:
        """Runs to a moment, or until calls are answered: (call, when) of these."""
        clock = self.state.clock
        clock[of.UNTIL] = until_ns
        while (why := advance(self.state, self.rules, self.on.cost, self.on.energy, NO_LOG)) == of.ASKED:
            clock[of.CHOSEN] = place(self, self.rows[int(clock[of.NEXT])])
        if why == of.STUCK and clock[of.MISFIT] != of.NOBODY:
            raise UsageError(f"a call never gets room on `{self.name}`", hint="a higher tp of its role")
        finish = self.state.request[: len(self.rows), of.FINISH]
        new = np.flatnonzero((finish != of.NEVER) & ~self.ended[: len(self.rows)])
        self.ended[new] = True
        return [(self.rows[r], int(finish[r])) for r in new.tolist()]

    def seen(self, *, asked: bool = False) -> list[Replica]:
        """What hooks see of its replicas; with `asked` also what they have of the call that comes next."""
        row_of = int(self.state.clock[of.NEXT])
        return [
            Replica(
                row[of.RUNNING], row[of.WAITING + 2] + row[of.INBOX + 2], row[of.PENDING], row[of.USED],
                int(there_on(self.state, self.rules, i, row_of)) if asked else 0,
            )
            for i, row in enumerate(self.state.replica.tolist())
        ]  # fmt: skip


def _empty(whole: Pieces) -> Pieces:
    zero = np.zeros_like(whole.start)
    return whole._replace(
        start=zero, ids=np.zeros_like(whole.ids), ends=np.zeros_like(whole.ends), next_use=np.zeros_like(whole.next_use)
    )


def placed_on(placed: Deployment, engine: Engine, *, ranks: int, replicas: int) -> Deployed:
    """A deployment as what a role runs on."""
    return Deployed(
        cost=placed.cost, engine=engine, replicas=replicas, blocks=placed.blocks, energy=placed.energy,
        caching=placed.caching, token_bytes=placed.token_bytes * ranks,
    )  # fmt: skip
