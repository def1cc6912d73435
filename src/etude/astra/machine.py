"""Memory for the event machine and for the tables it reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from etude.astra import layout as at
from etude.astra.kernels import tables

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class Arena:
    """Lays tables out one after another in one array, behind a header that says where each begins."""

    def __init__(self, header: int) -> None:
        self.header = np.zeros(header, np.int64)
        self.parts: list[tuple[int, I64]] = []
        self.end = int(header)

    def room(self, where: int, words: int) -> int:
        """Where a table of zeros begins."""
        start = self.end
        self.header[where] = start
        self.end += int(words)
        return start

    def put(self, where: int, table: I64) -> None:
        self.parts.append((self.room(where, table.size), table.reshape(-1)))

    def build(self) -> I64:
        array = np.zeros(self.end, np.int64)
        array[: len(self.header)] = self.header
        for start, part in self.parts:
            array[start : start + len(part)] = part
        return array


def make_machine(tab: I64, room: int, num_ranks: int, lines: I64, num_fresh: int, num_servers: int) -> I64:
    """A machine at rest. `room` is how many events, messages and streams it can hold at once."""
    npus, dims, queues = int(tab[at.NPUS]), int(tab[at.DIMS]), int(tab[at.QUEUES])
    room = 1 << max(4, (room - 1).bit_length())
    stream_width = int(at.NUM_STREAM + tab[at.MAX_PHASES] * at.NUM_PHASE)
    arena = Arena(at.NUM_SCALARS)
    head = arena.header
    head[_AT_REST] = at.NONE
    head[at.TIME_MASK] = head[at.MATCH_MASK] = 2 * room - 1
    head[at.RANK_WIDTH], head[at.STREAM_WIDTH] = width, _ = at.RANK_FIXED + 7 * dims, stream_width
    arena.room(at.AT_HEAP, room * at.NUM_HEAP)
    arena.room(at.AT_TIMES, 2 * room * at.NUM_TIME)
    arena.room(at.AT_MATCHES, 2 * room * at.NUM_MATCH)
    ends = []
    for where, free, records, columns in (
        (at.AT_BUCKETS, at.FREE_BUCKET, room, at.NUM_BUCKET),
        (at.AT_EVENTS, at.FREE_EVENT, room, at.NUM_EVENT),
        (at.AT_BATCHES, at.FREE_BATCH, room, at.NUM_BATCH),
        (at.AT_CALLS, at.FREE_CALL, room, at.NUM_CALL),
        (at.AT_MESSAGES, at.FREE_MESSAGE, room, at.NUM_MSG),
        (at.AT_STREAMS, at.FREE_STREAM, room // 2, stream_width),
    ):
        head[free] = arena.room(where, records * columns) + columns
        ends.append(arena.end - columns)
    num_links = 1
    if tab[at.IS_AWARE]:
        num_links = npus * npus if tab[tab[at.TAB_DIMS] + at.DIM_KIND] == at.CONNECTED else 2 * npus
    arena.room(at.AT_LINKS, num_links * at.NUM_LINK)
    ranks = np.zeros((num_ranks, width), np.int64)
    ranks[:, (at.RANK_BATCHES, at.RANK_FINISH, at.RANK_DONE_AT)] = at.NONE
    arena.put(at.AT_RANKS, ranks)
    arena.put(at.AT_LINES, lines)
    arena.room(at.AT_FRESH, num_fresh)
    for where, rows, columns, zero in (
        (at.AT_QUEUES, npus * queues * dims, at.NUM_QUEUE, at.QUEUE_RUNNING),
        (at.AT_SERVERS, max(num_servers, 1), at.NUM_SERVER, at.SERVER_BUSY),
    ):
        table = np.full((rows, columns), at.NONE, np.int64)
        table[:, zero] = 0
        arena.put(where, table)
    mem = arena.build()
    mem[ends] = at.NONE
    return mem


_AT_REST = [at.CURRENT, at.LAST_BUCKET, at.ERROR_NODE, at.OPEN_BATCH, at.TELL_BACK]


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


def first_ready(small: I32, rank_start: I64) -> tuple[I64, I32]:
    """Heaps of nodes that wait for nothing: start and count per rank and resource, and the heaps."""
    num_nodes = int(rank_start[-1])
    lines = np.zeros(((len(rank_start) - 1) * at.NUM_RESOURCES, at.NUM_LINE), np.int64)
    ready = np.zeros(max(num_nodes, 1), np.int32)
    tables.first_ready(small, num_nodes, lines, ready)
    return lines, ready
