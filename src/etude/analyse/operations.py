"""The collectives of a job as they ran: each call with the times of all its members, on one clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I32, I64, U8
from etude.model.job import Job
from etude.model.match import WORLD, Matching, match
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.timing import Timing

__all__ = ["CollectiveCalls", "calls", "messages"]


MOST_MEMBERS = 100_000_000
"""Most members of calls in one table; 16 such columns fit in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveCalls:
    """Call c is the number[c]-th collective of group[c]; its members are first[c]:first[c+1], by rank.

    Times are those of each rank's own clock; UNKNOWN where a member was not seen.
    """

    group: I32
    number: I64
    collective: U8
    size_bytes: I64
    """Largest input of a member; UNKNOWN where none says."""
    first: I64
    at: I32
    """Position of a member's rank among those present."""
    row: I32
    start_ns: I64
    end_ns: I64

    def __len__(self) -> int:
        return len(self.group)

    @property
    def of(self) -> I64:
        """Call of each member."""
        return np.repeat(np.arange(len(self)), np.diff(self.first))


def calls(run: Run, matching: Matching | None = None) -> CollectiveCalls:
    """Every collective call of the job, by group and number."""
    matching = matching or match(run.job)
    uses, sides = matching.uses, matching.sides
    length = np.diff(sides.start)[uses.side]
    total = int(length.sum())
    if total > MOST_MEMBERS:
        raise UsageError(f"{total:,} members of collectives are too many for one table", hint="take fewer ranks")
    use = np.repeat(np.arange(len(length)), length)
    number = np.arange(total) - np.repeat(np.cumsum(length) - length, length)
    place = sides.start[:-1][uses.side][use] + number
    at, group = uses.at[use], uses.group[use]
    order = np.lexsort((at, number, group))
    group, number, at, place = group[order], number[order], at[order], place[order]
    fresh = np.ones(total, bool)
    fresh[1:] = (group[1:] != group[:-1]) | (number[1:] != number[:-1])
    first = np.append(np.flatnonzero(fresh), total).astype(np.int64)
    start, end = times_of(run.timing, at, sides.rows[place])
    size = sides.size_bytes[place]
    heads = first[:-1]
    return CollectiveCalls(
        group=group[heads].astype(np.int32),
        number=number[heads],
        collective=sides.collective[place][heads],
        size_bytes=np.maximum.reduceat(size, heads) if total else size,
        first=first,
        at=at,
        row=sides.rows[place],
        start_ns=start,
        end_ns=end,
    )


def times_of(timing: Timing, at: NDArray[np.signedinteger], row: NDArray[np.signedinteger]) -> tuple[I64, I64]:
    """Start and end of rows of the ranks at these positions."""
    length = np.array([len(b) for b in timing.start_ns] or [0], np.int64)
    block = timing.block_of[at]
    if (row >= length[block]).any():
        raise UsageError("the timing has fewer nodes than the job")
    start, end = np.empty(len(at), np.int64), np.empty(len(at), np.int64)
    order = np.argsort(block, kind="stable")
    bounds = np.searchsorted(block[order], np.arange(len(length) + 1))
    for b in range(len(length)):
        mine = order[bounds[b] : bounds[b + 1]]
        start[mine], end[mine] = timing.start_ns[b][row[mine]], timing.end_ns[b][row[mine]]
    return start, end


def group_size(job: Job, group: I32) -> I64:
    """Members of each group; of the world, all ranks; -1 where they are not known."""
    sizes = np.append(np.diff(job.groups.start), job.world_size)
    known = np.append(job.groups.known, True)
    return np.where(known[group], sizes[group], -1)  # WORLD is -1, the last entry


def group_name(job: Job, group: int) -> str:
    return "world" if group == WORLD else job.groups.names[group]


@dataclass(frozen=True, slots=True, eq=False)
class MatchedMessages:
    """Sends with their receives. Times are those of each rank's own clock."""

    src_at: I32
    src_row: I32
    dst_at: I32
    dst_row: I32
    size_bytes: I64


def messages(job: Job, matching: Matching | None = None) -> MatchedMessages:
    """Every message whose send and receive are both in the job."""
    matching = matching or match(job)
    links, pairs, sides = matching.links, matching.pairings, matching.sides
    both = np.flatnonzero(links.pairing >= 0)
    which = links.pairing[both]
    length = np.diff(pairs.start)[which]
    link = both[np.repeat(np.arange(len(both)), length)]
    at = np.arange(len(link)) - np.repeat(np.cumsum(length) - length - pairs.start[:-1][which], length)
    send, recv = pairs.send_at[at], pairs.recv_at[at]
    size = np.where(sides.size_bytes[send] == UNKNOWN, sides.size_bytes[recv], sides.size_bytes[send])
    return MatchedMessages(links.src_at[link], sides.rows[send], links.dst_at[link], sides.rows[recv], size)
