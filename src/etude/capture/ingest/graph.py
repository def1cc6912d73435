"""The causal graph of one rank: nodes from events, and an edge for every reason that one waits for another.

| why | from | to |
|---|---|---|
| program | what a thread did before | what it did next |
| launch | the call's work up to the launch | the activity |
| stream | the activity before it in its stream | the activity |
| event | the last activity before the record | the first behind the wait, in another stream |
| sync | the activity | what the host does when a call that waited for it returns |
| tensor | what wrote a tensor | what reads it |
| autograd | an operator | the one that goes back over it |
| autograd | the thread that asks for the backward pass | the thread that runs it; and back, when it is over |
| collective | the call | the thread that carries it out; the collective before it on its group |

Rows are in order of their recorded start, and every edge leads from an earlier row to a later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.capture.ingest import timeline_kernels as k
from etude.capture.ingest.collectives import Communications
from etude.capture.ingest.comm_nodes import CommWork, comm_work
from etude.capture.ingest.comm_waits import CommWaits, comm_waits
from etude.capture.ingest.dispatch import Dispatches, dispatches
from etude.capture.ingest.events import DeviceEvents, HostEvents
from etude.capture.ingest.streams import NOISE_NS, Marks, Queues, marks
from etude.capture.ingest.timeline import Timeline, timeline
from etude.capture.ingest.waits import DeviceWaits, Handovers, backward_handovers, device_waits, pauses_of_calls
from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import I32, I64, U8, distinct_values, sort_order
from etude.model import frames
from etude.model.schema import UNKNOWN, Kind, Why

Edge = tuple[I64, I64, Why]
Edges = list[Edge]

HOST_EVENT, SEGMENT, GROUPS, DISPATCH, ACTIVITY, SHARED = 0, 1, 2, 3, 4, 5
"""GROUPS names the process groups and does nothing. DISPATCH is the device's delay from one activity to the next.
SHARED is a further communication of a kernel that ran several."""
SEGMENT_NAME: Final = frames.SEGMENT
DISPATCH_NAME: Final = frames.DISPATCH
LATE: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class CausalGraph:
    """Nodes by recorded start, and what each waits for."""

    host: HostEvents
    device: DeviceEvents
    line: Timeline
    comms: CommWork
    what: U8
    """HOST_EVENT, SEGMENT, GROUPS, DISPATCH, ACTIVITY or SHARED."""
    index: I64
    """Position in `host`, in `line`, or in `device`; for a DISPATCH that of the activity after it."""
    owner: I64
    """The host event that a node is, whose time it is, or whose operator launched it; -1: none."""
    start_ns: I64
    end_ns: I64
    own_ns: I64
    """Own work: 0 for an event that is made of others and of segments."""
    edge_start: I64
    edge: I32
    why: U8
    row_of_event: I64
    """Row of each host event."""
    row_of_comm: I64
    """Row of each communication; -1 if nothing in the trace ran it."""
    contradicted: int
    """Edges that were dropped because they contradict the times."""

    def __len__(self) -> int:
        return len(self.what)


def graph(
    trace: DeviceTrace,
    host: HostEvents,
    device: DeviceEvents,
    table: Communications,
    flows: tuple[I64, I64] | None = None,
) -> CausalGraph:
    """Builds the graph. `flows`: (writer, reader) of tensors, activities or, if nothing ran on a device, host
    events."""
    comms = comm_work(table, host, device)
    queues = Queues.of(host, device)
    found = marks(trace, host, queues)
    waits = device_waits(trace, host, queues, found)
    asked_for = comm_waits(trace, host, comms)
    handovers = [backward_handovers(trace, host, device), asked_for.handovers]
    line = timeline(host, [pauses_of_calls(host, device, waits), *(h.pauses for h in handovers)])
    made = _Nodes(host, device, line, comms, dispatches(host, device, found, in_the_midst=trace.in_the_midst))
    made.set_messages(asked_for)
    launches, events = made.launches(), made.events(found)
    edges: Edges = [
        *made.program(),
        launches,
        made.streams(),
        events,
        *made.dispatches(launches, events),
        made.syncs(waits),
        *(edge for h in handovers for edge in made.handovers(h)),
    ]
    edges += [made.tensors(*flows)] if flows is not None else []
    edges = [*edges, made.backward(trace), *made.shared(edges), *made.collectives()]
    return made.ordered(edges)


class _Nodes:
    """Nodes in order of creation (events, segments, activities, communications that share one), and their edges."""

    def __init__(
        self, host: HostEvents, device: DeviceEvents, line: Timeline, comms: CommWork, ways: Dispatches
    ) -> None:
        self.host, self.device, self.line, self.comms = host, device, line, comms
        segments = np.flatnonzero(~line.whole)
        self.extra = np.flatnonzero(~comms.first & (comms.activity >= 0))
        share = comms.activity[self.extra]
        named = int(any(members for _, members in comms.table.groups))
        self.ways = ways
        counts = (len(host), len(segments), named, len(ways.activity), len(device), len(share))
        self.first_dispatch, self.first_activity, self.first_shared = (sum(counts[:i]) for i in (3, 4, 5))
        self.of_piece = np.where(line.whole, line.owner, 0)
        self.of_piece[segments] = len(host) + np.arange(len(segments))
        self.what = np.repeat(np.array([HOST_EVENT, SEGMENT, GROUPS, DISPATCH, ACTIVITY, SHARED], np.uint8), counts)
        nothing = np.full(named, -1, np.int64)
        events, activities = np.arange(len(host)), np.concatenate([np.arange(len(device)), share])
        self.index = np.concatenate([events, segments, nothing, ways.activity, activities])
        nobody = np.full(len(ways.activity), -1, np.int64)
        self.owner = np.concatenate([events, line.owner[segments], nothing, nobody, device.operator[activities]])
        first = np.full(named, min(host.start_ns.min(initial=LATE), device.start_ns.min(initial=LATE)))
        self.start = np.concatenate(
            [host.start_ns, line.start_ns[segments], first, ways.start_ns, device.start_ns[activities]]
        )
        self.end = np.concatenate(
            [host.end_ns, line.end_ns[segments], first, ways.start_ns + ways.own_ns, device.end_ns[activities]]
        )
        own = np.zeros(len(host), np.int64)
        own[line.owner[line.whole]] = (line.end_ns - line.start_ns)[line.whole]
        length = device.end_ns - device.start_ns
        shares = np.concatenate([np.zeros(named, np.int64), ways.own_ns, length, self._shares(share, length)])
        self.own = np.concatenate([own, (line.end_ns - line.start_ns)[segments], shares])
        self.of_comm = self._comm_nodes(segments)

    def _shares(self, share: I64, length: I64) -> I64:
        """A kernel's first communication holds its stream for as long as it ran. The others ran at the same time: a
        receive for as long; sends and collectives, which hold the network one after the other, as long together."""
        receives = self.comms.table.kind[self.extra] == Kind.RECV
        others = np.bincount(share[~receives], minlength=len(length) + 1)
        return np.where(receives, length[share], length[share] // np.maximum(others[share], 1))

    def _comm_nodes(self, segments: I64) -> I64:
        """The node of each communication: its activity; on the host the event, or for one that calls others its longest
        segment."""
        comms = self.comms
        node = np.where(comms.first & (comms.activity >= 0), comms.activity + self.first_activity, -1)
        node[self.extra] = self.first_shared + np.arange(len(self.extra))
        on_host = comms.event >= 0
        if not on_host.any():
            return node
        by_length = np.argsort(self.own[len(self.host) + np.arange(len(segments))], kind="stable")
        longest = np.arange(len(self.host))
        owner = self.line.owner[segments[by_length]]
        longest[owner[owner >= 0]] = len(self.host) + by_length[owner >= 0]
        event = comms.event[on_host]
        node[on_host] = np.where(self.host.apart[event], event, longest[event])
        apart = event[self.host.apart[event]]
        self.own[apart] = self.host.end_ns[apart] - self.host.start_ns[apart]
        return node

    def set_messages(self, found: CommWaits) -> None:
        """A message begins with its call. Its length is unknown if it was over when the program asked: a send is then
        shown as long as its call, a receive until the program had it."""
        self.start[found.message] = found.begin_ns
        self.own[found.message] = self.end[found.message] - found.begin_ns
        comms, events = self.comms, found.over_before
        self.own[events] = UNKNOWN
        sends = np.flatnonzero(np.isin(comms.event, events) & (comms.table.kind == Kind.SEND))
        call_end = np.append(self.host.end_ns, LATE)[comms.asked[sends]]
        sent = comms.event[sends]
        self.end[sent] = np.clip(call_end, self.host.start_ns[sent], self.host.end_ns[sent])

    def _node(self, piece: I64) -> I64:
        return np.append(self.of_piece, -1)[piece]

    def program(self) -> Edges:
        """Pieces of a thread one after the other; an event that is not a piece begins after the piece before it."""
        follows = np.flatnonzero(self.line.thread[1:] == self.line.thread[:-1])
        is_piece = np.zeros(len(self.host), np.bool_)
        is_piece[self.line.owner[self.line.whole]] = True
        frames = np.flatnonzero(~is_piece)
        before = self.line.before(self.host.thread[frames], self.start[frames])
        return [
            (self.of_piece[follows], self.of_piece[follows + 1], Why.PROGRAM),
            (self._node(before), frames, Why.PROGRAM),
        ]

    def launches(self) -> Edge:
        rows = np.flatnonzero(self.device.call >= 0)
        call = self.device.call[rows]
        moment = np.clip(self.device.start_ns[rows], self.host.start_ns[call], self.host.end_ns[call])
        return self._node(self.line.before(self.host.thread[call], moment)), rows + self.first_activity, Why.LAUNCH

    def streams(self) -> Edge:
        """Stream order; but activities of one stream that overlapped (branches of a graph) did not wait."""
        device = self.device
        apart = device.end_ns[:-1] <= device.start_ns[1:] + NOISE_NS
        rows = np.flatnonzero((device.stream[1:] == device.stream[:-1]) & apart) + self.first_activity
        return rows, rows + 1, Why.STREAM

    def dispatches(self, launches: Edge, events: Edge) -> Edges:
        """The dispatch of an activity, after the one before; if the device was busy elsewhere, after everything it
        waits for."""
        nodes, ways = self.first_dispatch + np.arange(len(self.ways.activity)), self.ways
        found = [
            (np.where(ways.follows >= 0, ways.follows + self.first_activity, -1), nodes, Why.STREAM),
            (nodes, ways.activity + self.first_activity, Why.STREAM),
        ]
        way_of = np.full(self.first_shared, -1, np.int64)
        way_of[ways.activity[ways.elsewhere] + self.first_activity] = nodes[ways.elsewhere]
        return [*found, *((source, way_of[target], why) for source, target, why in (launches, events))]

    def events(self, found: Marks) -> Edge:
        known = found.waiter >= 0
        return found.source[known] + self.first_activity, found.waiter[known] + self.first_activity, Why.EVENT

    def syncs(self, waits: DeviceWaits) -> Edge:
        back = self.line.after(self.host.thread[waits.call], waits.to_ns)
        return waits.activity + self.first_activity, self._node(back), Why.SYNC

    def handovers(self, found: Handovers) -> Edges:
        before = self._node(self.line.before(found.from_thread, found.from_ns))
        before = np.where(found.from_event >= 0, found.from_event, before)
        after = self._node(self.line.after(found.to_thread, found.to_ns))
        return [
            (before[found.why == why], after[found.why == why], Why(why)) for why in distinct_values(found.why).tolist()
        ]

    def tensors(self, writer: I64, reader: I64) -> Edge:
        """A reader of a tensor after its writer, if that was over: ids may be reused."""
        if len(self.device):
            writer, reader = writer + self.first_activity, reader + self.first_activity
        over = self.end[writer] <= self.start[reader] + NOISE_NS
        return writer[over], reader[over], Why.TENSOR

    def backward(self, trace: DeviceTrace) -> Edge:
        """From each operator to its backward operator, by the profiler's arrows."""
        ends = []
        for phase in ("s", "f"):
            rows = np.flatnonzero(trace.is_category("fwdbwd") & trace.is_phase(phase))
            rows = rows[np.argsort(trace.flow[rows], kind="stable")]
            ends.append((trace.flow[rows], self._operators_at(trace.tid[rows], trace.start_ns[rows])))
        both, at, behind = np.intersect1d(ends[0][0], ends[1][0], return_indices=True)
        del both
        return ends[0][1][at], ends[1][1][behind], Why.AUTOGRAD

    def _operators_at(self, tid: I64, start_ns: I64) -> I64:
        """The outermost operator that begins at a moment on a thread; -1: none."""
        thread = np.searchsorted(self.host.tid, tid)
        found = np.full(len(tid), -1, np.int64)
        for t in distinct_values(thread[thread < len(self.host.tid)]).tolist():
            mine = np.flatnonzero((thread == t) & (tid == self.host.tid[t]))
            low, high = int(self.host.first[t]), int(self.host.first[t + 1])
            at = low + np.searchsorted(self.host.start_ns[low:high], start_ns[mine])
            there = (at < high) & (np.append(self.host.start_ns, 0)[at] == start_ns[mine])
            found[mine] = np.where(there, at, -1)
        return found

    def shared(self, edges: Edges) -> Edges:
        """A communication that shares a kernel has the kernel's dependencies and dependents."""
        kernels, found = self.comms.activity[self.extra] + self.first_activity, []
        for source, target, why in edges:
            for ends, into in ((target, True), (source, False)):
                touched = np.flatnonzero(np.isin(ends, kernels)) if len(kernels) else kernels
                for edge in touched.tolist():
                    twins = self.first_shared + np.flatnonzero(kernels == ends[edge])
                    other = np.full(len(twins), (source if into else target)[edge])
                    found.append((other, twins, why) if into else (twins, other, why))
        return found

    def collectives(self) -> Edges:
        """The collectives of a group, each after the one before it, if that was over."""
        table, found = self.comms.table, []
        for group in distinct_values(table.group).tolist():
            mine = self.of_comm[(table.group == group) & (table.kind == Kind.COLL)]
            mine = mine[mine >= 0]
            over = self.end[mine[:-1]] <= self.start[mine[1:]] + NOISE_NS
            found.append((mine[:-1][over], mine[1:][over], Why.COLLECTIVE))
        return found

    def _order(self) -> I64:
        """Nodes by start; but collectives of a group come in the order of their calls, whichever of gloo's threads
        began first: the k-th on one rank is the k-th on the others."""
        start, table = self.start.copy(), self.comms.table
        of_group = []
        for group in distinct_values(table.group).tolist():
            mine = self.of_comm[(table.group == group) & (table.kind == Kind.COLL)]
            of_group.append(mine[mine >= 0])
            start[of_group[-1]] = np.minimum.accumulate(start[of_group[-1]][::-1])[::-1]
        order = sort_order(start, self.end)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        for mine in of_group:  # those that now begin together
            order[np.sort(place[mine])] = mine
        return order

    def ordered(self, edges: Edges) -> CausalGraph:
        n = len(self.what)
        order = self._order()
        row = np.empty(n + 1, np.int64)
        row[order], row[n] = np.arange(n), -1
        source, target = (np.concatenate([e[side] for e in edges]) for side in (0, 1))
        why = np.repeat(np.array([e[2] for e in edges], np.uint8), [len(e[0]) for e in edges])
        known = (source >= 0) & (target >= 0)
        source, target, why = row[source[known]], row[target[known]], why[known]
        forward = source < target
        start, edge, why = _csr(source[forward], target[forward], why[forward], n)
        return CausalGraph(
            host=self.host,
            device=self.device,
            line=self.line,
            comms=self.comms,
            what=self.what[order],
            index=self.index[order],
            owner=self.owner[order],
            start_ns=self.start[order],
            end_ns=self.end[order],
            own_ns=self.own[order],
            edge_start=start,
            edge=edge,
            why=why,
            row_of_event=row[: len(self.host)],
            row_of_comm=row[self.of_comm],
            contradicted=int((~forward).sum()),
        )


def _csr(source: I64, target: I64, why: U8, n: int) -> tuple[I64, I32, U8]:
    order = sort_order(target, source)
    rows, why = source[order].astype(np.int32), why[order]
    start = np.append(0, np.cumsum(np.bincount(target, minlength=n)))
    start = k.merge_edges(start, rows, why, n)
    return start, rows[: start[-1]].copy(), why[: start[-1]].copy()
