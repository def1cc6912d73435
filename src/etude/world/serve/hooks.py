"""Hooks: user functions that replace a rule.

| hook | is given | returns |
|---|---|---|
| route(request, replicas, now_s) | a request that arrives | the number of a replica |
| place(request, replicas, now_s) | one whose prompt was read on another replica | the number of one that decodes |
| choose(request, codecs, now_s) | keys and values to be sent | the number of a codec |
| admit(request, replica, now_s) | the first that waits | whether it may enter |
| batch(waiting, replica, now_s) | all that wait | their order: numbers of requests |
| evict(running, replica, now_s) | those that may be preempted, as room runs out | the number of a request |
| exit(request, replica, now_s) | a sequence that decodes | the fraction of the layers that its token goes through |

The first three are asked by the compiled loop, which stops for them. The others are inside it: with one of them the
same functions run as plain Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.compile import Kernel
from etude.kernels.rows import Table, TableRows, field_of
from etude.world.serve import adapters, batching, branches, loop, pass_content, prefix, queues, routing, transfers
from etude.world.serve import state as of
from etude.world.serve.queues import put_last

Route = Callable[[dict[str, int], "list[Replica]", float], Any]
"""route(request, replicas, now_s) -> the number of a replica."""


@dataclass(frozen=True, slots=True)
class Replica:
    """What a hook sees of a replica."""

    running: int
    waiting: int
    queued_tokens: int
    """Tokens in and out that its requests still need."""
    blocks_used: int
    found_tokens: int = 0
    """Tokens of this request's prompt that a prefix cache has."""
    number: int = 0
    blocks: int = 0
    role: str = "both"
    open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    route: Callable[..., Any] | None = None
    place: Callable[..., Any] | None = None
    choose: Callable[..., Any] | None = None
    admit: Callable[..., Any] | None = None
    batch: Callable[..., Any] | None = None
    evict: Callable[..., Any] | None = None
    exit: Callable[..., Any] | None = None


NO_HOOKS: Final = Hooks()
ROLES: Final = {of.BOTH: "both", of.PREFILL: "prefill", of.DECODE: "decode", of.OFF: "off"}
SEEN: Final = {
    name: field_of(of.REQUEST, name)
    for name in (
        "arrival",
        "prompt",
        "output",
        "session",
        "tenant",
        "tier",
        "deadline",
        "branches",
        "out",
        "computed",
        "preempted",
        "adapter",
        "images",
    )
}
"""Names of what a hook sees of a request, and their fields."""
FIELDS: Final = attrgetter(*SEEN.values())


def seen_request(state: of.State, number: int) -> dict[str, int]:
    """What a hook sees of a request; the state is in rows."""
    return {"request": number} | dict(zip(SEEN, FIELDS(state.request[number]), strict=True))


def seen_replica(state: of.State, i: int, found_tokens: int = 0) -> Replica:
    """What a hook sees of a replica; the state is in rows."""
    mine = state.replica[i]
    waiting = mine.waiting.count + mine.inbox.count + mine.coming.count + mine.landing.count
    return Replica(
        mine.running, waiting, mine.pending, mine.used, found_tokens, i, mine.room, ROLES[mine.role], not mine.shut
    )


def called(hook: Callable[..., Any], where: str, *given: Any) -> Any:
    """What the hook returns; its exceptions name the place."""
    name = getattr(hook, "__name__", "hook")
    try:
        return hook(*given)
    except Exception as problem:
        raise UsageError(f"`{name}` raised {type(problem).__name__}: {problem}", where=where) from problem


def number_of(found: Any, allowed: Sequence[int], hook: Callable[..., Any], where: str) -> int:
    if isinstance(found, bool) or not isinstance(found, int | np.integer) or found not in allowed:
        few = ", ".join(map(str, allowed[:12])) + (", ..." if len(allowed) > 12 else "")
        name = getattr(hook, "__name__", "hook")
        raise UsageError(f"`{name}` returned {found!r}", where=where, hint=f"one of {few}")
    return int(found)


class HookAnswers:
    """Answers the questions for which the compiled loop stops."""

    def __init__(self, hooks: Hooks, router: Any, rules: of.Rules) -> None:
        self.route = hooks.route or (router if callable(router) else None)
        self.place, self.choose, self.rules = hooks.place, hooks.choose, rules
        self.state: of.State | None = None

    def answer(self, state: of.State) -> None:
        """Writes the hook's answer to where the loop reads it."""
        if state is not self.state:
            self.state, self.rows = state, of.in_rows(state)
        clock = self.rows.clock[0]
        what, number = clock.asking, clock.about
        where, now_s = f"request {number}", clock.now_ns / 1e9
        request = seen_request(self.rows, number)
        if what == of.CODEC:
            hook, allowed = self.choose, list(range(len(self.rules.wire.codec)))
            given: Any = self._codecs()
        else:
            hook = self.route if what == of.ROUTE else self.place
            given = [seen_replica(self.rows, i, self._found(state, i, number)) for i in range(len(state.replica))]
            roles = ("decode",) if what == of.PLACE else ("both", "prefill")
            allowed = [one.number for one in given if one.open and one.role in roles]
        if hook is None:
            raise UsageError("no pool is assigned to it", where=where)
        found = called(hook, where, request, given, now_s)
        clock.chosen = number_of(found, allowed, hook, where)

    def _found(self, state: of.State, i: int, number: int) -> int:
        return int(routing.there_on(state, self.rules, i, number)) if self.rules.prefix else 0

    def _codecs(self) -> list[dict[str, float]]:
        names = ("bytes_sent", "encode_ns", "decode_ns", "fixed_ns")
        return [dict(zip(names, row, strict=True)) for row in self.rules.wire.codec.tolist()]


# -- the loop as plain Python ------------------------------------------------------------------------------------------


Around = Callable[[Callable[..., Any]], Callable[..., Any]]
MODULES: Final = (queues, adapters, routing, pass_content, branches, batching, transfers, loop)
"""Those whose kernels run as plain Python."""


def loop_with(hooks: Hooks, around: dict[Any, Around] | None = None) -> Callable[..., int]:
    """`loop.advance`, compiled; or its plain form if a hook is inside it. `around` wraps its kernels, for
    observation."""
    inside = {
        batching.admits: _admits(hooks.admit) if hooks.admit else None,
        batching.arrange: _arrange(hooks.batch) if hooks.batch else None,
        batching.victim: _victim(hooks.evict) if hooks.evict else None,
        batching.depth_of: _depth(hooks.exit) if hooks.exit else None,
    }
    given = {old: new for old, new in inside.items() if new is not None}
    if not given and not around:
        return loop.advance
    return _PlainLoop(given, around or {})


class _PlainLoop:
    """`loop.advance` as plain Python."""

    def __init__(self, given: dict[Any, Any], around: dict[Any, Around]) -> None:
        for kernel in (prefix.evict, prefix.keep, prefix.release, prefix.share):
            given[kernel] = self._compiled(kernel)
        self.advance = plain_form(MODULES, given, around)[loop.advance]
        self.state: of.State | None = None

    def __call__(self, state: of.State, rules: of.Rules, machines: Any, log: Table) -> int:
        if state is not self.state:
            self.state, self.rows = state, of.in_rows(state)
        with np.errstate(over="ignore"):
            return int(self.advance(self.rows, rules, machines, TableRows(log)))

    def _compiled(self, kernel: Kernel) -> Callable[..., Any]:
        """A kernel that stays compiled, and is given the arrays."""
        return lambda rows, *more: kernel(self.state, *map(int, more))  # one kind of integers: compiled once


def pools_with(loops: Sequence[Callable[..., int]]) -> Callable[..., tuple[int, int]]:
    """`loop.advance_pools` as plain Python, in which each pool goes on by one of these."""

    def one(rows: of.State, rules: of.Rules, machines: Any, log: Table) -> int:
        number = next(k for k, mine in enumerate(known) if mine.state is rows)
        return loops[number](arrays[number], rules, machines, log)

    plain = plain_form((loop,), {loop.advance: one}, {})[loop.advance_pools]
    known: list[loop.PoolState] = []
    arrays: list[of.State] = []

    def advance_pools(pools: Sequence[loop.PoolState], before_ns: int, until_ns: int, log: Table) -> tuple[int, int]:
        if [id(pool.state) for pool in pools] != [id(state) for state in arrays]:
            arrays[:] = [pool.state for pool in pools]
            known[:] = [pool._replace(state=of.in_rows(pool.state)) for pool in pools]
        known[:] = [mine._replace(machines=pool.machines) for mine, pool in zip(known, pools, strict=True)]
        found: tuple[int, int] = plain(known, before_ns, until_ns, log)
        return found

    return advance_pools


def plain_form(modules: Sequence[types.ModuleType], given: dict[Any, Any], around: dict[Any, Around]) -> dict[Any, Any]:
    """For each kernel of the modules its code as a Python function that calls the other plain functions; `given`
    replaces some of them, `around` wraps others."""
    names = {module: dict(vars(module)) for module in modules}
    made: dict[Any, Any] = {}
    for module, space in names.items():
        for value in vars(module).values():
            if isinstance(value, Kernel) and value.py_func.__module__ == module.__name__:
                made[value] = types.FunctionType(value.py_func.__code__, space, value.py_func.__name__)
    made |= given
    made |= {kernel: wrap(made[kernel]) for kernel, wrap in around.items()}
    for space in names.values():
        for name, value in list(space.items()):
            if isinstance(value, Kernel) and value in made:
                space[name] = made[value]
    return made


def _admits(hook: Callable[..., Any]) -> Callable[..., bool]:
    def admits(state: of.State, rules: of.Rules, i: int, r: int, now: int) -> bool:
        where = f"request {r}"
        found = called(hook, where, seen_request(state, int(r)), seen_replica(state, i), int(now) / 1e9)
        if not isinstance(found, bool | np.bool_):
            raise UsageError(f"`{hook.__name__}` returned {found!r}", where=where, hint="True or False")
        return bool(found)

    return admits


def _arrange(hook: Callable[..., Any]) -> Callable[..., None]:
    def arrange(state: of.State, rules: of.Rules, i: int, now: int) -> None:
        queue = state.replica[i].waiting
        waiting, r = [], queue.first
        while r != of.NOBODY:
            waiting.append(r)
            r = state.request[r].next
        if len(waiting) < 2:
            return
        where = f"replica {i}"
        seen = [seen_request(state, one) for one in waiting]
        found = called(hook, where, seen, seen_replica(state, i), int(now) / 1e9)
        try:
            order = [int(one) for one in found]
        except (TypeError, ValueError):
            order = []
        if sorted(order) != sorted(waiting):
            raise UsageError(
                f"`{hook.__name__}` returned {found!r}", where=where, hint="return the numbers of all waiting requests"
            )
        queue.first, queue.last, queue.count = of.NO_REQUESTS
        for one in order:
            put_last.py_func(state.request, queue, one)

    return arrange


def _victim(hook: Callable[..., Any]) -> Callable[..., int]:
    def victim(state: of.State, rules: of.Rules, i: int, least: int, now: int) -> int:
        q = state.request
        places = {
            int(state.running[i, k]): k
            for k in range(int(least), state.replica[i].running)
            if q[state.running[i, k]].planned != q[state.running[i, k]].output
        }
        if not places:
            return of.NOBODY
        where = f"replica {i}"
        seen = [seen_request(state, one) for one in places]
        found = called(hook, where, seen, seen_replica(state, i), int(now) / 1e9)
        return places[number_of(found, list(places), hook, where)]

    return victim


def _depth(hook: Callable[..., Any]) -> Callable[..., float]:
    def depth_of(state: of.State, rules: of.Rules, i: int, r: int, now: int) -> float:
        where = f"request {r}"
        found = called(hook, where, seen_request(state, int(r)), seen_replica(state, i), int(now) / 1e9)
        if isinstance(found, bool) or not isinstance(found, int | float | np.number) or not 0 < found <= 1:
            raise UsageError(f"`{hook.__name__}` returned {found!r}", where=where, hint="above 0, up to 1")
        return float(found)

    return depth_of
