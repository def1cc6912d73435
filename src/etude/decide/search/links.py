"""A link whose rate is a piecewise constant of time.

links:
  - {rate: 50Mb/s, latency: 2ms}                                   # constant
  - {rates: wan.csv, latency: 20ms}                                # rows of time_s,rate; the last rate stays
  - {rates: {low: 5Mb/s, high: 100Mb/s, every: 20s}}               # drawn, as many per factor of rate; by --seed
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import figure, read, usage_errors
from etude.decide.search.request import SpaceFile, read_table

NEVER = 1 << 62
"""A time in ns that is not reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRates:
    """Random rates, uniform in their logarithm."""

    low_bytes_per_s: int = figure("bandwidth", "lowest rate")
    high_bytes_per_s: int = figure("bandwidth", "highest rate")
    every_ns: int = figure("time", "time that a rate lasts", 20_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLink:
    rate_bytes_per_s: int = figure("bandwidth", "payload, one direction", 0)
    rates: Any = figure("one", "file of time_s,rate; or {low, high, every}", None)
    latency_ns: int = figure("time", "latency of one message", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """A row of a file of rates."""

    time_s: float = figure("number", "from this time on", zero=True)
    rate_bytes_per_s: int = figure("bandwidth", "payload, one direction", zero=True)


@dataclass(frozen=True, slots=True)
class VaryingLink:
    """Rate `rate[i]` in bytes per second from `start_ns[i]` on."""

    start_ns: tuple[int, ...]
    rate: tuple[int, ...]
    latency_ns: int = 0

    def at(self, now_ns: int) -> int:
        """The rate at a time, in bytes per second."""
        return self.rate[max(bisect_right(self.start_ns, now_ns) - 1, 0)]

    def constant_ns(self, size_bytes: int, rate: int) -> int:
        """Time of a message if the rate stayed constant."""
        return self.latency_ns + -(-size_bytes * 10**9 // rate) if rate else NEVER

    def arrival_ns(self, size_bytes: int, now_ns: int) -> int:
        """Arrival of a message that is sent now: its bytes are the integral of the rate. NEVER if the link goes down
        for good before."""
        left = size_bytes * 10**9
        piece = max(bisect_right(self.start_ns, now_ns) - 1, 0)
        while True:
            rate = self.rate[piece]
            last = piece + 1 == len(self.rate)
            if last and not rate:
                return NEVER if left else now_ns + self.latency_ns
            room = 0 if last else rate * (self.start_ns[piece + 1] - now_ns)
            if last or room >= left:
                return now_ns + (-(-left // rate) if rate else 0) + self.latency_ns
            left -= room
            piece += 1
            now_ns = self.start_ns[piece]


def read_links(given: SpaceFile, rows: Any, count: int, duration_ns: int, seed: int) -> list[VaryingLink]:
    """The links of a space, this many of them."""
    where = f"{given.where}: links"
    if not isinstance(rows, list) or len(rows) != count:
        problem, hint = f"expected a list of {count} links, one between neighbouring devices", "links: [{rate: 50Mb/s}]"
        raise UsageError(problem, where=where, hint=hint)
    return [_link(given, row, f"{where}[{i}]", duration_ns, (seed, i)) for i, row in enumerate(rows)]


def _link(given: SpaceFile, row: Any, where: str, duration_ns: int, seed: tuple[int, int]) -> VaryingLink:
    with usage_errors():
        one = read(GivenLink, row, where)
        drawn = read(RandomRates, one.rates, f"{where}: rates") if isinstance(one.rates, Mapping) else None
    if (one.rates is None) != bool(one.rate_bytes_per_s):
        raise UsageError("either `rate` or `rates` is needed", where=where, hint="rate: 50Mb/s")
    if one.rates is None:
        return VaryingLink((0,), (one.rate_bytes_per_s,), one.latency_ns)
    if drawn is None:
        return _from_file(given.path(str(one.rates)), one.latency_ns)
    if drawn.low_bytes_per_s > drawn.high_bytes_per_s:
        raise UsageError("`low` is above `high`", where=f"{where}: rates")
    count = -(-duration_ns // drawn.every_ns) + 1
    low, high = log(drawn.low_bytes_per_s), log(drawn.high_bytes_per_s)
    rates = np.exp(np.random.default_rng(seed).uniform(low, high, count)).round().astype(np.int64).tolist()
    return VaryingLink(tuple(i * drawn.every_ns for i in range(count)), tuple(rates), one.latency_ns)


def _from_file(path: Path, latency_ns: int) -> VaryingLink:
    rows = read_table(path, RateChange, path.name)
    starts = [round(row.time_s * 1e9) for row in rows]
    if starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
        raise UsageError("times must start at 0 and increase", where=str(path))
    return VaryingLink(tuple(starts), tuple(row.rate_bytes_per_s for row in rows), latency_ns)
