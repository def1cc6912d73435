"""Flows between ranks in a window: members of a collective, a send and its receive."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.model.graph import dependencies
from etude.model.match import Matching, match
from etude.tell.studio.index import TimelineIndex
from etude.tell.studio.kernels import first_ending_after
from etude.tell.studio.session import StudioRun
from etude.tell.studio.ties import calls_of
from etude.tell.studio.windows import position, slice_of

MOST_SLICES: Final = 400_000
"""Slices of a window that are looked at."""
MOST_FLOWS: Final = 3_000
MOST_BEFORE: Final = 20
"""Nodes that a slice waits for, that are listed."""

Places = dict[int, tuple[int, int, int]]
"""Node of a rank -> its row, start and end on the clock of the timeline."""


def flows(one: StudioRun, ranks: list[int], window: tuple[int, int]) -> dict[str, Any]:
    """Lines between slices of these ranks: for each flow its kind and its places (rank, row, start, end), by time."""
    places = _places(one.index, ranks, window)
    found = [*_collectives(one, places), *_messages(one, places)]
    found.sort(key=lambda flow: -(flow["last"] - flow["first"]))
    kept = found[:MOST_FLOWS]
    return {
        "flows": [[flow["kind"], flow["places"]] for flow in kept],
        "left_out": len(found) - len(kept),
        "command": f"etude timeline {one.words} --ranks {','.join(map(str, ranks))} -o run.pftrace",
        "python": f"{one.python}; etude.collectives(run)",
    }


def _places(index: TimelineIndex, ranks: list[int], window: tuple[int, int]) -> dict[int, Places]:
    """Where the nodes of a window are drawn, by rank."""
    first, last = window
    found, looked = {}, 0
    for rank in ranks:
        at = position(index, rank)
        shift, mine = int(index.shift_ns[at]), {}
        for row in index.rows_of(at):
            part = index.row(row)
            low = int(first_ending_after(part.end, first - shift))
            high = int(np.searchsorted(part.start, last - shift))
            looked += max(0, high - low)
            if looked > MOST_SLICES:
                raise UsageError(f"flows of more than {MOST_SLICES:,} slices are not drawn", hint="zoom in")
            nodes, start, end = (getattr(part, name)[low:high].tolist() for name in ("node", "start", "end"))
            for node, begin, done in zip(nodes, start, end, strict=True):
                mine[node] = (row, begin + shift, done + shift)
        found[rank] = mine
    return found


def _flow(kind: str, ends: list[tuple[int, tuple[int, int, int]]]) -> dict[str, Any]:
    flat = [value for rank, place in ends for value in (rank, *place)]
    starts = [place[1] for _, place in ends]
    return {"kind": kind, "places": flat, "first": min(starts), "last": max(place[2] for _, place in ends)}


def _collectives(one: StudioRun, places: dict[int, Places]) -> list[dict[str, Any]]:
    found = calls_of(one)
    call = found.of
    members: dict[int, list[tuple[int, tuple[int, int, int]]]] = {}
    for rank, mine in places.items():
        own = np.flatnonzero(found.at == position(one.index, rank))
        if len(mine):
            own = own[np.isin(found.row[own], np.fromiter(mine, np.int64, len(mine)))]
        for member in own.tolist() if len(mine) else ():
            members.setdefault(int(call[member]), []).append((rank, mine[int(found.row[member])]))
    return [_flow("collective", sorted(ends)) for ends in members.values() if len(ends) > 1]


def _messages(one: StudioRun, places: dict[int, Places]) -> list[dict[str, Any]]:
    matching: Matching = one.once("matching", lambda: match(one.run().job))
    links, sides, pairings = matching.links, matching.sides, matching.pairings
    shown = np.array(sorted(places), np.int64)
    mine = np.flatnonzero(np.isin(links.src, shown) & np.isin(links.dst, shown) & (links.pairing >= 0))
    found = []
    for link in mine.tolist():
        pair = int(links.pairing[link])
        span = slice(int(pairings.start[pair]), int(pairings.start[pair + 1]))
        src, dst = int(links.src[link]), int(links.dst[link])
        send, recv = sides.rows[pairings.send_at[span]], sides.rows[pairings.recv_at[span]]
        for a, b in zip(send.tolist(), recv.tolist(), strict=True):
            if a in places[src] and b in places[dst]:
                found.append(_flow("message", [(src, places[src][a]), (dst, places[dst][b])]))
    return found


def waits_for(one: StudioRun, rank: int, node: int) -> dict[str, Any]:
    """What a node waits for, as slices where they are drawn; the last to end first."""
    index = one.index
    at = position(index, rank)
    trace = int(one.run().job.trace_of[at])
    csr = one.once(f"dependencies of {trace}", lambda: dependencies(one.run().job.traces[trace]))
    if not 0 <= node < len(csr):
        raise UsageError(f"rank {rank} has no node {node}")
    nodes = {n for n in csr.rows[csr.start[node] : csr.start[node + 1]].tolist() if n >= 0}
    found = []
    for row in index.rows_of(at) if nodes else ():
        part = index.row(row)
        found += [slice_of(index, rank, row, i) for i in np.flatnonzero(np.isin(part.node, list(nodes))).tolist()]
    found.sort(key=lambda before: -before["end_ns"])
    return {"before": found[:MOST_BEFORE], "of": len(nodes)}
