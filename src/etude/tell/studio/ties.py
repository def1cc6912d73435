"""What ties ranks together in a timeline: the members of a collective call, who arrives when, and the critical path."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from etude.analyse.critical_path import by_kind, by_name, critical_path, length_ns
from etude.analyse.operations import CollectiveCalls, calls
from etude.base.excerpts import rows_of
from etude.model.schema import UNKNOWN, Collective
from etude.tell.studio.index import TimelineIndex
from etude.tell.studio.session import StudioRun
from etude.tell.studio.windows import position

MOST_CELLS: Final = 200_000
"""Cells of a map of collectives; of more calls, those with the largest spread are shown."""
MOST_CALLS: Final = 400
MOST_PIECES: Final = 100_000
"""Pieces of a critical path that are drawn, the longest first; what is left out is said."""
ROWS: Final = 30


def calls_of(one: StudioRun) -> CollectiveCalls:
    found: CollectiveCalls = one.once("calls", lambda: calls(one.run()))
    return found


def arrivals(one: StudioRun) -> dict[str, Any]:
    """Ranks by collective calls: how much later than the first member each arrives, how long it waits for the last,
    and how long its call takes."""

    def made() -> dict[str, Any]:
        found, index = calls_of(one), one.index
        at, of = found.at.astype(np.int64), found.of
        known = (found.start_ns != UNKNOWN) & (found.end_ns != UNKNOWN)
        start, end = (np.where(known, times + index.shift_ns[at], 0) for times in (found.start_ns, found.end_ns))
        first = np.full(len(found), np.iinfo(np.int64).max)
        last = np.full(len(found), np.iinfo(np.int64).min)
        np.minimum.at(first, of[known], start[known])
        np.maximum.at(last, of[known], start[known])
        several = np.flatnonzero((np.bincount(of[known], minlength=len(found)) > 1) & (first <= last))
        most = max(1, min(MOST_CALLS, MOST_CELLS // max(len(index.ranks), 1)))
        chosen = several[np.argsort(-(last - first)[several], kind="stable")[:most]]
        chosen = chosen[np.argsort(first[chosen], kind="stable")]
        column = np.full(len(found), -1, np.int64)
        column[chosen] = np.arange(len(chosen))
        mine = known & (column[of] >= 0)
        shape = (len(index.ranks), len(chosen))

        def cells(values: Any) -> list[int | None]:
            filled = np.full(shape, -1, np.int64)
            filled[at[mine], column[of[mine]]] = values[mine]
            return [None if v < 0 else v for v in filled.ravel().tolist()]

        return {
            "by": "call",
            "columns": chosen.tolist(),
            "labels": [_label(one, found, call) for call in chosen.tolist()],
            "calls": len(several),
            "ranks": index.ranks.tolist(),
            "measures": {
                "late": cells(start - first[of]),
                "waits": cells(last[of] - start),
                "time": cells(end - start),
            },
            "first_ns": cells(start),
            "last_ns": cells(end),
        }

    found: dict[str, Any] = one.once("arrivals", made)
    return found | {"command": f"etude stragglers {one.words}", "python": f"{one.python}; etude.stragglers(run)"}


def _label(one: StudioRun, found: CollectiveCalls, call: int) -> str:
    what, group = Collective(int(found.collective[call])), one.run().job.groups.names[int(found.group[call])]
    return f"{what.name.lower()} {int(found.number[call])} of {group}"


def members(one: StudioRun, rank: int, node: int, ranks: list[int]) -> dict[str, Any]:
    """The call that a slice is a part of, and its members among these ranks, each with its row."""
    found, index = calls_of(one), one.index
    hit = np.flatnonzero((found.at == position(index, rank)) & (found.row == node))
    if not len(hit):
        return {"members": []}
    call = int(np.searchsorted(found.first, hit[0], "right")) - 1
    mine = slice(int(found.first[call]), int(found.first[call + 1]))
    at, rows = found.at[mine].astype(np.int64), found.row[mine]
    start, end = (times[mine] for times in (found.start_ns, found.end_ns))
    known = (start != UNKNOWN) & (end != UNKNOWN)
    begins = start + index.shift_ns[at]
    shown = set(ranks)
    listed = []
    for i in np.flatnonzero(known).tolist():
        if int(index.ranks[at[i]]) in shown:
            row = _row_of(index, int(at[i]), int(rows[i]), int(start[i]))
            listed.append([int(index.ranks[at[i]]), row, int(begins[i]), int(begins[i] + end[i] - start[i])])
    late = int(np.argmax(np.where(known, begins, np.iinfo(np.int64).min)))
    return {
        "label": _label(one, found, call),
        "size_bytes": None if found.size_bytes[call] == UNKNOWN else int(found.size_bytes[call]),
        "of": len(at),
        "spread_ns": int(begins[known].max() - begins[known].min()) if known.any() else 0,
        "last": int(index.ranks[at[late]]),
        "members": listed,
    }


def _row_of(index: TimelineIndex, at: int, node: int, start_ns: int) -> int:
    """The row of a rank that draws a node; -1 if none does."""
    for row in index.rows_of(at):
        part = index.row(row)
        low, high = np.searchsorted(part.start, [start_ns, start_ns + 1])
        if (np.asarray(part.node[low:high]) == node).any():
            return row
    return -1


def path_of(one: StudioRun) -> dict[str, Any]:
    """The critical path, on the clock of the timeline: pieces that follow each other on a rank are one."""

    def made() -> dict[str, Any]:
        path, index = critical_path(one.run()), one.index
        rank = path["rank"].to_numpy()
        first, last = path["start_ns"].to_numpy() - index.origin_ns, path["end_ns"].to_numpy() - index.origin_ns
        fresh = np.flatnonzero(np.append(True, np.diff(rank) != 0)) if len(rank) else np.zeros(0, np.int64)
        behind = np.append(fresh[1:], len(rank)) - 1
        pieces = np.stack([rank[fresh], first[fresh], last[behind]], 1).astype(np.int64)
        kept = np.sort(np.argsort(pieces[:, 1] - pieces[:, 2], kind="stable")[:MOST_PIECES])
        return {
            "pieces": pieces[kept].ravel().tolist(),
            "left_out": len(pieces) - len(kept),
            "length_ns": length_ns(path),
            "kinds": by_kind(path),
            "top": rows_of(by_name(path), ROWS),
        }

    found: dict[str, Any] = one.once("path", made)
    return found | {"command": f"etude critical-path {one.words}", "python": f"{one.python}; etude.critical_path(run)"}
