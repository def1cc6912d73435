"""Continuous batching: which tokens of which requests go through the model together, pass after pass.

A pass takes a *span* of each sequence in it: `queries` new tokens that attend to `keys` tokens, themselves included. A
prompt is one span or, with chunked prefill, several; a decode is a span of one query, or with speculation of the
drafted tokens and one more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from etude.base.errors import UsageError
from etude.make.generate.serving.requests import Request

TARGET, DRAFT = 0, 1


@dataclass(frozen=True, slots=True)
class Span:
    request: int
    queries: int
    keys: int
    prompt: bool = False
    """Whether it belongs to a prompt, not a decode."""
    last: bool = False
    """Whether it ends a prompt."""


@dataclass(frozen=True, slots=True)
class ModelPass:
    """One run of the model."""

    spans: tuple[Span, ...]
    outputs: int
    """Rows of logits: one for each token that is sampled or verified."""
    which: int = TARGET
    """The model, or its draft."""

    @property
    def tokens(self) -> int:
        return sum(span.queries for span in self.spans)

    @property
    def phase(self) -> str:
        if self.which == DRAFT:
            return "draft"
        prompts = sum(span.prompt for span in self.spans)
        return "prefill" if prompts == len(self.spans) else "mixed" if prompts else "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How requests are batched."""

    max_batch: int = 1 << 30
    """Concurrent sequences."""
    token_budget: int = 1 << 40
    """Tokens of a pass."""
    chunked: bool = False
    """Prompts are cut to the remaining budget, together with decodes; otherwise they get separate passes."""
    kv_tokens: int = 1 << 50
    """Tokens whose keys and values fit: a request enters when all of its own will fit."""
    preempt: bool = False
    """A request enters when its prompt fits; when decodes need room, the last one to enter is preempted and recomputes
    its prompt and tokens later."""
    speculate: int = 0
    """Tokens that the draft proposes per round."""
    accept: float = 0.7
    """Probability that a proposed token is accepted, if those before it were."""
    seed: int = 0


@dataclass(slots=True)
class _Running:
    number: int
    request: Request
    done: int = 0
    """Prompt tokens already processed."""
    out: int = 0
    need: int = 0
    """Tokens to read before the next output: the prompt, and after a preemption also the tokens generated."""

    @property
    def reading(self) -> bool:
        return self.done < self.need

    @property
    def length(self) -> int:
        """Tokens whose keys and values are held."""
        return self.done if self.reading else self.request.prompt + self.out - 1

    def stop(self) -> None:
        self.done, self.need = 0, self.request.prompt + self.out


@dataclass(slots=True)
class Batched:
    """The passes in order, and the peak of tokens whose keys and values were held."""

    passes: list[ModelPass] = field(default_factory=list)
    kv_tokens: int = 0
    held: list[int] = field(default_factory=list)
    """Tokens whose keys and values are held after each pass."""
    stopped: int = 0
    """How often a request was preempted."""


def batch(
    requests: Sequence[Request], batching: BatchLimits, time_ns: Callable[[ModelPass], float] | None = None
) -> Batched:
    """The passes that answer these requests. With `time_ns` a request waits for its arrival; without, all are available
    at once."""
    too_long = [r for r in requests if r.prompt + r.output > batching.kv_tokens]
    if too_long:
        need = too_long[0].prompt + too_long[0].output
        hint = "use more ranks, or --kv-dtype fp8"
        raise UsageError(f"a request of {need:,} tokens, and keys and values of {batching.kv_tokens:,} fit", hint=hint)
    if not batching.chunked and batching.token_budget < max((r.prompt for r in requests), default=0):
        longest = max(r.prompt for r in requests)
        hint = "--chunked, or a larger --token-budget"
        raise UsageError(f"a prompt of {longest:,} tokens does not fit a pass of {batching.token_budget:,}", hint=hint)
    return _Batcher(requests, batching, time_ns).run()


class _Batcher:
    def __init__(
        self, requests: Sequence[Request], batching: BatchLimits, time_ns: Callable[[ModelPass], float] | None
    ) -> None:
        order = sorted(enumerate(requests), key=lambda e: (e[1].arrival_ns, e[0]))
        self.waiting = deque(_Running(number, request, need=request.prompt) for number, request in order)
        self.running: list[_Running] = []
        self.batching, self.time_ns = batching, time_ns
        self.random = np.random.default_rng(batching.seed)
        self.now = 0.0
        self.made = Batched()

    def run(self) -> Batched:
        while self.waiting or self.running:
            spans = self._spans()
            if not spans:
                self.now = max(self.now, float(self.waiting[0].request.arrival_ns))
                continue
            drafted = self.batching.speculate
            decoding = [s for s in spans if not s.prompt]
            for k in range(drafted if decoding else 0):
                ahead = tuple(Span(s.request, 1, s.keys - drafted + k) for s in decoding)
                self._emit(ModelPass(ahead, len(ahead), DRAFT))
            self._emit(ModelPass(tuple(spans), sum(s.last for s in spans) + sum(s.queries for s in decoding)))
            if drafted and len(decoding) < len(spans):  # the draft reads the prompts too
                prompts = tuple(s for s in spans if s.prompt)
                self._emit(ModelPass(prompts, 0, DRAFT))
            self._advance(spans)
        return self.made

    def _emit(self, one: ModelPass) -> None:
        self.made.passes.append(one)
        if self.time_ns is not None:
            self.now += self.time_ns(one)

    def _spans(self) -> list[Span]:
        """What goes next: decodes first, then prompts as far as the budget goes; or only prompts."""
        b = self.batching
        step = b.speculate + 1
        self._make_room(step)
        ready = [r for r in self.running if not r.reading]
        decode = [Span(r.number, step, r.length + step) for r in ready]
        budget = b.token_budget - (sum(s.queries for s in decode) if b.chunked else 0)
        prompts: list[Span] = []
        for r in self.running:
            if r.reading:
                budget -= self._prompt(r, budget, prompts)
        while self._may_enter(budget, step):
            entered = self.waiting.popleft()
            self.running.append(entered)
            budget -= self._prompt(entered, budget, prompts)
        if b.chunked:
            return decode + prompts
        return prompts or decode

    def _make_room(self, step: int) -> None:
        """Preempts the last ones to enter, until the next tokens of the others have room."""
        while self.batching.preempt and len(self.running) > 1 and self._held(step) > self.batching.kv_tokens:
            last = self.running.pop()
            last.stop()
            self.waiting.appendleft(last)
            self.made.stopped += 1

    def _held(self, step: int) -> int:
        """Tokens that running requests hold after the next pass, or at their end."""
        if not self.batching.preempt:
            return sum(r.request.prompt + r.request.output for r in self.running)
        return sum((r.need if r.reading else r.length + step) + 1 for r in self.running)

    def _prompt(self, r: _Running, budget: int, spans: list[Span]) -> int:
        taken = min(r.need - r.done, budget)
        if taken > 0:
            keys = r.done + taken
            spans.append(Span(r.number, taken, keys, prompt=True, last=keys == r.need))
        return max(taken, 0)

    def _may_enter(self, budget: int, step: int) -> bool:
        b = self.batching
        if not self.waiting or len(self.running) >= b.max_batch:
            return False
        first = self.waiting[0]
        arrived = self.time_ns is None or first.request.arrival_ns <= self.now
        wanted = first.need + 1 if b.preempt else first.request.prompt + first.request.output
        fits = self._held(step) + wanted <= b.kv_tokens
        return arrived and fits and (budget > 0 if b.chunked else first.need <= budget)

    def _advance(self, spans: Sequence[Span]) -> None:
        at = {r.number: r for r in self.running}
        for span in spans:
            r = at[span.request]
            if span.prompt:
                r.done += span.queries
                r.out += not r.reading
            else:
                r.out += 1 + self._accepted()
        held = sum(r.length + 1 for r in self.running)
        self.made.kv_tokens = max(self.made.kv_tokens, held)
        self.made.held += [held] * (len(self.made.passes) - len(self.made.held))
        for r in [r for r in self.running if r.out >= r.request.output]:
            self.running.remove(r)

    def _accepted(self) -> int:
        k = self.batching.speculate
        if not k:
            return 0
        taken = self.random.random(k) < self.batching.accept
        return int(k if taken.all() else taken.argmin())
