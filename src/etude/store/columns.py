"""A job in Parquet, one folder a job: thousands of ranks are not thousands of files. columns_schema lists the files.

write_job(job, folder); read_job(folder). `.et` to Parquet to `.et` gives the same bytes, and the same job always
gives the same files.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from etude.base.errors import FormatError, TraceError, UsageError
from etude.kernels.arrays import I32, I64, distinct_values
from etude.model.job import MAX_WORLD, VALUE_COLUMNS, Groups, Job, Note, check_name, ranges
from etude.model.schema import SCHEMA_VERSION, UNKNOWN
from etude.model.timing import Origin, Timing
from etude.model.trace import Trace
from etude.store import columns_schema as schema
from etude.store import columns_small as small
from etude.store import columns_write as w
from etude.store.columns_files import REPLACED, File
from etude.store.columns_read import TraceReader, read_layouts, read_trace_rows
from etude.store.et_decode import check_metadata


class TimingEntry(msgspec.Struct, forbid_unknown_fields=True):
    origin: str
    aligned: bool
    partial: bool


class Manifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """manifest.json."""

    format: str
    schema_version: int
    tool: str
    name: str
    world_size: int
    ranks: int
    traces: int
    nodes: int
    """Total over all ranks."""
    chunks: list[w.Chunk]
    """Row groups of nodes.parquet, deps.parquet and attrs.parquet; a file has none if the count is 0."""
    layouts: list[int]
    """Layouts in each set."""
    timing: TimingEntry | None
    provenance: dict[str, str]
    notes: list[tuple[int, str]]
    edge_notes: list[int] = []
    """Which of the notes are about the edges of a recording."""
    file_notes: list[int] = []
    """Which are about the bytes of a Chakra file."""
    dry: bool = False
    """Whether it is of a program that was run without numbers."""
    memory: dict[str, Any] = {}
    """Of the fullest rank of such a program: its peaks, and what they were made of."""


# -- writing -----------------------------------------------------------------------------------------------------------


def write_job(job: Job, folder: str | Path) -> None:
    """Writes a job into an existing, empty folder."""
    folder = Path(folder)
    if not folder.is_dir() or any(folder.iterdir()):
        raise UsageError("is not an empty folder", where=str(folder))
    large = {name: w.ParquetFile(folder, name) for name in ("nodes", "deps", "attrs", "values", "timing")}
    chunks: list[w.Chunk] = []
    try:
        for chunk, tables in w.trace_chunks(job.traces):
            for name, rows in tables.items():
                large[name].write(rows)
            chunks.append(chunk)
        for name in ("nodes", "deps", "attrs"):
            if not chunks:
                large[name].write(_empty(name))
        for rows in small.value_tables(job):
            large["values"].write(rows)
        for rows in small.timing_tables(job):
            large["timing"].write(rows)
    finally:
        for file in large.values():
            file.close()
    layouts, sets = small.layout_sets(job.traces)
    for name, rows in _small(job, layouts, sets).items():
        file = w.ParquetFile(folder, name)
        file.write(rows)
        file.close()
    manifest = _manifest(job, chunks, [len(s) for s in sets])
    (folder / schema.MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def _empty(name: str) -> Any:
    return pa.schema(list(schema.FILES[name].items())).empty_table()


def _small(job: Job, layouts: I32, sets: Sequence[Any]) -> dict[str, Any]:
    return {
        "traces": small.trace_table(job.traces, layouts),
        "layouts": small.layout_table(sets),
        "ranks": small.rank_table(job),
        "groups": small.group_table(job),
    }


def _manifest(job: Job, chunks: list[w.Chunk], layouts: list[int]) -> Manifest:
    t = job.timing
    return Manifest(
        format=schema.FORMAT,
        schema_version=SCHEMA_VERSION,
        tool=f"etude {_version()}",
        name=job.name,
        world_size=job.world_size,
        ranks=len(job),
        traces=len(job.traces),
        nodes=job.nodes,
        chunks=chunks,
        layouts=layouts,
        timing=None if t is None else TimingEntry(t.origin.name.lower(), t.aligned, t.partial),
        provenance=dict(job.provenance),
        notes=[(n.rank, n.what) for n in job.notes],
        edge_notes=[number for number, n in enumerate(job.notes) if n.at_edge],
        file_notes=[number for number, n in enumerate(job.notes) if n.in_file],
        dry="dry" in job.provenance,
        memory=msgspec.json.decode(job.provenance.get("memory", "{}")),
    )


def _version() -> str:
    try:
        return importlib.metadata.version("etude")
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return "unknown"


def tables(job: Job) -> dict[str, Any]:
    """The same tables in memory, by file name."""
    parts: dict[str, list[Any]] = {name: [] for name in ("nodes", "deps", "attrs", "values", "timing")}
    for _, found in w.trace_chunks(job.traces):
        for name, rows in found.items():
            parts[name].append(rows)
    parts["values"] += small.value_tables(job)
    parts["timing"] += small.timing_tables(job)
    found = {name: pa.concat_tables(rows) for name, rows in parts.items() if rows}
    for name in ("nodes", "deps", "attrs"):
        found.setdefault(name, _empty(name))
    return found | _small(job, *small.layout_sets(job.traces))


# -- reading -----------------------------------------------------------------------------------------------------------


def read_manifest(folder: str | Path) -> Manifest:
    """Contents of a folder, from its manifest only."""
    path = Path(folder) / schema.MANIFEST
    try:
        raw = path.read_bytes()
    except OSError as problem:
        hint = f"a job in Parquet is a folder with a {schema.MANIFEST}"
        raise FormatError(f"cannot be read: {problem.strerror or problem}", path=path, hint=hint) from None
    try:
        loose = msgspec.json.decode(raw, type=dict[str, Any])
        version = loose.get("schema_version")
        if loose.get("format") != schema.FORMAT or not isinstance(version, int):
            raise FormatError("is not the manifest of a job", path=path)
        if version > SCHEMA_VERSION:
            raise FormatError(
                f"has schema version {version}; this Etude reads up to {SCHEMA_VERSION}", path=path, hint="update Etude"
            )
        manifest = msgspec.convert(loose, Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise FormatError(f"is not the manifest of a job: {problem}", path=path, hint=REPLACED) from None
    sizes = [manifest.world_size, manifest.ranks, manifest.traces, *manifest.layouts]
    sizes += [n for c in manifest.chunks for n in (c.first, c.nodes, c.data, c.ctrl, c.attrs)]
    if min(sizes) < 0 or max(sizes) >= 1 << 40 or sum(manifest.layouts) >= 1 << 32 or manifest.world_size > MAX_WORLD:
        raise FormatError("holds an invalid count", path=path, hint=REPLACED)
    try:
        check_name(manifest.name)
    except UsageError as problem:
        raise FormatError(problem.problem, path=path, where="name", hint=problem.hint) from None
    return manifest


def read_job(folder: str | Path, *, ranks: Sequence[int] | None = None) -> Job:
    """The job; with `ranks` only those, reading no more than the row groups that hold their traces."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        job = _read(folder, manifest, ranks)
        pa.default_memory_pool().release_unused()  # Arrow keeps what it had for the columns of files
        return job
    except FormatError:
        raise
    except TraceError as problem:  # from the model: the files contradict one another
        raise FormatError(problem.problem, path=folder, hint=REPLACED) from None
    except (pa.ArrowException, OverflowError, MemoryError) as problem:
        raise FormatError(f"cannot be read: {problem}", path=folder, hint=REPLACED) from None


def _read(folder: Path, manifest: Manifest, wanted: Sequence[int] | None) -> Job:
    rows = read_trace_rows(folder, manifest.traces)
    ranks = _Ranks(folder, manifest, rows.nodes, wanted)
    traces = _traces(folder, manifest, rows, ranks)
    group_file = File(folder, "groups")
    groups = _groups(group_file)
    values = _values(folder, ranks) if _expected(folder, "values", ranks.values) else {}
    timing = _timing(folder, manifest.timing, ranks) if manifest.timing else None
    _expected(folder, "timing", timing is not None)
    return Job(
        name=manifest.name,
        traces=traces,
        ranks=ranks.rank,
        trace_of=ranks.renumbered,
        groups=groups,
        group_start=ranks.group_start,
        group_of=ranks.group_of,
        peer_start=ranks.peer_start,
        peer_of=ranks.peer_of,
        id_base=ranks.id_base,
        tag_base=ranks.tag_base,
        world_size=manifest.world_size,
        metadata=ranks.metadata,
        metadata_of=ranks.metadata_of,
        values=values,
        timing=timing,
        provenance=manifest.provenance,
        notes=tuple(
            Note(rank, what, number in manifest.edge_notes, number in manifest.file_notes)
            for number, (rank, what) in enumerate(manifest.notes)
            if wanted is None or rank in ranks.chosen
        ),
    )


def _expected(folder: Path, name: str, wanted: bool) -> bool:
    """Whether this file should exist. An existing file that should not is not part of the job."""
    path = folder / f"{name}.parquet"
    if not wanted and path.exists():
        raise FormatError("exists, but the job has none", path=path, hint=REPLACED)
    return wanted


class _Ranks:
    """ranks.parquet, or some of its rows."""

    def __init__(self, folder: Path, manifest: Manifest, nodes: I64, wanted: Sequence[int] | None) -> None:
        file = File(folder, "ranks")
        found = file.read(list(file.types))
        every = file.numbers(found["rank"], "rank")
        self.all_trace = file.numbers(found["trace"], "trace")
        if len(every) != manifest.ranks:
            raise file.error(f"{len(every)} ranks, but the manifest says {manifest.ranks}")
        if len(every) and (every[0] < 0 or (np.diff(every) <= 0).any()):
            raise file.error("ranks are not ascending")
        if len(every) and not 0 <= self.all_trace.min() <= self.all_trace.max() < len(nodes):
            raise file.error(f"a rank runs a trace outside its {len(nodes)}")
        rows = _chosen(every, wanted)
        if wanted is not None:
            found = {name: column.take(pa.array(rows)) for name, column in found.items()}
        self.rank, self.trace = every[rows], self.all_trace[rows]
        self.chosen = set(self.rank.tolist()) if wanted is not None else set()
        self.used, renumbered = np.unique(self.trace, return_inverse=True)
        if wanted is None:  # traces that no rank runs stay
            self.used, renumbered = np.arange(manifest.traces), self.trace
        self.renumbered = renumbered.astype(np.int32)
        self.length = nodes[self.trace]
        self.id_base = file.numbers(found["id_base"], "id_base")
        self.tag_base = file.numbers(found["tag_base"], "tag_base")
        if len(self.tag_base) and not -(1 << 62) < self.tag_base.min() <= self.tag_base.max() < 1 << 62:
            raise file.error("column `tag_base` holds a number that no tag can be added to")
        self.group_start, group_of, _ = file.lists(found["groups"], "groups")
        self.peer_start, peer_of, _ = file.lists(found["peers"], "peers")
        self.group_of = group_of.to_numpy(zero_copy_only=False)
        self.peer_of = peer_of.to_numpy(zero_copy_only=False)
        self.metadata, self.metadata_of = _metadata(file, found["metadata"])
        self._own(file, found["own"])
        self.block = file.numbers(found["block"], "block", -1)
        self.clock_offset_ns = file.numbers(found["clock_offset_ns"], "clock_offset_ns", 0)
        self.every = every
        whole = file.read(["block", "own"])
        self.all_block = file.numbers(whole["block"], "block", -1)
        self.all_own = np.flatnonzero(np.diff(file.lists(whole["own"], "own")[0]) > 0)
        self.values = len(self.all_own) > 0
        self.file = file
        self.all_length = nodes[self.all_trace]

    def _own(self, file: File, column: Any) -> None:
        starts, flat, _ = file.lists(column, "own")
        names = flat.to_pylist()
        if not set(names) <= set(VALUE_COLUMNS):
            raise file.error(f"column `own` holds other than {', '.join(VALUE_COLUMNS)}")
        bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        self.own: list[list[str]] = [names[a:b] for a, b in bounds] if names else [[]] * (len(starts) - 1)


def _chosen(every: I32, wanted: Sequence[int] | None) -> I64:
    if wanted is None:
        return np.arange(len(every))
    sorted_ranks = distinct_values(np.asarray(wanted, np.int64))
    rows = np.searchsorted(every, sorted_ranks)
    absent = (
        sorted_ranks[(rows == len(every)) | (every[np.minimum(rows, len(every) - 1)] != sorted_ranks)]
        if len(every)
        else sorted_ranks
    )
    if len(absent):
        raise UsageError(f"rank {ranges(absent)} is not in the job", hint=f"present: {ranges(every)}")
    return rows


def _metadata(file: File, column: Any) -> tuple[tuple[bytes, ...], I32]:
    number: dict[bytes, int] = {}
    parts = [np.zeros(0, np.int32)]
    for chunk in column.chunks:
        codes = file.codes(chunk, "metadata")
        if len(codes) and codes.min() < 0:
            raise file.error("column `metadata` holds NULL")
        used = distinct_values(codes)
        of = np.zeros(len(chunk.dictionary), np.int32)
        for code in used.tolist():
            raw = chunk.dictionary[code].as_py()
            check_metadata(raw, str(file.path), 0)
            of[code] = number.setdefault(raw, len(number))
        parts.append(of[codes])
    return tuple(number), np.concatenate(parts)


def _traces(folder: Path, manifest: Manifest, rows: Any, ranks: _Ranks) -> tuple[Trace, ...]:
    reader = TraceReader(folder, rows, read_layouts(folder, manifest.layouts), manifest.chunks)
    found: dict[int, Trace] = {}
    expected = 0
    for a, b in reader.runs():
        first, last = reader.chunks[a].first, reader.chunks[b - 1].last
        if first != expected or last < first:
            raise FormatError("its row groups leave out a trace", path=folder / schema.MANIFEST, hint=REPLACED)
        expected = last + 1
        i = int(np.searchsorted(ranks.used, first))
        if i < len(ranks.used) and ranks.used[i] <= last:
            found |= dict(enumerate(reader.read(a, b), first))
    if expected != manifest.traces:
        raise FormatError("its row groups leave out a trace", path=folder / schema.MANIFEST, hint=REPLACED)
    return tuple(found[number] for number in ranks.used.tolist())


def _groups(file: File) -> Groups:
    found = file.read(list(file.types))
    starts, members, known = file.lists(found["members"], "members")
    names = found["name"].to_pylist()
    if None in names or (file.numbers(found["group"], "group") != np.arange(len(names))).any():
        raise file.error("groups are not in order, or one has no name")
    return Groups(tuple(names), starts, members.to_numpy(zero_copy_only=False), known)


def _blocks(file: File, label: str, numbers: I64, lengths: I64, wanted: set[int]) -> dict[int, dict[str, I64]]:
    """Item -> column -> its values, for the wanted items among those stored one after another in the file."""
    ends = np.cumsum(lengths)
    edges = np.concatenate([[0], np.cumsum(file.group_rows)])
    if int(edges[-1]) != (int(ends[-1]) if len(ends) else 0):
        raise file.error(f"{edges[-1]} rows where {int(lengths.sum())} are needed")
    columns = [n for n in file.types if n not in (label, "node")]
    found: dict[int, dict[str, I64]] = {}
    for group in range(len(file.group_rows)):
        low, high = int(edges[group]), int(edges[group + 1])
        items = np.arange(*np.searchsorted(ends, (low, high), "right"))
        if int(lengths[items].sum()) != high - low:
            raise file.error(f"a row group ends inside a {label}")
        if not wanted.intersection(numbers[items].tolist()):
            continue
        read = file.read(list(file.types), [group])
        own = lengths[items]
        expected = np.arange(high - low) - np.repeat(np.cumsum(own) - own, own)
        if (file.numbers(read[label], label) != np.repeat(numbers[items], own)).any() or (
            file.numbers(read["node"], "node") != expected
        ).any():
            raise file.error(f"rows are not in the order of {label} and node")
        arrays = {c: file.numbers(read[c], c, UNKNOWN) for c in columns if c in read}
        starts = np.cumsum(own) - own
        for number, start, n in zip(numbers[items].tolist(), starts.tolist(), own.tolist(), strict=True):
            if number in wanted:
                found[number] = {c: values[start : start + n] for c, values in arrays.items()}
    for number in wanted - set(found):  # of no nodes
        found[number] = {c: np.zeros(0, np.int64) for c in columns}
    return found


def _values(folder: Path, ranks: _Ranks) -> dict[int, dict[str, I64]]:
    file = File(folder, "values")
    has = ranks.all_own
    wanted = {r for r, own in zip(ranks.rank.tolist(), ranks.own, strict=True) if own}
    found = _blocks(file, "rank", ranks.every[has].astype(np.int64), ranks.all_length[has], wanted)
    values = {}
    for rank, own in zip(ranks.rank.tolist(), ranks.own, strict=True):
        if own:
            try:
                values[rank] = {c: found[rank][c] for c in own}
            except KeyError as problem:
                raise file.error(f"column {problem} is missing") from None
    return values


def _timing(folder: Path, entry: TimingEntry, ranks: _Ranks) -> Timing:
    file = File(folder, "timing")
    used, first = np.unique(ranks.all_block, return_index=True)
    try:
        origin = Origin[entry.origin.upper()]
    except KeyError:
        raise FormatError(f"unknown origin of times: {entry.origin}", path=folder / schema.MANIFEST) from None
    if (used != np.arange(len(used))).any():
        raise ranks.file.error("blocks of times are not numbered from 0 on")
    lengths = ranks.all_length[first]
    if (lengths[ranks.all_block] != ranks.all_length).any():
        raise ranks.file.error("a rank's block of times does not fit its trace")
    blocks, block_of = np.unique(ranks.block, return_inverse=True)
    found = _blocks(file, "block", used.astype(np.int64), lengths, set(blocks.tolist()))
    return Timing(
        origin=origin,
        start_ns=tuple(found[b]["start_ns"] for b in blocks.tolist()),
        end_ns=tuple(found[b]["end_ns"] for b in blocks.tolist()),
        block_of=block_of.astype(np.int32),
        clock_offset_ns=ranks.clock_offset_ns,
        aligned=entry.aligned,
        partial=entry.partial,
    )
