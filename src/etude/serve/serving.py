"""serve(requests, engine, cost): the requests answered, and when each got its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.errors import UsageError
from etude.serve import state as of
from etude.serve.cache import CacheRules
from etude.serve.energy import UNKNOWN, Energy
from etude.serve.engine import ROUTERS, Engine
from etude.serve.loop import advance, there_on
from etude.serve.prefix import no_prefix, prefix_of
from etude.serve.requests import Requests
from etude.serve.steps import StepCost
from etude.serve.store import no_store, store_of

I64 = NDArray[np.int64]
LOG_ROWS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Replica:
    """What a router sees of a replica."""

    running: int
    waiting: int
    queued_tokens: int
    """Tokens in and out that its requests still need."""
    blocks_used: int
    found_tokens: int = 0
    """Of this request's prompt, with a cache of prefixes."""


Route = Callable[[dict[str, int], list[Replica], float], Any]
"""route(request, replicas, now_s) -> the number of a replica."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What happened. `passes` has a row for each pass if they were kept."""

    requests: Requests
    state: of.State
    engine: Engine
    blocks: int
    """Of keys and values, on a replica."""
    passes: pa.Table | None = None
    energy: Energy = UNKNOWN

    def column(self, name: str) -> I64:
        """Of the requests: one of `state.Column`."""
        return self.state.request[:, of.Column[name]]

    def count(self, name: str) -> I64:
        """Of the replicas: one of `state.Count`."""
        return self.state.replica[:, of.Count[name]]


def serve(
    requests: Requests,
    engine: Engine,
    cost: StepCost,
    *,
    replicas: int = 1,
    router: str | Route = "turn",
    blocks: int = 0,
    energy: Energy = UNKNOWN,
    caching: CacheRules | None = None,
    token_bytes: float = 0.0,
    keep_passes: bool = False,
    seed: int = 0,
) -> Served:
    """All requests, until the last has its answer. `blocks` is the room for keys and values where the engine names
    none. `caching` are the engine's own rules with the rates of a system, and `token_bytes` keys and values of a token
    on all ranks of a replica."""
    if replicas < 1:
        raise UsageError(f"{replicas} replicas")
    if isinstance(router, str) and router not in ROUTERS:
        raise UsageError(f"unknown router `{router}`", hint=f"known: {', '.join(ROUTERS)}, or FILE.py:name")
    caching = caching or engine.caching
    if router in ("prefix", "affinity") and caching.mode == "none":
        raise UsageError(f"the router `{router}` looks for what a cache has", hint="--cache prefix")
    rules = engine.rules(router if isinstance(router, str) else "", blocks)
    _check_fits(requests, rules)
    columns = np.stack([requests.arrival_ns, requests.prompt, requests.output, requests.session], axis=1)
    prefix = prefix_of(requests, caching, replicas, rules.block) if rules.prefix else no_prefix()
    store = store_of(requests, caching, replicas, rules.block, token_bytes) if caching.stores else no_store()
    state = of.start(columns, replicas, engine.max_num_seqs, prefix, store, seed)
    log = np.zeros((max(LOG_ROWS, 2 * replicas) if keep_passes else 0, len(of.Logged)), np.int64)
    kept: list[pa.Table] = []
    while (why := advance(state, rules, cost, energy, log)) != of.DONE:
        if why == of.FULL:
            kept.append(_logged(log, state))
        elif why == of.ASKED:
            _ask(router, state, rules, replicas)  # type: ignore[arg-type]
        else:
            raise UsageError("never gets room", where=f"request {state.clock[of.MISFIT]}")
    if keep_passes:
        kept.append(_logged(log, state))
    return Served(requests, state, engine, rules.blocks, pa.concat_tables(kept) if keep_passes else None, energy)


def _check_fits(requests: Requests, rules: of.Rules) -> None:
    """A request that never fits would be tried for ever."""
    most = requests.prompt + requests.output - (0 if rules.reserve else 1)
    wrong = np.flatnonzero(-(-most // rules.block) > rules.blocks)
    if len(wrong):
        i = int(wrong[0])
        raise UsageError(
            f"{requests.prompt[i]:,} tokens in and {requests.output[i]:,} out never fit the {rules.blocks:,} blocks of "
            f"{rules.block} tokens of a replica",
            where=f"request {i}",
            hint="more ranks in --tp, more memory, or leave it away",
        )


def _ask(router: Route, state: of.State, rules: of.Rules, replicas: int) -> None:
    """The user's router says where the next request goes."""
    number = int(state.clock[of.NEXT])
    arrival_ns, prompt, output, session = state.request[number, :4].tolist()
    request = {"request": number, "prompt": prompt, "output": output, "session": session}
    seen = [
        Replica(
            row[of.RUNNING],
            row[of.WAITING + 2] + row[of.INBOX + 2],
            row[of.PENDING],
            row[of.USED],
            int(there_on(state, rules, i, number)),
        )
        for i, row in enumerate(state.replica.tolist())
    ]
    now_s = arrival_ns / 1e9
    name = getattr(router, "__name__", "route")
    try:
        chosen = router(request, seen, now_s)
    except Exception as problem:
        raise UsageError(f"`{name}` raised {type(problem).__name__}: {problem}", where=f"request {number}") from problem
    if isinstance(chosen, bool) or not isinstance(chosen, int | np.integer) or not 0 <= chosen < replicas:
        raise UsageError(f"`{name}` returned {chosen!r}", where=f"request {number}", hint=f"0 to {replicas - 1}")
    state.clock[of.CHOSEN] = int(chosen)


def _logged(log: I64, state: of.State) -> pa.Table:
    """What is in the log, which is empty then."""
    rows = int(state.clock[of.LOGGED])
    state.clock[of.LOGGED] = 0
    return pa.table({column.name.lower(): log[:rows, column].copy() for column in of.Logged})
