"""Transfers as loads and stores of lines: what a device can have in flight, and what its blocks can issue.

A rate is the least of the link's rate, of outstanding lines over the round trip of one (Little's law), and of what the
blocks issue. A store's line goes one way; a load's is requested first, which takes the latency once more.

The levels of a system carry no more than that. In a graph, with routes of several lengths, a device has a window for
the routes of each level, shared by everything that it sends there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from etude.base.errors import ClusterError
from etude.machine.system import Level, System
from etude.machine.topology import Topology, Windows, with_windows

_NO_LIMIT_BYTES_PER_S = 1e15


class Access(StrEnum):
    STORE = "store"
    LOAD = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grain:
    line_bytes: int
    outstanding: int = 0
    """Most lines that a device has in flight; 0: no limit."""
    ctas: int = 0
    """Blocks that issue them; 0: no limit, and as many cores held as the device says."""
    cta_bytes_per_s: float = 0.0
    """What one of them issues."""
    access: Access = Access.STORE

    def __post_init__(self) -> None:
        if self.line_bytes < 1 or self.outstanding < 0 or self.ctas < 0 or not 0 <= self.cta_bytes_per_s < float("inf"):
            raise ClusterError(
                "grain: a line is shorter than a byte, or a value is negative", hint="line=128B outstanding=4096"
            )
        if self.cta_bytes_per_s and not self.ctas:
            raise ClusterError("grain: a rate per block needs a number of blocks", hint="ctas=16 rate=20GB/s")
        if self.access not in Access.__members__.values():
            raise ClusterError(f"grain: unknown access `{self.access}`", hint=f"known: {', '.join(Access)}")

    def most_bytes_per_s(self, latency_ns: float) -> float:
        """Rate of a device whose lines have this one-way latency."""
        rate = float("inf")
        if self.outstanding and latency_ns:
            rate = self.outstanding * self.line_bytes / (2 * latency_ns) * 1e9
        return min(rate, self.ctas * self.cta_bytes_per_s) if self.cta_bytes_per_s else rate

    def on(self, system: System) -> System:
        """The system, with levels, and windows of a graph, limited to that rate."""
        graph = system.topology and self._windowed(system.topology, system.levels)
        return system.replace(levels=tuple(map(self._level, system.levels)), topology=graph)

    def _windowed(self, graph: Topology, levels: tuple[Level, ...]) -> Topology:
        latency = np.unique([level.latency_ns for level in levels])
        leaves = np.bincount(graph.src, graph.bytes_per_s, len(graph.kind))[graph.device]  # all links together
        most = np.array([self.most_bytes_per_s(one) for one in latency])
        asks = latency if self.access == Access.LOAD else np.zeros(len(latency))
        is_limited = (most < leaves[:, None]) | (asks > 0)
        rank, kind = np.nonzero(is_limited)
        rate, asked_ns = np.minimum(most, _NO_LIMIT_BYTES_PER_S)[kind], np.rint(asks).astype(np.int64)[kind]
        return with_windows(graph, Windows(latency, graph.device[rank], kind, rate, asked_ns))

    def _level(self, level: Level) -> Level:
        most = self.most_bytes_per_s(level.latency_ns) / level.bandwidth_bytes_per_s
        asks_ns = level.latency_ns if self.access == Access.LOAD else 0.0
        return replace(
            level,
            efficiency=min(level.efficiency, most),
            efficiency_by_units={units: min(part, most) for units, part in level.efficiency_by_units.items()},
            in_switch_efficiency=min(level.in_switch_efficiency, most),
            latency_ns=level.latency_ns + asks_ns,
            step_ns={name: time + asks_ns for name, time in level.step_ns.items()},
        )
