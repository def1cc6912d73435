"""Nsight Systems: the SQLite file of `nsys export --type sqlite`, or of `nsys profile --export sqlite`, as recordings.

| table | becomes |
|---|---|
| `CUPTI_ACTIVITY_KIND_KERNEL`, `_MEMCPY`, `_MEMSET` | kernels, copies, fills: device, stream, correlation, bytes |
| `CUPTI_ACTIVITY_KIND_RUNTIME`, `_DRIVER` | calls of the host, on their threads |
| `CUPTI_ACTIVITY_KIND_SYNCHRONIZATION` | which stream or event a call waits for |
| `NVTX_EVENTS` | ranges of the program as operators; `step 3` as a step; ranges of NCCL say what its kernels do |
| `StringIds`, `TARGET_INFO_GPU`, `TARGET_INFO_SESSION_START_TIME` | names, the device, when the recording began |

Columns differ between versions: what a table lacks is unknown. A process is a rank.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from urllib.parse import quote

import numpy as np

from etude.base.errors import FormatError
from etude.capture.link import recording as r
from etude.capture.link.kernel_names import step_of, talk_of_kernel
from etude.capture.link.ranks import split
from etude.capture.link.recording import DeviceRecording, Talk
from etude.kernels.arrays import I32, I64
from etude.model.schema import UNKNOWN

Names: TypeAlias = tuple[I32, tuple[str, ...]]
"""Codes of rows, and their texts."""

UNKNOWN_SQL: Final = "-9223372036854775808"
_MAGIC: Final = b"SQLite format 3\x00"
_CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
KERNELS, COPIES, FILLS = f"{_CUPTI}KERNEL", f"{_CUPTI}MEMCPY", f"{_CUPTI}MEMSET"
GRAPHS: Final = f"{_CUPTI}GRAPH_TRACE"
CALLS: Final = (f"{_CUPTI}RUNTIME", f"{_CUPTI}DRIVER")
SYNCS, NVTX, STRINGS = f"{_CUPTI}SYNCHRONIZATION", "NVTX_EVENTS", "StringIds"
_READ: Final = (KERNELS, COPIES, FILLS, GRAPHS, *CALLS, SYNCS, NVTX, f"{_CUPTI}CUDA_EVENT")
_EVENTS: Final = re.compile(
    r"CUPTI_ACTIVITY_KIND_\w+|NVTX_\w*EVENTS|OSRT_API|CUBLAS_EVENTS|CUDNN_EVENTS|MPI_\w+_EVENTS"
)
_PUSH_POP, _START_END = 59, 60
"""Types of NVTX events that are ranges."""
_DOMAIN: Final = 75
_PROCESS_BITS: Final = 24
"""A thread's id is (..., process, thread of 24 bits); that of its process ends in as many zeros."""
_COPY_KINDS: Final = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
                      10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}  # fmt: skip
_MEMORY_KINDS: Final = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
_VERSION: Final = re.compile(r"_v\d{4,5}$")
"""The CUDA version in which a call got its arguments, at the end of its name: `cudaLaunchKernel_v7000`."""
_NO_STREAM: Final = 0xFFFFFFFF
_MESSAGE: Final = re.compile(r'"[^"]*[Mm]essage size[^"]*"\s*:\s*(\d+)')
_LOST: Final = re.compile(r"dropped|lost|overflow|incomplete|truncated|not all", re.IGNORECASE)
_HINT: Final = "made by `nsys export --type sqlite run.nsys-rep`?"


def looks_like(head: bytes) -> bool:
    """Whether this is an SQLite file."""
    return head.startswith(_MAGIC)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Events of one table."""

    category: int
    start_ns: I64
    end_ns: I64
    process: I64
    name: I32
    names: tuple[str, ...]
    thread: I64
    stream: I64
    device: I64
    correlation: I64
    size_bytes: I64
    event: I64

    def __len__(self) -> int:
        return len(self.start_ns)


class _Database:
    """Tables of the file as columns."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.path, self._connection = path, connection
        found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        self.tables = {str(name) for (name,) in found}
        self.texts = dict(connection.execute(f"SELECT id, value FROM {STRINGS}")) if STRINGS in self.tables else {}

    def has(self, table: str) -> bool:
        return table in self.tables

    def _there(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def numbers(self, table: str, wanted: tuple[str, ...], where: str = "") -> dict[str, I64]:
        """Columns of numbers, UNKNOWN if a row, or the whole table, has none."""
        there = self._there(table)
        asked = [f'coalesce("{name}", {UNKNOWN_SQL})' if name in there else UNKNOWN_SQL for name in wanted]
        cursor = self._connection.execute(f'SELECT {", ".join(asked)} FROM "{table}" {where} ORDER BY rowid')
        rows = np.fromiter(cursor, [(name, np.int64) for name in wanted])
        return {name: np.ascontiguousarray(rows[name]) for name in wanted}

    def words(self, table: str, column: str, where: str = "") -> list[str]:
        """A column of texts, empty if there are none."""
        asked = f'"{column}"' if column in self._there(table) else "NULL"
        found = self._connection.execute(f'SELECT {asked} FROM "{table}" {where} ORDER BY rowid')
        return [str(text) if text is not None else "" for (text,) in found]

    def named(self, ids: I64) -> Names:
        """Codes and texts of ids of strings."""
        distinct, codes = np.unique(ids, return_inverse=True)
        texts = tuple(str(self.texts.get(one, f"string {one}")) if one != UNKNOWN else "" for one in distinct.tolist())
        return codes.reshape(-1).astype(np.int32), texts

    def count(self, table: str) -> int:
        return int(self._connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0])


@contextmanager
def _opened(path: str, content: bytes | None) -> Iterator[_Database]:
    try:
        where = "file::memory:" if content is not None else f"file:{quote(path)}?mode=ro&immutable=1"
        with closing(sqlite3.connect(where, uri=True)) as connection:
            if content is not None:
                connection.deserialize(content)
            yield _Database(connection, path)
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as problem:
        raise FormatError(
            f"cannot be read as an SQLite file of Nsight Systems: {problem}", path=path, hint=_HINT
        ) from None


def read_nsight(path: str, content: bytes | None = None) -> list[DeviceRecording]:
    """One recording for each device that a process used, in order of process ids and devices; of processes that used
    none, one each. `content` is that of a file which was packed."""
    with _opened(path, content) as data:
        parts = [part for part in (*_activities(data), *_calls(data), *_syncs(data)) if len(part)]
        ranges = _ranges(data)
        device, base_ns, told = _device_name(data), _base_ns(data), _unread(data)
    parts += [ranges.rows] if len(ranges.rows) else []
    if not parts:
        raise FormatError("it has no kernels, calls or ranges", path=path, hint=_HINT)
    processes = np.unique(np.concatenate([part.process for part in parts]))
    known = processes[processes != UNKNOWN]
    if len(known) == 1:  # old files do not say whose kernels are
        parts = [replace(part, process=np.full(len(part), known[0])) for part in parts]
        processes = known
    at_work = [part.process for part in parts if part.category >= r.KERNEL]
    busy = np.intersect1d(processes, np.concatenate(at_work)) if at_work else processes
    found = [one for process in busy.tolist() for one in split(_process(parts, ranges, process, path))]
    return [
        replace(one, rank=at, world_size=len(found), device_name=device, base_ns=base_ns, told=told if not at else ())
        for at, one in enumerate(found)
    ]


def _device_name(data: _Database) -> str:
    names = data.words("TARGET_INFO_GPU", "name") if data.has("TARGET_INFO_GPU") else []
    return next((name for name in names if name), "")


def _base_ns(data: _Database) -> int:
    table = "TARGET_INFO_SESSION_START_TIME"
    found = data.numbers(table, ("utcEpochNs",))["utcEpochNs"] if data.has(table) else np.empty(0, np.int64)
    return next((began for began in found.tolist() if began > 0), 0)


def _unread(data: _Database) -> tuple[str, ...]:
    """Tables of events that nothing here knows, and what Nsight Systems says it lost."""
    unknown = sorted(table for table in data.tables if _EVENTS.fullmatch(table) and table not in _READ)
    told = {f"events of table `{table}` are not read": data.count(table) for table in unknown}
    said = data.words("DIAGNOSTIC_EVENT", "text") if data.has("DIAGNOSTIC_EVENT") else []
    return (*r.merged_told(told), *(f"the profiler said: {text[:200]}" for text in said if _LOST.search(text)))


# -- tables ------------------------------------------------------------------------------------------------------------


def _rows(category: int, found: dict[str, I64], names: Names) -> _Rows:
    start = found["start"]
    unknown = np.full(len(start), UNKNOWN, np.int64)
    thread = found.get("globalTid", unknown)
    process = found.get("globalPid", thread)
    return _Rows(
        category=category,
        start_ns=start,
        end_ns=np.maximum(found["end"], start),
        process=np.where(process != UNKNOWN, process >> _PROCESS_BITS, UNKNOWN),
        name=names[0],
        names=names[1],
        thread=np.where(thread != UNKNOWN, thread & ((1 << _PROCESS_BITS) - 1), UNKNOWN),
        stream=found.get("streamId", unknown),
        device=found.get("deviceId", unknown),
        correlation=found.get("correlationId", unknown),
        size_bytes=found.get("bytes", unknown),
        event=found.get("eventId", unknown),
    )


_PLACE: Final = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


def _activities(data: _Database) -> Iterator[_Rows]:
    """What ran on devices."""
    if data.has(KERNELS):
        found = data.numbers(KERNELS, (*_PLACE, "demangledName", "shortName", "name"))
        full, short, name = (found[key] for key in ("demangledName", "shortName", "name"))
        ids = np.where(full != UNKNOWN, full, np.where(short != UNKNOWN, short, name))
        yield _rows(r.KERNEL, found, data.named(ids))
    if data.has(GRAPHS):
        found = data.numbers(GRAPHS, (*_PLACE, "graphId"))
        yield _rows(r.KERNEL, found, _worded(lambda number: f"CUDA graph {number}", found["graphId"]))
    if data.has(COPIES):
        found = data.numbers(COPIES, (*_PLACE, "bytes", "copyKind", "srcKind", "dstKind"))
        yield _rows(r.COPY, found, _worded(_copy_name, found["copyKind"], found["srcKind"], found["dstKind"]))
    if data.has(FILLS):
        found = data.numbers(FILLS, (*_PLACE, "bytes"))
        yield _rows(r.FILL, found, (np.zeros(len(found["start"]), np.int32), ("Memset (Device)",)))


def _worded(name: Callable[..., str], *columns: I64) -> Names:
    """Names that are made of numbers, each distinct one once."""
    distinct, codes = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return codes.reshape(-1).astype(np.int32), tuple(name(*one) for one in distinct.T.tolist())


def _copy_name(kind: int, source: int, target: int) -> str:
    """As Kineto calls a copy: `Memcpy HtoD (Pinned -> Device)`."""
    ends = (_MEMORY_KINDS.get(one, "Unknown") for one in (source, target))
    return f"Memcpy {_COPY_KINDS.get(kind, 'Unknown')} ({' -> '.join(ends)})"


def _calls(data: _Database) -> Iterator[_Rows]:
    for table in CALLS:
        if data.has(table):
            found = data.numbers(table, ("start", "end", "globalTid", "correlationId", "nameId"))
            codes, names = data.named(found["nameId"])
            yield _rows(r.CUDA_CALL, found, (codes, tuple(_VERSION.sub("", name) for name in names)))


def _syncs(data: _Database) -> Iterator[_Rows]:
    if data.has(SYNCS):
        found = data.numbers(SYNCS, (*_PLACE, "eventId"))
        for column in ("streamId", "eventId"):
            found[column][found[column] == _NO_STREAM] = UNKNOWN
        yield _rows(r.SYNC, found, (np.zeros(len(found["start"]), np.int32), ("synchronisation",)))


# -- ranges ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Ranges:
    """NVTX ranges, and what NCCL says in its own."""

    rows: _Rows
    message_bytes: I64
    """Of a range that NCCL made; UNKNOWN of all others."""


def _ranges(data: _Database) -> _Ranges:
    there = data.has(NVTX)
    columns = ("start", "end", "globalTid", "textId", "domainId", "jsonTextId")
    where = f'WHERE "eventType" IN ({_PUSH_POP}, {_START_END}) AND "end" IS NOT NULL'
    found = data.numbers(NVTX, columns, where) if there else {key: np.empty(0, np.int64) for key in columns}
    codes, names = _either(data, "text", found["textId"], where if there else "")
    said, texts = _either(data, "jsonText", found["jsonTextId"], where if there else "")
    sizes = [int(size[1]) if (size := _MESSAGE.search(text)) else UNKNOWN for text in texts]
    message = np.array([*sizes, UNKNOWN], np.int64)[said]
    message[~np.isin(found["domainId"], _nccl_domains(data) if there else [])] = UNKNOWN
    steps = tuple(r.step_name(step) if (step := step_of(text)) >= 0 else text for text in names)
    return _Ranges(_rows(r.CPU_OP, found, (codes, steps)), message)


def _either(data: _Database, column: str, ids: I64, where: str) -> Names:
    """Texts of ranges, stored directly or as ids of strings."""
    if not len(ids):
        return np.empty(0, np.int32), ()
    own, texts = r.coded(data.words(NVTX, column, where))
    codes, strings = data.named(ids)
    named = np.array([bool(text) for text in texts], bool)[own]
    return np.where(named, own, codes + len(texts)).astype(np.int32), (*texts, *strings)


def _nccl_domains(data: _Database) -> list[int]:
    where = f'WHERE "eventType" = {_DOMAIN}'
    found = data.numbers(NVTX, ("domainId", "textId"), where)
    codes, names = _either(data, "text", found["textId"], where)
    return [number for number, code in zip(found["domainId"].tolist(), codes, strict=True) if names[code] == "NCCL"]


# -- one process -------------------------------------------------------------------------------------------------------


def _process(parts: list[_Rows], ranges: _Ranges, process: int, path: str) -> DeviceRecording:
    """Everything that one process did, as one recording."""
    mine = [np.flatnonzero(part.process == process) for part in parts]
    names: dict[str, int] = {}
    name, talk = [], []
    talks: list[Talk] = []
    for part, rows in zip(parts, mine, strict=True):
        to = np.array([*(names.setdefault(text, len(names)) for text in part.names), -1], np.int32)
        name.append(to[part.name[rows]])
        known = [talk_of_kernel(text) if part.category == r.KERNEL else None for text in part.names]
        codes = np.array([*(len(talks) + i if one else -1 for i, one in enumerate(known)), -1], np.int32)
        talks += [one or Talk(collective="") for one in known]
        talk.append(codes[part.name[rows]])

    def joined(column: str) -> I64:
        return np.concatenate([getattr(part, column)[rows] for part, rows in zip(parts, mine, strict=True)])

    category = np.concatenate(
        [np.full(len(rows), part.category, np.uint8) for part, rows in zip(parts, mine, strict=True)]
    )
    code = np.concatenate(name)
    is_step = np.array([step_of(text) >= 0 for text in names] + [False])[code] & (category == r.CPU_OP)
    category[is_step] = r.ANNOTATION
    start = joined("start_ns")
    return _with_messages(
        DeviceRecording(
            path=path,
            category=category,
            name=code,
            names=tuple(names),
            start_ns=start,
            duration_ns=joined("end_ns") - start,
            thread=joined("thread"),
            stream=joined("stream"),
            device=joined("device"),
            correlation=joined("correlation"),
            talk=np.concatenate(talk),
            talks=talks,
            copied_bytes=joined("size_bytes"),
            wait_on_event=joined("event"),
        ),
        ranges,
        process,
    )


def _with_messages(of: DeviceRecording, ranges: _Ranges, process: int) -> DeviceRecording:
    """Bytes of collectives: those of the NCCL range in which a kernel was launched, if recorded."""
    chosen = np.flatnonzero((ranges.message_bytes != UNKNOWN) & (ranges.rows.process == process))
    kernels = np.flatnonzero(of.talk >= 0)
    if not len(chosen) or not len(kernels):
        return of
    calls = np.flatnonzero(of.category == r.CUDA_CALL)
    calls = calls[np.argsort(of.correlation[calls], kind="stable")]
    if not len(calls):
        return of
    launch = calls[np.minimum(np.searchsorted(of.correlation[calls], of.correlation[kernels]), len(calls) - 1)]
    tied = of.correlation[launch] == of.correlation[kernels]
    kernels, launch = kernels[tied], launch[tied]
    size = _sizes_at(ranges, chosen, of.thread[launch], of.start_ns[launch])
    kernels, size = kernels[size != UNKNOWN], size[size != UNKNOWN]
    pairs, which = np.unique(np.stack([of.talk[kernels], size]), axis=1, return_inverse=True)
    talk = of.talk.copy()
    talk[kernels] = len(of.talks) + which.reshape(-1)
    return replace(of, talk=talk, talks=[*of.talks, *(replace(of.talks[a], in_bytes=b) for a, b in pairs.T.tolist())])


def _sizes_at(ranges: _Ranges, chosen: I64, thread: I64, when: I64) -> I64:
    """Bytes of the range among `chosen` that a thread was in at each moment; UNKNOWN: none."""
    rows, size = ranges.rows, np.full(len(thread), UNKNOWN, np.int64)
    for one in np.unique(thread).tolist():
        mine = chosen[rows.thread[chosen] == one]
        mine = mine[np.argsort(rows.start_ns[mine], kind="stable")]
        here = np.flatnonzero(thread == one)
        at = np.searchsorted(rows.start_ns[mine], when[here], "right") - 1
        here, at = here[at >= 0], at[at >= 0]
        inside = rows.end_ns[mine[at]] >= when[here]
        size[here[inside]] = ranges.message_bytes[mine[at[inside]]]
    return size
