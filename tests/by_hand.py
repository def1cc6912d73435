"""What HolisticTraceAnalysis computes, from a trace's raw events in plain loops: as it ought to be, or with a mistake
of HTA's. Nothing of Etude is in here, so that its analyses can be held against it.

The mistakes that can be asked for:

    streams   whatever has a `stream` among its arguments is device work: also records of a synchronisation, and host
              operators that have one (Triton's launches do)
    pieces    each piece of time in which the same classes run is cut to whole µs before it is added up
    sums      of more than ten kernels, mean and largest are those of the sums, of which each kernel has one
    waits     MTIA's `event_wait` and `event_record` compute
    first     what nothing in the trace launched was launched by the first event of the file
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

CATEGORIES = {
    "kernel": "kernel", "gpu_memcpy": "gpu_memcpy", "gpu_memset": "gpu_memset", "mtia_ccp_events": "kernel",
    "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset",
}  # fmt: skip
"""Of device work, old ones too."""
COMMUNICATION = re.compile(r"^nccl|^rccl|^hccl|ncclKernel|ncclDevKernel")
MEMORY = re.compile(r"^(hip)?Mem(cpy|set)|^dma|^CopyDevice|^FillBuffer|^__amd_rocclr_(copy|fill)")
WAITS = re.compile(r"^event_(wait|record)$|^(Stream|Event|Context|Device) Sync|^Stream Wait")
LAUNCHES = {
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
}  # fmt: skip
"""The calls that HTA counts as launches."""
ENQUEUES = LAUNCHES | {
    "cuLaunchKernel", "hipLaunchKernel", "hipExtModuleLaunchKernel", "hipMemsetAsync", "hipMemcpyAsync",
    "hipMemcpyWithStream",
}  # fmt: skip
"""The calls that HTA counts for the length of a queue."""
MISTAKES = {
    "streams": "HTA takes what has a stream among its arguments for device work: records of waits, Triton's host calls",
    "pieces": "HTA cuts each piece of time to whole µs before it adds them up",
    "sums": "HTA gives the sum of all kernels of the name as mean and largest, if there are more than ten names",
    "waits": "HTA takes MTIA's `event_wait` and `event_record` for compute",
    "first": "HTA takes kernels that nothing in the trace launched for launched by the file's first event",
}


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    category: str
    start: int
    """ns"""
    end: int
    stream: int | None = None
    correlation: int | None = None
    rate: float | None = None
    """GB/s, of copies"""
    computes: bool = False
    """Whatever its name says."""

    @property
    def on_device(self) -> bool:
        return self.category in CATEGORIES

    @property
    def kind(self) -> str:
        if COMMUNICATION.search(self.name):
            return "communication"
        if MEMORY.search(self.name):
            return "memory"
        return "wait" if WAITS.search(self.name) and not self.computes else "compute"


def read(path: Path) -> list[Event]:
    """Every event that lasts, to the ns."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        document = json.load(file, parse_float=Decimal, strict=False)
    found = []
    for row in document["traceEvents"] if isinstance(document, dict) else document:
        if row.get("ph") == "X" and row.get("cat", "Trace") != "Trace" and row.get("dur") is not None:
            args = row.get("args") or {}
            start, lasted = round(Decimal(row["ts"]) * 1000), round(Decimal(row["dur"]) * 1000)
            rate = args.get("memory bandwidth (GB/s)")
            numbers = _whole(args.get("stream")), _whole(args.get("correlation"))
            found.append(Event(str(row.get("name", "")), row["cat"], start, start + lasted, *numbers,
                               None if rate is None else float(rate)))  # fmt: skip
    return found


def _whole(value: object) -> int | None:
    try:
        found = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        return None
    return None if found < 0 else found


# -- what counts -------------------------------------------------------------------------------------------------------


def device_work(events: list[Event], mistakes: Iterable[str] = ()) -> list[Event]:
    """Events that count as device work: where several steps were recorded, what was launched until the end of the
    last."""
    if "waits" in mistakes:
        events = [replace(e, computes=True) if e.name.startswith("event_") else e for e in events]
    if "streams" in mistakes:
        found = [e for e in events if e.stream is not None]
    else:
        found = [e for e in events if e.on_device and e.kind != "wait"]
    steps = [e for e in events if e.name.startswith("ProfilerStep")]
    if len({e.name for e in steps}) < 2:
        return found
    until = max(e.end for e in steps)
    launched = {e.correlation for e in events if not e.on_device and e.start <= until}
    return [e for e in found if e.correlation in launched]


# -- quantities --------------------------------------------------------------------------------------------------------


def union(events: Iterable[Event]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for e in sorted(events, key=lambda e: e.start):
        if found and e.start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], e.end)
        else:
            found.append((e.start, e.end))
    return found


def length(intervals: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in intervals)


def temporal(work: list[Event]) -> dict[str, int]:
    """span, compute, other (busy with something else alone), idle; ns."""
    busy, compute = union(work), union(e for e in work if e.kind == "compute")
    span = busy[-1][1] - busy[0][0] if busy else 0
    return {
        "span": span,
        "compute": length(compute),
        "other": length(busy) - length(compute),
        "idle": span - length(busy),
    }


def types(work: list[Event], mistakes: Iterable[str] = ()) -> dict[str, float]:
    """µs in which exactly these classes run."""
    classes = ("compute", "communication", "memory")
    turns = sorted((t, sign, kind) for kind in classes for a, b in union(e for e in work if e.kind == kind)
                   for t, sign in ((a, 1), (b, -1)))  # fmt: skip
    running, total = dict.fromkeys(classes, 0), defaultdict[str, float](float)
    for (now, sign, kind), following in zip(turns, [*turns[1:], None], strict=True):
        running[kind] += sign
        lasted = (following[0] - now) / 1000 if following else 0.0
        total[" + ".join(k for k in classes if running[k])] += int(lasted) if "pieces" in mistakes else lasted
    total.pop("", None)
    return dict(total)


def overlap_pct(work: list[Event]) -> float | None:
    found = types(work)
    talks = sum(t for kinds, t in found.items() if "communication" in kinds)
    both = sum(t for kinds, t in found.items() if "communication" in kinds and "compute" in kinds)
    return 100 * both / talks if talks else None


def kernels(work: list[Event], mistakes: Iterable[str] = ()) -> dict[str, dict[str, float]]:
    """By name: total, mean and largest, µs."""
    lasted = defaultdict[tuple[str, str], list[int]](list)
    for e in work:
        lasted[e.kind, e.name].append(e.end - e.start)
    found = {}
    for (kind, name), times in lasted.items():
        if "sums" in mistakes and sum(k == kind for k, _ in lasted) > 10:
            times = [sum(times)]
        found[name] = {
            "total": sum(times) / 1000, "mean": sum(times) / len(times) / 1000, "max": max(times) / 1000
        }  # fmt: skip
    return found


def gaps(events: list[Event], work: list[Event], mistakes: Iterable[str] = ()) -> dict[tuple[int, str], float]:
    """By stream and cause: µs between one thing on the stream and the next."""
    calls = {
        e.correlation: e.start for e in events if not e.on_device and e.stream is None and e.correlation is not None
    }
    found = defaultdict[tuple[int, str], float](float)
    last: dict[int, int] = {}
    for e in sorted(work, key=lambda e: e.start):
        if e.on_device and e.stream is not None:
            begin = last.get(e.stream)
            last[e.stream] = e.end
            if begin is not None:
                called = calls.get(e.correlation, events[0].start if "first" in mistakes else begin)
                cause = "host_wait" if called > begin else "kernel_wait" if e.start - begin < 30_000 else "other"
                found[e.stream, cause] += (e.start - begin) / 1000
    return dict(found)


def queues(events: list[Event], work: list[Event]) -> dict[int, list[tuple[int, float, int]]]:
    """By stream: events, mean and most of the queue's length over them, where of one time launches come before starts,
    and where starts come before launches."""
    call = {e.correlation: e for e in events if e.name in ENQUEUES and e.correlation is not None}
    turns = defaultdict[int, list[tuple[int, int]]](list)
    for e in work:
        if e.on_device and e.stream is not None and e.correlation in call:
            turns[e.stream] += [(call[e.correlation].start, 1), (e.start, -1)]
    return {stream: [_over(sorted(mine, key=lambda t: (t[0], sign * t[1]))) for sign in (-1, 1)]
            for stream, mine in turns.items()}  # fmt: skip


def rates(work: list[Event]) -> dict[str, list[tuple[int, float, float]]]:
    """By direction of a copy: events, mean and most of the rate (GB/s) of all under way, over events with one under
    way; where of one time ends come before starts, and where starts come before ends. What has no length lasts 1 µs."""
    turns = defaultdict[str, list[tuple[int, float]]](list)
    for e in work:
        if e.kind == "memory" and e.rate:
            end = e.end if e.end > e.start else e.start + 1000
            turns[e.name.partition(" (")[0]] += [(e.start, e.rate), (end, -e.rate)]
    return {name: [_over(sorted(mine, key=lambda t: (t[0], sign * t[1])), 1e-9) for sign in (1, -1)]
            for name, mine in turns.items()}  # fmt: skip


def _over(turns: list[tuple[int, float]], above: float = -1.0) -> tuple[int, float, float]:
    level, levels = 0.0, []
    for _, change in turns:
        level += change
        if level > above:
            levels.append(level)
    return len(levels), sum(levels) / len(levels) if levels else 0.0, max(levels, default=0.0)
