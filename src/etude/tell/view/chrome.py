"""A timeline as Chrome trace JSON, which Perfetto, chrome://tracing and most viewers open. Lines are joined from
columns by Arrow, so no node becomes a Python object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etude.kernels.arrays import I64
from etude.model.job import Job
from etude.tell.view.about import about
from etude.tell.view.flows import Counter, SliceFlows
from etude.tell.view.path import TRACK, PathPieces
from etude.tell.view.slices import Slices, Sort

_ROWS = 1 << 18
"""Events that are joined at a time."""


def write(
    job: Job, slices: Slices, flows: SliceFlows, counters: Sequence[Counter], path: PathPieces, file: BinaryIO
) -> None:
    """Writes the trace to an open file. Times are µs with three decimals."""
    file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    file.write(",\n".join(_names(slices, path)).encode())
    tid = _thread_ids(slices)
    pid = np.array([lane.rank for lane in slices.lanes] or [0], np.int64)[slices.lane]
    drawn = (*_slices(job, slices, pid, tid), *_path(path, _path_pid(slices)), *_flows(slices, flows, pid, tid))
    for lines in (*drawn, *map(_counter, counters)):
        if len(lines):
            file.write(b",\n")
            whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
            file.write(pc.binary_join(whole, ",\n").buffers()[2])
    file.write(b"\n]}\n")


def _thread_ids(slices: Slices) -> I64:
    """A number for each (lane, track), in their order; pids keep ranks apart."""
    key = slices.lane.astype(np.int64) << 32 | slices.track
    return np.cumsum(np.diff(key, prepend=-1) != 0)


def _path_pid(slices: Slices) -> int:
    """The process number of the critical path, which no rank has."""
    return max(slices.ranks, default=-1) + 1


def _names(slices: Slices, path: PathPieces) -> Iterator[str]:
    def meta(what: str, pid: int, tid: int, **args: object) -> str:
        return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

    for rank, label in slices.ranks.items():
        yield meta("process_name", rank, 0, name=label)
        yield meta("process_sort_index", rank, 0, sort_index=rank)
    if len(path):
        yield meta("process_name", _path_pid(slices), 0, name=TRACK)
        yield meta("process_sort_index", _path_pid(slices), 0, sort_index=-1)
        yield meta("thread_name", _path_pid(slices), 1, name=TRACK)
    tid = _thread_ids(slices)
    for row in np.flatnonzero(np.diff(tid, prepend=0)).tolist():
        lane, track, number = slices.lanes[int(slices.lane[row])], int(slices.track[row]), int(tid[row])
        label = lane.label if track == 0 else f"{lane.label} ({track + 1})"
        yield meta("thread_name", lane.rank, number, name=label)
        yield meta("thread_sort_index", lane.rank, number, sort_index=number)


def _slices(job: Job, slices: Slices, pid: I64, tid: I64) -> Iterator[pa.Array]:
    names = pa.array([json.dumps(n) for n in slices.names], pa.string())
    known = about(job, slices)
    for a in range(0, len(slices), _ROWS):
        part = slice(a, a + _ROWS)
        args = (
            as_text(known.source_id[part]),
            _numbers("bytes", known.size_bytes[part]),
            _numbers("stream", known.stream[part]),
            _texts("shapes", known.shapes[part], known.texts),
            _texts("group", known.group[part], known.texts),
        )
        yield _complete(
            names.take(pa.array(slices.name[part])), slices.sort[part], pid[part], tid[part],
            (slices.start_ns[part], slices.end_ns[part]), args,
        )  # fmt: skip


def _path(path: PathPieces, pid: int) -> Iterator[pa.Array]:
    if not len(path):
        return
    names = pa.array([json.dumps(n) for n in path.names], pa.string())
    where = np.full(len(path), pid, np.int64)
    args = (as_text(path.source_id), _numbers("rank", path.rank))
    times = (path.start_ns, path.end_ns)
    yield _complete(names.take(pa.array(path.name)), path.sort, where, np.ones(len(path), np.int64), times, args)


def _complete(
    names: pa.Array, sort: NDArray[np.uint8], pid: I64, tid: I64, times: tuple[I64, I64], args: Sequence[pa.Array]
) -> pa.Array:
    """Events with a start and a length; the first of `args` is the id, the others begin with a comma."""
    sorts = pa.array([s.label for s in Sort], pa.string())
    return pc.binary_join_element_wise(
        '{"ph":"X","name":', names, ',"cat":"', sorts.take(pa.array(sort)), '","pid":', as_text(pid), ',"tid":',
        as_text(tid), ',"ts":', _micros(times[0]), ',"dur":', _micros(times[1] - times[0]), ',"args":{"id":', *args,
        "}}", "",
    )  # fmt: skip


def _numbers(name: str, values: I64) -> pa.Array:
    known = pc.binary_join_element_wise(f',"{name}":', as_text(values), "")
    return pc.if_else(pa.array(values >= 0), known, "")


def _texts(name: str, codes: NDArray[np.int32], texts: Sequence[str]) -> pa.Array:
    parts = pa.array([f',"{name}":{json.dumps(text)}' for text in texts] + [""], pa.string())
    return parts.take(pa.array(np.where(codes < 0, len(texts), codes)))


def _flows(slices: Slices, flows: SliceFlows, pid: I64, tid: I64) -> Iterator[pa.Array]:
    who = np.repeat(np.arange(len(slices)), np.diff(flows.start))
    order = np.lexsort((slices.start_ns[who], flows.id))
    who, flow = who[order], flows.id[order]
    first = np.diff(flow, prepend=-1) != 0
    last = np.append(first[1:], True) if len(first) else first
    phase = pa.array(np.where(first, "s", np.where(last, "f", "t")).tolist(), pa.string())
    for a in range(0, len(who), _ROWS):
        part, rows = slice(a, a + _ROWS), who[a : a + _ROWS]
        yield pc.binary_join_element_wise(
            '{"ph":"', phase[part], '","bp":"e","name":"flow","cat":"flow","id":', as_text(flow[part]), ',"pid":',
            as_text(pid[rows]), ',"tid":', as_text(tid[rows]), ',"ts":', _micros(slices.start_ns[rows]), "}", "",
        )  # fmt: skip


def _counter(counter: Counter) -> pa.Array:
    head = f'{{"ph":"C","name":{json.dumps(counter.name)},"pid":{counter.rank},"ts":'
    return pc.binary_join_element_wise(
        head, _micros(counter.time_ns), ',"args":{"value":', as_text(counter.value), "}}", ""
    )


def as_text(values: NDArray[np.generic]) -> pa.Array:
    return pc.cast(pa.array(values), pa.string())


def _micros(ns: I64) -> pa.Array:
    whole, rest = np.divmod(ns, 1000)
    return pc.binary_join_element_wise(as_text(whole), pc.utf8_lpad(as_text(rest), 3, "0"), ".")
