"""Streams of requests: from a file, or drawn at a rate that is constant, bursty or diurnal; with fixed lengths or
lengths like those of a file; sessions of agents; prompts of recommenders."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from os import PathLike, fspath
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import figure
from etude.base.grammar import fill, line
from etude.kernels.arrays import I64
from etude.world.serve.request_files import read_requests
from etude.world.serve.requests import Requests, requests_of

STEPS: Final = 4096
"""Steps of a period, for the inverse of its arrivals."""
DAY_NS: Final = 86_400_000_000_000
MOST_PIECES: Final = 100_000_000
"""Pieces of prompts of a drawn stream: each turn of an agent has those of all turns before."""
MOST_WEIGHTS: Final = 1_000_000_000
"""Popularities from which the prompts of a recommender are drawn: those of all items, for each request."""


def poisson(rate_per_s: float, count: int, prompt: int, output: int, *, seed: int = 0, cv: float = 1.0) -> Requests:
    """Equal requests at a rate. Gaps are gamma distributed with this coefficient of variation: 1 is Poisson, 0 is even,
    more is bursty."""
    arrival = arrivals(rate_per_s, count, cv, "", np.random.default_rng(seed))
    return requests_of(arrival, np.full(count, prompt), np.full(count, output))


def arrivals(rate_per_s: float, count: int, cv: float, diurnal: str, random: np.random.Generator) -> I64:
    """In ns. With `diurnal` the rate is a sine around its mean; gaps are drawn in a warped time in which it is
    constant."""
    if not rate_per_s > 0 or count < 1 or cv < 0:
        raise UsageError(f"{count} requests at {rate_per_s} per second, with a variation of {cv}")
    gap = random.gamma(1 / cv**2, cv**2 / rate_per_s, count) if cv else np.full(count, 1 / rate_per_s)
    even_s = np.cumsum(gap)
    if diurnal:
        swing, period_s = _diurnal(diurnal)
        phase = np.linspace(0.0, 1.0, STEPS + 1)
        whole = phase + swing * (1 - np.cos(2 * np.pi * phase)) / (2 * np.pi)
        periods, part = np.divmod(even_s / period_s, 1.0)
        even_s = (periods + np.interp(part, whole, phase)) * period_s
    return np.round(even_s * 1e9).astype(np.int64)


def _diurnal(text: str) -> tuple[float, float]:
    swing, period = line(text, "--diurnal", "0.8@24h: fraction of the mean rate, and the period").cut("@")
    return swing.fraction(zero=True), (period.time_ns() if period is not None else DAY_NS) / 1e9


def at_rate(requests: Requests, rate_per_s: float) -> Requests:
    """The same requests, with gaps scaled to this rate."""
    span = int(requests.arrival_ns[-1])
    if not rate_per_s > 0 or not span:
        raise UsageError(f"a rate of {rate_per_s} for requests over {span} ns")
    factor = (len(requests) - 1) / rate_per_s / (span / 1e9)
    arrival = np.round(requests.arrival_ns * factor).astype(np.int64)
    return replace(requests, arrival_ns=arrival)


def lengths_like(requests: Requests, count: int, random: np.random.Generator) -> tuple[I64, I64]:
    """Tokens in and out drawn from the lognormal distribution of pairs that fits those of a stream: means, deviations
    and the correlation of their logarithms; none is longer than the longest there."""
    logs = np.log(np.stack([requests.prompt, requests.output]).astype(np.float64))
    spread = np.cov(logs) if len(requests) > 1 else np.zeros((2, 2))
    drawn = random.multivariate_normal(logs.mean(axis=1), spread, count, method="svd").T
    most = np.array([[requests.prompt.max()], [requests.output.max()]])
    found = np.clip(np.round(np.exp(drawn)), 1, most).astype(np.int64)
    return found[0], found[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Sessions of agents. A turn's prompt is the system prompt, the conversation so far, and a message; its answer and
    a tool's output are part of the next. Turns of a session are geometric, tokens exponential with these means."""

    sessions: int = figure("count", "sessions", 50)
    turns: float = figure("number", "mean number of turns per session", 6.0)
    system: int = figure("count", "tokens of the system prompt and its tools, the same for all", 2000)
    message: int = figure("count", "mean tokens of a message or tool result", 400)
    output: int = figure("count", "mean output tokens per turn", 200)
    think: float = figure("number", "mean seconds between turns", 10.0)
    shift: int = figure("count", "unique tokens at the start of each prompt: a date, an id", 0)

    def drawn(self, rate_per_s: float, random: np.random.Generator) -> Requests:
        _bounded("agents", "pieces of prompts", self.sessions * max(self.turns, 1.0) ** 2, MOST_PIECES)
        begin = np.cumsum(random.exponential(self.turns / rate_per_s, self.sessions))
        rows: list[tuple[float, int, int, list[Any]]] = []
        for s in range(self.sessions):
            at, said = float(begin[s]), [["system", self.system]]
            for turn in range(int(random.geometric(1 / max(self.turns, 1.0)))):
                message, out = (1 + int(random.exponential(mean)) for mean in (self.message, self.output))
                said.append([f"message-{s}-{turn}", message])
                front = [[f"front-{s}-{turn}", self.shift]] if self.shift else []
                rows.append((at, s, out, [*front, *said]))
                said.append([f"answer-{s}-{turn}", out])
                at += float(random.exponential(self.think))
        return _from_segments(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommend:
    """Prompts of a recommender: what is known of a user, and items of a list, whose popularity falls as 1 / rank^zipf.
    Each item has a group of similar items."""

    requests: int = figure("count", "requests", 300)
    users: int = figure("count", "users, drawn evenly", 100)
    items: int = figure("count", "items", 1000)
    listed: int = figure("count", "items of a prompt", 20)
    zipf: float = figure("number", "how fast popularity falls", 1.0, zero=True)
    groups: int = figure("count", "groups of items", 64)
    user_tokens: int = figure("count", "tokens about a user", 300)
    item_tokens: int = figure("count", "tokens of an item", 150)
    output: int = figure("count", "tokens out", 16)
    to_users: int = figure("count", "number of users at the end; 0: constant", 0)
    to_items: int = figure("count", "number of items at the end; 0: constant", 0)
    bursts: int = figure("count", "number of alternating parts of the stream; 0: a trend", 0)

    def drawn(self, rate_per_s: float, random: np.random.Generator) -> Requests:
        if self.listed > min(self.items, self.to_items or self.items):
            raise UsageError(f"recommend: {self.listed} of {self.items} items in a prompt")
        _bounded("recommend", "pieces of prompts", self.requests * self.listed, MOST_PIECES)
        _bounded("recommend", "popularities", self.requests * max(self.items, self.to_items), MOST_WEIGHTS)
        at = np.cumsum(random.exponential(1 / rate_per_s, self.requests))
        rows = []
        for k in range(self.requests):
            part = k / self.requests if not self.bursts else float(k * self.bursts // self.requests % 2)
            ends = (self.users, self.to_users), (self.items, self.to_items)
            users, count = (round(now + part * (then - now)) if then else now for now, then in ends)
            weight = 1.0 / np.arange(1, count + 1) ** self.zipf
            user = int(random.integers(users))
            chosen = random.choice(count, self.listed, replace=False, p=weight / weight.sum()).tolist()
            items = [[f"item-{one}", self.item_tokens, one % self.groups] for one in chosen]
            ask = [[f"ask-{k}", 16]]
            rows.append((float(at[k]), user, self.output, [[f"user-{user}", self.user_tokens], *items, *ask]))
        return _from_segments(rows)


def _bounded(name: str, what: str, count: float, most: int) -> None:
    if count > most:
        raise UsageError(f"{name}: about {count:,.0f} {what} are more than {most:,}", where="--requests")


GENERATORS: Final[dict[str, type[Any]]] = {"agents": Agents, "recommend": Recommend}


def _from_segments(rows: list[tuple[float, int, int, list[Any]]]) -> Requests:
    return requests_of(
        np.round(np.array([row[0] for row in rows]) * 1e9),
        [sum(one[1] for one in row[3]) for row in rows],
        [row[2] for row in rows],
        session=[row[1] for row in rows],
        segments=[row[3] for row in rows],
    )


@lru_cache(2)
def generated(text: str, rate_per_s: float, seed: int) -> Requests:
    """`agents:sessions=20,turns=8` or `recommend:items=500`."""
    whole = line(text, "--requests")
    name, words = whole.cut(":")
    kind = GENERATORS[name.text]
    name = replace(name, example=f"{name.text}:{fields(kind)[0].name}=50", inside="")
    made = fill(kind, replace(words, example=name.example).words() if words is not None and words.text else (), name)
    found: Requests = made.drawn(rate_per_s or 1.0, np.random.default_rng(seed))
    return found


def request_stream(
    path: str | PathLike[str] | None = None,
    *,
    first: int = 0,
    rate_per_s: float = 0.0,
    count: int = 500,
    prompt: int = 1024,
    output: int = 128,
    cv: float = 1.0,
    diurnal: str = "",
    like: str | PathLike[str] | None = None,
    seed: int = 0,
    sort: bool = False,
) -> Requests:
    """From a file (sorted by time if asked, the first `first`, scaled to a rate if given), from a generator, or drawn:
    all equal, or with the lengths of the file `like`."""
    if path is not None and (like is not None or diurnal):
        raise UsageError("--lengths and --diurnal apply only to generated requests", hint="leave out --requests")
    if path is None:
        random = np.random.default_rng(seed)
        arrival = arrivals(rate_per_s, count, cv, diurnal, random)
        if like is None:
            return requests_of(arrival, np.full(count, prompt), np.full(count, output))
        return requests_of(arrival, *lengths_like(read_requests(like, sort=True, timed=False), count, random))
    if fspath(path).partition(":")[0] in GENERATORS:
        found = generated(fspath(path), rate_per_s, seed)
        return found.first(first) if first else found
    found = read_requests(path, sort=sort)
    found = found.first(first) if first else found
    return at_rate(found, rate_per_s) if rate_per_s else found


def statistics(requests: Requests) -> dict[str, float]:
    """Statistics of a stream: counts, means, variation of gaps; with named blocks, the fraction of tokens whose block
    an earlier prompt had too."""
    gap = np.diff(requests.arrival_ns) / 1e9
    span_s = float(requests.arrival_ns[-1]) / 1e9
    found = {
        "requests": float(len(requests)),
        "sessions": float(len(np.unique(requests.session))),
        "rate_rps": (len(requests) - 1) / span_s if span_s else 0.0,
        "gap_cv": float(gap.std() / gap.mean()) if len(gap) and gap.mean() else 0.0,
        "prompt_mean": float(requests.prompt.mean()),
        "prompt_p99": float(np.quantile(requests.prompt, 0.99)),
        "output_mean": float(requests.output.mean()),
    }
    if len(requests.block):
        again = np.ones(len(requests.block), bool)
        again[np.unique(requests.block, return_index=True)[1]] = False
        found["seen_before"] = float(requests.block_tokens[again].sum() / requests.block_tokens.sum())
    return found
