"""Memory for the event machine and for the tables it reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from etude.simulate.astra import layout as at

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class Arena:
    """Lays tables out one after another in one array, behind a header that says where each begins."""

    def __init__(self, header: int) -> None:
        self.header = np.zeros(header, np.int64)
        self.parts: list[I64] = []
        self.end = header

    def put(self, where: int, table: I64) -> int:
        flat = table.reshape(-1)
        self.header[where] = start = self.end
        self.parts.append(flat)
        self.end += len(flat)
        return start

    def pool(self, where: int, free: int, rows: int, columns: int) -> None:
        """Records on a free list through their first word; the first one is the one that nobody gets."""
        table = np.zeros((rows, columns), np.int64)
        start = self.put(where, table)
        table[:, 0] = start + columns * np.arange(1, rows + 1)
        table[-1, 0] = at.NONE
        self.header[free] = start + columns

    def empty(self, where: int, rows: int, columns: int, zero: Sequence[int] = ()) -> None:
        table = np.full((rows, columns), at.NONE, np.int64)
        table[:, list(zero)] = 0
        self.put(where, table)

    def build(self) -> I64:
        return np.concatenate([self.header, *self.parts])


def make_machine(tab: I64, room: int, num_ranks: int, lines: I64, num_fresh: int, num_servers: int) -> I64:
    """A machine at rest. `room` is how many events, messages and streams it can hold at once."""
    npus, dims, queues = int(tab[at.NPUS]), int(tab[at.DIMS]), int(tab[at.QUEUES])
    room = 1 << max(4, (room - 1).bit_length())
    arena = Arena(at.NUM_SCALARS)
    head = arena.header
    for where in (at.CURRENT, at.LAST_BUCKET, at.ERROR_NODE, at.OPEN_BATCH, at.TELL_BACK):
        head[where] = at.NONE
    head[at.TIME_MASK] = head[at.MATCH_MASK] = 2 * room - 1
    head[at.RANK_WIDTH] = at.RANK_FIXED + 7 * dims
    arena.empty(at.AT_HEAP, room, at.NUM_HEAP)
    arena.empty(at.AT_TIMES, 2 * room, at.NUM_TIME)
    arena.empty(at.AT_MATCHES, 2 * room, at.NUM_MATCH)
    arena.pool(at.AT_BUCKETS, at.FREE_BUCKET, room, at.NUM_BUCKET)
    arena.pool(at.AT_EVENTS, at.FREE_EVENT, room, at.NUM_EVENT)
    arena.pool(at.AT_BATCHES, at.FREE_BATCH, room, at.NUM_BATCH)
    arena.pool(at.AT_CALLS, at.FREE_CALL, room, at.NUM_CALL)
    arena.pool(at.AT_MESSAGES, at.FREE_MESSAGE, room, at.NUM_MSG)
    arena.pool(at.AT_STREAMS, at.FREE_STREAM, room // 2, at.NUM_STREAM + int(tab[at.MAX_PHASES]) * at.NUM_PHASE)
    num_links = 1
    if tab[at.IS_AWARE]:
        num_links = npus * npus if tab[tab[at.TAB_DIMS] + at.DIM_KIND] == at.CONNECTED else 2 * npus
    arena.empty(at.AT_LINKS, num_links, at.NUM_LINK, (at.LINK_BUSY,))
    arena.empty(at.AT_QUEUES, npus * queues * dims, at.NUM_QUEUE, (at.QUEUE_RUNNING,))
    ranks = np.zeros((num_ranks, int(head[at.RANK_WIDTH])), np.int64)
    ranks[:, [at.RANK_BATCHES, at.RANK_FINISH, at.RANK_DONE_AT]] = at.NONE
    arena.put(at.AT_RANKS, ranks)
    arena.put(at.AT_LINES, lines)
    arena.empty(at.AT_FRESH, num_fresh, 1)
    arena.empty(at.AT_SERVERS, max(num_servers, 1), at.NUM_SERVER, (at.SERVER_BUSY,))
    return arena.build()


def rank_table(mem: I64, num_ranks: int) -> I64:
    """The machine's ranks as a table."""
    start, width = int(mem[at.AT_RANKS]), int(mem[at.RANK_WIDTH])
    return mem[start : start + num_ranks * width].reshape(num_ranks, width)


def line_table(mem: I64, num_ranks: int) -> I64:
    """Ready nodes per rank and resource: start and count."""
    start = int(mem[at.AT_LINES])
    return mem[start : start + num_ranks * at.NUM_RESOURCES * at.NUM_LINE].reshape(
        num_ranks, at.NUM_RESOURCES, at.NUM_LINE
    )


def first_ready(small: I32, num_ranks: int) -> tuple[I64, I32]:
    """Heaps of nodes that wait for nothing: start and count per rank and resource, and the heaps."""
    line = small[:, at.NODE_RANK].astype(np.int64) * at.NUM_RESOURCES + small[:, at.NODE_RESOURCE]
    size = num_ranks * at.NUM_RESOURCES
    start = np.concatenate([[0], np.cumsum(np.bincount(line, minlength=size))[:-1]])
    free = np.flatnonzero(small[:, at.NODE_WAITS] == 0)
    free = free[np.lexsort((small[free, at.NODE_KEY], line[free]))]  # ascending keys are a heap already
    count = np.bincount(line[free], minlength=size)
    before = np.concatenate([[0], np.cumsum(count)[:-1]])
    ready = np.zeros(max(len(small), 1), np.int32)
    ready[start[line[free]] + np.arange(len(free)) - before[line[free]]] = small[free, at.NODE_KEY]
    return np.stack([start, count], axis=1).astype(np.int64), ready
