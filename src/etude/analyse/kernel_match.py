"""Kernels of one run matched with those of another: how well a proxy represents the original, kernel by kernel.

A kernel here is all work of one name, FLOPs and bytes. It is a point with four coordinates, none of which is a name:
the fraction of the device's peak FLOP/s, the fraction of its memory bandwidth, the intensity as i / (i + ridge) with
the ridge of the device, and the share of time. The distance of two kernels is that of their points, so it is a metric.
The best assignment takes each kernel once and has the least sum of distances; where one run has more kernels, the
unmatched ones are compared with a kernel that does nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from etude.analyse.grouping import table
from etude.analyse.roofline import roofline
from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device
from etude.model.run import Run

__all__ = ["match_kernels"]

MOST: Final = 2_000
"""Most kernels of a run that can be matched: the assignment takes cubic time."""


def match_kernels(a: Run, b: Run, device: Device | None = None) -> pa.Table:
    """A row for each kernel of `a`, the longest in all first: kernel, count, flops and size_bytes of one, share (of
    time), peak_part, bandwidth_part, intensity (FLOPs per byte); nearest and distance, the kernel of `b` that is
    nearest; assigned and assigned_distance, its partner in the best assignment (none: null), with assigned_count,
    assigned_flops and assigned_size_bytes. After them a row without `kernel` for each unmatched kernel of `b`. The mean
    of assigned_distance is the distance of the runs. Without a device, the highest rates of the two runs are the
    peak."""
    left, right = _kernels(a), _kernels(b)
    for side, rows in (("first", left), ("second", right)):
        if not rows:
            raise UsageError(f"the {side} run has no kernel whose FLOPs or bytes are known", hint="etude roofline RUN")
        if len(rows) > MOST:
            raise UsageError(
                f"the {side} run has {len(rows):,} different kernels", hint=f"at most {MOST:,} are matched"
            )
    peak, bandwidth = _limits(device, [*left, *right])
    for row in (*left, *right):
        row["peak_part"] = row["flop_per_s"] / peak if peak else 0.0
        row["bandwidth_part"] = row["bytes_per_s"] / bandwidth if bandwidth else 0.0
    ridge = peak / bandwidth if peak and bandwidth else 1.0
    apart = _distances(_points(left, ridge), _points(right, ridge))
    near, partner = apart[: len(left), : len(right)].argmin(1), assign(apart)
    out = []
    for i, own in enumerate(left):
        k = int(partner[i])
        row = _shown(own) | {"nearest": right[near[i]]["name"], "distance": float(apart[i, near[i]])}
        out.append(row | _partner(right[k] if k < len(right) else None, float(apart[i, k])))
    for i in range(len(left), len(apart)):
        out.append(dict.fromkeys(_SHOWN) | {"nearest": None, "distance": None})
        out[-1] |= _partner(right[int(partner[i])], float(apart[i, partner[i]]))
    return table(out, _SHOWN | {"nearest": pa.string(), "distance": pa.float64()} | _PARTNER)


_SHOWN: Final = {"kernel": pa.string(), "count": pa.int64(), "flops": pa.int64(), "size_bytes": pa.int64(),
                 "share": pa.float64(), "peak_part": pa.float64(), "bandwidth_part": pa.float64(),
                 "intensity": pa.float64()}  # fmt: skip
_PARTNER: Final = {"assigned": pa.string(), "assigned_count": pa.int64(), "assigned_flops": pa.int64(),
                   "assigned_size_bytes": pa.int64(), "assigned_distance": pa.float64()}  # fmt: skip


def _kernels(run: Run) -> list[dict[str, Any]]:
    """Kernels of one name, FLOPs and bytes; shapes and types are ignored, since a copy without them has no more."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in roofline(run).to_pylist():
        entry = found.setdefault((row["name"], row["flops"], row["size_bytes"]), [0, 0])
        entry[0] += row["count"]
        entry[1] += row["time_ns"]
    whole = sum(time for _, time in found.values())
    rows = []
    for (name, flops, size), (count, time) in found.items():
        row = {"name": name, "count": count, "flops": flops, "size_bytes": size, "share": time / whole}
        row["flop_per_s"], row["bytes_per_s"] = ((each or 0) * count / time * 1e9 for each in (flops, size))
        row["intensity"] = flops / size if flops is not None and size else None
        rows.append(row)
    rows.sort(key=lambda row: (-row["share"], -(row["flops"] or 0), -(row["size_bytes"] or 0)))
    return rows


def _limits(device: Device | None, rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Peak FLOP/s and bytes/s that rates are divided by."""
    if device is None:
        return max(row["flop_per_s"] for row in rows), max(row["bytes_per_s"] for row in rows)
    return device.peak("bf16") or max(device.peak_flop_per_s.values()), device.memory_bandwidth_bytes_per_s


def _points(rows: list[dict[str, Any]], ridge: float) -> F64:
    found = np.zeros((len(rows), 4))
    for i, row in enumerate(rows):
        intensity = row["intensity"] or 0.0
        found[i] = row["peak_part"], row["bandwidth_part"], intensity / (intensity + ridge), row["share"]
    return found


def _distances(a: F64, b: F64) -> F64:
    """Distances of all pairs; the smaller set is padded with kernels that do nothing."""
    most = max(len(a), len(b))
    a, b = (np.vstack([points, np.zeros((most - len(points), 4))]) for points in (a, b))
    return np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(-1))


def assign(cost: F64) -> I64:
    """The column of each row in the assignment of the least sum: the Hungarian method, by shortest augmenting paths."""
    size = len(cost)
    row_price, price = np.zeros(size), np.zeros(size + 1)
    taken = np.full(size + 1, -1)  # the row that has a column; the last column is where a new row enters
    for row in range(size):
        taken[size], at = row, size
        least, before = np.full(size, np.inf), np.full(size, size)
        done = np.zeros(size + 1, bool)
        while taken[at] >= 0:
            done[at] = True
            reduced = cost[taken[at]] - row_price[taken[at]] - price[:size]
            better = ~done[:size] & (reduced < least)
            least[better], before[better] = reduced[better], at
            nearest = int(np.where(done[:size], np.inf, least).argmin())
            step = least[nearest]
            row_price[taken[done]] += step
            price[done] -= step
            least[~done[:size]] -= step
            at = nearest
        while at != size:
            taken[at] = taken[before[at]]
            at = int(before[at])
    found = np.empty(size, np.int64)
    found[taken[:size]] = np.arange(size)
    return found


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {"kernel": row["name"]} | {name: row[name] for name in _SHOWN if name != "kernel"}


def _partner(row: dict[str, Any] | None, distance: float) -> dict[str, Any]:
    if row is None:
        return dict.fromkeys(_PARTNER) | {"assigned_distance": distance}
    found = {f"assigned_{name}": row[name] for name in ("count", "flops", "size_bytes")}
    return {"assigned": row["name"]} | found | {"assigned_distance": distance}
