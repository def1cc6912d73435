"""The definition of an edit: its parameters, what it selects, and how it rewrites the nodes of one program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.base.units import parse_bandwidth, parse_bytes, parse_time
from etude.cost.collectives import collective_time_ns, p2p_time_ns
from etude.kernels.arrays import I64
from etude.machine.system import System
from etude.make.transform.edits.below import Below
from etude.make.transform.rewrite import Rewriting
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace

_MOST: Final = 2.0**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One `key=value` of an edit."""

    read: Callable[[str], Any]
    doc: str
    default: str | None = None
    """As it would be written; None if it is required."""


@dataclass(frozen=True, slots=True, eq=False)
class Freed:
    """Memory of the device that an edit frees on these ranks: weights, experts, optimizer, kv, features, or activations
    of each micro-batch."""

    what: str
    ranks: NDArray[np.int32]
    size_bytes: int


@dataclass(slots=True, eq=False, kw_only=True)
class Here:
    """One program of the job, and everything that an edit may use while it rewrites it."""

    job: Job
    trace: Trace
    """Includes the values of the ranks that run it."""
    ranks: NDArray[np.int32]
    rows: I64
    """Selected rows."""
    made: Rewriting
    system: System | None
    notes: dict[str, None] = field(default_factory=dict)
    """Assumptions, each once."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Names of each group slot."""
    role: int | None = None
    """Which of two parties these ranks are, if there are two."""
    exposed_ns: I64 | None = None
    """For each node the part that nothing hid in a run of the job, if there was one."""
    freed: list[Freed] = field(default_factory=list)
    below: list[Below] = field(default_factory=list)
    """Data that this edit and those before it moved to tiers."""
    beside: int = 1
    """Ranks that use a tier at the same time, of those that share it with these."""

    def note(self, text: str) -> None:
        self.notes[text] = None

    def members(self, rows: I64) -> I64:
        """Ranks of the group of each collective, 2 for messages."""
        sizes = [self._size(slot) for slot in range(len(self.trace.group_slots))]
        of_slot = np.array([*sizes, self.job.world_size], np.int64)  # the last is slot -1
        return np.where(self.trace.kind[rows] == Kind.COLL, of_slot[self.trace.group[rows]], 2)

    def _size(self, slot: int) -> int:
        members = self.job.groups.ranks(int(self.job.group_slots(int(self.ranks[0]))[slot]))
        return 0 if members is None else len(members)

    def time_ns(self, rows: I64, size_bytes: I64) -> I64:
        """Time of the communication at these rows with these sizes, by the closed forms of the system."""
        assert self.system is not None
        trace, rank = self.trace, int(self.ranks[0])
        found = np.zeros(len(rows), np.int64)
        calls = np.flatnonzero(trace.kind[rows] == Kind.COLL)
        keys = trace.group[rows[calls]].astype(np.int64) * 256 + trace.collective[rows[calls]]
        for key in np.unique(keys).tolist():
            mine, slot = calls[keys == key], key >> 8
            group = self.job.groups.ranks(int(self.job.group_slots(rank)[slot])) if slot >= 0 else None
            members = np.arange(self.job.world_size) if slot < 0 else group
            if members is None:
                hint = "--groups FILE, or an edit that needs no times"
                raise UsageError(f"the members of group slot `{trace.group_slots[slot]}` are not known", hint=hint)
            found[mine] = collective_time_ns(self.system, Collective(key & 255), size_bytes[mine], np.unique(members))
        sent = np.flatnonzero(trace.kind[rows] != Kind.COLL)
        if len(sent):
            peers = np.append(self.job.peer_slots(rank), rank)  # the last: no peer
            src = np.where(trace.kind[rows[sent]] == Kind.SEND, rank, peers[trace.src[rows[sent]]])
            dst = np.where(trace.kind[rows[sent]] == Kind.SEND, peers[trace.dst[rows[sent]]], rank)
            found[sent] = p2p_time_ns(self.system, src, dst, size_bytes[sent])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Parties:
    """Ranks in pairs: the i-th rank present communicates with peer[i]; role[i] is 0 on the one and 1 on the other."""

    role: I64
    peer: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One edit of the catalogue."""

    doc: str
    """What it does, in one line."""
    cannot: str
    """What it cannot show."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    selects: str = "node"
    """The kind of nodes that it works on if `kind` is not given."""
    narrower: Callable[..., str] = lambda **arguments: ""
    """(Parameters): the kind that it works on if neither `kind` nor `op` is given; empty: `selects`."""
    rewrite: Callable[..., None] | None = None
    """(Here, parameters): rewrites one program."""
    whole: Callable[..., tuple[Job, int, list[str]]] | None = None
    """(Job, Selector, parameters) -> (job, nodes, notes): for edits of more than one program."""
    timed: bool = False
    """It needs the time of communication on the system."""
    parties: Callable[..., Parties | None] | None = None
    """(Job, parameters): who communicates with whom, for edits that add messages."""
    tier: str = ""
    """The parameter that names a tier of the system, which ranks share."""
    machine: Callable[..., bool] = lambda **arguments: False
    """(Parameters): whether it reads a system."""


def rounded(values: NDArray[np.floating], *, up: bool = False) -> I64:
    """Whole bytes or ns, rounded, or rounded up; refuses values that no column can hold."""
    if len(values) and not float(np.max(values)) < _MOST:
        raise UsageError("bytes or times would be larger than any trace can hold", hint="smaller factors")
    return (np.ceil(values - 1e-6) if up else np.rint(values)).astype(np.int64)


# -- readers of parameters ---------------------------------------------------------------------------------------------


def number(least: float = 0.0, *, above: bool = False) -> Callable[[str], float]:
    """A number of at least `least`, or above it."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"`{text}` is not a number") from None
        if not math.isfinite(value) or value < least or (above and value == least) or value > 1e12:
            raise UsageError(f"{text} is out of range", hint=f"a number {'above' if above else 'from'} {least:g}")
        return value

    return read


def whole(least: int = 0) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > 9 or int(text) < least:
            raise UsageError(f"`{text}` is not a whole number of at least {least}")
        return int(text)

    return read


def rate(text: str) -> float:
    """Bytes per ns; `inf` is free."""
    if text == "inf":
        return math.inf
    found = parse_bandwidth(text)
    if not found:
        raise UsageError(f"`{text}` is not a positive rate", hint="400GB/s, or inf")
    return found / 1e9


def size(text: str) -> int:
    return parse_bytes(text)


def time(text: str) -> int:
    found = parse_time(text)
    if found < 0:
        raise UsageError(f"`{text}` is a negative time")
    return found


def choice(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise UsageError(f"unknown value `{text}`", hint=f"known: {', '.join(known)}")
        return text

    return read


def names(text: str) -> tuple[str, ...]:
    return tuple(part.text for part in line(text, "").split(","))
