"""Who communicates with whom: the collectives of a group on each member, and sends with their receives.

The rules: the k-th collective on a group on one member belongs to the k-th on every other; the k-th send from a rank
to another with some tag belongs to the k-th receive there from that rank with that tag (tag -1: none was recorded).
"k-th" counts in row order, which is the order of the file and the order in which a program issues.

The cost grows with the communication nodes of distinct programs and with (ranks x slots), never with the nodes of all
ranks, so a folded job of thousands of ranks is matched as fast as its few traces. Tables are arrays:

    class   a trace with the bytes of some rank: ranks without bytes of their own are in the class of their trace
    side    what one class does on one slot: its rows, in issue order
    use     a rank uses a group: (rank, group, side)
    link    one rank sends to another: (src, dst, side of the sends, side of the receives, pairing)
    pairing which send of one side belongs to which receive of another; links of equal sides share one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import TraceError
from etude.kernels.arrays import I32, I64, U8
from etude.kernels.compile import kernel
from etude.kernels.distinct import sorted_rows
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace

WORLD = -1
"""The group of a collective that names none: every rank of the world."""


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Ranks by (trace, bytes): the i-th rank present is in class of[i]."""

    of: I32
    trace: I32
    """Trace of each class; class t < len(job.traces) is trace t with its own bytes."""
    in_bytes: tuple[I64, ...]
    out_bytes: tuple[I64, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Side s is what class klass[s] does on one slot: the nodes rows[start[s]:start[s+1]], in issue order."""

    klass: I32
    start: I64
    rows: I32
    collective: U8
    """Per row: what the collective does; NONE on sends and receives."""
    size_bytes: I64
    """Per row: input bytes, or output bytes if only those were recorded, or UNKNOWN; for an all-to-all, in which they
    may differ, the larger."""
    tag: I64
    """Per row: the trace's tag; a rank adds its base unless the tag is negative."""

    def __len__(self) -> int:
        return len(self.klass)

    def span(self, side: int) -> slice:
        """Where the side's nodes are in the flat columns."""
        return slice(int(self.start[side]), int(self.start[side + 1]))


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """Who uses which group, ordered by (group, group_rank, rank). A rank appears once for each group it uses."""

    group: I32
    """Group of the job, or WORLD."""
    at: I32
    """Position of the rank among those present."""
    group_rank: I32
    """Position among the group's members; -1 if the rank is not a member or the members are unknown."""
    side: I32


@dataclass(frozen=True, slots=True, eq=False)
class MessageLinks:
    """Senders and receivers, ordered by (src, dst)."""

    src: I64
    dst: I64
    src_at: I32
    """Position of the sender among the ranks present; -1: absent."""
    dst_at: I32
    send_side: I32
    """-1: the sender is absent or sends nothing."""
    recv_side: I32
    pairing: I32
    """-1: either side is missing."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairings:
    """Pairing p: send_at[start[p]:start[p+1]] belong to recv_at[...], one to one, ordered by (tag, k). All are
    positions in the flat columns of Sides; those left over are in lone_send and lone_recv."""

    start: I64
    send_at: I64
    recv_at: I64
    lone_send_start: I64
    lone_send: I64
    lone_recv_start: I64
    lone_recv: I64


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    classes: Classes
    sides: Sides
    uses: Uses
    links: MessageLinks
    pairings: Pairings


def match(job: Job) -> Matching:
    """The communication of a job, matched. Sends and receives that name no peer are left out."""
    classes = _classes(job)
    found: list[Sides] = []
    uses = _uses(job, *_bound(job, classes, Kind.COLL, found))
    send_at, send_peer, send_side = _bound(job, classes, Kind.SEND, found)
    recv_at, recv_peer, recv_side = _bound(job, classes, Kind.RECV, found)
    sides = _joined(found)
    src, dst = job.ranks.astype(np.int64)[send_at], job.ranks.astype(np.int64)[recv_at]
    links = _links(job, (src, send_peer, send_side), (recv_peer, dst, recv_side))
    del send_at, send_peer, send_side, recv_at, recv_peer, recv_side, src, dst
    number, pairings = _pairings(job, sides, links)
    linked = MessageLinks(links.src, links.dst, links.src_at, links.dst_at, links.send_side, links.recv_side, number)
    return Matching(classes, sides, uses, linked, pairings)


# -- classes and sides -------------------------------------------------------------------------------------------------


def _classes(job: Job) -> Classes:
    of = job.trace_of.copy()
    trace = list(range(len(job.traces)))
    in_bytes = [t.in_bytes for t in job.traces]
    out_bytes = [t.out_bytes for t in job.traces]
    number: dict[tuple[int, int, int], int] = {}
    for rank, own in job.values.items():
        if "in_bytes" not in own and "out_bytes" not in own:
            continue
        at = job.index(rank)
        t = int(job.trace_of[at])
        mine = own.get("in_bytes", in_bytes[t]), own.get("out_bytes", out_bytes[t])
        of[at] = number.setdefault((t, id(mine[0]), id(mine[1])), len(trace))
        if of[at] == len(trace):
            if len(mine[0]) != len(job.traces[t]) or len(mine[1]) != len(job.traces[t]):
                raise TraceError(f"values differ in length from the trace's {len(job.traces[t])} nodes")
            trace.append(t)
            in_bytes.append(mine[0])
            out_bytes.append(mine[1])
    return Classes(of, np.array(trace, np.int32), tuple(in_bytes), tuple(out_bytes))


_SLOT = {Kind.COLL: "group", Kind.SEND: "dst", Kind.RECV: "src"}


def slotted(trace: Trace, kind: Kind) -> tuple[I32, I32]:
    """(rows of this kind, slot of each), by slot and then by row. Slot -1, the world, exists for collectives only."""
    rows = np.flatnonzero(trace.kind == kind).astype(np.int32)
    slot = getattr(trace, _SLOT[kind])[rows]
    if kind != Kind.COLL:
        rows, slot = rows[slot >= 0], slot[slot >= 0]
    slots = len(trace.group_slots) if kind == Kind.COLL else trace.peer_slots
    if len(slot) and not -1 <= int(slot.min()) <= int(slot.max()) < slots:
        raise TraceError(f"a node's {_SLOT[kind]} slot is outside the trace's {slots}")
    order = np.argsort(slot, kind="stable")
    return rows[order], slot[order]


def _bound(job: Job, classes: Classes, kind: Kind, found: list[Sides]) -> tuple[I32, I64, I32]:
    """(rank present, what its slot is bound to, side), ordered by the first two; sides are added to `found`."""
    rows, slot, klass = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    by_trace = [slotted(t, kind) for t in job.traces]
    for c, t in enumerate(classes.trace.tolist()):
        rows.append(by_trace[t][0])
        slot.append(by_trace[t][1])
        klass.append(np.full(len(by_trace[t][0]), c, np.int32))
    all_slot, all_class = np.concatenate(slot), np.concatenate(klass)
    fresh = np.ones(len(all_slot), bool)
    fresh[1:] = (all_slot[1:] != all_slot[:-1]) | (all_class[1:] != all_class[:-1])
    first = np.flatnonzero(fresh)
    side_class, side_slot = all_class[first], all_slot[first].astype(np.int64)
    sides = _sides(job, classes, side_class, np.append(first, len(all_slot)), np.concatenate(rows))
    base = sum(len(s) for s in found)
    found.append(sides)
    of_class = np.searchsorted(side_class, np.arange(len(classes.trace) + 1))
    counts = np.diff(of_class)[classes.of]
    at = np.repeat(np.arange(len(job.ranks), dtype=np.int32), counts)
    side = np.arange(len(at), dtype=np.int32)
    side -= np.repeat((np.cumsum(counts) - counts - of_class[classes.of]).astype(np.int32), counts)
    name = "group" if kind == Kind.COLL else "peer"
    start, flat = getattr(job, f"{name}_start"), getattr(job, f"{name}_of")
    where = side_slot[side]
    bound = np.full(len(at), WORLD, flat.dtype)
    named = where >= 0
    bound[named] = flat[start[at[named]] + where[named]]
    order = np.lexsort((side, bound, at))
    at, bound, side = at[order], bound[order], side[order]
    del where, named, order
    return _merged(job, classes, sides, found, at, bound, (side + base).astype(np.int32))


def _sides(job: Job, classes: Classes, klass: I32, start: I64, rows: I32) -> Sides:
    """The sides with the columns per row, gathered class by class."""
    collective, tag = np.empty(len(rows), np.uint8), np.empty(len(rows), np.int64)
    size = np.empty(len(rows), np.int64)
    span = start[np.searchsorted(klass, np.arange(len(classes.trace) + 1))]
    for c, (a, b) in enumerate(zip(span[:-1].tolist(), span[1:].tolist(), strict=True)):
        if a == b:
            continue
        mine, trace = rows[a:b], job.traces[int(classes.trace[c])]
        collective[a:b], tag[a:b] = trace.collective[mine], trace.tag[mine]
        sent, got = classes.in_bytes[c][mine], classes.out_bytes[c][mine]
        uneven = trace.collective[mine] == Collective.ALL_TO_ALL  # as long as the larger of input and output
        size[a:b] = np.where(sent == UNKNOWN, got, np.where(uneven, np.maximum(sent, got), sent))
    return Sides(klass, start.astype(np.int64), rows, collective, size, tag)


def _merged(
    job: Job, classes: Classes, sides: Sides, found: list[Sides], at: I32, bound: I64, side: I32
) -> tuple[I32, I64, I32]:
    """One entry for each (rank, bound): slots of a rank that are bound to the same group or peer become one side."""
    fresh = np.ones(len(at), bool)
    fresh[1:] = (at[1:] != at[:-1]) | (bound[1:] != bound[:-1])
    if fresh.all():
        return at, bound, side
    first = np.flatnonzero(fresh)
    length = np.diff(np.append(first, len(at)))
    merged = side[first]
    base = sum(len(s) for s in found[:-1])
    number: dict[tuple[int, ...], int] = {}
    rows: list[I32] = []
    for i in np.flatnonzero(length > 1).tolist():
        key = tuple(side[first[i] : first[i] + length[i]].tolist())
        if key not in number:
            number[key] = base + len(sides) + len(rows)
            rows.append(np.sort(np.concatenate([sides.rows[sides.span(s - base)] for s in key])))
        merged[i] = number[key]
    klass = np.array([sides.klass[key[0] - base] for key in number], np.int32)
    order = np.argsort(klass, kind="stable")  # _sides gathers class by class
    renumber = np.empty(len(order), np.int32)
    renumber[order] = np.arange(len(order)) + base + len(sides)
    more = merged >= base + len(sides)
    merged[more] = renumber[merged[more] - base - len(sides)]
    rows = [rows[o] for o in order.tolist()]
    start = np.cumsum([0] + [len(r) for r in rows])
    found.append(_sides(job, classes, klass[order], start, np.concatenate(rows)))
    return at[first], bound[first], merged


def _joined(found: list[Sides]) -> Sides:
    offset = np.cumsum([0] + [len(s.rows) for s in found])
    start = [s.start[:-1] + o for s, o in zip(found, offset[:-1].tolist(), strict=True)]
    return Sides(
        np.concatenate([s.klass for s in found]),
        np.append(np.concatenate(start), offset[-1]).astype(np.int64),
        np.concatenate([s.rows for s in found]),
        np.concatenate([s.collective for s in found]),
        np.concatenate([s.size_bytes for s in found]),
        np.concatenate([s.tag for s in found]),
    )


# -- groups ------------------------------------------------------------------------------------------------------------


def _uses(job: Job, at: I32, group: I32 | I64, side: I32) -> Uses:
    group_rank = group_ranks(job, group, job.ranks[at])
    order = np.lexsort((at, group_rank, group))
    return Uses(group[order].astype(np.int32), at[order], group_rank[order], side[order])


def group_ranks(job: Job, group: I32 | I64, rank: I32) -> I32:
    """Position of each rank among its group's members (the first, if it appears twice); -1: not a member."""
    groups = job.groups
    span = 1 + max(int(groups.members.max(initial=0)), int(rank.max(initial=0)))
    key = np.repeat(np.arange(len(groups), dtype=np.int64) * span, np.diff(groups.start)) + groups.members
    inside = np.flatnonzero(groups.members >= 0).astype(np.int32)
    key = key[inside]
    if (key[1:] < key[:-1]).any():
        order = np.argsort(key, kind="stable")
        key, inside = key[order], inside[order]
    mine = group.astype(np.int64)
    mine *= span
    mine += rank
    where = np.searchsorted(key, mine)
    found = where < len(key)
    found[found] = key[where[found]] == mine[found]
    del key, mine
    result = np.full(len(group), -1, np.int32)
    result[found] = inside[where[found]] - groups.start[group[found]]
    del where, found, inside
    in_world = np.where((rank >= 0) & (rank < job.world_size), rank, -1)
    return np.where(group == WORLD, in_world, result).astype(np.int32)


# -- sends and receives ------------------------------------------------------------------------------------------------

Flow = tuple[I64, I64, I32]
"""Source rank, destination rank and side of each entry."""


def positions(job: Job, rank: I32 | I64) -> I32:
    """Position of each rank among those present; -1: absent."""
    here = len(job.ranks)
    if not here:
        return np.full(len(rank), -1, np.int32)
    if job.ranks[-1] == here - 1:  # all up to the last are present
        return np.where((rank >= 0) & (rank < here), rank, -1).astype(np.int32)
    present = job.ranks.astype(rank.dtype)  # of one type, or NumPy converts both
    where = np.minimum(np.searchsorted(present, rank), here - 1)
    return np.where(present[where] == rank, where, -1).astype(np.int32)


def _links(job: Job, sends: Flow, recvs: Flow) -> MessageLinks:
    """Sends and receives joined on (src, dst)."""
    src, dst = np.concatenate([sends[0], recvs[0]]), np.concatenate([sends[1], recvs[1]])
    order = np.lexsort((dst, src)).astype(np.int32)
    src = src[order]  # one after the other, so that a copy is in memory once
    dst = dst[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    number = np.empty(len(order), np.int32)
    number[order] = np.cumsum(fresh, dtype=np.int32) - 1
    src = src[fresh]
    dst, links = dst[fresh], int(fresh.sum())
    send_side, recv_side = np.full(links, -1, np.int32), np.full(links, -1, np.int32)
    send_side[number[: len(sends[0])]] = sends[2]
    recv_side[number[len(sends[0]) :]] = recvs[2]
    del order, number, fresh
    none = np.full(links, -1, np.int32)
    return MessageLinks(src, dst, positions(job, src), positions(job, dst), send_side, recv_side, none)


def _pairings(job: Job, sides: Sides, links: MessageLinks) -> tuple[I32, Pairings]:
    """Pairing of each link, and the pairings: one for each (sends, receives, difference of tag bases)."""
    both = np.flatnonzero((links.send_side >= 0) & (links.recv_side >= 0)).astype(np.int32)
    shift = job.tag_base[links.src_at[both]] - job.tag_base[links.dst_at[both]]
    bases, base = sorted_rows(shift[:, None])
    unique, inverse = sorted_rows(np.stack([links.send_side[both], links.recv_side[both], base.astype(np.int32)], 1))
    unique = np.column_stack([unique[:, :2], bases[unique[:, 2], 0]]).astype(np.int64)
    number = np.full(len(links.src), -1, np.int32)
    number[both] = inverse
    del both, shift, base, inverse
    send = _messages(sides, unique[:, 0], unique[:, 2])
    recv = _messages(sides, unique[:, 1], np.zeros(len(unique), np.int64))
    pair, lone_send, lone_recv = _merge(send, recv)
    count = np.arange(len(unique) + 1)
    return number, Pairings(
        np.searchsorted(pair[:, 0], count),
        pair[:, 1].copy(),
        pair[:, 2].copy(),
        np.searchsorted(lone_send[:, 0], count),
        lone_send[:, 1].copy(),
        np.searchsorted(lone_recv[:, 0], count),
        lone_recv[:, 1].copy(),
    )


class Ends(NamedTuple):
    """Sends or receives, ordered by all columns."""

    pairing: I64
    tagged: NDArray[np.bool_]
    tag: I64
    at: I64  # position in the flat columns


def _messages(sides: Sides, side: I64, shift: I64) -> Ends:
    """The messages of these sides.

    Only the difference of two bases counts, so negative tags, which have no base, are kept apart."""
    length = (sides.start[1:] - sides.start[:-1])[side]
    pairing = np.repeat(np.arange(len(side)), length)
    at = np.arange(len(pairing)) - np.repeat(np.cumsum(length) - length - sides.start[:-1][side], length)
    tag = sides.tag[at]
    tagged = tag >= 0
    tag = np.where(tagged, tag + shift[pairing], tag)
    order = np.lexsort((at, tag, tagged, pairing))
    return Ends(pairing[order], tagged[order], tag[order], at[order])


@kernel
def _merge(send, recv):  # type: ignore[no-untyped-def]
    """Two ordered lists side by side: equal keys are pairs, the smaller of two unequal ones is alone."""
    sends, recvs = len(send.at), len(recv.at)
    pair = np.empty((min(sends, recvs), 3), np.int64)
    lone_send, lone_recv = np.empty((sends, 2), np.int64), np.empty((recvs, 2), np.int64)
    pairs = i = j = 0
    while i < sends or j < recvs:
        order = -1 if j == recvs else 1 if i == sends else _compared(send, i, recv, j)
        if order == 0:
            pair[pairs, 0], pair[pairs, 1], pair[pairs, 2] = send.pairing[i], send.at[i], recv.at[j]
            pairs += 1
            i += 1
            j += 1
        elif order < 0:
            lone_send[i - pairs, 0], lone_send[i - pairs, 1] = send.pairing[i], send.at[i]
            i += 1
        else:
            lone_recv[j - pairs, 0], lone_recv[j - pairs, 1] = recv.pairing[j], recv.at[j]
            j += 1
    return pair[:pairs], lone_send[: sends - pairs], lone_recv[: recvs - pairs]


@kernel(allocates=False)
def _compared(send, i, recv, j):  # type: ignore[no-untyped-def]
    """-1 or 1 if the key of the send is below or above that of the receive, 0 if they are equal."""
    if send.pairing[i] != recv.pairing[j]:
        return -1 if send.pairing[i] < recv.pairing[j] else 1
    if send.tagged[i] != recv.tagged[j]:
        return -1 if send.tagged[i] < recv.tagged[j] else 1
    if send.tag[i] != recv.tag[j]:
        return -1 if send.tag[i] < recv.tag[j] else 1
    return 0
