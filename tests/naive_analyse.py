"""Slow twins of the kernels of the analyses, and of the measures."""

from __future__ import annotations

from itertools import pairwise

from etude.model.schema import Kind
from etude.model.trace import Trace


def time_by_mask(intervals: list[tuple[int, int, int]], width: int) -> list[int]:
    """Nanosecond by nanosecond: which classes run."""
    total = [0] * (1 << width)
    if not intervals:
        return total
    for t in range(min(s for s, _, _ in intervals), max(e for _, e, _ in intervals)):
        mask = 0
        for start, end, bits in intervals:
            if start <= t < end:
                mask |= bits
        total[mask] += 1
    return total


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def covered(intervals: list[tuple[int, int, int]], groups: int) -> list[int]:
    return [len({t for start, end, group in intervals if group == g for t in range(start, end)}) for g in range(groups)]


COMPUTE, COMMUNICATION, MEMORY, NOTHING = "compute", "communication", "memory", "nothing"


def classes(trace: Trace) -> list[str]:
    """What each node is to its device, node by node."""
    nodes = range(len(trace))
    host = [trace.cpu[i] == 1 for i in nodes]
    names = [trace.text("name", i) or "" for i in nodes]
    kinds = [Kind(int(trace.kind[i])) for i in nodes]
    talks = [kind in (Kind.SEND, Kind.RECV, Kind.COLL) for kind in kinds]
    works = [kind in (Kind.COMP, Kind.MEM_LOAD, Kind.MEM_STORE) or t for kind, t in zip(kinds, talks, strict=True)]
    callers = {int(trace.parent[i]) for i in nodes if host[i] and trace.parent[i] >= 0}
    on_device = [works[i] and not host[i] and (not talks[i] or trace.cpu[i] == 0) for i in nodes]
    device = any(on_device) or not any(host)
    device_talks = any(
        (talks[i] and not host[i]) or (_named(names[i]) == COMMUNICATION and on_device[i]) for i in nodes
    )
    between = "host" in [names[i] for i in nodes if host[i]]

    def one(i: int) -> str:
        if not works[i] or (i in callers and host[i] and kinds[i] == Kind.COMP):
            return NOTHING
        if talks[i]:
            return NOTHING if device and host[i] and device_talks else COMMUNICATION
        if device and host[i]:
            return NOTHING
        if kinds[i] != Kind.COMP:
            return MEMORY
        if device:
            return _named(names[i])
        operator = names[int(trace.parent[i])] if names[i] == "host" and trace.parent[i] >= 0 else names[i]
        return COMPUTE if not between or operator.startswith("aten::") else NOTHING

    return [one(i) for i in nodes]


def _named(kernel: str) -> str:
    if kernel.startswith("nccl"):
        return COMMUNICATION
    return MEMORY if kernel.startswith("Mem") else NOTHING if kernel.startswith("Stream Wait") else COMPUTE


def breakdown(trace: Trace, start: list[int], end: list[int]) -> dict[str, int]:
    """The measures of one rank, from its classes, instant by instant between two events."""
    what = [(c, s, e) for c, s, e in zip(classes(trace), start, end, strict=True) if c != NOTHING and s >= 0 and e >= 0]
    events = sorted({t for _, s, e in what for t in (s, e)})
    spent = dict.fromkeys(("compute", "comm", "exposed_comm", "memory", "exposed_memory", "idle"), 0)
    for a, b in pairwise(events):
        running = {c for c, s, e in what if s <= a and b <= e}
        spent["compute"] += (b - a) * (COMPUTE in running)
        spent["comm"] += (b - a) * (COMMUNICATION in running)
        spent["exposed_comm"] += (b - a) * (COMMUNICATION in running and COMPUTE not in running)
        spent["memory"] += (b - a) * (MEMORY in running)
        spent["exposed_memory"] += (b - a) * (running == {MEMORY})
        spent["idle"] += (b - a) * (not running)
    whole = events[-1] - events[0] if events else 0
    return {"span_ns": whole} | {f"{name}_ns": ns for name, ns in spent.items()}
