"""Streams of a device, and the waits between them, according to the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.kernels.arrays import I64, Bool
from etude.model.schema import Kind, LaneKind, Why
from etude.model.trace import Trace
from etude.run.replay.program import NOTHING


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """Streams of, and waits between, pieces of work. These are nodes: operators that launch kernels, or kernels that no
    operator launched."""

    stream: dict[int, int] = field(default_factory=dict)
    """Work that is not on the main stream -> its recorded stream."""
    records: dict[int, int] = field(default_factory=dict)
    """Work after which an event is recorded -> number of the event."""
    awaits: dict[int, list[int]] = field(default_factory=dict)
    """Work before which its stream waits -> the work that it waits for."""
    issues: dict[int, int] = field(default_factory=dict)
    """Communication -> the stream that it waits for, if that is not the main one."""
    waits: dict[int, int] = field(default_factory=dict)
    """Communication -> the first stream that waits for it, if that is not the main one."""

    def of(self, node: int) -> int:
        return self.stream.get(node, NOTHING)


def stream_order(trace: Trace, inside: Bool, work: I64, start_ns: I64) -> StreamOrder:
    """`work`: the piece of work that each node belongs to, or -1. The main stream is the one with the most kernels,
    without those of communication, which has its own streams."""
    comms = np.isin(trace.kind, (int(Kind.COLL), int(Kind.SEND), int(Kind.RECV)))
    on_stream = np.append(trace.lane_kind == int(LaneKind.STREAM), False)[trace.lane]
    kernels = np.flatnonzero(inside & (trace.cpu == 0) & on_stream & ~comms & (work >= 0))
    if not len(kernels):
        return StreamOrder()
    lanes, counts = np.unique(trace.lane[kernels], return_counts=True)
    if len(lanes) == 1:
        return StreamOrder()
    main = int(lanes[np.argmax(counts)])
    first = kernels[np.argsort(start_ns[kernels], kind="stable")]
    lane_of: dict[int, int] = {}
    for node in first.tolist():
        lane_of.setdefault(int(work[node]), int(trace.lane[node]))
    found = StreamOrder({node: int(trace.lane_id[lane]) for node, lane in lane_of.items() if lane != main})
    waited: set[int] = set()
    for source, target in sorted(_events(trace), key=lambda edge: int(start_ns[edge[1]])):
        before, after = int(work[source]), int(work[target])
        if comms[target] and before in found.stream:
            found.issues.setdefault(target, found.stream[before])
        elif comms[source] and after in lane_of and source not in waited:
            waited.add(source)
            found.waits.update({source: found.stream[after]} if after in found.stream else {})
        elif before in lane_of and after in lane_of and lane_of[before] != lane_of[after]:
            found.records.setdefault(before, len(found.records))
            waits = found.awaits.setdefault(after, [])
            if before not in waits:
                waits.append(before)
    return found


def _events(trace: Trace) -> Iterator[tuple[int, int]]:
    """(last activity before an event, first activity after the wait for it)."""
    tables: tuple[tuple[Any, Any, Any], ...] = (
        (trace.data_start, trace.data, trace.data_why),
        (trace.ctrl_start, trace.ctrl, trace.ctrl_why),
    )
    for start, edges, why in tables:
        at = np.flatnonzero(why == int(Why.EVENT))
        yield from zip(edges[at].tolist(), (np.searchsorted(start, at, "right") - 1).tolist(), strict=True)
