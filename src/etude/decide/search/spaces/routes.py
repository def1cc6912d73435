"""Requests of satellites: the small model at home, or a large one on a computing satellite, over links with queues.

search: routes
topology: {planes: 6, satellites: 11, altitude_km: 780, rate: 100Mb/s}      # or a table, leo_66.csv
computing: 6                       # this many, evenly spread; or their names
small: {model: mobilenet-v2, device: raspberry-pi5}
large: {model: vit-l16, device: jetson-orin, dtype: fp16}
requests: {rate: 120, size: 150kB, duration: 60s, sources: 12}              # or a table: time_s,satellite,size
policy: [local, nearest, least, delay, share]
score: mean                        # or p95
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.figures import figure, read, text, usage_errors
from etude.decide.search.constellation import Sky, read_sky
from etude.decide.search.found import Found, Row
from etude.decide.search.layers import model_layers
from etude.decide.search.links import NEVER
from etude.decide.search.request import SearchRequest, SpaceFile, known_word
from etude.decide.search.solver import ALL, CandidateSpace, Trials
from etude.decide.search.spaces.chain import device_of
from etude.decide.search.travel_kernels import (
    DELAY,
    HOME,
    LEAST,
    LOCAL,
    NEAREST,
    SHARE,
    RequestDelays,
    TravelRequests,
    travelled,
)
from etude.kernels.arrays import F64, I64

POLICIES: Final = {"local": LOCAL, "nearest": NEAREST, "least": LEAST, "delay": DELAY, "share": SHARE}
SCORES: Final = ("mean", "p95")
LARGEST: Final = 9_000_000_000
"""Bytes of a request whose time at a byte a second still fits in 64 bits."""
HALVINGS: Final = 12
"""Steps of the bisection: shares are known to 1/4096."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    model: str = text("name or file")
    device: Any = figure("one", "device of the catalogue, a file, or its keys", None)
    dtype: str = figure("text", "data type of weights and activations", "fp32")
    time_ns: int = figure("time", "time of a request, instead of a model on a device", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRequests:
    rate: float = figure("number", "requests per second of all satellites, Poisson")
    size_bytes: int = figure("bytes", "size of a request", 150_000)
    duration_ns: int = figure("time", "time in which they arrive", 60_000_000_000)
    sources: int = figure("count", "satellites that have requests; 0: all that do not compute", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """A request of a table."""

    time_s: float = figure("number", "when it arrives", zero=True)
    satellite: str = figure("text", "where")
    size_bytes: int = figure("bytes", "its size", zero=True)

    @property
    def at_ns(self) -> int:
        return round(self.time_s * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpace:
    topology: Any = figure("one", "a constellation, or a table of links")
    computing: Any = figure("one", "number of satellites with the large model, or their names")
    small: ServedModel = figure("one", "model of every satellite", of=ServedModel)
    large: ServedModel = figure("one", "model of computing satellites", of=ServedModel)
    requests: Any = figure("one", "drawn, or a table")
    policy: Any = figure("one", "one or several", list(POLICIES))
    score: str = figure("text", "mean, p95", "mean")


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    return frozenset({"seed"} if isinstance(keys.get("requests"), Mapping) else ())


def space(given: SpaceFile, asked: SearchRequest) -> PolicySpace:
    with usage_errors():
        routes = read(RouteSpace, given.keys, given.where)
        drawn = isinstance(routes.requests, Mapping)
        requests = read(RandomRequests, routes.requests, f"{given.where}: requests") if drawn else None
    return PolicySpace(given, routes, requests, asked.seed)


class PolicySpace(CandidateSpace[str]):
    """Policies, each with all requests."""

    methods = ALL

    def __init__(self, given: SpaceFile, routes: RouteSpace, drawn: RandomRequests | None, seed: int) -> None:
        policies = routes.policy if isinstance(routes.policy, list) else [routes.policy]
        self.listed = [known_word("policy", policy, POLICIES, given.where) for policy in policies]
        known_word("score", routes.score, SCORES, given.where)
        rows = [] if drawn else given.table("requests", RequestRow)
        duration = drawn.duration_ns if drawn else max(row.at_ns for row in rows) + 1
        self.sky, names = read_sky(routes.topology, given.folder, f"{given.where}: topology", duration)
        computing = _computing(routes.computing, names, f"{given.where}: computing")
        self.load = _drawn(drawn, self.sky, computing, seed) if drawn else _listed(rows, self.sky, names, given.where)
        if int(self.load.size_bytes.max()) > LARGEST:
            raise UsageError(f"a request is larger than {LARGEST:,} bytes", where=given.where, hint="size: 150kB")
        self.small = np.full(len(names), _service_ns(given, routes.small, "small"), np.int64)
        self.large = np.where(computing, _service_ns(given, routes.large, "large"), NEVER)
        self.size, self.scores, self.decides = len(self.listed), {"mean_ms": 1, "p95_ms": 1}, f"{routes.score}_ms"

    def rows(self, some: Sequence[str], limit: float) -> list[Row]:
        return [_row(policy, self.ran(policy)) for policy in some]

    def rank(self, row: Row) -> tuple[float, ...]:
        return (row[self.decides],)

    def ran(self, policy: str) -> RequestDelays:
        """What became of the requests."""

        def run(kind: int, shares: F64) -> RequestDelays:
            return travelled(self.sky, self.load, self.small, self.large, kind, shares)

        shares = np.zeros(len(self.small))
        if policy == "share":
            shares = best_shares(partial(run, SHARE), self.load.home, len(self.small))
        return run(POLICIES[policy], shares)

    def found(self, trials: Trials[str]) -> Found:
        links = (np.diff(self.sky.first[:, [0, -1]]) // 2).ravel().tolist()
        more = {"requests": len(self.load.at_ns), "graphs": len(self.sky.start_ns), "links": links}
        return trials.found(more=more | {"small_ms": int(self.small[0]) / 1e6, "large_ms": int(self.large.min()) / 1e6})


def best_shares(run: Callable[[F64], RequestDelays], home: I64, satellites: int) -> F64:
    """By bisection, of all satellites at once: the largest share of each with which those of its requests that travel
    are not slower on average than those that stay. What cannot be reached does not travel."""
    low, high = np.zeros(satellites), np.ones(satellites)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        done = run(middle)
        away, delay = done.server != HOME, delays(done)
        count = [np.bincount(home[part], minlength=satellites) for part in (away, ~away)]
        total = [np.bincount(home[part], delay[part], minlength=satellites) for part in (away, ~away)]
        slower = total[0] * count[1] > total[1] * count[0]
        more = (count[0] > 0) & ~slower
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return low


def delays(done: RequestDelays) -> I64:
    """ns"""
    return done.latency_ns + done.sending_ns + done.queue_ns + done.wait_ns + done.service_ns


def _row(policy: str, done: RequestDelays) -> Row:
    delay, away = delays(done), done.server != HOME
    row: Row = {"policy": policy, "mean_ms": float(delay.mean()) / 1e6, "p95_ms": float(np.percentile(delay, 95)) / 1e6}
    row |= {"away": float(away.mean()), "hops": float(done.hops[away].mean()) if away.any() else 0.0}
    for name in ("latency", "sending", "queue", "wait", "service"):
        row[f"{name}_ms"] = float(getattr(done, f"{name}_ns").mean()) / 1e6
    return row


def _computing(value: Any, names: list[str], where: str) -> NDArray[np.bool_]:
    found = np.zeros(len(names), bool)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= len(names):
        found[np.arange(value) * len(names) // value] = True
        return found
    if not isinstance(value, list) or not value or any(str(name) not in names for name in value):
        raise UsageError(
            "expected how many satellites compute, or their names", where=where, hint=f"computing: 6, or [{names[0]}]"
        )
    found[[names.index(str(name)) for name in value]] = True
    return found


def _service_ns(given: SpaceFile, served: ServedModel, key: str) -> int:
    where = f"{given.where}: {key}"
    if bool(served.model) == bool(served.time_ns) or bool(served.model) != (served.device is not None):
        raise UsageError("either a `model` on a `device`, or a `time`", where=where, hint="{time: 20ms}")
    if served.time_ns:
        return served.time_ns
    layers = model_layers(given.file_or_name(served.model), served.dtype)
    return int(layers.time_ns(device_of(given, served.device, where)).sum())


def _graphs(sky: Sky, at_ns: I64) -> I64:
    return np.maximum(np.searchsorted(sky.start_ns, at_ns, "right") - 1, 0)


def _drawn(drawn: RandomRequests, sky: Sky, computing: NDArray[np.bool_], seed: int) -> TravelRequests:
    """Poisson arrivals at satellites that do not compute, evenly spread, each as likely."""
    rng = np.random.default_rng(seed)
    able = np.flatnonzero(~computing) if not computing.all() else np.arange(len(computing))
    count = min(drawn.sources or len(able), len(able))
    homes = able[np.arange(count) * len(able) // count]
    number = max(int(rng.poisson(drawn.rate * drawn.duration_ns / 1e9)), 1)
    at = np.sort(rng.integers(0, drawn.duration_ns, number))
    return TravelRequests(
        at, homes[rng.integers(0, count, number)], np.full(number, drawn.size_bytes), _graphs(sky, at)
    )


def _listed(rows: Sequence[RequestRow], sky: Sky, names: list[str], where: str) -> TravelRequests:
    if unknown := [row.satellite for row in rows if row.satellite not in names]:
        raise UsageError(f"no satellite `{unknown[0]}`", where=where, hint=f"known: {', '.join(names[:8])}, ...")
    order = sorted(rows, key=lambda row: row.at_ns)
    at = np.array([row.at_ns for row in order], np.int64)
    home = np.array([names.index(row.satellite) for row in order], np.int64)
    return TravelRequests(at, home, np.array([row.size_bytes for row in order], np.int64), _graphs(sky, at))
