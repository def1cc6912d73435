"""The causal graph of one rank: nodes from events, and an edge for every reason that one waits for another.

| why | from | to |
|---|---|---|
| program | what a thread did before | what it did next |
| launch | the call's work up to the launch | the activity |
| stream | the activity before it in its stream | the activity |
| event | the last activity before the record | the first behind the wait, in another stream |
| sync | the activity | what the host does when a call that waited for it returns |
| autograd | the thread that asks for the backward pass, and the one that runs it, at the handover | and back |

Rows are in order of their recorded start, and every edge leads from an earlier row to a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.ingest import timeline_kernels as k
from etude.ingest.events import DeviceEvents, HostEvents, device_events, host_events
from etude.ingest.streams import NOISE_NS, Queues, marks
from etude.ingest.timeline import Timeline, timeline
from etude.ingest.waits import backward_handovers, device_waits, pauses_of_calls
from etude.link.device import DeviceTrace
from etude.model.schema import Why

U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Edges = list[tuple[I64, I64, Why]]

HOST_EVENT, SEGMENT, ACTIVITY = 0, 1, 2
SEGMENT_NAME: Final = "host"


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes by recorded start, and what each waits for."""

    host: HostEvents
    device: DeviceEvents
    what: U8
    """HOST_EVENT, SEGMENT or ACTIVITY."""
    index: I64
    """Position in `host`, in the timeline, or in `device`."""
    owner: I64
    """The host event that a node is, whose time it is, or whose operator launched it; -1: none."""
    start_ns: I64
    end_ns: I64
    own_ns: I64
    """Work of its own: 0 of an event that is made of others' and of segments."""
    edge_start: I64
    edge: I32
    why: U8
    segment_thread: I64
    """Thread, as a position, of each piece of the timeline."""
    row_of_event: I64
    """Row of each host event."""
    row_of_activity: I64
    contradicted: int
    """Edges that were left out because the times say otherwise."""

    def __len__(self) -> int:
        return len(self.what)


def graph(trace: DeviceTrace) -> Graph:
    host = host_events(trace)
    device = device_events(trace, host)
    queues = Queues.of(host, device)
    found = marks(trace, host, queues)
    waits = device_waits(trace, host, queues, found)
    handovers = backward_handovers(trace, host)
    line = timeline(host, [pauses_of_calls(host, device, waits), handovers.pauses])

    events, segments = len(host), np.flatnonzero(~line.whole)
    node_of_piece = np.where(line.whole, line.owner, 0)
    node_of_piece[segments] = events + np.arange(len(segments))
    first_activity = events + len(segments)
    edges: Edges = [
        *_program(host, line, node_of_piece),
        _launches(host, device, line, node_of_piece, first_activity),
        _streams(device, first_activity),
        (found.source[found.waiter >= 0] + first_activity, found.waiter[found.waiter >= 0] + first_activity, Why.EVENT),
        (
            waits.activity + first_activity,
            _node(node_of_piece, line.after(host.thread[waits.call], waits.to_ns)),
            Why.SYNC,
        ),
        (
            _node(node_of_piece, line.before(handovers.from_thread, handovers.from_ns)),
            _node(node_of_piece, line.after(handovers.to_thread, handovers.to_ns)),
            Why.AUTOGRAD,
        ),
    ]
    own = np.zeros(events, np.int64)
    own[line.owner[line.whole]] = (line.end_ns - line.start_ns)[line.whole]
    columns = _Columns(host, device, line, segments, own)
    return _ordered(host, device, line, columns, edges)


def _node(node_of_piece: I64, piece: I64) -> I64:
    return np.where(piece >= 0, np.append(node_of_piece, -1)[piece], -1)


def _program(host: HostEvents, line: Timeline, node: I64) -> Edges:
    """Pieces of a thread one after the other; an event that is no piece begins behind the piece before it."""
    follows = np.flatnonzero(line.thread[1:] == line.thread[:-1])
    is_piece = np.zeros(len(host), np.bool_)
    is_piece[line.owner[line.whole]] = True
    frames = np.flatnonzero(~is_piece)
    before = line.before(host.thread[frames], host.start_ns[frames])
    return [(node[follows], node[follows + 1], Why.PROGRAM), (_node(node, before), frames, Why.PROGRAM)]


def _launches(host: HostEvents, device: DeviceEvents, line: Timeline, node: I64, first: int) -> tuple[I64, I64, Why]:
    rows = np.flatnonzero(device.call >= 0)
    call = device.call[rows]
    moment = np.clip(device.start_ns[rows], host.start_ns[call], host.end_ns[call])
    return _node(node, line.before(host.thread[call], moment)), rows + first, Why.LAUNCH


def _streams(device: DeviceEvents, first: int) -> tuple[I64, I64, Why]:
    """In order; but activities of one stream that ran side by side (branches of a graph) did not wait."""
    same = device.stream[1:] == device.stream[:-1]
    apart = device.end_ns[:-1] <= device.start_ns[1:] + NOISE_NS
    rows = np.flatnonzero(same & apart)
    return rows + first, rows + 1 + first, Why.STREAM


class _Columns:
    """The nodes in order of making: events, segments, activities."""

    def __init__(self, host: HostEvents, device: DeviceEvents, line: Timeline, segments: I64, own: I64) -> None:
        counts = (len(host), len(segments), len(device))
        self.what = np.repeat(np.array([HOST_EVENT, SEGMENT, ACTIVITY], np.uint8), counts)
        self.index = np.concatenate([np.arange(counts[0]), segments, np.arange(counts[2])])
        self.owner = np.concatenate([np.arange(counts[0]), line.owner[segments], device.operator])
        self.start = np.concatenate([host.start_ns, line.start_ns[segments], device.start_ns])
        self.end = np.concatenate([host.end_ns, line.end_ns[segments], device.end_ns])
        self.own = np.concatenate([own, (line.end_ns - line.start_ns)[segments], device.end_ns - device.start_ns])


def _ordered(host: HostEvents, device: DeviceEvents, line: Timeline, made: _Columns, edges: Edges) -> Graph:
    n = len(made.what)
    order = np.lexsort((made.end, made.start))
    row = np.empty(n, np.int64)
    row[order] = np.arange(n)
    source = np.concatenate([e[0] for e in edges])
    target = np.concatenate([e[1] for e in edges])
    why = np.repeat(np.array([e[2] for e in edges], np.uint8), [len(e[0]) for e in edges])
    known = (source >= 0) & (target >= 0)
    source, target, why = row[source[known]], row[target[known]], why[known]
    forward = source < target
    start, edge, why = _csr(source[forward], target[forward], why[forward], n)
    return Graph(
        host=host,
        device=device,
        what=made.what[order],
        index=made.index[order],
        owner=made.owner[order],
        start_ns=made.start[order],
        end_ns=made.end[order],
        own_ns=made.own[order],
        edge_start=start,
        edge=edge,
        why=why,
        segment_thread=line.thread,
        row_of_event=row[: len(host)],
        row_of_activity=row[n - len(device) :],
        contradicted=int((~forward).sum()),
    )


def _csr(source: I64, target: I64, why: U8, n: int) -> tuple[I64, I32, U8]:
    order = np.lexsort((source, target))
    rows, why = source[order].astype(np.int32), why[order]
    start = k.merge_edges(np.searchsorted(target[order], np.arange(n + 1)), rows, why, n)
    return start, rows[: start[-1]].copy(), why[: start[-1]].copy()
