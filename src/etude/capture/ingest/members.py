"""The own time of a communication, from the times of all its members.

A member is recorded for as long as it was in a communication, including the wait for the others. Its own time is from
the arrival of the last one until it was done. Members do not finish at the same time if threads or a device are shared
(ranks on few cores, ranks on one GPU): each has its own time, and the least is that of the operation.

If clocks differ, only the least recorded duration of the members is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.capture.ingest.clocks import NOISE_NS, Clocks, GroupCalls, clocks
from etude.kernels.arrays import I32, I64, distinct_values
from etude.model.as_recorded import with_lengths
from etude.model.match import Matching
from etude.model.schema import UNKNOWN, Why
from etude.model.trace import Trace

LATE = np.iinfo(np.int64).max


@dataclass(slots=True, eq=False)
class RankTimes:
    """A rank's trace and recorded times; `duration_ns` are the new durations."""

    trace: Trace
    start_ns: I64
    end_ns: I64
    duration_ns: I64
    asked_ns: I64
    """When the thread that requested each communication continues; else LATE."""
    moved: bool = False
    """Some ends are no longer those of the trace."""

    @classmethod
    def of(cls, trace: Trace, start_ns: I64, end_ns: I64) -> RankTimes:
        own = cls(trace, start_ns.copy(), end_ns.copy(), trace.duration_ns.copy(), np.full(len(trace), LATE, np.int64))
        sync = np.flatnonzero(trace.data_why == Why.SYNC)
        np.minimum.at(own.asked_ns, trace.data[sync], start_ns[own.node_of(sync)])
        return own

    def node_of(self, edges: I64) -> I64:
        """The nodes that these edges lead to."""
        return np.searchsorted(self.trace.data_start, edges, "right") - 1

    def waits_for(self, rows: I32) -> I64:
        """Nodes with which a thread continues once it knows that these are over."""
        return self.node_of(np.flatnonzero(np.isin(self.trace.data, rows) & (self.trace.data_why == Why.SYNC)))

    def longest(self, rows: I32, begin_ns: I64 | None = None) -> I64:
        """The longest possible time of each, from its start or a later moment: until its thread continued with it."""
        begin_ns = self.start_ns[rows] if begin_ns is None else begin_ns
        return np.where(self.asked_ns[rows] == LATE, LATE, np.maximum(self.asked_ns[rows] - begin_ns, 0))

    def changed(self) -> Trace:
        """The trace with its new durations, and changed recorded lengths."""
        trace = self.trace.replace(duration_ns=self.duration_ns)
        return with_lengths(trace, self.end_ns - self.start_ns) if self.moved else trace


def own_times(ranks: Sequence[RankTimes], matching: Matching) -> Clocks:
    """Sets the durations of communications, and ends of sends, in place; returns what is known of the clocks."""
    uses, sides = matching.uses, matching.sides
    groups, rows = [], []
    for group in distinct_values(uses.group).tolist():
        mine = np.flatnonzero(uses.group == group)
        at = uses.at[mine].astype(np.int64)
        listed = [sides.rows[sides.span(int(uses.side[u]))] for u in mine.tolist()]
        calls = min(map(len, listed))
        if len(mine) > 1 and calls:
            first = ranks[at[0]].trace.collective[listed[0][:calls]]
            rows.append([own[:calls] for own in listed])
            start, end = (
                np.array([getattr(ranks[a], name)[own] for a, own in zip(at, rows[-1], strict=True)])
                for name in ("start_ns", "end_ns")
            )
            groups.append(GroupCalls(at, first, start, end))
    found = clocks(len(ranks), groups)
    for calls_of, own_rows in zip(groups, rows, strict=True):
        _collectives(ranks, calls_of, own_rows, found)
    _messages(ranks, matching, found)
    return found


def _collectives(ranks: Sequence[RankTimes], calls: GroupCalls, rows: list[I32], found: Clocks) -> None:
    recorded = np.array([ranks[a].duration_ns[own] for a, own in zip(calls.at, rows, strict=True)])
    if found.agree(calls.at):
        offset = found.offset_ns[calls.at][:, None]
        start, end = calls.start_ns + offset, calls.end_ns + offset
        last, number = start.argmax(axis=0), np.arange(start.shape[1])
        own = np.maximum(end - start[last, number], 0)
        # the last one's times come from one clock: no more is known of those that were done by then
        own = np.where(np.abs(end - end[last, number]) <= NOISE_NS, recorded[last, number], own)
        own = np.minimum(own, recorded)
    else:
        own = np.broadcast_to(recorded.min(axis=0), recorded.shape)
    for a, at_rows, values in zip(calls.at, rows, own, strict=True):
        ranks[a].duration_ns[at_rows] = values


# -- messages ----------------------------------------------------------------------------------------------------------


def _messages(ranks: Sequence[RankTimes], matching: Matching, found: Clocks) -> None:
    """A message begins when both ends have arrived. Unknown lengths are taken from the other end."""
    links, pairs, rows = matching.links, matching.pairings, matching.sides.rows
    for link in np.flatnonzero(links.pairing >= 0).tolist():
        a, b = int(links.src_at[link]), int(links.dst_at[link])
        span = slice(pairs.start[links.pairing[link]], pairs.start[links.pairing[link] + 1])
        sent, received = rows[pairs.send_at[span]], rows[pairs.recv_at[span]]
        src, dst = ranks[a], ranks[b]
        send, recv = _known(src.duration_ns[sent]), _known(dst.duration_ns[received])
        shift = int(found.offset_ns[b] - found.offset_ns[a])  # to the sender's clock
        end = dst.end_ns[received] + shift
        waited = recv != LATE
        most = src.longest(sent), dst.longest(received)
        if not found.differ[a, b] and (end >= src.start_ns[sent] - NOISE_NS)[waited].all():
            begin = np.maximum(src.start_ns[sent], dst.start_ns[received] + shift)
            most = src.longest(sent, begin), dst.longest(received, begin - shift)
            recv = np.where(waited, np.minimum(recv, np.maximum(end - begin, 0)), LATE)
            _end_sends(src, sent[waited], end[waited])
            send = np.where(send != LATE, np.minimum(send, np.maximum(src.end_ns[sent] - begin, 0)), LATE)
        else:
            recv = np.minimum(send, recv)
            send = recv
        src.duration_ns[sent] = _unknown(send, np.minimum(recv, most[0]))
        dst.duration_ns[received] = _unknown(recv, np.minimum(send, most[1]))


def _known(duration_ns: I64) -> I64:
    return np.where(duration_ns == UNKNOWN, LATE, duration_ns)


def _unknown(duration_ns: I64, other_ns: I64) -> I64:
    """Unknown values are those of the other end; UNKNOWN if that is unknown too."""
    found = np.where(duration_ns == LATE, other_ns, duration_ns)
    return np.where((duration_ns == LATE) & (other_ns == LATE), UNKNOWN, found)


def _end_sends(rank: RankTimes, rows: I32, end_ns: I64) -> None:
    """A send of gloo ends with its receive, if the program did not know before. If a program asks later, what its
    thread did since then is its own time."""
    on_host = rank.trace.cpu[rows] == 1
    rows, end_ns = rows[on_host], end_ns[on_host]
    end_ns = np.clip(end_ns, rank.start_ns[rows], np.maximum(rank.asked_ns[rows], rank.start_ns[rows]))
    earlier = (rank.duration_ns[rows] == UNKNOWN) | (end_ns < rank.end_ns[rows])
    rows, end_ns = rows[earlier], end_ns[earlier]
    rank.end_ns[rows], rank.moved = end_ns, rank.moved or len(rows) > 0
    for after in distinct_values(rank.waits_for(rows)).tolist():
        deps = rank.trace.data[rank.trace.data_start[after] : rank.trace.data_start[after + 1]]
        late = int(rank.start_ns[after] - rank.end_ns[deps].max())
        if late > 0:
            rank.start_ns[after] -= late
            rank.duration_ns[after] += late
