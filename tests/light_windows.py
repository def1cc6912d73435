"""Recordings of a device and light windows, written by hand in microseconds."""

import json
from typing import Any

import numpy as np

from etude.capture.ingest.light_window import LightWindow
from etude.capture.link.device import DeviceTrace, read_device

US = 1000
MAIN, STREAM = 11, 7


def traced(events: list[dict[str, Any]]) -> DeviceTrace:
    text = json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": events}).encode()
    return read_device(np.frombuffer(text + bytes(64), np.uint8).copy(), len(text))


def event(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    at = {"tid": STREAM, "pid": 0} if category == "kernel" else {"tid": MAIN, "pid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args, **at}


def full(steps: int = 2, launches: int = 3, name: str = "cudaLaunchKernel") -> DeviceTrace:
    """Each step is 1,000 us: a launch every 300 us inside an operator of 200 us, a kernel of 20 us."""
    events = []
    for step in range(steps):
        t = 1000.0 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", t, 950.0))
        for k in range(launches):
            at, number = t + 10 + 300 * k, 1 + step * launches + k
            events.append(event("cpu_op", "aten::add", at, 200.0, **{"External id": number}))
            events.append(event("cuda_runtime", name, at + 150, 10.0, correlation=number))
            events.append(event("kernel", "add", at + 155, 20.0, correlation=number, stream=STREAM, device=0))
    return traced(events)


def light(steps: int = 2, every: int = 60, kernel: int = 20, launches: int = 3, **more: Any) -> dict[str, Any]:
    """Each step: a launch every `every` us, which takes 5 us, a kernel of `kernel` us from the launch on, one after the
    other; the step ends `every` us after its last launch."""
    rows, marks, free = [], [], 0
    for step in range(steps):
        t = step * every * launches
        for k in range(launches):
            at, number = t + every * k, 1001 + step * launches + k
            rows.append((0, 1, MAIN, number, at, at + 5))
            free = max(free, at + 4)
            rows.append((1, 2, STREAM, number, free, free + kernel))
            free += kernel
        marks.append([t * US, (t + every * launches) * US])
    rows.sort(key=lambda row: row[4])
    column = [list(one) for one in zip(*rows, strict=True)]
    found = dict(zip(("name", "kind", "thread", "correlation", "start_ns", "end_ns"), column, strict=True))
    for name in ("start_ns", "end_ns"):
        found[name] = [US * one for one in found[name]]
    return found | {"names": ["cudaLaunchKernel", "add"], "base_ns": 0, "marks_ns": marks, "device": True} | more


def window(**given: Any) -> LightWindow:
    found = LightWindow.of(light(**given))
    assert found is not None
    return found


def rows(trace: DeviceTrace, category: str) -> tuple[list[float], list[float]]:
    """Starts and lengths in us; what was one after the other stays so, by 1 ns."""
    mine = np.flatnonzero(trace.is_category(category) & trace.is_phase("X"))
    return (trace.start_ns[mine] / US).round(1).tolist(), (trace.duration_ns[mine] / US).round(1).tolist()
