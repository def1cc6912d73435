"""The operations of a run: which nodes meet in which collective or message, and how long it takes from then on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import MismatchError, TraceError
from etude.base.units import counted
from etude.cost.collectives import collective_time_ns, p2p_time_ns
from etude.cost.schedule import Schedule
from etude.kernels.arrays import F64, I32, I64, Bool, distinct_values
from etude.model.schema import RECORDED_NS, UNKNOWN, Collective, Kind, ValueKind
from etude.run.simulate.groups import link_factors, members_of
from etude.run.simulate.lower import Lowered
from etude.run.simulate.networks.carrier import alone_ns
from etude.run.simulate.networks.state import NEVER
from etude.run.simulate.options import Times


@dataclass(slots=True, eq=False)
class _OperationPart:
    """Operation o waits for `missing[o]` members; `sender[o]` alone starts it if it is eager."""

    node: I64
    of: I64
    """node[j] is a member of operation of[j]."""
    member: I64
    """... its position in the group, or 0 for the sender and 1 for the receiver; -1 if members are not known."""
    missing: I32
    sender: I64
    time_ns: I64
    collective: NDArray[np.uint8]
    """What a collective does; NONE for messages."""
    size_bytes: I64
    """Input bytes per member, or bytes of the message; 0 if unknown."""
    place: I64
    """Row of `lowered.groups` of a collective, of `lowered.matching.links` of a message."""
    lag_ns: I64
    """For node[j]: how long after the operation it is done, if recorded."""

    def __len__(self) -> int:
        return len(self.missing)


@dataclass(slots=True, eq=False, kw_only=True)
class Operations(_OperationPart):
    """All operations: first the collectives, then the messages, from `messages_from` on."""

    messages_from: int
    single_node: I64
    """Sends and receives whose partner is not in the job, and what they cost."""
    single_ns: I64
    notes: list[str]

    @property
    def is_message(self) -> Bool:
        return np.arange(len(self)) >= self.messages_from


def operations(lowered: Lowered) -> Operations:
    notes: list[str] = []
    parts = [_collectives(lowered, notes), _messages(lowered, notes), _lone(lowered, notes)]
    single_node, single_ns = _singles(lowered, notes)
    for before, part in zip(np.cumsum([len(p) for p in parts]), parts[1:], strict=False):
        part.of += before
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in _OperationPart.__slots__]
    return Operations(*columns, messages_from=len(parts[0]), single_node=single_node, single_ns=single_ns, notes=notes)


def spread(start: NDArray[Any], length: NDArray[Any]) -> tuple[I64, I64]:
    """(which, position): positions start[i], start[i]+1, ... of each i, one after the other."""
    which = np.repeat(np.arange(len(length)), length)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(length) - length - start, length)


# -- collectives -------------------------------------------------------------------------------------------------------


def _collectives(lowered: Lowered, notes: list[str]) -> _OperationPart:
    uses, sides, groups = lowered.matching.uses, lowered.matching.sides, lowered.groups
    mine = np.flatnonzero(lowered.is_simulated[uses.at])
    use_class = lowered.classes.group[groups.of_use[mine]]
    length = (sides.start[1:] - sides.start[:-1])[uses.side[mine]]
    calls = np.zeros(lowered.classes.groups, np.int64)
    np.maximum.at(calls, use_class, length)
    first = np.cumsum(calls) - calls
    which, flat = spread(sides.start[uses.side[mine]], length)
    of = first[use_class[which]] + flat - sides.start[uses.side[mine]][which]
    at = uses.at[mine][which]
    total = int(calls.sum())
    one = np.zeros(lowered.classes.groups, np.int64)
    one[lowered.classes.group] = np.arange(len(groups.group))  # any group represents its class
    of_op = np.repeat(one, calls)
    comers = np.bincount(use_class, minlength=lowered.classes.groups) + groups.lacks[one]
    kind, size = np.zeros(total, np.uint8), np.full(total, UNKNOWN, np.int64)
    row = lowered.program_row(at, sides.rows[flat])
    members = np.array([s.size for s in groups.shapes] or [1], np.int64)[groups.shape]
    np.maximum.at(kind, of, sides.collective[flat])
    np.maximum.at(size, of, _input(lowered, row, sides.collective[flat], sides.size_bytes[flat], members[of_op][of]))
    recorded = np.full(total, NEVER, np.int64)
    cost = lowered.programs.cost_ns[row]
    np.minimum.at(recorded, of, np.where(cost == UNKNOWN, NEVER, cost))
    node = lowered.node(at, sides.rows[flat])
    time_ns, by_record = _collective_times(lowered, of_op, kind, size, recorded, notes)
    member = uses.group_rank[mine][which].astype(np.int64)
    return _OperationPart(
        node,
        of,
        member,
        np.repeat(comers, calls).astype(np.int32),
        np.full(total, -1, np.int64),
        time_ns,
        kind,
        np.maximum(size, 0),
        of_op,
        _lags(lowered, row, of, cost, np.where(by_record, recorded, NEVER)),
    )


def _lags(lowered: Lowered, row: I64, of: I64, cost: I64, recorded: I64) -> I64:
    """How long after its operation each member was done, if linking separated that from waiting."""
    without_waiting = np.zeros(len(recorded), bool)
    without_waiting[of[_is_own(lowered)[row]]] = True
    known = without_waiting[of] & (recorded[of] != NEVER) & (cost != UNKNOWN)
    return np.where(known, cost - recorded[of], 0)


def _is_own(lowered: Lowered) -> Bool:
    """Program rows whose own time is not the recorded one: nodes that waited, and whose waiting is known."""
    programs, job = lowered.programs, lowered.job
    found = np.zeros(len(programs.cost_ns), bool)
    if lowered.options.collective_times == Times.RECORDED:
        for program, first in zip(*np.unique(programs.of, return_index=True), strict=True):
            trace = job.traces[int(job.trace_of[first])]
            nodes, length_ns = trace.attr_cells().get((RECORDED_NS, ValueKind.INT64), (np.zeros(0, np.int32), 0))
            found[programs.start[program] + nodes] = length_ns != programs.cost_ns[programs.start[program] + nodes]
    return found


def _input(lowered: Lowered, row: I64, kind: NDArray[np.uint8], size: I64, members: I64) -> I64:
    """Input bytes, derived from output bytes if only those were recorded."""
    derived = lowered.programs.from_output[row] & (size != UNKNOWN)
    if not derived.any():
        return size
    gathers = np.isin(kind, (Collective.ALL_GATHER, Collective.GATHER))
    scatters = np.isin(kind, (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK, Collective.SCATTER))
    size = np.where(derived & gathers, size // members, size)
    return np.where(derived & scatters, size * members, size)


def _collective_times(
    lowered: Lowered, of_op: I64, kind: NDArray[np.uint8], size: I64, recorded: I64, notes: list[str]
) -> tuple[I64, Bool]:
    """(Times; mask of recorded ones): recorded if requested, or if members are absent and the time is known; otherwise
    modelled."""
    groups, system = lowered.groups, lowered.system
    everywhere = lowered.options.collective_times == Times.RECORDED
    by_record = (recorded != NEVER) & (everywhere | groups.partial[of_op])
    nameless = (kind == Collective.NONE) | (kind == Collective.OTHER)
    by_record |= nameless & (recorded != NEVER)
    if (nameless & ~by_record).any():
        count = int((nameless & ~by_record).sum())
        problem = f"{counted(count, 'collective')} {'has' if count == 1 else 'have'} neither a kind nor a recorded time"
        raise TraceError(problem, hint="`etude check` names them")
    time_ns = np.where(by_record, recorded, 0)
    sizeless = ~by_record & (size == UNKNOWN) & (kind != Collective.BARRIER)
    if sizeless.any():
        count = int(sizeless.sum())
        verbs = ("has", "counts") if count == 1 else ("have", "count")
        notes.append(f"{counted(count, 'collective')} {verbs[0]} no recorded size and {verbs[1]} as 0 bytes")
    size = np.maximum(size, 0)
    keys = groups.shape[of_op].astype(np.int64) << 8 | kind
    for key in distinct_values(keys[~by_record]).tolist():
        mine = np.flatnonzero((keys == key) & ~by_record)
        what = Collective(key & 255)
        sizes, back = np.unique(size[mine], return_inverse=True)
        shape = groups.shapes[key >> 8]
        own = lowered.options.own(what, shape.size)
        if own is not None:
            members = members_of(lowered.job, lowered.matching, groups, int(of_op[mine[0]]))
            time_ns[mine] = alone_ns(system, own, members, sizes)[back.reshape(-1)]
            continue
        algorithm = lowered.options.algorithm(what)
        time_ns[mine] = collective_time_ns(system, what, sizes, shape, algorithm)[back.reshape(-1)]
    notes += _own_notes(lowered, of_op, kind)
    if groups.partial.any():
        count, total = int((by_record & groups.partial[of_op]).sum()), int(groups.partial[of_op].sum())
        notes.append(
            f"members of {counted(int(groups.partial.sum()), 'group')} are not in the job: of "
            f"{counted(total, 'collective')} there "
            f"{count:,} last as recorded and {total - count:,} as modelled, and none waits for absent ranks"
        )
    return _slowed(time_ns, groups.factor[of_op], ~by_record), by_record


def _own_notes(lowered: Lowered, of_op: I64, kind: NDArray[np.uint8]) -> list[str]:
    """Notes if a user's algorithm did not fit all groups; an error if it fitted none."""
    said = []
    members = np.array([s.size for s in lowered.groups.shapes] or [1], np.int64)[lowered.groups.shape]
    for name, given in lowered.options.collective.items():
        if isinstance(given, str):
            continue
        what = Collective.parse(name)
        sizes = distinct_values(members[of_op[kind == what]]).tolist()
        others = [n for n in sizes if n > 1 and lowered.options.own(what, n) is None]
        if sizes and len(others) == len([n for n in sizes if n > 1]):
            plans = [given] if isinstance(given, Schedule) else given
            raise MismatchError(
                f"{name}: the algorithm is for groups of {', '.join(str(p.members) for p in plans)}, "
                f"but those of the job have {', '.join(map(str, sizes))}",
                hint="give one for each size of group",
            )
        if others:
            text = ", ".join(map(str, others))
            said.append(f"{name}: no algorithm was given for groups of {text}, which use the default algorithm")
    return said


def _slowed(time_ns: I64, factor: F64, where: Bool) -> I64:
    return np.where(where & (factor != 1.0), np.rint(time_ns * factor).astype(np.int64), time_ns)


# -- messages ----------------------------------------------------------------------------------------------------------


def _messages(lowered: Lowered, notes: list[str]) -> _OperationPart:
    """Sends with their receives."""
    links, sides, pairs = lowered.matching.links, lowered.matching.sides, lowered.matching.pairings
    mine = np.flatnonzero((links.pairing >= 0) & lowered.is_simulated[links.src_at])
    start = pairs.start[links.pairing[mine]]
    which, place = spread(start, pairs.start[links.pairing[mine] + 1] - start)
    send, recv = pairs.send_at[place], pairs.recv_at[place]
    link = mine[which]
    sent, got = sides.size_bytes[send], sides.size_bytes[recv]
    _check_sizes(lowered, link, send, recv)
    size = np.maximum(sent, got)
    if (size == UNKNOWN).any():
        notes.append(f"{int((size == UNKNOWN).sum()):,} messages have no recorded size and count as 0 bytes")
    size = np.maximum(size, 0)
    time_ns = p2p_time_ns(lowered.system, links.src[link], links.dst[link], size)
    time_ns = _slowed(
        time_ns, link_factors(links.src[link], links.dst[link], lowered.options), np.ones(len(link), bool)
    )
    a, b = lowered.node(links.src_at[link], sides.rows[send]), lowered.node(links.dst_at[link], sides.rows[recv])
    lag_ns = np.zeros(2 * len(link), np.int64)
    if lowered.options.collective_times == Times.RECORDED:
        is_own, cost_ns = _is_own(lowered), lowered.programs.cost_ns
        rows = [lowered.program_row(at[link], sides.rows[f]) for at, f in ((links.src_at, send), (links.dst_at, recv))]
        costs = [cost_ns[row] for row in rows]
        best = np.minimum(*(np.where(c == UNKNOWN, NEVER, c) for c in costs))
        time_ns = np.where(best == NEVER, time_ns, best)
        # without rendezvous, each takes its own time once both have arrived: also a receive whose message came first
        own = (is_own[rows[0]] | is_own[rows[1]]) & (best != NEVER)
        lag_ns = np.concatenate([np.where(own, np.where(c == UNKNOWN, best, c), 0) for c in costs])
        time_ns[own] = 0
    number = np.arange(len(link))
    sender = np.where(_eager(lowered, size), a, -1)
    return _OperationPart(
        np.concatenate([a, b]),
        np.concatenate([number, number]),
        np.repeat([0, 1], len(link)),
        np.full(len(link), 2, np.int32),
        sender,
        time_ns,
        np.zeros(len(link), np.uint8),
        size,
        link,
        lag_ns,
    )


def _check_sizes(lowered: Lowered, link: I64, send: I64, recv: I64) -> None:
    """Refuses messages whose sender and receiver give different sizes."""
    links, sides = lowered.matching.links, lowered.matching.sides
    sent, got = sides.size_bytes[send], sides.size_bytes[recv]
    wrong = np.flatnonzero((sent != got) & (sent != UNKNOWN) & (got != UNKNOWN))
    if len(wrong):
        w = int(wrong[0])
        node = lowered.source_id(int(links.src_at[link[w]]), int(sides.rows[send[w]]))
        problem = f"sends {sent[w]:,} B to rank {links.dst[link[w]]}, which receives {got[w]:,} B"
        raise MismatchError(problem, where=f"rank {links.src[link[w]]}: node {node}")


def _eager(lowered: Lowered, size: I64) -> Bool:
    limit = lowered.options.eager_bytes
    return np.ones(len(size), bool) if limit is None else size <= limit


def _lone(lowered: Lowered, notes: list[str]) -> _OperationPart:
    """Sends and receives whose partner should be present and is not. An eager send ends, the others never complete."""
    links, sides, pairs = lowered.matching.links, lowered.matching.sides, lowered.matching.pairings
    first = lowered.is_simulated
    parts: list[tuple[I64, I64, Bool]] = []
    for me, side, other, starts, flat, sends in (
        (links.src_at, links.send_side, links.dst_at, pairs.lone_send_start, pairs.lone_send, True),
        (links.dst_at, links.recv_side, links.src_at, pairs.lone_recv_start, pairs.lone_recv, False),
    ):
        mine = np.flatnonzero((links.pairing >= 0) & first[me])
        begin = starts[links.pairing[mine]]
        which, place = spread(begin, starts[links.pairing[mine] + 1] - begin)
        parts.append((mine[which], flat[place], np.full(len(which), sends)))
        mine = np.flatnonzero((links.pairing < 0) & (me >= 0) & (side >= 0) & (other >= 0))
        mine = mine[first[me[mine]]]
        begin = sides.start[side[mine]]
        which, place = spread(begin, sides.start[side[mine] + 1] - begin)
        parts.append((mine[which], place, np.full(len(which), sends)))
    link, place, is_send = (np.concatenate([p[i] for p in parts]) for i in range(3))
    at = np.where(is_send, links.src_at[link], links.dst_at[link])
    node = lowered.node(at, sides.rows[place])
    size = np.maximum(sides.size_bytes[place], 0)
    sender = np.where(is_send & _eager(lowered, size), node, -1)
    time_ns = p2p_time_ns(lowered.system, links.src[link], links.dst[link], size)
    factor = link_factors(links.src[link], links.dst[link], lowered.options)
    time_ns = _slowed(time_ns, factor, np.ones(len(link), bool))
    if (sender >= 0).any():
        notes.append(f"{int((sender >= 0).sum()):,} eager sends have no matching receive")
    member = np.where(is_send, 0, 1)
    comers, none = np.full(len(link), 2, np.int32), np.zeros(len(link), np.uint8)
    lag_ns = np.zeros(len(link), np.int64)
    return _OperationPart(node, np.arange(len(link)), member, comers, sender, time_ns, none, size, link, lag_ns)


def _singles(lowered: Lowered, notes: list[str]) -> tuple[I64, I64]:
    """Sends and receives with an absent rank, or without any: they last as recorded, or as modelled."""
    nodes, times = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    links, sides, job = lowered.matching.links, lowered.matching.sides, lowered.job
    first = lowered.is_simulated
    for me, side, other, peer in (
        (links.src_at, links.send_side, links.dst_at, links.dst),
        (links.dst_at, links.recv_side, links.src_at, links.src),
    ):
        mine = np.flatnonzero((me >= 0) & (side >= 0) & (other < 0))
        outside = mine[(peer[mine] < 0) | (peer[mine] >= job.world_size)]
        if len(outside):
            who, rank = int(me[outside[0]]), int(peer[outside[0]])
            node = lowered.source_id(who, int(sides.rows[sides.start[side[outside[0]]]]))
            problem = f"its peer is rank {rank}, outside the world of {job.world_size:,}"
            raise TraceError(problem, where=f"rank {job.ranks[who]}: node {node}", hint="ranks count from 0")
        mine = mine[first[me[mine]]]
        begin = sides.start[side[mine]]
        which, place = spread(begin, sides.start[side[mine] + 1] - begin)
        link = mine[which]
        at = me[link]
        recorded = lowered.programs.cost_ns[lowered.program_row(at, sides.rows[place])]
        modelled = p2p_time_ns(lowered.system, links.src[link], links.dst[link], np.maximum(sides.size_bytes[place], 0))
        nodes.append(lowered.node(at, sides.rows[place]))
        times.append(np.where(recorded == UNKNOWN, modelled, recorded))
    absent = sum(map(len, nodes))
    if absent:
        notes.append(f"{absent:,} sends and receives have a peer that is not in the job, and do not wait")
    for i, at in enumerate(lowered.classes.first.tolist()):
        found = _peerless(lowered, i, at)
        nodes.append(found[0])
        times.append(found[1])
    if sum(map(len, nodes)) > absent:
        notes.append(f"{sum(map(len, nodes)) - absent:,} sends and receives have no peer, and keep their recorded time")
    return np.concatenate(nodes), np.concatenate(times)


def _peerless(lowered: Lowered, instance: int, at: int) -> tuple[I64, I64]:
    trace = lowered.job.traces[int(lowered.job.trace_of[at])]
    if trace.peer_slots == 0 and not (trace.kind == Kind.SEND).any() and not (trace.kind == Kind.RECV).any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = np.flatnonzero(((trace.kind == Kind.SEND) & (trace.dst < 0)) | ((trace.kind == Kind.RECV) & (trace.src < 0)))
    cost = lowered.programs.cost_ns[lowered.program_row(np.full(len(rows), at), rows)]
    if (cost == UNKNOWN).any():
        row = int(rows[cost == UNKNOWN][0])
        problem = f"a {Kind(int(trace.kind[row])).name.lower()} that has neither a peer nor a recorded time"
        raise TraceError(problem, where=f"rank {lowered.job.ranks[at]}: node {lowered.source_id(at, row)}")
    return lowered.base[instance] + rows, cost
