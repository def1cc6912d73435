"""Job: the ranks of one run. Ranks that run the same program share one Trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError, UsageError
from etude.base.units import counted
from etude.kernels.arrays import I32, I64, U64, distinct_values
from etude.model.timing import Timing
from etude.model.trace import Trace

MAX_WORLD = 1 << 20
"""Most ranks of a job. A larger number in a file is a mistake, not a cluster."""

VALUE_COLUMNS = ("duration_ns", "in_bytes", "out_bytes", "tensor_bytes", "flops")
"""Columns that a rank may replace; all others are structure."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of ranks: ordered members and the name in the source. Several groups may have the same name."""

    names: tuple[str, ...]
    start: I64
    members: I32
    known: NDArray[np.bool_]
    """False if the source did not name the members."""

    @classmethod
    def of(cls, entries: Sequence[tuple[str, Sequence[int] | None]]) -> Groups:
        start = np.cumsum([0] + [len(m or ()) for _, m in entries]).astype(np.int64)
        flat = [r for _, m in entries for r in (m or ())]
        known = np.array([m is not None for _, m in entries], bool)
        return cls(tuple(n for n, _ in entries), start, np.array(flat, np.int32), known)

    def __len__(self) -> int:
        return len(self.names)

    def ranks(self, group: int) -> I32 | None:
        """Members in order; None if unknown."""
        return self.members[self.start[group] : self.start[group + 1]] if self.known[group] else None


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader noticed and accepted."""

    rank: int
    what: str
    at_edge: bool = False
    """It is about something that began before the recording, or ended after it, which is normal."""
    in_file: bool = False
    """It is about the bytes of a Chakra file, and is noticed again whenever they are read."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Job:
    """The ranks of one run.

    The i-th rank present is ranks[i]; it runs traces[trace_of[i]]. Its group slot s is bound to group
    group_of[group_start[i] + s], its peer slot s to rank peer_of[peer_start[i] + s]; its ids are the trace's plus
    id_base[i], its tags the trace's plus tag_base[i]. `values` replaces columns of VALUE_COLUMNS on single ranks.

    job: etude.Job = etude.open("job/")
    """

    name: str
    traces: tuple[Trace, ...]
    ranks: I32
    trace_of: I32
    groups: Groups
    group_start: I64
    group_of: I32
    peer_start: I64
    peer_of: I64
    id_base: U64
    tag_base: I64
    world_size: int
    metadata: tuple[bytes, ...]
    """Distinct GlobalMetadata messages."""
    metadata_of: I32
    values: Mapping[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    """Rank -> column -> values, where they differ from the trace's."""
    timing: Timing | None = None
    """Recorded times, if there are any."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """What wrote it and from what: `tool`, `source_format`, ... No host or user names."""
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        r = len(self.ranks)
        if self.world_size > MAX_WORLD or (r and int(self.ranks.max()) >= MAX_WORLD):
            problem = f"job: a world of {max(self.world_size, int(self.ranks.max(initial=0)) + 1):,} ranks"
            raise TraceError(problem, hint=f"at most {MAX_WORLD:,} are read")
        for name in ("trace_of", "id_base", "tag_base", "metadata_of"):
            if len(getattr(self, name)) != r:
                raise TraceError(f"job: `{name}` has {len(getattr(self, name))} entries for {r} ranks")
        if r and (np.diff(self.ranks) <= 0).any():
            raise TraceError("job: ranks are not ascending and distinct")
        if r and not 0 <= self.trace_of.min() <= self.trace_of.max() < len(self.traces):
            raise TraceError(f"job: a rank runs a trace outside its {len(self.traces)}")
        slots = np.array([len(t.group_slots) for t in self.traces] or [0], np.int64)
        peers = np.array([t.peer_slots for t in self.traces] or [0], np.int64)
        for name, flat, counts in (("group", self.group_of, slots), ("peer", self.peer_of, peers)):
            start = getattr(self, f"{name}_start")
            if len(start) != r + 1 or start[-1] != len(flat) or (r and (np.diff(start) != counts[self.trace_of]).any()):
                raise TraceError(f"job: {name} bindings do not fit the traces' {name} slots")
        if len(self.group_of) and not 0 <= self.group_of.min() <= self.group_of.max() < len(self.groups):
            raise TraceError(f"job: a group slot is bound to a group outside its {len(self.groups)}")
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __len__(self) -> int:
        """Ranks present."""
        return len(self.ranks)

    def __repr__(self) -> str:
        part = "" if len(self.ranks) == self.world_size else f"{len(self.ranks):,} of "
        ranks, traces = counted(self.world_size, "rank"), counted(len(self.traces), "trace")
        return f"Job(`{self.name}`: {part}{ranks}, {traces}, {counted(self.nodes, 'node')})"

    def _repr_html_(self) -> str:
        from etude.model.shown import job_html

        return job_html(self)

    def replace(self, **changes: Any) -> Job:
        return replace(self, **changes)

    @property
    def nodes(self) -> int:
        """Nodes over all ranks present."""
        lengths = np.array([len(t) for t in self.traces] or [0], np.int64)
        return int(lengths[self.trace_of].sum()) if len(self.ranks) else 0

    def index(self, rank: int) -> int:
        """Position of a rank among those present."""
        i = int(np.searchsorted(self.ranks, rank))
        if i == len(self.ranks) or self.ranks[i] != rank:
            raise UsageError(f"rank {rank} is not in the job", hint=f"present: {ranges(self.ranks)}")
        return i

    def trace(self, rank: int) -> Trace:
        """The program of a rank, with the rank's own values; slots, ids and tags stay those of the shared trace."""
        trace = self.traces[int(self.trace_of[self.index(rank)])]
        own = self.values.get(rank)
        return trace.replace(**own) if own else trace

    def group_slots(self, rank: int) -> I32:
        """Group of each group slot of a rank."""
        i = self.index(rank)
        return self.group_of[self.group_start[i] : self.group_start[i + 1]]

    def peer_slots(self, rank: int) -> I64:
        """Rank behind each peer slot of a rank."""
        i = self.index(rank)
        return self.peer_of[self.peer_start[i] : self.peer_start[i + 1]]


def check_name(name: str) -> None:
    """Refuses a job name that file systems or readers cannot handle: it is part of file names."""
    bad = not name or name.startswith(".") or name == "manifest" or not name.isprintable() or set(name) & set("/\\")
    if bad:
        raise UsageError(f"{name!r} is not a valid job name", hint="use letters, digits, `-`, `_` and `.`")


def ranges(ranks: NDArray[Any]) -> str:
    """Ranks as text: `0-3, 7`."""
    values = distinct_values(ranks)
    if not len(values):
        return "none"
    parts = np.split(values, np.flatnonzero(np.diff(values) != 1) + 1)
    shown = [f"{p[0]}" if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts]
    return ", ".join(shown[:20]) + (", ..." if len(shown) > 20 else "")


DEFAULT_METADATA = b"\x0a\x051.0.0"
"""The GlobalMetadata of a rank that was not read from a file: `version: "1.0.0"`."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One rank as a reader found it."""

    rank: int
    trace: Trace
    groups: Sequence[tuple[str, Sequence[int] | None]]
    """Name and members behind each group slot."""
    peers: I64
    """Rank behind each peer slot."""
    metadata: bytes = DEFAULT_METADATA
    notes: tuple[Note, ...] = ()


def assemble(
    name: str,
    parts: Sequence[Part],
    *,
    more_groups: Sequence[tuple[str, Sequence[int] | None]] = (),
    world_size: int = 0,
    timing: Timing | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Job:
    """A job of ranks that each have their own trace. `parts` ascend by rank.

    The world is at least as large as any rank that is present, a member of a group, or a peer.
    """
    number: dict[tuple[str, tuple[int, ...] | None], int] = {}
    for entry_name, members in more_groups:
        number.setdefault((entry_name, None if members is None else tuple(members)), len(number))
    group_of: list[int] = []
    for part in parts:
        for entry_name, members in part.groups:
            key = (entry_name, None if members is None else tuple(members))
            group_of.append(number.setdefault(key, len(number)))
    blobs: dict[bytes, int] = {}
    metadata_of = [blobs.setdefault(p.metadata, len(blobs)) for p in parts]
    groups = Groups.of(list(number))
    peers = np.concatenate([p.peers for p in parts]) if parts else np.zeros(0, np.int64)
    near = peers[(peers >= 0) & (peers < MAX_WORLD)]
    mentioned = [int(x.max()) + 1 for x in (near, groups.members) if len(x)]
    ranks = np.array([p.rank for p in parts], np.int32)
    return Job(
        name=name,
        traces=tuple(p.trace for p in parts),
        ranks=ranks,
        trace_of=np.arange(len(parts), dtype=np.int32),
        groups=groups,
        group_start=np.cumsum([0] + [len(p.groups) for p in parts]).astype(np.int64),
        group_of=np.array(group_of, np.int32),
        peer_start=np.cumsum([0] + [len(p.peers) for p in parts]).astype(np.int64),
        peer_of=peers,
        id_base=np.zeros(len(parts), np.uint64),
        tag_base=np.zeros(len(parts), np.int64),
        world_size=max([world_size, *mentioned, int(ranks.max()) + 1 if len(ranks) else 0]),
        metadata=tuple(blobs),
        metadata_of=np.array(metadata_of, np.int32),
        timing=timing,
        provenance=provenance or {},
        notes=tuple(note for p in parts for note in p.notes),
    )
