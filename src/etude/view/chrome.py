"""A timeline as Chrome trace JSON, which Perfetto, chrome://tracing and most viewers open. Lines are joined from
columns by Arrow, so that no node becomes a Python object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etude.model.job import Job
from etude.view.flows import Counter, Flows
from etude.view.slices import Slices, Sort

I64 = NDArray[np.int64]

_ROWS = 1 << 18
"""Events that are joined at a time."""


def write(job: Job, slices: Slices, flows: Flows, counters: Sequence[Counter], file: BinaryIO) -> None:
    """Writes the trace to an open file. Times are µs with three decimals."""
    file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    file.write(",\n".join(_names(slices)).encode())
    tid = _thread_ids(slices)
    pid = np.array([lane.rank for lane in slices.lanes] or [0], np.int64)[slices.lane]
    for lines in (*_slices(job, slices, pid, tid), *_flows(slices, flows, pid, tid), *map(_counter, counters)):
        if len(lines):
            file.write(b",\n")
            whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
            file.write(pc.binary_join(whole, ",\n").buffers()[2])
    file.write(b"\n]}\n")


def _thread_ids(slices: Slices) -> I64:
    """A number for each (lane, track), in their order; pids keep ranks apart."""
    key = slices.lane.astype(np.int64) << 32 | slices.track
    return np.cumsum(np.diff(key, prepend=-1) != 0)


def _names(slices: Slices) -> Iterator[str]:
    def meta(what: str, pid: int, tid: int, **args: object) -> str:
        return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

    for rank, label in slices.ranks.items():
        yield meta("process_name", rank, 0, name=label)
        yield meta("process_sort_index", rank, 0, sort_index=rank)
    tid = _thread_ids(slices)
    for row in np.flatnonzero(np.diff(tid, prepend=0)).tolist():
        lane, track, number = slices.lanes[int(slices.lane[row])], int(slices.track[row]), int(tid[row])
        label = lane.label if track == 0 else f"{lane.label} ({track + 1})"
        yield meta("thread_name", lane.rank, number, name=label)
        yield meta("thread_sort_index", lane.rank, number, sort_index=number)


def _slices(job: Job, slices: Slices, pid: I64, tid: I64) -> Iterator[pa.Array]:
    names = pa.array([json.dumps(n) for n in slices.names], pa.string())
    sorts = pa.array([s.label for s in Sort], pa.string())
    ids = np.zeros(len(slices), np.uint64)
    for at in np.unique(slices.at).tolist():
        rows = np.flatnonzero(slices.at == at)
        ids[rows] = job.traces[int(job.trace_of[at])].source_id[slices.node[rows]] + job.id_base[at]
    for a in range(0, len(slices), _ROWS):
        part = slice(a, a + _ROWS)
        yield pc.binary_join_element_wise(
            '{"ph":"X","name":', names.take(pa.array(slices.name[part])), ',"cat":"', sorts.take(
                pa.array(slices.sort[part])), '","pid":', _text(pid[part]), ',"tid":', _text(tid[part]), ',"ts":',
            _micros(slices.start_ns[part]), ',"dur":', _micros((slices.end_ns - slices.start_ns)[part]),
            ',"args":{"id":', _text(ids[part]), "}}", "",
        )  # fmt: skip


def _flows(slices: Slices, flows: Flows, pid: I64, tid: I64) -> Iterator[pa.Array]:
    who = np.repeat(np.arange(len(slices)), np.diff(flows.start))
    order = np.lexsort((slices.start_ns[who], flows.id))
    who, flow = who[order], flows.id[order]
    first = np.diff(flow, prepend=-1) != 0
    last = np.append(first[1:], True) if len(first) else first
    phase = pa.array(np.where(first, "s", np.where(last, "f", "t")).tolist(), pa.string())
    for a in range(0, len(who), _ROWS):
        part, rows = slice(a, a + _ROWS), who[a : a + _ROWS]
        yield pc.binary_join_element_wise(
            '{"ph":"', phase[part], '","bp":"e","name":"flow","cat":"flow","id":', _text(flow[part]), ',"pid":',
            _text(pid[rows]), ',"tid":', _text(tid[rows]), ',"ts":', _micros(slices.start_ns[rows]), "}", "",
        )  # fmt: skip


def _counter(counter: Counter) -> pa.Array:
    head = f'{{"ph":"C","name":{json.dumps(counter.name)},"pid":{counter.rank},"ts":'
    return pc.binary_join_element_wise(
        head, _micros(counter.time_ns), ',"args":{"value":', _text(counter.value), "}}", ""
    )


def _text(values: NDArray[np.generic]) -> pa.Array:
    return pc.cast(pa.array(values), pa.string())


def _micros(ns: I64) -> pa.Array:
    whole, rest = np.divmod(ns, 1000)
    return pc.binary_join_element_wise(_text(whole), pc.utf8_lpad(_text(rest), 3, "0"), ".")
