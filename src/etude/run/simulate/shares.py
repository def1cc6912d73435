"""Capacities that nodes share, as given in options: who draws how much, and which ranks share one.

{"hbm": {"compute": Draw(demand=0.8), "memory": Draw(demand=0.4)}}      each rank has one
{"nic@node": {"communication": Draw(demand=0.25)}}                      the ranks of a node share one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from etude.base.errors import UsageError
from etude.machine.scopes import scope_level
from etude.machine.system import System
from etude.run.simulate.networks.resources import CLASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What one node of a class draws of a capacity."""

    demand: float = 1.0
    """Fraction of the capacity at full rate; 0: nothing."""
    weight: float = 1.0
    """Weight of its share among those of the same priority."""
    priority: int = 0
    """The smallest comes first."""
    chunk_bytes: int = 0
    """Yields to higher priorities at the boundaries of equal pieces of at most this many bytes; 0: at once."""
    chunk_ns: int = 0
    """The same in pieces that take this long at full rate."""

    def __post_init__(self) -> None:
        if not (0 <= self.demand <= 1e6 and 0 < self.weight <= 1e6 and 0 <= self.priority <= 1000):
            problem = f"a demand of {self.demand:g}, a weight of {self.weight:g} and a priority of {self.priority}"
            raise UsageError(problem, hint="use demands of at least 0, weights above 0")
        if self.chunk_bytes < 0 or self.chunk_ns < 0 or (self.chunk_bytes and self.chunk_ns):
            raise UsageError("a chunk needs either a size or a time, above 0")


Shares = Mapping[str, Mapping[str, Draw]]


def scope_of(name: str) -> str:
    """The level whose units share the capacity; empty: each rank has its own."""
    return name.partition("@")[2]


def check_shares(shares: Shares) -> None:
    for name, draws in shares.items():
        if not name.partition("@")[0] or (name.count("@") and not scope_of(name)):
            raise UsageError(f"share: `{name}` is not a name, or NAME@LEVEL")
        for klass in draws:
            if klass not in CLASSES:
                raise UsageError(f"share: {name}: unknown class `{klass}`", hint=f"known: {', '.join(CLASSES)}")
        talk = draws.get("communication", Draw())
        if talk.chunk_bytes or talk.chunk_ns:
            hint = "`etude edit` cuts them: `chunk kind=coll into=4`"
            raise UsageError(f"share: {name}: collectives and messages yield at once, not by chunks", hint=hint)
    chunked = [{(d.chunk_bytes, d.chunk_ns) for each in shares.values() if (d := each.get(c))} for c in CLASSES]
    if any(len(sizes - {(0, 0)}) > 1 for sizes in chunked):
        raise UsageError("share: a class has chunks of two sizes")


def check_on_links(shares: Shares) -> None:
    """Refuses what would stop a transfer in flight."""
    for name, draws in shares.items():
        talk = draws.get("communication")
        if talk and talk.demand and any(d.priority < talk.priority and d.demand for d in draws.values()):
            hint = "give communication priority, or use --network analytic"
            raise UsageError(f"share: {name}: transfers in flight on links cannot be paused", hint=hint)


def level_of(system: System, name: str) -> int:
    """Position of the level whose units share a capacity; -1: each rank has its own."""
    scope = scope_of(name)
    return scope_level(system, scope, f"share: {name}") if scope else -1
