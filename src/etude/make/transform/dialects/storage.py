"""Storage as newer Chakra has it: STORAGE, BATCH and CHECKPOINT nodes, and memory nodes for readers that lack them.

In a Job, reads and writes of files, batches and checkpoints are memory nodes with a mark (`model.schema.READS_FILE`
and others), so that everything that knows memory nodes knows them. `as_storage` gives these their own node types and
reads and writes their `storage` field; `as_memory` goes back, and does the same to files of others.

    Node.type:    STORAGE_NODE = 8, BATCH_NODE = 9, CHECKPOINT_NODE = 10
    Node.storage: 11 = StorageInfo {level 1, fs 10}; FsOp {op 1, pathname 2, fd 3, offset 4, size_bytes 5, flags 6}
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I64, Bool
from etude.kernels.varint import decode_varint, encode_varint
from etude.model import text
from etude.model.job import Job
from etude.model.marks import marked, marks
from etude.model.schema import IS_BATCH, IS_CHECKPOINT, READS_FILE, UNKNOWN, WRITES_FILE, Kind
from etude.model.trace import Trace, complete_layouts, lanes

STORAGE_NODE, BATCH_NODE, CHECKPOINT_NODE = 8, 9, 10
TYPE: Final = {
    READS_FILE: STORAGE_NODE,
    WRITES_FILE: STORAGE_NODE,
    IS_BATCH: BATCH_NODE,
    IS_CHECKPOINT: CHECKPOINT_NODE,
}
_TYPE, _STORAGE = 3, 11
"""Fields of a Node."""
_FILE_SYSTEM: Final = 1
"""Level of the operations that a program requests; page cache and block layer serve these and are not counted again."""
_READ, _WRITE = 3, 4
_READS, _WRITES = (3, 5), (4, 6)
"""Operations of a file: read and pread, write and pwrite."""


def as_storage(job: Job) -> Job:
    """Marked memory nodes with the types of newer Chakra."""
    return job.replace(traces=tuple(_typed(trace) for trace in job.traces))


def as_memory(job: Job) -> tuple[Job, int]:
    """Nodes of these types as marked memory nodes; and how many could not be converted: their bytes are unknown, or
    they are neither reads nor writes of a file."""
    found = [_plain(trace) for trace in job.traces]
    left = np.array([count for _, count in found], np.int64)
    return job.replace(traces=tuple(trace for trace, _ in found)), int(left[job.trace_of].sum())


def _typed(trace: Trace) -> Trace:
    memory = (trace.kind == Kind.MEM_LOAD) | (trace.kind == Kind.MEM_STORE)
    said, kind = _extras(trace), trace.kind.copy()
    for mark, number in TYPE.items():
        for row in np.flatnonzero(marks(trace, mark) & memory & (kind != Kind.OTHER)).tolist():
            more = said.get(row, b"")
            if number == STORAGE_NODE and all(f.number != _STORAGE for f in _fields(more)):
                size = max(int(trace.tensor_bytes[row]), 0)
                more += _delimited(_STORAGE, _operation(_READ if mark == READS_FILE else _WRITE, size))
            said[row] = more + encode_varint(_TYPE << 3) + encode_varint(number)
            kind[row] = int(Kind.OTHER)
    return _with(trace, said, kind)


def _plain(trace: Trace) -> tuple[Trace, int]:
    said, kind, size = _extras(trace), trace.kind.copy(), np.array(trace.tensor_bytes)
    own = {mark: marks(trace, mark) for mark in TYPE}
    fresh: dict[str, Bool] = {mark: np.zeros(len(trace), bool) for mark in TYPE}
    left = 0
    for row in np.flatnonzero(kind == Kind.OTHER).tolist():
        fields = _fields(said.get(row, b""))
        number = next((f.value for f in fields if f.number == _TYPE), 0)
        if number not in TYPE.values():
            continue
        mark, moved = _meaning(number, next((f.payload for f in fields if f.number == _STORAGE), b""), int(size[row]))
        if not mark or moved == UNKNOWN:
            left += 1
            continue
        kind[row] = int(Kind.MEM_LOAD if mark in (READS_FILE, IS_BATCH) else Kind.MEM_STORE)
        size[row], fresh[mark][row] = moved, not own[mark][row]
        gone = (_TYPE, _STORAGE) if own[mark][row] else (_TYPE,)  # what others wrote is kept
        said[row] = b"".join(f.raw for f in fields if f.number not in gone)
    changed = _with(trace, said, kind, size)
    for mark, rows in fresh.items():
        changed = marked(changed, rows, mark)
    return changed, left


def _meaning(number: int, storage: bytes, size: int) -> tuple[str, int]:
    """(mark, bytes) of a node; no mark if it is neither a read nor a write of a file."""
    if number != STORAGE_NODE:
        return IS_BATCH if number == BATCH_NODE else IS_CHECKPOINT, size
    info = {f.number: f for f in _fields(storage)}
    if 1 not in info or 10 not in info or info[1].value != _FILE_SYSTEM:
        return "", UNKNOWN
    asked = {f.number: f.value for f in _fields(info[10].payload)}
    mark = READS_FILE if asked.get(1) in _READS else WRITES_FILE if asked.get(1) in _WRITES else ""
    return mark, asked.get(5, max(size, 0))


# -- fields ------------------------------------------------------------------------------------------------------------


class _Field(NamedTuple):
    number: int
    value: int
    payload: bytes
    raw: bytes


def _fields(data: bytes) -> list[_Field]:
    """Fields of a message that was validated before."""
    found, p = [], 0
    while p < len(data):
        start, value, payload = p, 0, b""
        tag, p = decode_varint(data, p)
        if tag & 7 == 0:
            value, p = decode_varint(data, p)
        else:
            size, p = decode_varint(data, p) if tag & 7 == 2 else ({1: 8, 5: 4}.get(tag & 7, len(data)), p)
            payload, p = data[p : p + size], p + size
        found.append(_Field(tag >> 3, value, payload, data[start:p]))
    return found


def _operation(operation: int, size: int) -> bytes:
    inner = encode_varint(1 << 3) + encode_varint(operation)
    inner += encode_varint(5 << 3) + encode_varint(size) if size else b""
    return encode_varint(1 << 3) + encode_varint(_FILE_SYSTEM) + _delimited(10, inner)


def _delimited(number: int, payload: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(payload)) + payload


def _extras(trace: Trace) -> dict[int, bytes]:
    """Fields that are kept in addition to each node's own."""
    rows = zip(trace.extra_row.tolist(), trace.extra.tolist(), strict=True)
    return {row: text.slice_bytes(trace.heap, at) for row, at in rows}


def _with(trace: Trace, said: dict[int, bytes], kind: NDArray[np.uint8], size: I64 | None = None) -> Trace:
    """The trace with other kinds, sizes and kept fields."""
    if (kind == trace.kind).all():
        return trace
    writer, rows = text.HeapWriter(), sorted(row for row, extra in said.items() if extra)
    begin = len(trace.heap) - text.PAD
    extra = np.array([begin + writer.put(said[row]) for row in rows], np.int64)
    columns: dict[str, Any] = {"kind": kind, "heap": np.concatenate([trace.heap[:begin], writer.heap()])}
    columns |= {"extra_row": np.array(rows, np.int32), "extra": extra}
    if size is not None:
        columns["tensor_bytes"] = size
    lane, lane_kind, lane_id = lanes(kind, trace.cpu, trace.thread, trace.stream)
    found = trace.replace(**columns, lane=lane, lane_kind=lane_kind, lane_id=lane_id)
    layouts, layout = complete_layouts(found)
    return found.replace(layouts=layouts, layout=layout)
