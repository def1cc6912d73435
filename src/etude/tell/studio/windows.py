"""What a timeline draws: the rows of ranks, and the pieces of these rows in a window of time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.tell.studio.index import TimelineIndex
from etude.tell.studio.kernels import (
    SORTS,
    DrawnPieces,
    add_by_name,
    first_ending_after,
    next_named,
    pieces_of_row,
    room_for,
)
from etude.tell.view.slices import Sort

MOST_PIXELS: Final = 16_384
MOST_ROWS: Final = 20_000
"""Rows of a list."""
MOST_DRAWN: Final = 512
"""Rows of one request."""
LOOKED_AT: Final = 6_000_000
"""Slices of one request that are looked at; for more, whole bins are drawn where these are narrow enough."""
LONGEST_NAME: Final = 20_000


def rows_of_ranks(index: TimelineIndex, ranks: list[int]) -> list[dict[str, Any]]:
    """The rows of these ranks, from top to bottom: rank, row, lane, track, depth, slices; at most `MOST_ROWS`."""
    found: list[dict[str, Any]] = []
    for rank in ranks:
        at = position(index, rank)
        for number in index.rows_of(at):
            _, kind, lane_id, track, depth, _, count = index.rows[number].tolist()
            lane = index.lane_label(rank, kind, lane_id)
            found.append({"rank": rank, "row": number, "lane": lane, "track": track, "depth": depth, "slices": count})
            if len(found) >= MOST_ROWS:
                return found
    return found


def position(index: TimelineIndex, rank: int) -> int:
    """Where a rank is among those present."""
    at = int(np.searchsorted(index.ranks, rank))
    if at == len(index.ranks) or index.ranks[at] != rank:
        raise UsageError(f"rank {rank} is not in this run", hint=f"it has {len(index.ranks):,} ranks")
    return at


def window(
    index: TimelineIndex, drawn: list[tuple[int, int]], first_ns: int, last_ns: int, pixels: int
) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """(what is said of it, columns of pieces: row of the request, start, end, busy, node, name, count, sort).

    `drawn` are (rank, row). Every slice that is in the window is in a piece, and counted there.
    """
    if not 1 <= pixels <= MOST_PIXELS or len(drawn) > MOST_DRAWN or last_ns <= first_ns:
        raise UsageError("not a window that can be drawn", hint=f"up to {MOST_DRAWN} rows and {MOST_PIXELS:,} pixels")
    least = max(1, 2 * (last_ns - first_ns) // pixels)
    out: list[DrawnPieces] = []
    number: list[NDArray[np.int32]] = []
    exact = _slices_in(index, drawn, first_ns, last_ns) <= LOOKED_AT or least < 2 * index.head["bins_width_ns"]
    for place, (rank, row) in enumerate(drawn):
        shift = int(index.shift_ns[position(index, rank)])
        part = index.row(row_of_rank(index, rank, row))
        made = (
            _pieces(part, first_ns - shift, last_ns - shift, least)
            if exact
            else _binned(index, row, first_ns - shift, last_ns - shift)
        )
        out.append(made._replace(start=made.start + shift, end=made.end + shift))
        number.append(np.full(len(made.start), place, np.int32))
    rows = np.concatenate([np.zeros(0, np.int32), *number])
    empty = room_for(0)
    columns = [np.concatenate([getattr(empty, f), *(getattr(one, f) for one in out)]) for f in DrawnPieces._fields]
    says = {"exact": exact, "pieces": len(rows), "slices": int(columns[5].sum()), "least_ns": least}
    return says, [rows, *columns]


def row_of_rank(index: TimelineIndex, rank: int, row: int) -> int:
    """A row of a rank."""
    if row not in index.rows_of(position(index, rank)):
        raise UsageError(f"rank {rank} has no row {row}")
    return row


def _slices_in(index: TimelineIndex, drawn: list[tuple[int, int]], first_ns: int, last_ns: int) -> int:
    total = 0
    for rank, row in drawn:
        shift = int(index.shift_ns[position(index, rank)])
        part = index.row(row_of_rank(index, rank, row))
        low = first_ending_after(part.end, first_ns - shift)
        total += int(np.searchsorted(part.start, last_ns - shift)) - low
    return total


def _pieces(part: Any, first_ns: int, last_ns: int, least: int) -> DrawnPieces:
    room = room_for(int(min(len(part.start), 2 * (last_ns - first_ns) // least + 4)))
    used = pieces_of_row(part, first_ns, last_ns, least, room)
    kept: list[NDArray[Any]] = [column[:used] for column in room]
    return DrawnPieces(*kept)


def _binned(index: TimelineIndex, row: int, first_ns: int, last_ns: int) -> DrawnPieces:
    """Whole bins, each with the sort that has most of its time."""
    start, width = index.head["bins_first_ns"][int(index.rows[row, 0])], index.head["bins_width_ns"]
    shares = np.asarray(index.bins[row])
    begins = start + width * np.arange(len(shares))
    some = np.flatnonzero(shares.any(axis=1) & (begins < last_ns) & (begins + width > first_ns))
    busy = (shares[some].sum(axis=1).astype(np.int64) * width // 65535).clip(1, width)
    made = room_for(len(some))
    made.start[:], made.end[:], made.busy[:] = begins[some], begins[some] + width, busy
    made.node[:], made.name[:], made.slices[:] = -1, -1, 0
    made.sort[:] = shares[some].argmax(axis=1)
    return made


def range_breakdown(
    index: TimelineIndex, drawn: list[tuple[int, int]], first_ns: int, last_ns: int, top: int = 50
) -> dict[str, Any]:
    """What the slices of rows do in a range of time: by sort, and by name. A slice that is cut by an end of the range
    counts with what is inside."""
    time, count = np.zeros(len(index.names), np.int64), np.zeros(len(index.names), np.int64)
    by_sort = np.zeros(SORTS, np.int64)
    for rank, row in drawn[:MOST_DRAWN]:
        shift = int(index.shift_ns[position(index, rank)])
        part = index.row(row_of_rank(index, rank, row))
        add_by_name(part, first_ns - shift, last_ns - shift, time, count, by_sort)
    order = np.argsort(-time, kind="stable")
    order = order[count[order] > 0]
    return {
        "first_ns": first_ns,
        "last_ns": last_ns,
        "rows": len(drawn),
        "names": len(order),
        "sorts": {} if index.of_tables else {sort.label: int(by_sort[sort]) for sort in Sort if by_sort[sort]},
        "top": [
            {"name": index.names[n][:LONGEST_NAME], "time_ns": int(time[n]), "count": int(count[n])}
            for n in order[:top].tolist()
        ],
    }


def found_names(index: TimelineIndex, text: str, top: int = 50) -> list[dict[str, Any]]:
    """Names that contain a text, whatever the case, with their numbers."""
    wanted = text.casefold()
    hits = [n for n, name in enumerate(index.names) if wanted in name.casefold()]
    return [{"name": index.names[n][:LONGEST_NAME], "number": n} for n in hits[:top]]


def next_slice(index: TimelineIndex, ranks: list[int], text: str, after_ns: int) -> dict[str, Any] | None:
    """The next slice whose name contains a text, on these ranks: the first that starts after a time."""
    wanted = np.array([text.casefold() in name.casefold() for name in index.names] or [False])
    best: dict[str, Any] | None = None
    for rank in ranks if wanted.any() else ():
        at = position(index, rank)
        shift = int(index.shift_ns[at])
        for row in index.rows_of(at):
            part = index.row(row)
            i = next_named(part, wanted, after_ns - shift)
            if i >= 0 and (best is None or int(part.start[i]) + shift < best["start_ns"]):
                best = slice_of(index, rank, row, i)
    return best


def slice_of(index: TimelineIndex, rank: int, row: int, at: int) -> dict[str, Any]:
    """One slice of a row, as a reader sees it."""
    part, shift = index.row(row), int(index.shift_ns[position(index, rank)])
    node = int(part.node[at])
    return {
        "rank": rank,
        "row": row,
        "node": node,
        "start_ns": int(part.start[at]) + shift,
        "end_ns": int(part.end[at]) + shift,
        "name": index.names[int(part.name_of[node])][:LONGEST_NAME],
        "sort": "" if index.of_tables else Sort(int(part.sort_of[node])).label,
    }


def slice_at(index: TimelineIndex, rank: int, row: int, time_ns: int, by: int = 0) -> dict[str, Any] | None:
    """The slice of a row at a time, or the next one behind it. `by`: 1, the first that starts later; -1, the last that
    starts earlier."""
    part = index.row(row_of_rank(index, rank, row))
    own_ns = time_ns - int(index.shift_ns[position(index, rank)])
    if by:
        i = int(np.searchsorted(part.start, own_ns, "right" if by > 0 else "left")) - (by < 0)
    else:
        i = int(first_ending_after(part.end, own_ns))
    return slice_of(index, rank, row, i) if 0 <= i < len(part.start) else None


def warm(index: TimelineIndex) -> None:
    """Compiles what a view needs, before anybody waits for it."""
    if len(index.rows) and len(index.ranks):
        rank = int(index.ranks[0])
        drawn = [(rank, row) for row in index.rows_of(0)[:1]]
        window(index, drawn, 0, 1, 1)
        range_breakdown(index, drawn, 0, 1)
        next_slice(index, [rank], index.names[0], index.span_ns)
