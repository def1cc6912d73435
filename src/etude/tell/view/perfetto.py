"""A timeline as a Perfetto trace: protobuf, written column by column without a protobuf library.

A rank is a process, a lane a track under it; overlapping slices of a lane get tracks of their own, as Perfetto draws
nested slices only. Names, shapes and groups are interned once at the head of the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from etude.kernels.varint import encode_varint
from etude.model.job import Job
from etude.tell.view.about import About, about
from etude.tell.view.flows import Counter, SliceFlows
from etude.tell.view.kernels import TrackSlices, put_track
from etude.tell.view.path import TRACK, PathPieces
from etude.tell.view.slices import Slices, Sort

_EVENT_BYTES = 224
"""Room for one begin and one end event without flows."""
ANNOTATIONS = ("id", "bytes", "stream", "shapes", "group", "rank")
"""Annotations of slices, in the order in which the kernel numbers them."""
_SEQUENCE = b"\x50\x01"  # TracePacket.trusted_packet_sequence_id = 1


def write(
    job: Job, slices: Slices, flows: SliceFlows, counters: Sequence[Counter], path: PathPieces, file: BinaryIO
) -> None:
    """Writes the trace to an open file."""
    known = about(job, slices)
    file.write(_packet(_SEQUENCE + b"\x68\x01" + _field(12, _interned((*slices.names, *path.names), known.texts))))
    for rank, label in slices.ranks.items():
        process = _number(1, rank) + _field(6, label.encode())
        descriptor = _number(1, _rank_uuid(rank)) + _field(2, label.encode()) + _field(3, process)
        file.write(_packet(_field(60, descriptor + _number(11, 3))))
    if len(path):
        file.write(_path(path, len(slices.names)))
    for part in _tracks(slices, known, flows):
        file.write(part)
    for number, counter in enumerate(counters):
        file.write(_counter(counter, (1 << 40) + number, number))


def _interned(names: Sequence[str], texts: Sequence[str]) -> bytes:
    parts = [_field(1, _number(1, int(s)) + _field(2, s.label.encode())) for s in Sort if s]
    parts += [_field(2, _number(1, i + 1) + _field(2, n.encode())) for i, n in enumerate(names)]
    parts += [_field(3, _number(1, i + 1) + _field(2, n.encode())) for i, n in enumerate(ANNOTATIONS)]
    parts += [_field(29, _number(1, i + 1) + _field(2, t.encode())) for i, t in enumerate(texts)]
    return b"".join(parts)


def _tracks(slices: Slices, known: About, flows: SliceFlows) -> Iterator[bytes]:
    """Per track its descriptor and its events."""
    key = slices.lane.astype(np.int64) << 32 | slices.track
    edges = [*np.flatnonzero(np.diff(key, prepend=-1)).tolist(), len(key)]
    none = np.full(max(np.diff(edges), default=0), -1, np.int64)
    for number, (a, b) in enumerate(itertools.pairwise(edges)):
        lane = slices.lanes[int(slices.lane[a])]
        track = int(slices.track[a])
        label = lane.label if track == 0 else f"{lane.label} ({track + 1})"
        uuid = (1 << 32) + number
        descriptor = _number(1, uuid) + _field(2, label.encode()) + _number(5, _rank_uuid(lane.rank))
        yield _packet(_field(60, descriptor + _number(12, number)))
        flow_start = flows.start[a : b + 1] - flows.start[a]
        flow = flows.id[flows.start[a] : flows.start[b]] + 1
        out = np.empty(_EVENT_BYTES * (b - a) + 10 * len(flow) + 64, np.uint8)
        mine = TrackSlices(
            start=slices.start_ns[a:b], end=slices.end_ns[a:b], name=slices.name[a:b], sort=slices.sort[a:b],
            source_id=known.source_id[a:b], size_bytes=known.size_bytes[a:b], stream=known.stream[a:b],
            rank=none[: b - a], shapes=known.shapes[a:b], group=known.group[a:b], flow_start=flow_start, flow=flow,
        )  # fmt: skip
        yield out[: put_track(out, uuid, mine)].tobytes()


def _path(path: PathPieces, names: int) -> bytes:
    """The critical path, on a track that belongs to no process. Its names come after the others."""
    uuid = 1 << 41
    none, no_text = np.full(len(path), -1, np.int64), np.full(len(path), -1, np.int32)
    mine = TrackSlices(
        start=path.start_ns, end=path.end_ns, name=path.name + np.int32(names), sort=path.sort,
        source_id=path.source_id, size_bytes=none, stream=none, rank=path.rank, shapes=no_text, group=no_text,
        flow_start=np.zeros(len(path) + 1, np.int64), flow=np.zeros(0, np.int64),
    )  # fmt: skip
    out = np.empty(_EVENT_BYTES * len(path) + 64, np.uint8)
    descriptor = _packet(_field(60, _number(1, uuid) + _field(2, TRACK.encode())))
    return descriptor + out[: put_track(out, uuid, mine)].tobytes()


def _counter(counter: Counter, uuid: int, order: int) -> bytes:
    kind = _field(6, counter.unit.encode()) if counter.unit else b""
    descriptor = _number(1, uuid) + _field(2, counter.name.encode()) + _number(5, _rank_uuid(counter.rank))
    parts = [_packet(_field(60, descriptor + _field(8, kind) + _number(12, order)))]
    head = _number(9, 4) + _number(11, uuid)
    for time, value in zip(counter.time_ns.tolist(), counter.value.tolist(), strict=True):
        parts.append(_packet(_number(8, time) + _SEQUENCE + _field(11, head + _number(30, value))))
    return b"".join(parts)


def _rank_uuid(rank: int) -> int:
    return rank + 1


def _number(field: int, value: int) -> bytes:
    return encode_varint(field << 3) + encode_varint(value)


def _field(field: int, payload: bytes) -> bytes:
    return encode_varint(field << 3 | 2) + encode_varint(len(payload)) + payload


def _packet(payload: bytes) -> bytes:
    return _field(1, payload)
