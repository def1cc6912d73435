"""Checkpoints: where the state is saved, how often, how long that takes, and which faults a copy survives.

    parse_checkpoints("local:5min,remote:1h")
    parse_checkpoints("local:diff=0.1:10,peer:diff=0.1:10,remote:full:500:async:rate=2GB/s") # intervals in steps
    parse_checkpoints("remote:auto:total=2TB/s") # the best interval is looked for

All nodes save their part of the state at once. `sync` stops the steps for it; `async` stops them for the copy into the
host's memory, and the rest overlaps with the steps, slower by `contend`.

A tier with `diff` holds differences from a base: the newest whole copy of another tier, or one of its own where there
is none. If storage takes `slots` concurrent requests, each of `request` bytes and `response` time, a node writes and
reads at most slots · request / response.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure
from etude.base.grammar import LinePiece, fill, items, line
from etude.world.fleet.faults import Scope

AUTO: Final = "auto"
EXAMPLE: Final = "local:5min, or remote:500:async:rate=2GB/s"
PROCESS, NODE, GROUP, EVERYTHING = range(4)
SEVERITY: Final = {"process": PROCESS, "node": NODE, "group": GROUP, "all": EVERYTHING}
USUAL: Final = {
    "local": {"rate": "5GB/s", "survives": "process"},
    "peer": {"rate": "10GB/s", "survives": "node"},
    "remote": {"rate": "1GB/s", "survives": "all"},
    "store": {"rate": "1GB/s", "survives": "all"},
}
"""Rates of a node, and the largest fault that a copy survives: assumptions, unless the system or the option states
them."""
WITHOUT: Final = {"rate": "the usual rate", "read": "the write rate", "total": "no limit"}
"""Rate -> what holds where it is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTier:
    """One place that the state is saved to."""

    name: str = figure("text", "local, peer, remote, store, or a tier of the system")
    every_ns: float = figure("time", "time between saves; 0: given by `steps`, or searched for", 0.0)
    steps: int = figure("count", "steps between saves", 0)
    share: float = figure("fraction", "fraction of the state that changes between saves (differential)", 1.0)
    background: bool = figure("flag", "steps continue while it is written", False)
    rate_bytes_per_s: float = figure("bandwidth", "write rate of a node", 0.0, zero=False)
    read_bytes_per_s: float = figure("bandwidth", "read rate of a node; default: the write rate", 0.0, zero=False)
    total_bytes_per_s: float = figure("bandwidth", "rate of all nodes together; default: no limit", 0.0, zero=False)
    snapshot_bytes_per_s: float = figure(
        "bandwidth", "rate of a node's copy into its host, before a background save", 2e11
    )
    latency_ns: float = figure("time", "fixed time of a save or a load", 0.0)
    slots: int = figure("count", "concurrent requests of a node that storage accepts; 0: no limit", 0)
    request_bytes: float = figure("bytes", "of one such request", float(1 << 20))
    response_ns: float = figure("time", "of one such request", 50e6)
    contend: float = figure("number", "slowdown of a step during a background save", 1.0)
    survives: str = figure("text", "the largest fault it survives: process, node, group, all", "all")

    def __post_init__(self) -> None:
        if self.survives not in SEVERITY:
            raise ClusterError(f"survives `{self.survives}`", hint=f"known: {', '.join(SEVERITY)}")
        if self.contend < 1:
            raise ClusterError(f"contend {self.contend:g}: steps during a save cannot be faster", hint="contend=1.02")

    @property
    def outlives(self) -> int:
        return SEVERITY[self.survives]

    @property
    def is_whole(self) -> bool:
        """Whether every save is of the whole state."""
        return self.share >= 1.0

    def node_rate(self, nodes: int, *, read: bool = False) -> float:
        """Bytes per second of one of this many nodes."""
        rate = (read and self.read_bytes_per_s) or self.rate_bytes_per_s
        if self.total_bytes_per_s:
            rate = min(rate, self.total_bytes_per_s / nodes)
        if self.slots:
            rate = min(rate, self.slots * self.request_bytes / (self.response_ns / 1e9))
        return rate

    def write_ns(self, state_bytes: float, nodes: int, part: float | None = None) -> int:
        """From the first byte to the last, on all nodes, of a part of the state; default: of a usual save."""
        size = state_bytes * (self.share if part is None else part) / nodes
        return math.ceil(self.latency_ns + size / self.node_rate(nodes) * 1e9)

    def stall_ns(self, state_bytes: float, nodes: int, part: float | None = None) -> int:
        """How long the steps wait."""
        if not self.background:
            return self.write_ns(state_bytes, nodes, part)
        size = state_bytes * (self.share if part is None else part) / nodes
        return math.ceil(size / self.snapshot_bytes_per_s * 1e9)

    def load_ns(self, node_bytes: float, nodes: int) -> int:
        """Every node reads its part."""
        return math.ceil(self.latency_ns + node_bytes / self.node_rate(nodes, read=True) * 1e9)

    def steps_between(self, step_ns: int) -> int:
        return self.steps or max(math.ceil(self.every_ns / step_ns), 1)

    def at(self, every_ns: float) -> SaveTier:
        """The same with this interval."""
        return replace(self, every_ns=every_ns, steps=0)


def severity_of(scope: Scope, nodes: int) -> int:
    """How large a fault is, for copies."""
    if scope == Scope.ALL:
        return EVERYTHING
    return PROCESS if nodes == 0 else NODE if nodes == 1 else GROUP


def parse_checkpoints(text: str, system_tiers: tuple[Any, ...] = ()) -> tuple[SaveTier, ...]:
    """`local:5min,remote:1h`. A tier that the system has takes its rates from there."""
    if text in ("", "none"):
        return ()
    known = {tier.name: tier for tier in system_tiers}
    found = tuple(_tier(part, known) for part in line(text, "--checkpoint", EXAMPLE).split(","))
    if len({tier.name for tier in found}) < len(found):
        raise UsageError("--checkpoint: two tiers have the same name")
    if sum(not tier.every_ns and not tier.steps for tier in found) > 1:
        raise UsageError(
            "--checkpoint: only the interval of one tier can be searched for", hint="remote:auto, local:5min"
        )
    return found


def _tier(text: LinePiece, known: dict[str, Any]) -> SaveTier:
    first, *parts = text.split(":")
    name = first.choice([*USUAL, *known], "tier")
    given: dict[str, Any] = {"name": name, **USUAL.get(name, {})}
    if name in known:
        tier = known[name]
        given |= {"rate": tier.write_bytes_per_s, "read": tier.read_bytes_per_s, "latency": tier.write_latency_ns}
        given.setdefault("survives", "process")
    timed = False
    said = items(parts)
    for word in said.bare:
        if word.text in ("full", "sync", "async"):
            given |= {"background": word.text == "async"} if word.text != "full" else {}
        elif word.text == "diff":
            given["share"] = "0.1"
        elif timed:
            raise word.wrong(f"`{name}` has an interval, and `{word.text}` is a second one")
        else:
            timed = True
            given |= _interval(word)
    if not timed:
        raise first.wrong(f"no interval is given for `{name}`")
    for key in (key for key in WITHOUT if key in said.values):
        said.values[key].positive("bandwidth", f"leave `{key}` out for {WITHOUT[key]}")
    if "diff" in said.values:
        given["share"] = said.values["diff"].fraction()
    figures = [part for part in parts if "=" in part.text and part.cut("=")[0].text != "diff"]
    return fill(SaveTier, figures, first, given)


def _interval(word: LinePiece) -> dict[str, Any]:
    """Steps or a time; nothing where it is searched for."""
    if word.text.isdecimal() and int(word.text) > 0:
        return {"steps": int(word.text)}
    return {} if word.text == AUTO else {"every": word.time_ns()}


# -- closed forms ------------------------------------------------------------------------------------------------------


def young_ns(save_ns: float, mtbf_ns: float) -> float:
    """Best interval to first order."""
    return math.sqrt(2 * save_ns * mtbf_ns)


def daly_ns(save_ns: float, mtbf_ns: float) -> float:
    """Best interval with terms of higher order (Daly 2006), from one save's end to the next one's start."""
    if save_ns >= 2 * mtbf_ns:
        return mtbf_ns
    part = save_ns / (2 * mtbf_ns)
    return math.sqrt(2 * save_ns * mtbf_ns) * (1 + math.sqrt(part) / 3 + part / 9) - save_ns
