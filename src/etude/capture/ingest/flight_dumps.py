"""Dumps of PyTorch's Flight Recorder as a job: the last communications of each rank, those that hang among them.

A dump is written when a run hangs. An entry is a node; its start is when it was seen to start, or else was asked
for, its end when it was seen to be done. What neither ended nor retired has no end: its rank still stands in it. A ring
buffer forgets, so of each group the calls count that every dump of a member still has. Attributes beside the columns:
`comm_seq` (number of the call in its group), `comm_state`, `dtype`, `in_sizes` and `out_sizes` (elements of each
tensor).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.capture.ingest.comm_calls import LARGEST, dtype_of, type_of
from etude.capture.ingest.flight_files import Dump, Entry, Shapes, dumps_in, is_dump, read
from etude.model.build import TraceBuilder
from etude.model.job import Job, Note, assemble
from etude.model.schema import UNKNOWN, Collective, Kind, ValueKind
from etude.model.timing import Origin, Timing

__all__ = ["dumps_in", "is_dump", "read_job"]

_PEERS: Final = re.compile(r"(\d+)\s*(?:->|<-)\s*(\d+)")
_BACKEND: Final = re.compile(r"^[a-z0-9_]+:")
_MARKER: Final = "coalesced"
_SPELLINGS: Final = {
    "alltoall_base": "all_to_all",
    "alltoall": "all_to_all",
    "recvanysource": "recv",
    "sparse_all_reduce": "all_reduce",
    "sparse_allreduce": "all_reduce",
    "allreduce_sparse": "all_reduce",
}
"""Names written by backends, besides those of operators."""

Known = tuple[Kind, Collective]
Group = tuple[str, tuple[int, ...] | None]
"""Name and members: groups that were split off may have the name of another."""


@dataclass(frozen=True, slots=True)
class DumpedCall:
    """An entry, and the one with its times and state: for a coalesced operation those of the whole group."""

    entry: Entry
    whole: Entry


def read_job(path: Path, *, max_bytes: int | None = None, advance: Callable[[int], None] = lambda amount: None) -> Job:
    """The job described by the dumps at `path`; its times are `job.timing`."""
    dumps: dict[int, Dump] = {}
    for file in dumps_in(path):
        dump = read(file, max_bytes)
        if dump.rank in dumps:
            raise UsageError(f"two dumps belong to rank {dump.rank}", where=str(file), hint="give one run at a time")
        dumps[dump.rank] = dump
        advance(1)
    world = max(dump.world for dump in dumps.values())
    every = tuple(range(world))
    first = _first_common(dumps)
    parts, starts, ends = [], [], []
    notes: list[Note] = []
    for rank, dump in sorted(dumps.items()):
        nodes = _Nodes(dump, first, world)
        parts.append(nodes.builder.part(rank, {g: m or every for g, m in dump.groups.items()}))
        starts.append(np.array(nodes.start, np.int64))
        ends.append(np.array(nodes.end, np.int64))
        notes += nodes.notes()
    timing = Timing(
        origin=Origin.MEASURED,
        start_ns=tuple(starts),
        end_ns=tuple(ends),
        block_of=np.arange(len(parts), dtype=np.int32),
        clock_offset_ns=np.zeros(len(parts), np.int64),
    )
    source = {"source_format": "flight recorder"}
    job = assemble(path.name.partition(".")[0], parts, world_size=world, timing=timing, provenance=source)
    return job.replace(notes=(*job.notes, *notes))


def operation(name: str) -> Known | None:
    """The operation of an entry, by its name: `nccl:all_reduce`, `xccl:send 0->1`, `nccl:ALLTOALL_BASE`. None if
    unknown."""
    plain = _BACKEND.sub("", name).lower()
    word = plain.partition(" ")[0]
    return type_of(_SPELLINGS.get(word, plain))


class _Nodes:
    """Nodes of one rank, with their times."""

    def __init__(self, dump: Dump, first: dict[Group, int], world: int) -> None:
        self.rank, self.groups, self.world = dump.rank, dump.groups, world
        self.builder, self.start, self.end = TraceBuilder(), list[int](), list[int]()
        self.untimed, self.unknown = 0, Counter[str]()
        for call in _calls(dump.entries):
            entry = call.entry
            number = None if entry.is_p2p else entry.collective_seq_id
            if number is None or number >= first.get((entry.group, dump.groups.get(entry.group)), 0):
                self._add(call)

    def _add(self, call: DumpedCall) -> None:
        entry, whole = call.entry, call.whole
        known = operation(entry.profiling_name)
        if known is None:
            self.unknown[entry.profiling_name] += 1
            known = (Kind.METADATA, Collective.NONE) if entry.is_p2p else (Kind.COLL, Collective.OTHER)
        kind, collective = known
        columns: dict[str, Any] = {"in_bytes": _size(entry.input_sizes, entry.input_dtypes)}
        columns |= {"out_bytes": _size(entry.output_sizes, entry.output_dtypes), "attrs": _attributes(entry, whole)}
        if kind == Kind.COLL:
            columns |= {"group": entry.group, "collective": collective}
        elif kind in (Kind.SEND, Kind.RECV):
            columns |= self._ends(entry)
        self.builder.add(kind, entry.profiling_name, **columns)
        began = whole.time_discovered_started_ns or whole.time_created_ns or entry.time_created_ns or UNKNOWN
        done = whole.time_discovered_completed_ns or UNKNOWN
        if done == UNKNOWN and whole.is_done:
            done, self.untimed = began, self.untimed + 1
        self.start.append(began)
        self.end.append(done if done == UNKNOWN else max(done, began))

    def _ends(self, entry: Entry) -> dict[str, int | None]:
        """Sender and receiver; ranks in a name count within the group."""
        said = _PEERS.search(entry.profiling_name)
        if said is None or any(len(text) > 9 for text in said.groups()):
            return {"src": None, "dst": None}
        members = self.groups.get(entry.group) or range(self.world)
        pair = [members[n] if n < len(members) else n for n in map(int, said.groups())]
        src, dst = reversed(pair) if "<-" in entry.profiling_name else pair
        return {"src": src, "dst": dst}

    def notes(self) -> Iterator[Note]:
        if self.untimed:
            yield Note(
                self.rank, f"{self.untimed} communications have completed at an unknown time: they count as instants"
            )
        for name, count in sorted(self.unknown.items()):
            what = "whose operations were not recorded" if _is_marker(name) else "which is not known"
            yield Note(self.rank, f"{count} communications are called `{name[:80]}`, {what}; they are kept as they are")


def _calls(entries: list[Entry]) -> Iterator[DumpedCall]:
    """The communications of a rank. A coalesced call is recorded as its operations, followed by an entry called
    `coalesced` with the times and the state of all; without them it represents operations that were not recorded."""
    waiting: list[Entry] = []
    for entry in entries:
        if not _is_marker(entry.profiling_name):
            waiting.append(entry)
            continue
        number = _number(entry)
        belongs = [_number(one) == number for one in waiting]
        for one, mine in zip(waiting, belongs, strict=True):
            yield DumpedCall(one, entry if mine else one)
        waiting.clear()
        if not any(belongs):
            yield DumpedCall(entry, entry)
    for one in waiting:
        yield DumpedCall(one, one)


def _is_marker(name: str) -> bool:
    return _BACKEND.sub("", name).lower() == _MARKER


def _number(entry: Entry) -> tuple[str, bool, int | None]:
    """Which call of its group an entry belongs to."""
    return entry.group, bool(entry.is_p2p), entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id


def _attributes(entry: Entry, whole: Entry) -> dict[str, tuple[ValueKind, Any]]:
    found: dict[str, tuple[ValueKind, Any]] = {}
    if entry.collective_seq_id is not None and not entry.is_p2p:
        found["comm_seq"] = ValueKind.INT64, entry.collective_seq_id
    if whole.state is not None:
        found["comm_state"] = ValueKind.STRING, whole.state
    types = {dtype_of(text)[0] or text for text in (*(entry.input_dtypes or ()), *(entry.output_dtypes or ()))}
    if types:
        found["dtype"] = ValueKind.STRING, ", ".join(sorted(types))
    for name, shapes in (("in_sizes", entry.input_sizes), ("out_sizes", entry.output_sizes)):
        if shapes is not None and len(sizes := [prod(shape) for shape in shapes]) and max(sizes) < LARGEST:
            found[name] = ValueKind.INT64_LIST, sizes
    return found


def _first_common(dumps: dict[int, Dump]) -> dict[Group, int]:
    """By group: the first call that all dumps with the group have."""
    first: dict[Group, int] = {}
    for dump in dumps.values():
        mine: dict[str, int] = {}
        for entry in dump.entries:
            if not entry.is_p2p and entry.collective_seq_id is not None:
                mine[entry.group] = min(mine.get(entry.group, 2**62), entry.collective_seq_id)
        for name, number in mine.items():
            group = name, dump.groups.get(name)
            first[group] = max(first.get(group, number), number)
    return first


def _size(shapes: Shapes | None, types: list[str] | None) -> int:
    """Bytes of the tensors of one side; UNKNOWN if not recorded."""
    if shapes is None or types is None:
        return UNKNOWN
    widths = [dtype_of(text)[1] for text in (types * len(shapes) if len(types) == 1 else types)]
    if len(widths) != len(shapes) or not all(widths):
        return UNKNOWN
    total = sum(prod(shape) * width for shape, width in zip(shapes, widths, strict=True))
    return total if total < LARGEST else UNKNOWN
