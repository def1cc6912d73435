"""Slow twins of the kernels: plain Python that defines what they must return."""

from __future__ import annotations

from collections import defaultdict, deque

from etude.model.job import Job
from etude.model.schema import Kind
from etude.model.trace import Trace

# -- graph -------------------------------------------------------------------------------------------------------------


def dependencies(trace: Trace, which: str) -> list[list[int]]:
    """What each node waits for; an entry < 0 is missing."""
    found: list[list[int]] = [[] for _ in range(len(trace))]
    for part in ("data", "ctrl") if which == "both" else (which,):
        start, rows = getattr(trace, f"{part}_start").tolist(), getattr(trace, part).tolist()
        for node in range(len(trace)):
            found[node] += rows[start[node] : start[node + 1]]
    return found


def successors(trace: Trace, which: str) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(len(trace))]
    for node, deps in enumerate(dependencies(trace, which)):
        for d in deps:
            if d >= 0:
                found[d].append(node)
    return found


def topological_order(trace: Trace, which: str, block_missing: bool = False) -> list[int]:
    deps, after = dependencies(trace, which), successors(trace, which)
    waits = [sum(1 for d in ds if d >= 0 or block_missing) for ds in deps]
    ready = deque(node for node, count in enumerate(waits) if count == 0)
    order = []
    while ready:
        node = ready.popleft()
        order.append(node)
        for w in after[node]:
            waits[w] -= 1
            if waits[w] == 0:
                ready.append(w)
    return order


def finish(trace: Trace, cost: list[int], which: str) -> list[int]:
    deps = dependencies(trace, which)
    done = [0] * len(trace)
    for node in topological_order(trace, which):
        done[node] = max((done[d] for d in deps[node] if d >= 0), default=0) + cost[node]
    return done


# -- matching ----------------------------------------------------------------------------------------------------------

Message = tuple[int, int]
"""Rank and row."""


def collectives(job: Job) -> dict[int, dict[int, list[int]]]:
    """Group (-1: the world) -> rank -> rows in order."""
    found: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in job.ranks.tolist():
        trace, bound = job.trace(rank), job.group_slots(rank).tolist()
        for row in range(len(trace)):
            if trace.kind[row] == Kind.COLL:
                slot = int(trace.group[row])
                found[bound[slot] if slot >= 0 else -1][rank].append(row)
    return found


def messages(job: Job) -> tuple[set[tuple[Message, Message]], set[Message], set[Message]]:
    """(pairs of send and receive, sends left over, receives left over); those that name no peer are nowhere."""
    sends: dict[tuple[int, int, int], list[Message]] = defaultdict(list)
    recvs: dict[tuple[int, int, int], list[Message]] = defaultdict(list)
    for i, rank in enumerate(job.ranks.tolist()):
        trace, bound = job.trace(rank), job.peer_slots(rank).tolist()
        for row in range(len(trace)):
            tag = int(trace.tag[row])
            tag += int(job.tag_base[i]) if tag >= 0 else 0
            if trace.kind[row] == Kind.SEND and trace.dst[row] >= 0:
                sends[rank, bound[trace.dst[row]], tag].append((rank, row))
            if trace.kind[row] == Kind.RECV and trace.src[row] >= 0:
                recvs[bound[trace.src[row]], rank, tag].append((rank, row))
    pairs, lone_sends, lone_recvs = set(), set(), set()
    for key in {*sends, *recvs}:
        a, b = sends[key], recvs[key]
        n = min(len(a), len(b))
        pairs |= set(zip(a[:n], b[:n], strict=True))
        lone_sends |= set(a[n:])
        lone_recvs |= set(b[n:])
    return pairs, lone_sends, lone_recvs
