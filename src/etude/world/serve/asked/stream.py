"""The stream that is served: what is asked for it, and the requests at each of its rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, switch, text
from etude.base.grammar import line
from etude.base.parameters import replaces
from etude.world.serve.requests import Requests
from etude.world.serve.workloads import GENERATORS, request_stream

PANEL: Final = "Requests"
POINTS: Final = 8
"""Rates of a curve."""
MOST_REQUESTS: Final = 100_000_000
MOST_RPS: Final = 1e9


@dataclass(frozen=True, kw_only=True)
class FileInput:
    """Parameters of requests from a file or a generator."""

    requests: str = figure(
        "path",
        "CSV, JSON or JSON Lines file of requests, a file of `etude requests`, or `agents:turns=8`, `recommend:`",
        "",
        like="r.csv",
        panel=PANEL,
    )
    rate: str = text("requests per second: `4`, or `1..20` for a curve", like="7", panel=PANEL)
    first: int = figure("count", "use only the first requests, this many; 0: all", 0, needs="requests", panel=PANEL)
    sort: bool = switch(
        "sort the rows of the file by time; without it, unsorted files are refused", needs="requests", panel=PANEL
    )
    seed: int = figure("count", "random seed", 0, panel=PANEL)


@dataclass(frozen=True, kw_only=True)
class StreamInput(FileInput):
    """... and of requests that are drawn, if there is no file."""

    count: int = figure(
        "count", "number of generated requests, if no file is given", 500, panel=PANEL, most=MOST_REQUESTS
    )
    prompt: int = figure("count", "prompt tokens of generated requests", 1024, panel=PANEL)
    output_tokens: int = figure("count", "output tokens of generated requests", 128, key="output", panel=PANEL)
    burst: float = figure(
        "number",
        "variation of the gaps between generated requests: 1 is Poisson, 0 is even",
        1.0,
        zero=True,
        panel=PANEL,
    )
    diurnal: str = text(
        "swing of the rate around its mean, and its period: `0.8@24h`", like="0.8@24h", panel=PANEL, rare=True
    )
    lengths: str | None = figure(
        "path", "file of requests whose lengths generated requests are drawn from", None, panel=PANEL, rare=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStream:
    """Requests of a file or a generator, or drawn, at one rate or at several."""

    path: str = ""
    """Empty: they are drawn."""
    rates: tuple[float, ...] = ()
    """None: as the file says."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `request_stream`: those that this kind of stream has."""
    seed: int = 0
    max_model_len: int = 0
    """Tokens of the longest request that is served; 0: no limit."""

    @property
    def drawn(self) -> bool:
        """Whether anything of it depends on a seed."""
        return not self.path or is_generated(self.path)

    def at(self, rate_per_s: float) -> Requests:
        found = request_stream(self.path or None, rate_per_s=rate_per_s, seed=self.seed, **self.options)
        return found.within(self.max_model_len) if self.max_model_len else found

    def one(self) -> Requests:
        """At its only rate."""
        return self.at(self.rates[0] if self.rates else 0.0)


def is_generated(path: str) -> bool:
    return path.partition(":")[0] in GENERATORS


def stream_of(asked: StreamInput) -> RequestStream:
    """Reads what this kind of stream has, but for the seed: other draws may need it too."""
    path, rates = asked.requests, rates_of(asked.rate)
    if not path and not rates:
        raise UsageError("no requests are given", hint="--requests FILE, or --rate 4")
    if path:
        replaces(asked, "requests", "count", "prompt", "output", "burst", "diurnal", "lengths")
        return RequestStream(path=path, rates=rates, options=taken_of(asked, path))
    options = {"count": asked.count, "cv": asked.burst, "diurnal": asked.diurnal}
    like = asked.lengths
    if like is not None:
        replaces(asked, "lengths", "prompt", "output")
    lengths = {"like": like} if like is not None else {"prompt": asked.prompt, "output": asked.output_tokens}
    return RequestStream(rates=rates, options=options | lengths)


def file_stream_of(asked: FileInput) -> RequestStream:
    """A stream at one rate that is not drawn from lengths."""
    path, rates = asked.requests, rates_of(asked.rate)
    if len(rates) > 1:
        raise UsageError("--rate: one rate is served here", hint="--rate 4")
    if not path:
        raise UsageError("no requests are given", hint="--requests FILE, or --requests recommend:")
    seed = asked.seed if is_generated(path) else 0
    return RequestStream(path=path, rates=rates, options=taken_of(asked, path), seed=seed)


def taken_of(asked: FileInput, path: str) -> dict[str, Any]:
    """What is taken of a file; a generator has no rows to sort."""
    return {"first": asked.first} | ({} if is_generated(path) else {"sort": asked.sort})


def rates_of(text: str, points: int = POINTS) -> tuple[float, ...]:
    """`4` is one rate; `1..20` is this many rates from 1 to 20 with equal ratios. Raises UsageError for other text."""
    if not text:
        return ()
    whole = line(text, "--rate", "4, or 1..20")
    ends = [end for end in whole.cut("..") if end is not None]
    values = [float(end.figure("number")) for end in ends]
    if values[-1] >= MOST_RPS:
        raise ends[-1].wrong(f"`{ends[-1].text}` is not less than {MOST_RPS:g} requests per second")
    if len(values) == 1:
        return tuple(values)
    if values[0] >= values[1]:
        raise whole.wrong(f"`{whole.text}` is not a range of rates, from low to high")
    return tuple(values[0] * (values[1] / values[0]) ** (k / (points - 1)) for k in range(points))
