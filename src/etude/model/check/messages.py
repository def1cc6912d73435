"""Problems of sends and receives: no partner, another size, an impossible peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64, distinct_values
from etude.model.check.findings import FindingList, ProgramClasses
from etude.model.match import Matching
from etude.model.schema import UNKNOWN, Kind

Places = Callable[[int], I64]
"""Link -> positions in the flat columns of its nodes that have the problem, ascending."""
Say = Callable[[int, int], tuple[str, str]]
"""(link, position of its first such node) -> what that node does, and a hint."""


def check_messages(report: FindingList, programs: ProgramClasses, matching: Matching) -> None:
    """Every send has a receive of the same size, and vice versa, if both ranks are present."""
    for side in (_LinkSide(report, matching, True), _LinkSide(report, matching, False)):
        _report(report, programs, matching, "peer_outside", side.me, side.outside(), side.all, side.say_outside)
        kind = "send_unmatched" if side.sends else "recv_unmatched"
        _report(report, programs, matching, kind, side.me, side.lonely(), side.lone, side.say_lone)
    _check_sizes(report, programs, matching)
    _check_ends(report, programs)


def _report(
    report: FindingList,
    programs: ProgramClasses,
    matching: Matching,
    kind: str,
    me: I32,
    links: I64,
    places: Places,
    say: Say,
) -> None:
    """One finding for each program and set of its rows, reported for the first rank that has it."""
    rows_of = matching.sides.rows
    found: dict[tuple[int, bytes], list[int]] = {}
    for link in links.tolist():
        key = (int(programs.of[me[link]]), rows_of[places(link)].tobytes())
        found.setdefault(key, []).append(link)
    for same in found.values():
        link = min(same, key=lambda one: int(me[one]))
        spots = places(link)
        rows = rows_of[spots]
        what, hint = say(link, int(spots[0]))
        node = report.id_of(int(me[link]), int(rows[0]))
        report.nodes(kind, distinct_values(me[same]), rows, f"node {node} {what}", hint)


class _LinkSide:
    """The sending or the receiving end of every link."""

    def __init__(self, report: FindingList, matching: Matching, sends: bool) -> None:
        links, pairs = matching.links, matching.pairings
        self.report, self.matching, self.sends = report, matching, sends
        self.me = links.src_at if sends else links.dst_at
        self.you = links.dst_at if sends else links.src_at
        self.peer = links.dst if sends else links.src
        self.side = links.send_side if sends else links.recv_side
        self.lone_start = pairs.lone_send_start if sends else pairs.lone_recv_start
        self.lone_flat = pairs.lone_send if sends else pairs.lone_recv

    def outside(self) -> I64:
        """Links to a rank outside the world."""
        return np.flatnonzero((self.side >= 0) & ((self.peer < 0) | (self.peer >= self.report.job.world_size)))

    def say_outside(self, link: int, spot: int) -> tuple[str, str]:
        verb = "sends to" if self.sends else "receives from"
        return f"{verb} rank {self.peer[link]}, outside the world of {self.report.job.world_size:,}", ""

    def lonely(self) -> I64:
        """Links with nodes that have no partner although the other rank is present."""
        pairing = self.matching.links.pairing
        alone = (self.me >= 0) & (self.you >= 0) & (self.side >= 0) & (pairing < 0)
        paired = pairing >= 0
        alone[paired] = np.diff(self.lone_start)[pairing[paired]] > 0
        return np.flatnonzero(alone)

    def all(self, link: int) -> I64:
        side = int(self.side[link])
        start = self.matching.sides.start
        return np.arange(start[side], start[side + 1]) if side >= 0 else np.zeros(0, np.int64)

    def lone(self, link: int) -> I64:
        p = int(self.matching.links.pairing[link])
        return self.all(link) if p < 0 else np.sort(self.lone_flat[self.lone_start[p] : self.lone_start[p + 1]])

    def say_lone(self, link: int, spot: int) -> tuple[str, str]:
        peer = int(self.peer[link])
        size = int(self.matching.sides.size_bytes[spot])
        message = "a message" if size == UNKNOWN else f"{size:,} B"
        if self.sends:
            what = f"sends {message} to rank {peer} {self.tag(link, spot)}, which never receives it"
        else:
            what = f"waits for {message} from rank {peer} {self.tag(link, spot)}, which never sends it"
        other = _LinkSide(self.report, self.matching, not self.sends)
        others = other.lone(link)
        if not len(others):
            return what, ""
        verb = "waits for a message from this rank" if self.sends else "sends a message to this rank"
        return what, f"rank {peer} {verb} {other.tag(link, int(others[0]))}: do the tags agree?"

    def tag(self, link: int, spot: int) -> str:
        tag = int(self.matching.sides.tag[spot])
        if tag >= 0:
            tag += int(self.report.job.tag_base[self.me[link]])
        return "without a tag" if tag == -1 else f"with tag {tag}"


def _check_sizes(report: FindingList, programs: ProgramClasses, matching: Matching) -> None:
    links, pairs, sides = matching.links, matching.pairings, matching.sides
    sent, received = sides.size_bytes[pairs.send_at], sides.size_bytes[pairs.recv_at]
    differ = (sent != received) & (sent != UNKNOWN) & (received != UNKNOWN)
    if not differ.any():
        return
    bad = np.zeros(len(pairs.start) - 1, bool)
    bad[np.searchsorted(pairs.start, np.flatnonzero(differ), "right") - 1] = True
    paired = np.flatnonzero(links.pairing >= 0)
    which = paired[bad[links.pairing[paired]]]

    def span(link: int) -> slice:
        p = int(links.pairing[link])
        return slice(int(pairs.start[p]), int(pairs.start[p + 1]))

    def places(link: int) -> I64:
        return np.sort(pairs.send_at[span(link)][differ[span(link)]])

    def say(link: int, spot: int) -> tuple[str, str]:
        other = int(pairs.recv_at[span(link)][pairs.send_at[span(link)] == spot][0])
        there = report.id_of(int(links.dst_at[link]), int(sides.rows[other]))
        to = f"sends {sides.size_bytes[spot]:,} B to rank {links.dst[link]}"
        return f"{to}, whose node {there} receives {sides.size_bytes[other]:,} B", "a receive waits for its own size"

    _report(report, programs, matching, "message_bytes", links.src_at, which, places, say)


def _check_ends(report: FindingList, programs: ProgramClasses) -> None:
    """A send may name its own rank as its source, a receive as its destination; another rank there is suspicious."""
    job = report.job
    for at in programs.at:
        trace = job.traces[int(job.trace_of[at[0]])]
        if not trace.peer_slots:
            continue
        for kind, column in ((Kind.SEND, "src"), (Kind.RECV, "dst")):
            rows: NDArray[Any] = np.flatnonzero((trace.kind == kind) & (getattr(trace, column) >= 0))
            slot = getattr(trace, column)[rows]
            for s in distinct_values(slot).tolist():
                bound = job.peer_of[job.peer_start[at] + s]
                odd = np.flatnonzero(bound != job.ranks[at])
                if len(odd):
                    mine = rows[slot == s]
                    verb = "sends" if kind == Kind.SEND else "receives"
                    node = report.id_of(int(at[odd[0]]), int(mine[0]))
                    what = f"node {node} {verb} here, but `comm_{column}` says rank {bound[odd[0]]}"
                    report.nodes("peer_contradicts", at[odd], mine, what)
