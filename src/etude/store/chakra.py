"""Chakra `.et`: a job as one file per rank, `name.{rank}.et`, with its groups in `name.json`.

Reads and writes the official format: length-prefixed protobuf messages; `.et.gz` and `.et.zst` too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError, TraceError, UsageError
from etude.kernels.arrays import distinct_values
from etude.model import timing as timings
from etude.model.as_recorded import TIMES_TOLD, has_both_times
from etude.model.job import MAX_WORLD, Job, Note, Part, assemble
from etude.model.schema import RECORDED_NS, UNKNOWN, Kind, ValueKind
from etude.model.trace import Trace
from etude.store import compressed, whose_times, worlds
from etude.store.et_decode import Decoded, attribute, decode, decode_files
from etude.store.et_encode import encode, encode_parts
from etude.store.et_irregular import fields

__all__ = [
    "Decoded",
    "decode",
    "decode_files",
    "encode",
    "encode_parts",
    "find_ranks",
    "for_rank",
    "left_behind",
    "read_job",
    "world_to_say",
    "write_job",
    "written_by",
]

SUFFIXES = (".et", ".et.gz", ".et.zst")
_BATCH_BYTES = 128 << 20
"""Files are decoded together up to this size: enough to make small ranks cheap, small enough to run in parallel."""

_SMALL_BATCH_BYTES = 16 << 20
"""The same if ranks are released as soon as they were processed."""

RecordedGroups = tuple[dict[str, list[int]], int]
"""Groups recorded in a trace (name -> members), and the world's size."""


# -- which files -------------------------------------------------------------------------------------------------------


def find_ranks(path: Path, suffixes: Sequence[str] = SUFFIXES) -> tuple[str, dict[int, Path]]:
    """(name, rank -> file) of a folder of `name.{rank}.et`, one such file, or the prefix `folder/name`."""
    endings = "|".join(map(re.escape, suffixes))
    ranked_name = re.compile(rf"^(?P<stem>.*)\.(?P<rank>\d+)(?:{endings})$")
    if path.is_file():
        ranked, plain = ranked_name.match(path.name), re.match(rf"^(?P<stem>.*?)(?:{endings})$", path.name)
        if ranked:
            return ranked["stem"], {_rank(ranked["rank"], path): path}
        return (plain["stem"] if plain else path.name), {0: path}
    folder, wanted = (path, None) if path.is_dir() else (path.parent, path.name)
    sets: dict[str, dict[int, Path]] = {}
    if folder.is_dir():
        for entry in sorted(os.listdir(folder)):
            found = ranked_name.match(entry)
            if found and (wanted is None or found["stem"] == wanted) and not entry.startswith("."):
                files = sets.setdefault(found["stem"], {})
                rank = _rank(found["rank"], folder / entry)
                if rank in files:
                    raise UsageError(f"rank {rank} appears twice: {files[rank].name} and {entry}", where=str(folder))
                files[rank] = folder / entry
    # `run.1.json` may be the group file of `run.1`, and then it is not rank 1 of `run`
    groups = {folder / f"{name}.json" for name in sets}
    sets = {name: kept for name, f in sets.items() if (kept := {r: p for r, p in f.items() if p not in groups})}
    if not sets:
        raise UsageError(
            f"no such file, and no `{suffixes[0]}` files of that name"
            if wanted
            else f"no `name.{{rank}}{suffixes[0]}` files in this folder",
            where=str(path),
        )
    if len(sets) > 1:
        shown = ", ".join(f"`{name}` ({len(files)} ranks)" for name, files in sets.items())
        raise UsageError(
            f"several jobs in one folder: {shown}", where=str(path), hint=f"choose one: {path}/{next(iter(sets))}"
        )
    name, files = next(iter(sets.items()))
    return name, dict(sorted(files.items()))


def _rank(digits: str, path: Path) -> int:
    if len(digits) > 9 or int(digits) >= MAX_WORLD:
        raise UsageError(f"{digits} is not a rank", where=str(path), hint=f"ranks below {MAX_WORLD:,} are read")
    return int(digits)


def _are_ranks(members: Any) -> TypeGuard[list[int]]:
    """Whether this is a list of rank numbers; `true` is not one, though Python counts it as an integer."""
    return isinstance(members, list) and all(type(m) is int and 0 <= m < MAX_WORLD for m in members)


def read_groups(path: Path) -> dict[str, list[int]]:
    """A communicator-group file: `{"1": [0, 1], ...}`."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as problem:
        problem = getattr(problem, "strerror", None) or problem
        raise FormatError(f"is not a group file: {problem}", path=path, hint='expected {"1": [0, 1], ...}') from None
    if not isinstance(found, dict):
        raise FormatError("is not a group file: not an object", path=path, hint='expected {"1": [0, 1], ...}')
    for name, members in found.items():
        if not _are_ranks(members):
            raise FormatError(f"group `{name}`: members are not a list of ranks", path=path)
    return found


# -- reading -----------------------------------------------------------------------------------------------------------


def read_job(
    path: str | Path,
    *,
    groups: str | Path | None = None,
    workers: int = 1,
    max_bytes: int | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> Job:
    """The ranks found at `path` (see find_ranks), each with its own trace.

    `groups` names the communicator-group file; by default `name.json` in the same folder. `advance` is called with the
    number of ranks of each batch.
    """
    name, files = find_ranks(Path(path))
    table = group_file(name, files, groups)
    decoded: list[Decoded] = []
    batches = list(_batches(list(files.values()), _BATCH_BYTES))
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for found in pool.map(lambda batch: _decode_batch(batch, max_bytes), batches):
            decoded += found
            advance(len(found))
    return join(name, list(files), decoded, table, source_format="chakra et")


def read_thin(
    path: str | Path,
    keep: Callable[[Part, timings.Timing | None], Trace],
    *,
    groups: str | Path | None = None,
    workers: int = 1,
    max_bytes: int | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> Job:
    """The job at `path` with what `keep` returns for each rank and its times, called in ascending order, instead of the
    rank's trace: only a few ranks are in memory at a time."""
    name, files = find_ranks(Path(path))
    table = group_file(name, files, groups)
    kept: list[Decoded] = []
    recorded: list[RecordedGroups] = []
    ranks = list(files)
    batches = list(_batches(list(files.values()), _SMALL_BATCH_BYTES))
    together = max(workers, 1)
    with ThreadPoolExecutor(together) as pool:
        for first in range(0, len(batches), together):
            found = pool.map(lambda batch: _decode_batch(batch, max_bytes), batches[first : first + together])
            for d in chain.from_iterable(found):
                recorded.append(process_groups(d.trace))
                part = Part(ranks[len(kept)], d.trace, [(name, None) for name in d.group_names], d.peers)
                trace = keep(part, timings.measured([d.start_ns], [recorded_durations(d.trace)]))
                kept.append(replace(d, trace=trace, start_ns=np.broadcast_to(np.int64(UNKNOWN), (len(trace),))))
                advance(1)
    return join(name, ranks, kept, table, source_format="chakra et", recorded=recorded)


def group_file(name: str, files: dict[int, Path], groups: str | Path | None) -> dict[str, list[int]]:
    """The communicator groups of a given file, else of `name.json` next to the ranks, else none. A `name.json` that is
    a trace itself (the JSON twin of an `.et` file) is ignored."""
    if groups:
        return read_groups(Path(groups))
    beside = next(iter(files.values())).parent / f"{name}.json"
    if not beside.is_file() or beside in files.values() or _is_trace(beside):
        return {}
    return read_groups(beside)


_TRACE_KEYS = rb"metadata|nodes|workload_graph|schema|schemaVersion|traceEvents|deviceProperties|version|attr|id|pid"


def _is_trace(path: Path) -> bool:
    """Whether a JSON file begins like a trace."""
    with open(path, "rb") as f:
        head = f.read(512)
    return re.match(rb'\s*\{\s*"(' + _TRACE_KEYS + rb')"\s*:', head) is not None


def join(
    name: str,
    ranks: list[int],
    decoded: list[Decoded],
    table: dict[str, list[int]],
    *,
    source_format: str,
    recorded: Sequence[RecordedGroups] | None = None,
) -> Job:
    """One job of ranks that were decoded separately; `recorded` are the groups in their traces, by default looked
    up."""
    own = [process_groups(d.trace) for d in decoded] if recorded is None else recorded
    decoded, said = _without_world(ranks, decoded, table, own)
    times = whose_times.said(d.metadata for d in decoded)
    if times:
        decoded = [replace(d, metadata=whose_times.without_times(d.metadata, times)) for d in decoded]
    parts, world_size = _parts(ranks, decoded, table, own, said)
    return assemble(
        name,
        parts,
        more_groups=list(table.items()),
        world_size=world_size,
        timing=timings.measured([d.start_ns for d in decoded], [recorded_durations(d.trace) for d in decoded]),
        provenance={"source_format": source_format} | times,
    )


def recorded_durations(trace: Trace) -> NDArray[np.int64]:
    """Time from recorded start to recorded end of each node: its own time, unless the attribute RECORDED_NS differs."""
    if not any(a.name == RECORDED_NS and a.kind == ValueKind.INT64 for layout in trace.layouts for a in layout):
        return trace.duration_ns
    durations = trace.duration_ns.copy()
    if (found := trace.attr_cells().get((RECORDED_NS, ValueKind.INT64))) is not None:  # a layout that some node has
        nodes, cells = found
        durations[nodes] = cells
    return durations


def _batches(files: list[Path], most_bytes: int) -> Iterator[list[Path]]:
    batch: list[Path] = []
    size = 0
    for file in files:
        length = file.stat().st_size * (1 if file.suffix == ".et" else 20)
        if batch and size + length > most_bytes:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += length
    if batch:
        yield batch


def _decode_batch(files: list[Path], max_bytes: int | None) -> list[Decoded]:
    heap, ends = compressed.load_all(files, max_bytes)
    return decode_files(heap, list(zip([0, *ends], ends, map(str, files), strict=False)))


def _without_world(
    ranks: list[int], decoded: list[Decoded], table: dict[str, list[int]], own: Sequence[RecordedGroups]
) -> tuple[list[Decoded], int]:
    """The ranks without the world size in their metadata, and that size; the inverse of a writer."""
    world = max((worlds.said(metadata) for metadata in {d.metadata for d in decoded}), default=0)
    members = {m for found in table.values() for m in found}
    if not world or world <= _implied(ranks, [d.peers for d in decoded], members, own):
        return decoded, world
    return [replace(d, metadata=worlds.without_world(d.metadata, world)) for d in decoded], world


def _implied(
    ranks: Sequence[int], peers: Sequence[NDArray[np.int64]], members: set[int], own: Sequence[RecordedGroups]
) -> int:
    """The world size that files, and the members of groups, imply."""
    ends = {int(p) for found in peers for p in (distinct_values(found) if len(found) else ())}
    named = {m for groups, _ in own for found in groups.values() for m in found}
    return max([worlds.implied(ranks, ends, members | named), *(size for _, size in own)])


def world_to_say(job: Job, *, has_group_file: bool = True) -> int:
    """The size of a job's world if its files would not imply it; 0 if they do."""
    members: set[int] = set()
    for number, group in enumerate(job.groups.names if has_group_file else ()):
        found = job.groups.ranks(number)
        if found is not None and not (group in ("", "0") and len(found) == job.world_size):
            members |= set(found.tolist())
    told = _implied(job.ranks.tolist(), [job.peer_of], members, [process_groups(trace) for trace in job.traces])
    return job.world_size if job.world_size > told else 0


def _parts(
    ranks: list[int], decoded: list[Decoded], table: dict[str, list[int]], own: Sequence[RecordedGroups], world: int = 0
) -> tuple[list[Part], int]:
    """Ranks with the members of their groups, if a group file or the trace itself names them; and the world's size, at
    least `world`."""
    world = max([world, *(size for _, size in own)])
    everyone = all_ranks(world, ranks, table)
    parts = []
    for rank, d, (recorded, _) in zip(ranks, decoded, own, strict=True):
        bound = [(group, group_members(group, table, recorded, everyone)) for group in d.group_names]
        notes = tuple(Note(rank, what, in_file=True) for what in d.warnings)
        parts.append(Part(rank, d.trace, bound, d.peers, d.metadata, notes))
    return parts, world


def all_ranks(world: int, ranks: list[int], table: dict[str, list[int]]) -> tuple[int, ...]:
    """All ranks known before peers are examined."""
    return tuple(range(max([world, max(ranks, default=-1) + 1, *(max(m, default=-1) + 1 for m in table.values())])))


def group_members(
    group: str, table: dict[str, list[int]], recorded: dict[str, list[int]], everyone: Sequence[int]
) -> Sequence[int] | None:
    """Members of a group by its name in a file: from the group file, or the trace itself; None if in neither."""
    if group in table:
        return table[group]
    if recorded.get(group):
        return recorded[group]
    # what Chakra's tools mean by these names, and what PyTorch's default group records
    return everyone if group in ("", "0") else None


def process_groups(trace: Trace) -> RecordedGroups:
    """Groups that PyTorch recorded in a metadata node: name -> members ([] is all); and the world's size."""
    groups: dict[str, list[int]] = {}
    world = 0
    for node in np.flatnonzero(trace.kind == Kind.METADATA).tolist():
        if "process_group:init" not in trace.text("name", node):
            continue
        for entry in _recorded_groups(trace.text("in_values", node)):
            members = entry.get("ranks")
            name, size = entry.get("pg_name"), entry.get("group_size")
            if isinstance(name, str) and _are_ranks(members):
                groups[name] = members
                if not members and type(size) is int and 0 < size <= MAX_WORLD:
                    world = max(world, size)
    return groups, world


def _recorded_groups(values: str) -> list[dict[str, Any]]:
    """The list of groups inside a recorded value, which is a Python or JSON list holding one JSON text."""
    start, end = values.find("[{"), values.rfind("}]")
    if start < 0 or end < 0:
        return []
    for candidate in (values[start : end + 2], values[start : end + 2].replace('\\"', '"')):
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return [entry for entry in found if isinstance(entry, dict)]
    return []


def written_by(job: Job) -> dict[str, str]:
    """Origin of the first rank by its metadata: version, schema, and the tool that made the job."""
    found = dict(job.provenance)
    if not job.metadata:
        return found
    for f in fields(job.metadata[0], "", 0):
        if f.wire == 2 and f.number == 1 and f.payload:
            found["version"] = f.payload.decode()
        elif f.wire == 2 and f.number == 2:
            name, kind, value, _ = attribute(f.payload, "", 0)
            if name == "schema" and kind == ValueKind.STRING:
                found["schema"] = str(value)
    return found


# -- writing -----------------------------------------------------------------------------------------------------------


def for_rank(job: Job, rank: int, world: int = 0) -> tuple[Decoded, int, int]:
    """(one rank as a file has it, id base, tag base), ready to be encoded. `world`: what `world_to_say` found."""
    i = job.index(rank)
    trace = job.trace(rank)
    names = tuple(job.groups.names[g] for g in job.group_slots(rank).tolist())
    start_ns: NDArray[np.int64] = np.broadcast_to(np.int64(UNKNOWN), (len(trace),))
    if job.timing is not None:
        start_ns = job.timing.block(i)[0]
    metadata = whose_times.with_times(job.metadata[int(job.metadata_of[i])], job.provenance)
    if world:
        metadata = worlds.with_world(metadata, world)
    found = Decoded(trace, metadata, names, job.peer_slots(rank), start_ns, ())
    return found, int(job.id_base[i]), int(job.tag_base[i])


def write_job(
    job: Job, folder: Path, *, name: str = "", suffix: str = ".et", advance: Callable[[int], None] = lambda amount: None
) -> None:
    """`name.{rank}.et` for every rank, and `name.json` with the groups if there are any, into an existing folder."""
    if suffix not in SUFFIXES:
        raise UsageError(f"`{suffix}` is not a kind of `.et` file", hint=f"known: {', '.join(SUFFIXES)}")
    write_ranks(job, folder, name or job.name, suffix, encode_parts, advance)


def write_ranks(
    job: Job,
    folder: Path,
    name: str,
    suffix: str,
    encoded: Callable[..., Iterator[NDArray[np.uint8]]],
    advance: Callable[[int], None],
) -> None:
    """A file for every rank, of the pieces that `encoded(decoded, id_base=, tag_base=)` gives, and the groups."""
    world = world_to_say(job)
    for rank in job.ranks.tolist():
        found, id_base, tag_base = for_rank(job, rank, world)
        try:
            pieces = encoded(found, id_base=id_base, tag_base=tag_base)
            with open(folder / f"{name}.{rank}{suffix}", "wb") as out:
                for piece in compressed.packed(pieces, os.path.splitext(suffix)[1]):
                    out.write(piece)
        except TraceError as problem:
            raise TraceError(problem.problem, where=f"rank {rank}", hint=problem.hint) from None
        advance(1)
    write_groups(job, folder / f"{name}.json")


def left_behind(job: Job) -> list[str]:
    """Messages about what a job has that neither `.et` nor JSON can store."""
    told = sorted({*job.provenance} - {"source_format", *TIMES_TOLD})
    found = [f"its provenance ({', '.join(told)})"] if told else []
    if has_both_times(job):
        found.append("the times under the profiler")
    if noticed := sum(not note.in_file for note in job.notes):
        found.append(f"notes of its reader ({noticed})")
    timing = job.timing
    if timing is None:
        return found
    if timing.origin != timings.Origin.MEASURED:
        found.append(f"that its times are {timing.origin.name.lower()}")
    if timing.clock_offset_ns.any():
        found.append("how the clocks of its ranks differ")
    elif timing.aligned and len(job.ranks) > 1:
        found.append("that its ranks share a clock")
    if not _ends_follow(job, timing):
        found.append("ends of nodes that differ from start + duration")
    return found


def _ends_follow(job: Job, timing: timings.Timing) -> bool:
    """Whether recorded ends equal those that a reader computes from starts and durations."""
    seen: set[tuple[int, int]] = set()
    for i, rank in enumerate(job.ranks.tolist()):
        pair = int(job.trace_of[i]), int(timing.block_of[i])
        if pair in seen and rank not in job.values:
            continue
        seen.add(pair)
        start, end = timing.block(i)
        read = timings.measured([start], [recorded_durations(job.trace(rank))])
        if not np.array_equal(read.end_ns[0] if read else np.full(len(end), UNKNOWN), end):
            return False
    return True


def write_groups(job: Job, path: Path) -> None:
    """The communicator-group file; none if no group needs an entry."""
    table = group_table(job)
    if table:
        lines = ",\n".join(f" {json.dumps(group)}: {json.dumps(members)}" for group, members in table.items())
        path.write_text(f"{{\n{lines}\n}}\n")


def group_table(job: Job) -> dict[str, list[int]]:
    """Groups as in a group file: name -> members. Names for all ranks (`""`, `"0"`) need no entry there."""
    table: dict[str, list[int]] = {}
    for number, group in enumerate(job.groups.names):
        members = job.groups.ranks(number)
        if members is None or (group in ("", "0") and len(members) == job.world_size):
            continue
        found = members.tolist()
        if table.setdefault(group, found) != found:
            problem = f"group `{group}` has different members on other ranks, which a group file cannot represent"
            raise TraceError(problem, hint="rename the groups, or keep the job in Parquet")
    return table
