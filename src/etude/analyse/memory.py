"""Memory: how fast copies go, and how much is in use over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.counting import OURS, Counting
from etude.analyse.device_work import on_device
from etude.analyse.grouping import table
from etude.kernels.arrays import F64, I64
from etude.model.memory import memory_levels
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN, ValueKind
from etude.model.use import Use, uses

__all__ = ["copies", "level_peaks", "levels", "memory", "peaks"]


def copies(run: Run, counting: Counting = OURS) -> pa.Table:
    """One row per rank and kind of copy (`Memcpy HtoD`, `Memset`): count, size_bytes, time_ns, bytes_per_s over that
    time, and the rate of concurrent copies: its mean over events (a copy begins or ends and one is in progress) and its
    maximum. The rate of a copy is the one that the profiler recorded, else its bytes over its length."""
    rows: list[dict[str, Any]] = []
    for part in run.parts():
        for row in _copies(part, counting):
            rows += [{"rank": int(run.job.ranks[i])} | row for i in part.at.tolist()]
    rows.sort(key=lambda row: (row["rank"], -row["time_ns"]))
    names = {"rank": pa.int32(), "name": pa.string(), "count": pa.int64(), "size_bytes": pa.int64()}
    names |= {"time_ns": pa.int64(), "bytes_per_s": pa.float64(), "events": pa.int64()}
    return table(rows, names | {"mean_rate_bytes_per_s": pa.float64(), "most_rate_bytes_per_s": pa.float64()})


def _copies(part: RunPart, counting: Counting) -> list[dict[str, Any]]:
    trace, use = part.trace, uses(part.trace)
    copied = np.flatnonzero(on_device(part, use, counting) & (use == Use.MEMORY))
    codes, words = trace.coded("name")
    rate = _recorded_rates(part)
    kinds = sorted({word.partition(" (")[0] for word in words})
    kind_of = np.array([kinds.index(word.partition(" (")[0]) for word in words] + [-1], np.int64)[codes]
    found = []
    for kind in np.unique(kind_of[copied]).tolist():
        mine = copied[kind_of[copied] == kind]
        time, size = part.end_ns[mine] - part.start_ns[mine], trace.tensor_bytes[mine]
        known = (size != UNKNOWN) & (time > 0)
        moved, lasted = int(size[known].sum()), int(time[known].sum())
        by_length = np.where(known, size / np.maximum(time, 1) * 1e9, 0.0)
        of_each = np.where(np.isnan(rate[mine]), by_length, rate[mine])
        timed = of_each > 0
        rates = rate_series(part.start_ns[mine[timed]], part.end_ns[mine[timed]], of_each[timed])[1]
        rates = rates[rates > 1]  # sums of finished rates leave rounding errors
        row: dict[str, Any] = {
            "name": kinds[kind] if kind >= 0 else "",
            "count": len(mine),
            "size_bytes": moved if known.any() else None,
            "time_ns": int(time.sum()),
            "bytes_per_s": moved / lasted * 1e9 if lasted else None,
            "events": len(rates),
            "mean_rate_bytes_per_s": float(rates.mean()) if len(rates) else None,
            "most_rate_bytes_per_s": float(rates.max()) if len(rates) else None,
        }
        found.append(row)
    return found


def _recorded_rates(part: RunPart) -> F64:
    """Rate of each node as the profiler recorded it; NaN where it did not."""
    rate = np.full(len(part.trace), np.nan)
    nodes, cells = part.trace.attr_cells().get(("memory_bandwidth_gbyte_per_s", ValueKind.DOUBLE), (None, None))
    if nodes is not None and cells is not None:
        rate[nodes] = np.ascontiguousarray(cells).view(np.float64) * 1e9
    return rate


def rate_series(start: I64, end: I64, rate: F64) -> tuple[I64, F64]:
    """(times, total rate from then on). At one instant ends come before starts, or consecutive copies would overlap; a
    copy of length 0 ends after it has started."""
    time = np.concatenate([start, end])
    change = np.concatenate([rate, -rate])
    turn = np.concatenate([np.ones(len(start), np.int8), np.where(end > start, 0, 2).astype(np.int8)])
    order = np.lexsort((turn, time))
    return time[order], np.cumsum(change[order])


def levels(run: Run) -> pa.Table:
    """Bytes in memory over time, of tensors that nodes name and of memory nodes: rank, time_ns, held_bytes. A load that
    names nothing adds its bytes when it ends, a store subtracts them."""
    ranks, times, held = ([np.zeros(0, np.int64)] for _ in range(3))
    for part in run.parts():
        found = memory_levels(part)
        if found is None:
            continue
        for rank in run.job.ranks[part.at].tolist():
            ranks.append(np.full(len(found.time_ns), rank, np.int64))
            times.append(found.time_ns)
            held.append(found.held_bytes)
    columns = [np.concatenate(column) for column in (ranks, times, held)]
    order = np.lexsort((columns[1], columns[0]))
    return pa.table(dict(zip(("rank", "time_ns", "held_bytes"), (c[order] for c in columns), strict=True)))


def memory(run: Run) -> pa.Table:
    """Peak memory of each rank: rank, events, most_bytes and when.

    etude.memory(run)
    """
    return level_peaks(levels(run))


def level_peaks(found: pa.Table) -> pa.Table:
    """Peaks of `levels`, one row per rank: events, most_bytes and when."""
    rank, held, time = (found[name].to_numpy() for name in ("rank", "held_bytes", "time_ns"))
    rows = []
    for r in np.unique(rank).tolist():
        mine = np.flatnonzero(rank == r)
        top = mine[int(np.argmax(held[mine]))]
        rows.append({"rank": r, "events": len(mine), "most_bytes": int(held[top]), "at_ns": int(time[top])})
    return table(rows, dict.fromkeys(("rank", "events", "most_bytes", "at_ns"), pa.int64()))


def peaks(allocated: pa.Table) -> pa.Table:
    """Peaks of a table of allocations (time_ns, device, size_bytes, allocated_bytes, reserved_bytes), one row per
    device: events, most_allocated_bytes and when, most_reserved_bytes, largest_bytes (of one allocation), and
    allocated_bytes at the start and the end."""
    rows: list[dict[str, Any]] = []
    devices = allocated["device"].to_pylist()
    for device in dict.fromkeys(devices):
        mine = allocated.filter(pa.array([d == device for d in devices]))
        level = np.asarray(mine["allocated_bytes"].fill_null(0).to_numpy(), np.int64)
        reserved = np.asarray(mine["reserved_bytes"].fill_null(0).to_numpy(), np.int64)
        size = np.asarray(mine["size_bytes"].fill_null(0).to_numpy(), np.int64)
        top = int(level.argmax())
        rows.append(
            {
                "device": device,
                "events": len(mine),
                "most_allocated_bytes": int(level[top]),
                "at_ns": int(mine["time_ns"][top].as_py()),
                "most_reserved_bytes": int(reserved.max()),
                "largest_bytes": int(size.max()),
                "first_bytes": int(level[0] - size[0]),
                "last_bytes": int(level[-1]),
            }
        )
    names = ("events", "most_allocated_bytes", "at_ns", "most_reserved_bytes", "largest_bytes", "first_bytes")
    return table(rows, {"device": pa.string()} | dict.fromkeys((*names, "last_bytes"), pa.int64()))
