"""FLOP/s and bytes/s of operators against what the device could do, and how well the run uses it (MFU, HFU).

FLOPs and bytes are those that the trace says, else those that follow from an operator's recorded shapes (etude.cost).
An operator's time is that of all device work launched under it; where operators with known work call one another, the
innermost counts, so that nothing counts twice.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.breakdown import breakdown
from etude.analyse.grouping import by_rank, table
from etude.analyse.kernels import add_to_callers
from etude.analyse.operators import device_times
from etude.cost.ops import DTYPE_NUMBER, MATRIX, OpClass, OpTable
from etude.cost.traces import ops_of
from etude.machine.system import Device
from etude.model.distinct import distinct
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.trace import Trace
from etude.model.use import Use, segments, uses

__all__ = ["roofline", "utilisation"]

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
DTYPE: Final = {number: name for name, number in DTYPE_NUMBER.items()}


def roofline(run: Run, device: Device | None = None) -> pa.Table:
    """A row for each operator, shape and type: name, op_class, shapes, dtype, count, flops and size_bytes of one,
    time_ns of all, flop_per_s, bytes_per_s, intensity (FLOPs a byte); with a device also bound (`compute` or `memory`)
    and roofline_pct, what is reached of what the bound allows. The longest in all first."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for part in run.parts():
        rows, time, ops = _measured(part)
        for key, count, total in _unique(part, rows, time, ops):
            entry = found.setdefault(key, [0, 0])
            entry[0] += count * len(part.at)
            entry[1] += total * len(part.at)
    rows_out = [_row(key, count, total, device) for key, (count, total) in found.items()]
    rows_out.sort(key=lambda row: -row["time_ns"])
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    names = {"name": text, "op_class": text, "shapes": text, "dtype": text, "count": whole, "flops": whole}
    names |= {"size_bytes": whole, "time_ns": whole, "flop_per_s": real, "bytes_per_s": real, "intensity": real}
    return table(rows_out, names | ({"bound": text, "roofline_pct": real} if device else {}))


def _measured(part: RunPart) -> tuple[I64, I64, OpTable]:
    """(rows with known work, device time of each, their work)."""
    trace = part.trace
    ops = ops_of(trace)
    use = uses(trace)
    known = (ops.flops != UNKNOWN) | (ops.size_bytes != UNKNOWN)
    known &= ops.op_class != OpClass.NONE
    lasted = np.where(part.timed, part.end_ns - np.where(part.timed, part.start_ns, 0), 0)
    beside = (use == Use.HOST) | ((use == Use.NONE) & (trace.cpu == 1))
    time = np.where(beside, device_times(part)[1], lasted)
    operators = np.flatnonzero(known & (time > 0) & beside)
    operators = operators[_called(trace, operators)[operators] == 0]
    launched = _below(trace, operators)
    rows = np.concatenate([operators, np.flatnonzero(known & (time > 0) & (use == Use.COMPUTE) & ~launched)])
    return rows, time[rows], ops.take(rows)


def _called(trace: Trace, rows: I64) -> I64:
    """How many of these rows each node called, directly or not."""
    count = np.zeros(len(trace), np.int64)
    add_to_callers(np.ascontiguousarray(trace.parent), rows, np.ones(len(rows), np.int64), count)
    return count


def _below(trace: Trace, rows: I64) -> NDArray[np.bool_]:
    """Nodes that one of these rows called or launched, directly or not."""
    found = np.zeros(len(trace), bool)
    found[rows] = True
    parent = np.where(trace.parent >= 0, trace.parent, np.arange(len(trace)))
    while True:
        more = found | found[parent]
        if (more == found).all():
            found[rows] = False
            return found
        found = more


def _unique(part: RunPart, rows: I64, time: I64, ops: OpTable) -> list[tuple[tuple[Any, ...], int, int]]:
    if not len(rows):
        return []
    names, words = part.trace.coded("name")
    shapes, texts = part.trace.coded("in_shapes")
    own = segments(part.trace)[rows] & (part.trace.parent[rows] >= 0)
    named = np.where(own, part.trace.parent[rows], rows)  # what an operator does between others is called by its name
    columns: list[NDArray[Any]] = [names[named], shapes[named], ops.op_class, ops.dtype, ops.flops, ops.size_bytes]
    unique, which = distinct(columns)
    count = np.bincount(which)
    total = np.zeros(len(unique), np.int64)
    np.add.at(total, which, time)
    return [
        ((words[n] if n >= 0 else "", texts[s] if s >= 0 else "", *rest), int(count[i]), int(total[i]))
        for i, (n, s, *rest) in enumerate(unique.tolist())
    ]


def _row(key: tuple[Any, ...], count: int, time_ns: int, device: Device | None) -> dict[str, Any]:
    name, shapes, op_class, dtype, flops, size = key
    flops, size = (None if value == UNKNOWN else value for value in (flops, size))
    row: dict[str, Any] = {
        "name": name,
        "op_class": OpClass(op_class).name.lower(),
        "shapes": shapes,
        "dtype": DTYPE[dtype],
        "count": count,
        "flops": flops,
        "size_bytes": size,
        "time_ns": time_ns,
        "flop_per_s": None if flops is None else flops * count / time_ns * 1e9,
        "bytes_per_s": None if size is None else size * count / time_ns * 1e9,
        "intensity": flops / size if flops is not None and size else None,
    }
    if device is not None:
        by_compute, by_memory = _least_s(op_class, dtype, flops, size, device)
        row["bound"] = None if not by_compute and not by_memory else "compute" if by_compute >= by_memory else "memory"
        row["roofline_pct"] = 100 * max(by_compute, by_memory) * count * 1e9 / time_ns if row["bound"] else None
    return row


def _least_s(op_class: int, dtype: int, flops: int | None, size: int | None, device: Device) -> tuple[float, float]:
    """Seconds that the device needs at least for the FLOPs, and for the bytes; 0 where nothing is known."""
    rate = peak_flop_per_s(op_class, dtype, device)
    memory = device.memory_bandwidth_bytes_per_s
    return (flops / rate if flops and rate else 0.0), (size / memory if size and memory else 0.0)


def peak_flop_per_s(op_class: int, dtype: int, device: Device) -> float:
    """Peak of the units that an op of this class runs on: the matrix units, or the vector units' fp32 rate. An op that
    does not say its type is taken as bf16."""
    return device.peak(DTYPE[dtype] or "bf16") if OpClass(op_class) in (*MATRIX, OpClass.OTHER) else device.peak("fp32")


def utilisation(run: Run, device: Device, *, model_flops: int | None = None) -> pa.Table:
    """A row a rank: flops (executed, where known), span_ns, flop_per_s, hfu and, where the FLOPs that the model needs
    are given (on each rank, over the span), mfu. Utilisation is the time that the device's peak rates would need over
    the span; executed FLOPs include what is computed again."""
    job = run.job
    span = dict(zip(job.ranks.tolist(), breakdown(run)["span_ns"].to_pylist(), strict=True))
    rows = []
    for part in run.parts():
        _, _, ops = _measured(part)
        flops = np.where(ops.flops == UNKNOWN, 0, ops.flops)
        rates = np.array(
            [peak_flop_per_s(int(c), int(d), device) for c, d in zip(ops.op_class, ops.dtype, strict=True)]
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            least_s = float(np.nansum(np.where(rates > 0, flops / rates, 0.0))) if len(rates) else 0.0
        lasted = (span[int(job.ranks[part.at[0]])] or 0) / 1e9
        row = {"flops": int(flops.sum()), "span_ns": round(lasted * 1e9)}
        peak = device.peak("bf16")
        rows.append((part.at, row | {
            "flop_per_s": row["flops"] / lasted if lasted else None,
            "hfu": least_s / lasted if lasted else None,
            "mfu": model_flops / peak / lasted if model_flops and peak and lasted else None,
        }))  # fmt: skip
    kinds = {"flops": pa.int64(), "span_ns": pa.int64(), "flop_per_s": pa.float64()}
    return by_rank(job, rows, kinds | {"hfu": pa.float64(), "mfu": pa.float64()})
