"""From the host to the device: how long launches take, how long launched work waits, how deep the queues are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.analyse.device_work import on_device
from etude.analyse.grouping import by_rank, pattern_of, table
from etude.kernels.arrays import I64
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, Why
from etude.model.use import uses

__all__ = ["launches", "queue_depth", "untied"]


SLOW_CALL_NS: Final = 50_000
LONG_DELAY_NS: Final = 100_000
FULL: Final = 1024
"""Launches that a stream queues before the host has to wait."""
_NS = {"host_ns": pa.int64(), "device_ns": pa.int64(), "delay_ns": pa.int64(), "median_delay_ns": pa.float64()}
_COUNTS = ("long_delays", "slow_calls", "device_shorter")


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """What was launched, and by which node of the host."""

    call: I64
    node: I64


def launched(part: RunPart, calls: str = "") -> Launched:
    """Nodes of the device with the calls that launched them: by correlation, else by a dependency that says so. `calls`
    is a pattern for the names of calls."""
    trace = part.trace
    use = uses(trace)
    device = np.flatnonzero(on_device(part, use) & (trace.cpu != 1))
    call = np.full(len(trace), -1, np.int64)
    edges = np.flatnonzero((trace.data_why == Why.LAUNCH) & (trace.data >= 0))
    if len(edges):
        call[np.searchsorted(trace.data_start, edges, "right") - 1] = trace.data[edges]
    hosts = np.flatnonzero(part.timed & (trace.cpu == 1) & (trace.correlation != UNKNOWN))
    if len(hosts):
        hosts = hosts[np.lexsort((part.start_ns[hosts], trace.correlation[hosts]))]
        known = trace.correlation[hosts]
        at = np.minimum(np.searchsorted(known, trace.correlation[device]), len(hosts) - 1)
        same = (known[at] == trace.correlation[device]) & (trace.correlation[device] != UNKNOWN)
        call[device[same]] = hosts[at[same]]
    node = device[(call[device] >= 0)]
    node = node[part.timed[call[node]]]
    if calls:
        codes, words = trace.coded("name", call[node])
        pattern = pattern_of(calls)
        node = node[np.array([bool(pattern.search(w)) for w in words] + [False])[codes]]
    return Launched(call[node], node)


def untied(run: Run) -> float:
    """Share of the device's time, on ranks whose host was recorded, without a known launch: nothing says what on the
    host it waited for."""
    whole = loose = 0
    for part in run.parts():
        if not (part.timed & (part.trace.cpu == 1)).any():
            continue
        rows = np.flatnonzero(on_device(part, uses(part.trace)) & (part.trace.cpu != 1))
        lasted = part.end_ns[rows] - part.start_ns[rows]
        tied = np.isin(rows, launched(part).node) | (np.diff(part.trace.ctrl_start)[rows] > 0)
        whole += int(lasted.sum()) * len(part.at)
        loose += int(lasted[~tied].sum()) * len(part.at)
    return loose / whole if whole else 0.0


def launches(run: Run, calls: str = "") -> pa.Table:
    """One row per rank: launches, host_ns (in the calls), device_ns (of what they launched), delay_ns (from the end of
    a call to the start of what it launched, not below 0), its median, how many delays are over 100 µs, calls over 50
    µs, and device work shorter than its call. `calls` is a pattern of the calls that count, by default all."""
    rows = [(part.at, _statistics(part, calls)) for part in run.parts()]
    return by_rank(run.job, rows, {"launches": pa.int64()} | _NS | dict.fromkeys(_COUNTS, pa.int64()))


def _statistics(part: RunPart, calls: str) -> dict[str, Any]:
    found = launched(part, calls)
    host = part.end_ns[found.call] - part.start_ns[found.call]
    device = part.end_ns[found.node] - part.start_ns[found.node]
    delay = np.maximum(part.start_ns[found.node] - part.end_ns[found.call], 0)
    return {
        "launches": len(found.node),
        "host_ns": int(host.sum()),
        "device_ns": int(device.sum()),
        "delay_ns": int(delay.sum()),
        "median_delay_ns": float(np.median(delay)) if len(delay) else None,
        "long_delays": int((delay > LONG_DELAY_NS).sum()),
        "slow_calls": int((host > SLOW_CALL_NS).sum()),
        "device_shorter": int((device < host).sum()),
    }


def queue_series(part: RunPart, calls: str = "") -> dict[int, tuple[I64, I64]]:
    """By stream: (times, depth from then on): +1 when a launch begins, -1 when the launched work starts."""
    found = launched(part, calls)
    stream = part.trace.stream[found.node]
    series = {}
    for s in np.unique(stream).tolist():
        mine = stream == s
        time = np.concatenate([part.start_ns[found.call[mine]], part.start_ns[found.node[mine]]])
        change = np.repeat(np.array([1, -1], np.int64), int(mine.sum()))
        order = np.lexsort((-change, time))
        series[int(s)] = time[order], np.cumsum(change[order])
    return series


def queue_depth(run: Run, calls: str = "") -> pa.Table:
    """One row per rank and stream: events (launches and starts), mean depth over events, depth over time, most, and for
    how long the queue was full (1,024 launches)."""
    rows = []
    for part in run.parts():
        for stream, (time, depth) in queue_series(part, calls).items():
            lasted = np.diff(time)
            whole = int(lasted.sum())
            row = {
                "stream": stream,
                "events": len(time),
                "mean_depth": float(depth.mean()),
                "std_depth": float(depth.std(ddof=1)) if len(depth) > 1 else 0.0,
                "depth_over_time": float((depth[:-1] * lasted).sum() / whole) if whole else 0.0,
                "most": int(depth.max()),
                "full_ns": int(lasted[depth[:-1] >= FULL].sum()),
            }
            rows += [{"rank": int(run.job.ranks[i])} | row for i in part.at.tolist()]
    rows.sort(key=lambda row: (row["rank"], row["stream"]))
    names = {"rank": pa.int32(), "stream": pa.int64(), "events": pa.int64(), "mean_depth": pa.float64()}
    names |= {"std_depth": pa.float64(), "depth_over_time": pa.float64(), "most": pa.int64(), "full_ns": pa.int64()}
    return table(rows, names)
