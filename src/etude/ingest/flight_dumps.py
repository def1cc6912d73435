"""Dumps of PyTorch's Flight Recorder as a job: the last communications of each rank, those that hang among them.

A dump is written when a run stands still: JSON (`_dump_nccl_trace_json`, `name.rank3.fr.json.gz`) or a pickle
(`nccl_trace_rank_3`). An entry is a node; its start is when it was seen to start, or else was asked for, its end when
it was seen to be done. What neither ended nor retired has no end: its rank still stands in it. A ring buffer forgets,
so of each group the calls count that every dump of a member still has.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from etude.errors import FormatError, UsageError
from etude.ingest.comm_calls import LARGEST, dtype_of, type_of
from etude.model.build import TraceBuilder
from etude.model.job import Job, Note, assemble
from etude.model.schema import UNKNOWN, Kind
from etude.model.timing import Origin, Timing
from etude.store import compressed

_SIGN: Final = b"collective_seq_id"
_RANK: Final = re.compile(r"rank[._-]?(\d+)|(\d+)(?:\.fr)?(?:\.json)?(?:\.gz|\.zst)?$")
_PEERS: Final = re.compile(r"(\d+)\s*(?:->|<-)\s*(\d+)")
_HEAD: Final = 1 << 16
_DONE: Final = "completed"


@dataclass(slots=True)
class Dump:
    rank: int
    entries: list[dict[str, Any]]
    groups: dict[str, list[int]]
    """Members by the group's name; empty is all ranks."""
    world: int


def is_dump(path: Path) -> bool:
    """A file of the Flight Recorder?"""
    if not path.is_file() or path.suffix in (".et", ".parquet", ".html", ".yaml"):
        return False
    head = compressed.head(path, _HEAD)
    return _SIGN in head and (b"entries" in head) and b"traceEvents" not in head


def dumps_in(path: Path) -> list[Path]:
    """The dumps at a path: one file, or those of a folder."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if is_dump(file))
    return [path] if is_dump(path) else []


def read_job(path: Path, *, max_bytes: int | None = None, advance: Callable[[int], None] = lambda amount: None) -> Job:
    """The job that the dumps at `path` speak of; its times are `job.timing`."""
    dumps: dict[int, Dump] = {}
    for file in dumps_in(path):
        dump = _read(file, max_bytes)
        if dump.rank in dumps:
            raise UsageError(f"two dumps are of rank {dump.rank}", where=str(file), hint="one run at a time")
        dumps[dump.rank] = dump
        advance(1)
    world = max([d.world for d in dumps.values()] + [rank + 1 for rank in dumps])
    first = _first_common(dumps)
    parts, starts, ends, notes = [], [], [], []
    for rank, dump in sorted(dumps.items()):
        builder, start, end, untimed = _nodes(dump, first)
        parts.append(builder.part(rank, {g: m or list(range(world)) for g, m in dump.groups.items()}))
        starts.append(np.array(start, np.int64))
        ends.append(np.array(end, np.int64))
        if untimed:
            notes.append(Note(rank, f"{untimed} communications are done, but not when: they are taken as instants"))
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


def _nodes(dump: Dump, first: dict[str, int]) -> tuple[TraceBuilder, list[int], list[int], int]:
    """(nodes, starts, ends, how many are done at a time that nobody noted)."""
    builder, start, end, untimed = TraceBuilder(), [], [], 0
    for entry in sorted(dump.entries, key=lambda entry: _number(entry, "record_id")):
        name = str(entry.get("profiling_name", ""))
        found = type_of(name)
        group = _group(entry)
        if found is None or (found[0] == Kind.COLL and _number(entry, "collective_seq_id") < first.get(group, 0)):
            continue
        kind, collective = found
        columns: dict[str, Any] = {"in_bytes": _size(entry, "input"), "out_bytes": _size(entry, "output")}
        if kind == Kind.COLL:
            builder.add(kind, name, group=group, collective=collective, **columns)
        else:
            peers = _PEERS.search(name)
            members = dump.groups.get(group) or list(range(dump.world))
            pair = [members[int(n)] if int(n) < len(members) else int(n) for n in peers.groups()] if peers else []
            if "<-" in name:
                pair.reverse()
            builder.add(kind, name, src=pair[0] if pair else None, dst=pair[1] if pair else None, **columns)
        began = _time(entry, "time_discovered_started_ns", "time_created_ns")
        done = _time(entry, "time_discovered_completed_ns")
        if done == UNKNOWN and (entry.get("retired") or entry.get("state") == _DONE):
            done, untimed = began, untimed + 1
        start.append(began)
        end.append(done if done == UNKNOWN else max(done, began))
    return builder, start, end, untimed


def _first_common(dumps: dict[int, Dump]) -> dict[str, int]:
    """By group: the first call that all dumps that know the group have."""
    first: dict[str, int] = {}
    for dump in dumps.values():
        mine: dict[str, int] = {}
        for entry in dump.entries:
            if not entry.get("is_p2p"):
                group, number = _group(entry), _number(entry, "collective_seq_id")
                mine[group] = min(mine.get(group, number), number)
        for group, number in mine.items():
            first[group] = max(first.get(group, number), number)
    return first


def _group(entry: dict[str, Any]) -> str:
    said = entry.get("process_group")
    return str(said[0]) if isinstance(said, list | tuple) and said else str(entry.get("pg_id", 0))


def _number(entry: dict[str, Any], name: str) -> int:
    value = entry.get(name)
    return value if isinstance(value, int) else 0


def _time(entry: dict[str, Any], *names: str) -> int:
    for name in names:
        value = entry.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return UNKNOWN


def _size(entry: dict[str, Any], side: str) -> int:
    """Bytes of the tensors of one side; UNKNOWN where they are not said."""
    sizes, types = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(sizes, list | tuple) or not isinstance(types, list | tuple) or len(types) != len(sizes):
        return UNKNOWN
    total = 0
    for shape, text in zip(sizes, types, strict=True):
        width = dtype_of(text)[1]
        if not width or not all(isinstance(n, int) and n >= 0 for n in shape):
            return UNKNOWN
        total += prod(shape) * width
    return total if total < LARGEST else UNKNOWN


# -- files -------------------------------------------------------------------------------------------------------------


class _Plain(pickle.Unpickler):
    """A pickle of numbers, texts and lists; whatever else it asks for is refused, for it would run as code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _read(path: Path, max_bytes: int | None) -> Dump:
    data, size = compressed.load(path, max_bytes)
    raw = data[:size].tobytes()
    try:
        found = msgspec.json.decode(raw) if raw.lstrip()[:1] == b"{" else _Plain(io.BytesIO(raw)).load()
    except (msgspec.MsgspecError, pickle.UnpicklingError, EOFError, ValueError, IndexError, AttributeError) as problem:
        raise FormatError(f"not a dump of the Flight Recorder: {problem}", path=path) from None
    entries = found.get("entries") if isinstance(found, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError("not a dump of the Flight Recorder: it has no list of entries", path=path)
    rank = found.get("rank")
    if not isinstance(rank, int):
        said = _RANK.search(path.name)
        if said is None:
            raise UsageError("the dump does not say whose it is", where=str(path), hint="name it `trace_rank_3`")
        rank = int(said.group(1) or said.group(2))
    groups, sizes = _groups(found.get("pg_config"))
    world = max([len(m) for m in groups.values()] + [max(m) + 1 for m in groups.values() if m] + [*sizes, rank + 1])
    return Dump(rank, entries, groups, world)


def _groups(said: Any) -> tuple[dict[str, list[int]], list[int]]:
    """Members by name, and sizes, of `pg_config`: a list of groups, or a dict by name, members maybe as text."""
    entries = list(said.items()) if isinstance(said, dict) else [(None, entry) for entry in said or ()]
    groups: dict[str, list[int]] = {}
    sizes = []
    for key, entry in entries:
        if not isinstance(entry, dict):
            continue
        name, members = entry.get("pg_name", entry.get("name", key)), entry.get("ranks", [])
        if isinstance(members, str):
            members = [int(number) for number in re.findall(r"\d+", members)]
        groups[str(name)] = [rank for rank in members if isinstance(rank, int)]
        sizes.append(entry["group_size"] if isinstance(entry.get("group_size"), int) else len(groups[str(name)]))
    return groups, sizes
