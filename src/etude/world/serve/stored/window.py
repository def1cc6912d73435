"""A window of a served stream, node by node: the passes that start in it, with the tokens of each request, as a job.

    moment = passes_in(served, groups, parse_window("60s:62s"), **options)    # those that the stream was served with
    job = job_of_window(model, plan, moment)

The stream is served again: compiled up to the passes that run when the window begins, then as plain Python, which
observes how passes are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.kernels.arrays import F64, I64
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.passes import ModelPass, Span, replicas_job
from etude.model.job import Job
from etude.model.run import Run
from etude.run.simulate import simulate
from etude.steps import grown
from etude.world.serve import batching, loop
from etude.world.serve import state as of
from etude.world.serve.hooks import loop_with
from etude.world.serve.pass_content import shape_of
from etude.world.serve.serving import Group, Ready, Served, ServingOptions, ready_for
from etude.world.serve.steps import PassContent

ALL: Final = -1
MOST: Final = 20_000
"""Passes that are written as nodes."""


@dataclass(frozen=True, slots=True)
class ServedWindow:
    begin_ns: int
    end_ns: int
    replica: int = ALL


@dataclass(frozen=True, slots=True)
class PassWindow:
    """Passes that start in a window, replica by replica."""

    replicas: tuple[int, ...]
    """Those that have any."""
    passes: tuple[tuple[ModelPass, ...], ...]
    requests: tuple[tuple[int, ...], ...]
    """Request of the stream for each number in the spans of a replica."""
    start_ns: tuple[I64, ...]
    time_ns: tuple[I64, ...]
    """As in the loop."""
    contents: tuple[tuple[PassContent, ...], ...]
    more_ns: tuple[I64, ...]
    """Part of the time that is no work of the device: loads from a store, swapped blocks."""
    missed: int = 0
    """Passes that were chosen before the loop was observed."""


def parse_window(text: str) -> ServedWindow:
    """`60s:62s`, of all replicas; `60s:62s@3` of one."""
    span, replica = line(text, "--window", "60s:62s, or 60s:62s@3 for one replica").cut("@")
    begin, end = span.cut(":")
    if end is None:
        raise span.wrong(f"`{span.text}` is not two times")
    number = ALL if replica is None else replica.count(zero=True)
    found = ServedWindow(begin.time_ns(zero=True), end.time_ns(zero=True), number)
    if not found.begin_ns < found.end_ns:
        raise span.wrong(f"`{span.text}` is empty")
    return found


def passes_in(served: Served, groups: Sequence[Group], window: ServedWindow, **given: Any) -> PassWindow:
    """`groups` and `given` are those of the stream, which must have kept its passes."""
    if served.passes is None:
        raise UsageError("the passes of this stream were not kept")
    replica, start, end = (served.passes[name].to_numpy() for name in ("replica", "start_ns", "end_ns"))
    if window.replica >= len(served.state.replica):
        count = len(served.state.replica)
        raise UsageError(f"--window: there is no replica {window.replica}", hint=f"0 to {count - 1}")
    chosen = (start >= window.begin_ns) & (start < window.end_ns)
    if window.replica != ALL:
        chosen &= replica == window.replica
    if not chosen.any():
        raise UsageError("no pass starts in the window", hint=f"the last one ends at {end.max() / 1e9:.3f} s")
    if chosen.sum() > MOST:
        raise UsageError(f"{chosen.sum():,} passes start in the window", hint=f"a shorter one: at most {MOST:,}")
    # With asynchronous scheduling a pass is built when the one before it starts.
    under_way = start[(start < window.begin_ns) & (end >= window.begin_ns)]
    ready = ready_for(served.requests, served.engine, groups, ServingOptions(**given))
    seen = PassObserver(window)
    hooks = ServingOptions(**given).hooks
    _run(ready, loop_with(hooks), int(under_way.min(initial=window.begin_ns)) - 1)
    _run(ready, loop_with(hooks, seen.around()), window.end_ns - 1)
    moment = seen.moment()
    for k, number in enumerate(moment.replicas):
        mine = chosen & (replica == number)
        times = np.stack([moment.start_ns[k], moment.start_ns[k] + moment.time_ns[k]])
        if not np.array_equal(times, np.stack([start[mine], end[mine]])):
            raise UsageError("the stream was not reproduced when simulated again", hint="use hooks without state")
    return moment


def _run(ready: Ready, advance: Callable[..., int], until_ns: int) -> None:
    state, log = ready.state, np.zeros(0, of.PASS)
    state.clock["until_ns"][0] = until_ns
    while advance(state, ready.rules, ready.machines, log) == of.ASKED:
        ready.asked.answer(state)


class ObservedPass(NamedTuple):
    start_ns: int
    time_ns: int
    spans: list[tuple[int, int, int, bool, bool]]
    """Request, tokens, keys, whether it reads a prompt, and its end."""
    content: PassContent
    more_ns: int


class PassObserver:
    """Observed content of passes that start in a window."""

    def __init__(self, window: ServedWindow, swap_ns: float = 0.0) -> None:
        self.window, self.swap_ns, self.missed = window, swap_ns, 0
        self.next: dict[int, list[tuple[int, int, int, bool, bool]]] = {}
        self.begun: dict[int, list[ObservedPass]] = {}

    def around(self) -> dict[Any, Any]:
        return {batching.choose: self._choose, batching._add: self._add, loop._begin: self._begin}

    def _choose(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def choose(state: of.State, rules: of.Rules, machines: Any, i: int, now: int) -> Any:
            self.next[i] = []
            return plain(state, rules, machines, i, now)

        return choose

    def _add(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def add(state: of.State, rules: of.Rules, i: int, r: int, tokens: int, now: int) -> Any:
            q = state.request[r]
            past, prompt, planned = q.computed, q.prompt, q.planned
            reads = not (tokens == 1 and past >= prompt)
            last = past + int(tokens) == prompt + planned
            self.next[i].append((int(r), int(tokens), past + int(tokens), reads, reads and last))
            return plain(state, rules, i, r, tokens, now)

        return add

    def _begin(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def begin(state: of.State, mine: Any, batch: I64, shape: Any, clock: Any, *more: Any) -> Any:
            i, now, time_ns = int(more[-3]), int(more[-2]), int(more[-1])
            if self.window.begin_ns <= now < self.window.end_ns and self.window.replica in (ALL, i):
                if i not in self.next:
                    self.missed += 1
                    return plain(state, mine, batch, shape, clock, *more)
                spans, where = self.next[i], f"replica {i}: the pass at {now / 1e9:.6f} s"
                content = _check(spans, shape, where)
                if mine.adapters:
                    raise UsageError(
                        "has adapters, and is not written node by node", where=where, hint="another window"
                    )
                extra = int(np.ceil(mine.moved * self.swap_ns)) + int(mine.loading_ns)
                self.begun.setdefault(i, []).append(ObservedPass(now, time_ns, spans, content, extra))
            return plain(state, mine, batch, shape, clock, *more)

        return begin

    def moment(self) -> PassWindow:
        replicas = tuple(sorted(self.begun))
        passes, requests = [], []
        for i in replicas:
            number: dict[int, int] = {}
            made = []
            for seen in self.begun[i]:
                one = tuple(
                    Span(number.setdefault(r, len(number)), tokens, keys, prompt=reads, last=last)
                    for r, tokens, keys, reads, last in seen.spans
                )
                made.append(ModelPass(one, sum(not s.prompt or s.last for s in one)))
            passes.append(tuple(made))
            requests.append(tuple(number))

        def column(name: str) -> tuple[I64, ...]:
            return tuple(np.array([getattr(one, name) for one in self.begun[i]], np.int64) for i in replicas)

        contents = tuple(tuple(one.content for one in self.begun[i]) for i in replicas)
        return PassWindow(
            replicas,
            tuple(passes),
            tuple(requests),
            column("start_ns"),
            column("time_ns"),
            contents,
            column("more_ns"),
            self.missed,
        )


def _check(spans: Sequence[tuple[int, int, int, bool, bool]], shape: Any, where: str) -> PassContent:
    """The content of a pass. Raises UsageError unless all of it was observed."""
    reads = [(tokens, keys) for _, tokens, keys, prompt, _ in spans if prompt]
    answers = [keys for _, _, keys, prompt, _ in spans if not prompt]
    pairs = sum(n * (keys - n) + n * (n + 1) / 2 for n, keys in reads)
    found = shape_of.py_func(shape)
    same = (found.prompt_tokens, found.decode, found.decode_keys) == (
        sum(n for n, _ in reads),
        len(answers),
        sum(answers),
    )
    if not same or abs(found.pairs - pairs) > 0.5 or found.more_tokens or found.depth < 1.0:
        raise UsageError(
            "has drafted tokens, branches, tokens that leave early or pieces of a cache from other places, and is not "
            "written node by node",
            where=where,
            hint="use another window, or leave these out",
        )
    return PassContent(*found)


def job_of_window(model: Model, plan: Plan, moment: PassWindow, *, kv_dtype: str = "") -> Job:
    """Replica k of the moment has the k-th ranks; its passes are consecutive, without the time between them."""
    return replicas_job(model, plan, moment.passes, kv_dtype=kv_dtype, name=f"{model.name}-window")


def node_level_ns(job: Job, plan: Plan, moment: PassWindow, system: System) -> tuple[F64, ...]:
    """Times of the passes of each replica if the job is simulated, its kernels by roofline."""
    return pass_times_ns(simulate(job, grown(system, len(job)), compute="roofline"), plan, moment)


def pass_times_ns(run: Run, plan: Plan, moment: PassWindow) -> tuple[F64, ...]:
    """Times of the passes of each replica in a run of their job."""
    found = []
    for k, passes in enumerate(moment.passes):
        part = run.part(k * plan.gpus)
        step, timed = part.trace.step, part.timed & (part.trace.step >= 0)
        first, last = np.full(len(passes), np.iinfo(np.int64).max), np.zeros(len(passes), np.int64)
        np.minimum.at(first, step[timed], part.start_ns[timed])
        np.maximum.at(last, step[timed], part.end_ns[timed])
        found.append((last - first).astype(np.float64))
    return tuple(found)
