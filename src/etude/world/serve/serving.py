"""serve(requests, engine, cost): the requests answered, and when each got its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.kernels.rows import Table, field_of
from etude.world.serve import state as of
from etude.world.serve.adapters import NO_LORA, LoraCost, adapters_of
from etude.world.serve.cache import CacheRules
from etude.world.serve.energy import UNKNOWN, ReplicaPower
from etude.world.serve.engine import FOREVER, STEAL, Engine, admit_code
from etude.world.serve.hooks import NO_HOOKS, HookAnswers, Hooks, Route, loop_with
from etude.world.serve.machines import Machines, machines_of
from etude.world.serve.prefix import no_prefix, prefix_of
from etude.world.serve.requests import Requests
from etude.world.serve.reuse import no_reuse, reuse_of
from etude.world.serve.steps import StepCost
from etude.world.serve.store import no_store, store_of
from etude.world.serve.wire import NO_WIRE

LOG_ROWS: Final = 1 << 18
NO_LOG: Final = np.zeros(0, of.PASS)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Equal replicas."""

    cost: StepCost
    count: int = 1
    role: int = of.BOTH
    blocks: int = 0
    """Blocks of keys and values on each; 0: no limit."""
    energy: ReplicaPower = UNKNOWN
    token_bytes: float = 0.0
    """Keys and values of a token on a rank, which a swap moves."""
    error: tuple[float, float] | None = None
    """Error of interpolated step costs, median and largest, if known."""


class Control(Protocol):
    """Called between two calls of the loop; may open and close replicas."""

    @property
    def changes(self) -> list[dict[str, Any]]: ...
    def start(self, state: of.State, rules: of.Rules) -> None: ...
    def after(self, state: of.State, why: int) -> None: ...
    def held_ns(self, now: int) -> I64: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Options of a run, apart from the rules of the engine."""

    router: str | Route = "turn"
    admit: str = "off"
    """Parallel branches of an answer: `off`, `eager`, `cap:4`, `slack`, `slack:0.5`."""
    tpot_ns: float = 0.0
    """Limit for each further token, from which slack is counted."""
    decide_ns: int = 0
    """Time of the router per request, one after another."""
    wire: of.KvWire = NO_WIRE
    caching: CacheRules | None = None
    """The engine's own rules with the rates of a system."""
    token_bytes: float = 0.0
    """Keys and values of a token on all ranks of a replica."""
    draft: StepCost | None = None
    """Cost of the draft model; None: it takes no time."""
    lora: LoraCost = NO_LORA
    """Costs of the adapters of requests."""
    image_ns: int = 0
    """Time of the tower per image."""
    stages: tuple[float, ...] = (1.0,)
    """Part of the layers of each stage; as many replicas in a row share the stages."""
    hooks: Hooks = NO_HOOKS
    control: Control | None = None
    """Changes plans or replicas while requests are served: `elastic`."""
    keep_passes: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What happened. `passes` has a row for each pass if they were kept."""

    requests: Requests
    state: of.State
    engine: Engine
    blocks: int
    """Blocks of keys and values on a replica: the smallest of all."""
    passes: pa.Table | None = None
    energy: ReplicaPower = UNKNOWN
    energies: tuple[ReplicaPower, ...] = field(default=())
    """Energy model of each replica."""
    held_ns: I64 | None = None
    """Time that each replica was held; None: all the time."""
    changes: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Served({len(self.requests.arrival_ns):,} requests on {len(self.state.replica):,} replicas)"

    def summary(self, slo: str = "") -> dict[str, Any]:
        """First tokens, tails and goodput; `slo` as `etude serve --slo`: `ttft=1s,tpot=50ms`."""
        from etude.world.serve.limits import parse_limits
        from etude.world.serve.results import summary

        return summary(self, limits=parse_limits(slo))

    def table(self) -> pa.Table:
        """A row for each request."""
        from etude.world.serve.results import request_table

        return request_table(self)

    def column(self, name: str) -> I64:
        """A field of the requests: `FINISH` is `finish_ns`."""
        return self.state.request[field_of(of.REQUEST, name)]

    def count(self, name: str) -> I64:
        """A field of the replicas: `BUSY` is `busy_ns`."""
        return self.state.replica[field_of(of.REPLICA, name)]


def serve(
    requests: Requests,
    engine: Engine,
    cost: StepCost | Sequence[Group],
    *,
    replicas: int = 1,
    blocks: int = 0,
    energy: ReplicaPower = UNKNOWN,
    **given: Any,
) -> Served:
    """All requests, until the last has its answer. `cost` applies to all replicas, with their `blocks` and `energy`, or
    is a list of groups; `given` are `ServingOptions`."""
    if replicas < 1:
        raise UsageError(f"{replicas} replicas")
    groups = [Group(cost, replicas, of.BOTH, blocks, energy)] if isinstance(cost, StepCost) else list(cost)
    options = ServingOptions(**given)
    ready = ready_for(requests, engine, groups, options)
    state = ready.state
    passes = run(state, ready.rules, ready.machines, options, ready.asked)
    energies = tuple(group.energy for group in groups for _ in range(group.count))
    room = int(state.replica["room"].min())
    control, held = options.control, None
    if control is not None:
        held = control.held_ns(int(state.request["finish_ns"].max()))
    changes = [] if control is None else control.changes
    return Served(requests, state, engine, room, passes, energies[0], energies, held, changes)


class Ready(NamedTuple):
    """A run before its first event."""

    state: of.State
    rules: of.Rules
    machines: Machines
    asked: HookAnswers


def ready_for(requests: Requests, engine: Engine, groups: Sequence[Group], options: ServingOptions) -> Ready:
    rules = rules_of(engine, groups, options)
    state = start_of(requests, engine, groups, rules, options)
    _check(requests, engine, rules, state, options)
    machines = group_machines(groups, options.draft)
    return Ready(state, rules, machines, HookAnswers(options.hooks, options.router, rules))


def group_machines(groups: Sequence[Group], draft: StepCost | None = None) -> Machines:
    """A kind of machine for each group, and one for the draft model."""
    kinds = [(group.cost, group.energy) for group in groups]
    return machines_of(kinds if draft is None else [*kinds, (draft, UNKNOWN)])


def rules_of(engine: Engine, groups: Sequence[Group], options: ServingOptions) -> of.Rules:
    router, hooks = options.router if isinstance(options.router, str) else "", options.hooks
    if router.removesuffix(STEAL) in ("prefix", "affinity") and engine.caching.mode == "none":
        raise UsageError(f"the router `{router}` needs a cache", hint="--cache prefix")
    admit, value = admit_code(options.admit)
    if admit == of.SLACK and not options.tpot_ns:
        raise UsageError("slack needs a limit per token", hint="--slo tpot=50ms")
    swap = max(group.token_bytes for group in groups) * 1e9 / engine.swap_bandwidth_bytes_per_s
    if engine.preemption_mode == "swap" and not swap:
        raise UsageError("the size of the keys and values of a token is not known", hint="recompute")
    more: dict[str, Any] = {"apart": int(any(group.role != of.BOTH for group in groups))}
    if hooks.route is not None:
        router = ""
    if hooks.place is not None:
        more["place"] = of.ASK
    elif not router:
        more["place"] = of.LEAST
    lora = options.lora
    more |= {
        "lora_load_ns": lora.load_ns,
        "lora_pass_ns": lora.pass_ns,
        "lora_adapter_ns": lora.adapter_ns,
        "lora_token_ns": lora.token_ns,
        "image_ns": options.image_ns,
        "stages": len(options.stages),
    }
    wire = options.wire if hooks.choose is None else options.wire._replace(choice=of.ASK_CODEC)
    return engine.rules(
        router, admit=admit, admit_value=value, tpot_ns=float(options.tpot_ns), wire=wire,
        swap_ns=float(swap) if engine.preemption_mode == "swap" else 0.0,
        draft=len(groups) if options.draft is not None and engine.num_speculative_tokens else of.NOBODY, **more,
    )  # fmt: skip


def start_of(
    requests: Requests,
    engine: Engine,
    groups: Sequence[Group],
    rules: of.Rules,
    options: ServingOptions,
    kinds: int = 1,
) -> of.State:
    """The initial state; `kinds` are the kinds of calls of the requests."""
    total = sum(group.count for group in groups)
    caching = options.caching or engine.caching
    prefix = prefix_of(requests, caching, total, rules.block) if rules.prefix else no_prefix()
    store = no_store()
    if caching.stores:
        wire = rules.wire._replace(token_bytes=float(options.token_bytes))
        store = store_of(requests, caching, total, rules.block, options.token_bytes, wire)
    reuse = reuse_of(requests, kinds) if caching.policy == "expected" else no_reuse()
    adapters = adapters_of(total, int(requests.adapter.max()) + 1 if engine.max_loras else 1)
    state = of.start(
        requests,
        total,
        engine.max_num_seqs,
        prefix,
        store,
        adapters,
        reuse,
        seed=options.seed,
        decide_ns=options.decide_ns,
        stages=options.stages,
    )
    first = 0
    for kind, group in enumerate(groups):
        mine = state.replica[first : first + group.count]
        mine["kind"], mine["role"] = kind, group.role
        mine["room"] = engine.num_gpu_blocks or group.blocks or FOREVER
        first += group.count
    return state


def run(
    state: of.State, rules: of.Rules, machines: Machines, options: ServingOptions, asked: HookAnswers
) -> pa.Table | None:
    """The loop, with its hooks; the passes if they are kept."""
    keep = options.keep_passes
    log = np.zeros(max(LOG_ROWS, 2 * len(state.replica)) if keep else 0, of.PASS)
    kept: list[pa.Table] = []
    advance, control = loop_with(options.hooks), options.control
    if control is not None:
        control.start(state, rules)
    while (why := advance(state, rules, machines, log)) != of.DONE:
        if why == of.FULL:
            kept.append(_logged(log, state))
        elif why == of.ASKED:
            asked.answer(state)
        elif why == of.STUCK or control is None:
            stuck(state)
        if control is not None:
            control.after(state, why)
    if keep:
        kept.append(_logged(log, state))
    return pa.concat_tables(kept) if keep else None


def stuck(state: of.State) -> None:
    """Raises UsageError for a request that never gets memory."""
    request = int(state.clock["misfit"][0])
    if request == of.NOBODY:
        request = int(np.flatnonzero(state.request["finish_ns"] == of.NEVER)[0])
    raise UsageError(
        "never gets memory", where=f"request {request}", hint="check what a hook admits, and the memory of replicas"
    )


def _check(requests: Requests, engine: Engine, rules: of.Rules, state: of.State, options: ServingOptions) -> None:
    """Requests that could never be served, or options without a meaning."""
    role = state.replica["role"]
    if (role == of.PREFILL).any() != (role == of.DECODE).any():
        raise UsageError("prefill and decode each need replicas", hint="--disaggregate 2:6")
    if engine.num_speculative_tokens and requests.branches.max() > 1:
        raise UsageError("a draft proposes tokens for one branch", where=f"request {int(requests.branches.argmax())}")
    if (requests.adapter >= 0).any():
        where = f"request {int((requests.adapter >= 0).argmax())}"
        if not engine.max_loras:
            raise UsageError("has an adapter, but there is no slot for one", where=where, hint="--max-loras 4")
        if options.control is not None:
            raise UsageError("adapters need a fixed plan", where=where, hint="leave out changes of the plan")
    if state.store.coded != of.NOBODY:
        if options.wire is NO_WIRE or not options.token_bytes:
            raise UsageError("--cache: `coded` needs a codec, and bytes of keys and values", hint="--kv-codec FILE.csv")
        if options.hooks.choose is not None:
            raise UsageError(
                "--cache: `coded`: the hook `choose` applies only to transfers between replicas", hint="--kv-choose"
            )
    if requests.images.any() and not rules.image_ns:
        where = f"request {int((requests.images > 0).argmax())}"
        raise UsageError(
            "has images, but the model has no tower for them", where=where, hint="use a model with a tower"
        )
    room = state.replica["room"]
    for roles, tokens in (
        ((of.PREFILL,), requests.prompt),
        ((of.BOTH, of.DECODE), requests.prompt + requests.output - (0 if rules.reserve else 1)),
    ):
        mine = np.isin(role, roles)
        least = int(room[mine].min()) if mine.any() else FOREVER
        wrong = np.flatnonzero(-(-tokens // rules.block) > least)
        if len(wrong):
            i = int(wrong[0])
            raise UsageError(
                f"{requests.prompt[i]:,} tokens in and {requests.output[i]:,} out never fit the {least:,} blocks of "
                f"{rules.block} tokens of a replica",
                where=f"request {i}",
                hint="use more --tp, more memory, or leave the request out",
            )


def _logged(log: Table, state: of.State) -> pa.Table:
    """The content of the log, which is emptied."""
    rows = int(state.clock["logged"][0])
    state.clock["logged"][0] = 0
    return pa.table({name: log[name][:rows].copy() for name in of.PASS.names or ()})
