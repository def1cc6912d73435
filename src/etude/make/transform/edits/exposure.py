"""What of each call and message nothing hides, as a run of the job showed it.

    found = Exposure(job, timing)
    found.of(at)        # ns, a number for each node of the at-th rank present; 0 where it does not communicate

All members of a call get the same value: their mean. A message is as exposed as its receiver waits.
"""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import I64
from etude.kernels.intervals import merged
from etude.model.job import Job
from etude.model.match import Matching, match
from etude.model.schema import UNKNOWN, Kind
from etude.model.timing import Timing
from etude.model.trace import Trace

Part = tuple[I64, I64]
"""(rows, exposed ns)"""


class Exposure:
    def __init__(self, job: Job, timing: Timing) -> None:
        self._job, self._timing = job, timing
        self._own: dict[tuple[int, int], I64] = {}
        self._parts: list[Part] = []
        self._of: list[list[int]] = [[] for _ in job.ranks]
        """Parts of each rank."""
        found = match(job)
        self._calls(found)
        self._messages(found)

    def codes(self) -> I64:
        """A number for each rank: equal if all its values are equal."""
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        keys = ((int(self._job.trace_of[at]), tuple(sorted(parts))) for at, parts in enumerate(self._of))
        return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)

    def of(self, at: int) -> I64:
        found = np.zeros(len(self._job.traces[int(self._job.trace_of[at])]), np.int64)
        for number in self._of[at]:
            rows, ns = self._parts[number]
            found[rows] = ns
        return found

    def _exposed(self, at: int) -> I64:
        key = int(self._job.trace_of[at]), int(self._timing.block_of[at])
        if key not in self._own:
            self._own[key] = exposed_ns(self._job.traces[key[0]], *self._timing.block(at))
        return self._own[key]

    def _calls(self, found: Matching) -> None:
        uses, sides = found.uses, found.sides
        pairs = np.stack([uses.side, self._timing.block_of[uses.at]], 1)
        first = np.flatnonzero(np.diff(uses.group, prepend=-2))
        known: dict[tuple[bytes, int], int] = {}
        for low, high in zip(first.tolist(), [*first[1:].tolist(), len(uses.group)][: len(first)], strict=True):
            members, at, count = np.unique(pairs[low:high], axis=0, return_index=True, return_counts=True)
            rows = [sides.rows[sides.span(side)].astype(np.int64) for side in members[:, 0].tolist()]
            if len({len(one) for one in rows}) != 1:
                continue  # members that do not agree on their calls
            key = members.tobytes() + count.tobytes()
            mine = dict(zip(members[:, 0].tolist(), rows, strict=True))
            if (key, next(iter(mine))) not in known:
                ranks = uses.at[low + at].tolist()
                each = np.stack([self._exposed(rank)[own] for rank, own in zip(ranks, rows, strict=True)])
                mean = count @ each // (high - low)
                for side, own in mine.items():
                    known[key, side] = len(self._parts)
                    self._parts.append((own, mean))
            for use in range(low, high):
                self._of[int(uses.at[use])].append(known[key, int(uses.side[use])])

    def _messages(self, found: Matching) -> None:
        links, pairs, rows = found.links, found.pairings, found.sides.rows
        known: dict[tuple[int, int], tuple[int, int]] = {}
        for link in np.flatnonzero((links.pairing >= 0) & (links.src_at >= 0) & (links.dst_at >= 0)).tolist():
            pairing, sender, receiver = (int(one[link]) for one in (links.pairing, links.src_at, links.dst_at))
            key = pairing, int(self._timing.block_of[receiver])
            if key not in known:
                which = slice(int(pairs.start[pairing]), int(pairs.start[pairing + 1]))
                sends, receives = (rows[at[which]].astype(np.int64) for at in (pairs.send_at, pairs.recv_at))
                ns = self._exposed(receiver)[receives]
                known[key] = len(self._parts), len(self._parts) + 1
                self._parts += [(sends, ns), (receives, ns)]
            self._of[sender].append(known[key][0])
            self._of[receiver].append(known[key][1])


def exposed_ns(trace: Trace, start_ns: I64, end_ns: I64) -> I64:
    """For each communicating node the time in which no compute of the device runs; 0 for others."""
    known = (start_ns != UNKNOWN) & (end_ns != UNKNOWN)
    work = known & (trace.kind == Kind.COMP) & (trace.cpu != 1)
    low, high = merged(start_ns[work], end_ns[work])
    done = np.concatenate([[0], np.cumsum(high - low)])

    def before(time: I64) -> I64:
        """Compute before this time."""
        at = np.searchsorted(low, time, "right")
        inside = np.where(at > 0, np.append(high, 0)[at - 1] - time, 0)
        found: I64 = done[at] - np.maximum(inside, 0)
        return found

    talks = np.flatnonzero(known & np.isin(trace.kind, (Kind.COLL, Kind.SEND, Kind.RECV)))
    begin, end = start_ns[talks], end_ns[talks]
    found = np.zeros(len(trace), np.int64)
    found[talks] = end - begin - (before(end) - before(begin))
    return found
