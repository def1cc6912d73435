"""Time of operators on a device: as measured, by roofline, from a table of measured ops, or scaled.

    compute_time_ns(device, ops)                                     # roofline with the device's constants
    compute_time_ns(device, ops, mode="scaled", measured_ns=d, scale=0.5)
    compute_time_ns(device, ops, mode="table", table=measured)

Vectorised over whole traces. What cannot be known is UNKNOWN, never guessed. The formulas are in docs/costs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import MismatchError, UsageError
from etude.cost.gemm import gemm_ns
from etude.cost.ops import DTYPE_NUMBER, MATRIX, OpClass, OpTable
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device, OpCost
from etude.model.schema import UNKNOWN

MODES: Final = ("measured", "scaled", "roofline", "table")
_NEAREST: Final = {
    OpClass.RAGGED_GEMM: ("grouped_gemm", "gemm"),
    OpClass.GROUPED_GEMM: ("gemm",),
    OpClass.CONVOLUTION: ("gemm",),
}
"""Classes whose constants replace missing ones, if those of `default` would be further off."""
BLOCK: Final = 128
"""Queries and keys of one block of attention."""
HEAD_EXPONENT: Final = 0.7
"""Matrix efficiency of attention grows with the head size: (head size / 128) ** this; the softmax does not."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredOps:
    """A table of timed ops, to interpolate in."""

    ops: OpTable
    time_ns: I64

    def __post_init__(self) -> None:
        if len(self.ops) != len(self.time_ns):
            raise MismatchError(f"measured ops: {len(self.ops)} ops and {len(self.time_ns)} times")

    def take(self, rows: NDArray[np.bool_] | I64) -> MeasuredOps:
        return MeasuredOps(self.ops.take(rows), self.time_ns[rows])


def compute_time_ns(
    device: Device,
    ops: OpTable,
    *,
    mode: str = "roofline",
    measured_ns: I64 | None = None,
    scale: float = 1.0,
    table: MeasuredOps | None = None,
    dtype: str = "bf16",
) -> I64:
    """Time of each op in ns. `scale` multiplies measured times (mode `scaled`); `table` is for mode `table`.

    `dtype` is that of ops which do not say theirs.
    """
    if mode not in MODES:
        raise UsageError(f"unknown mode `{mode}`", hint=f"known: {', '.join(MODES)}")
    if mode in ("measured", "scaled"):
        if measured_ns is None:
            raise UsageError(f"mode `{mode}` needs the measured times")
        if len(measured_ns) != len(ops):
            raise MismatchError(f"{len(ops)} ops and {len(measured_ns)} measured times")
        factor = 1.0 if mode == "measured" else scale
        known = measured_ns != UNKNOWN
        return _rounded(np.where(known, measured_ns * factor, 0.0), known)
    by_formula = roofline_ns(device, ops, dtype=dtype)
    known = np.isfinite(by_formula)
    if mode == "table":
        if table is None:
            raise UsageError("mode `table` needs a table of measured ops")
        by_formula = by_formula * _correction(device, ops, table)
    return _rounded(np.where(known, by_formula, 0.0), known)


def _rounded(time_ns: F64, known: NDArray[np.bool_]) -> I64:
    return np.where(known, np.ceil(time_ns - 1e-6).astype(np.int64), UNKNOWN)


def roofline_ns(device: Device, ops: OpTable, *, dtype: str = "bf16") -> F64:
    """Time of each op by its class's formula, in ns; NaN if neither FLOPs nor bytes are known."""
    time = np.full(len(ops), np.nan)
    for number in np.unique(ops.op_class).tolist():
        rows = np.flatnonzero(ops.op_class == number)
        op_class = OpClass(number)
        time[rows] = _class_ns(device, cost_of(device, op_class), op_class, ops.take(rows), dtype)
    return time


def cost_of(device: Device, op_class: OpClass) -> OpCost:
    """The constants of a class on a device."""
    names = (op_class.key, *_NEAREST.get(op_class, ()), "default")
    return next((device.ops[name] for name in names if name in device.ops), OpCost())


def _class_ns(device: Device, cost: OpCost, op_class: OpClass, ops: OpTable, dtype: str) -> F64:
    flops, size = _known(ops.flops), _known(ops.size_bytes)
    nothing = np.isnan(flops) & np.isnan(size)
    flops = np.where(np.isnan(flops), np.float64(0), flops)
    size = np.where(np.isnan(size), np.float64(0), size)
    rate = peaks_of(device, op_class, ops, dtype) * cost.flop_efficiency / 1e9
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = np.where(flops > 0, flops / rate, 0.0)
    memory = memory_ns(device, cost, size)
    time: F64
    if op_class in (OpClass.GEMM, OpClass.CONVOLUTION, OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM):
        ragged = op_class == OpClass.RAGGED_GEMM
        time = cost.fixed_ns + gemm_ns(device, cost, ops, compute, memory, ragged=ragged)
    elif op_class == OpClass.ATTENTION:
        time = cost.fixed_ns + np.maximum(_attention_ns(device, ops, flops, compute), memory)
    else:
        wide = np.clip(ops.n, 1024, 8192) / 1024.0
        memory = np.asarray(memory * np.where(ops.n > 0, wide**cost.width_exponent, 1.0), np.float64)
        # One core processes a row, so few rows take as long as one.
        along = cost.depth_ns * ops.n / 1024
        shared = np.minimum(np.maximum(ops.n, 1) / cost.block, 1.0) if cost.block else 1.0
        rows = ops.m.astype(np.float64) * shared
        time = cost.fixed_ns + cost.row_ns * rows + np.maximum(np.maximum(compute, memory), along)
    # Unknown for a device without a peak or a bandwidth.
    return np.where(nothing | ~np.isfinite(time), np.nan, time)


def _known(column: I64) -> F64:
    return np.where(column == UNKNOWN, np.nan, column.astype(np.float64))


def peaks_of(device: Device, op_class: OpClass, ops: OpTable, dtype: str = "bf16") -> F64:
    """FLOP/s for each op: of the matrix units for its data type, or of the vector units."""
    names = {number: name or dtype for name, number in DTYPE_NUMBER.items()}
    if op_class not in MATRIX and op_class != OpClass.OTHER:
        return np.full(len(ops), device.peak("fp32"))
    peaks = np.array([device.peak(names[number]) for number in range(len(names))])
    return peaks[ops.dtype]


def memory_ns(device: Device, cost: OpCost, size_bytes: F64) -> F64:
    """Time of bytes through the memory, or through the cache if they all fit."""
    faster = np.where(size_bytes <= device.cache_bytes, device.cache_speedup, 1.0)
    rate = faster * device.memory_bandwidth_bytes_per_s * cost.memory_efficiency / 1e9
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(size_bytes > 0, size_bytes * cost.traffic / rate, 0.0)


def _attention_ns(device: Device, ops: OpTable, flops: F64, compute: F64) -> F64:
    """Blocks of queries against keys, spread over the cores; the last ones leave half of the longest chain idle."""
    shaped = (ops.m > 0) & (ops.k > 0)
    head = np.maximum(ops.k, 1).astype(np.float64)
    each = 4.0 * BLOCK * BLOCK * head
    chain = np.ceil(ops.m / BLOCK)
    blocks = flops / each + ops.batch * chain / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        per_block = np.where(flops > 0, compute / flops, 0.0) * each * device.cores
    per_block = per_block * (np.minimum(head, BLOCK) / BLOCK) ** -HEAD_EXPONENT
    turns = np.maximum(blocks / device.cores + chain / 2, chain)
    return np.where(shaped, turns * per_block, compute)


def _correction(device: Device, ops: OpTable, table: MeasuredOps) -> F64:
    """Measured over predicted for similar ops of the table: weighted by distance in log FLOPs, bytes and shape.

    At a measured point the table is reproduced exactly; far from all of them, or in a class without any, 1 remains.
    """
    factor = np.ones(len(ops))
    at_table = roofline_ns(device, table.ops)
    for number in np.unique(ops.op_class).tolist():
        there = np.flatnonzero((table.ops.op_class == number) & np.isfinite(at_table) & (table.time_ns > 0))
        here = np.flatnonzero(ops.op_class == number)
        if not len(there):
            continue
        log_ratio = np.log(table.time_ns[there] / at_table[there])
        known = _features(table.ops.take(there))
        for first in range(0, len(here), 4096):
            rows = here[first : first + 4096]
            apart = _features(ops.take(rows))[:, None, :] - known[None, :, :]
            weight = 1.0 / ((apart**2).sum(axis=2) ** 1.5 + 1e-12)
            # A point at a distance of e**3 has no influence: outside the table the formula decides.
            factor[rows] = np.exp((weight * log_ratio).sum(axis=1) / (weight.sum(axis=1) + 3.0**-3))
    return factor


def _features(ops: OpTable) -> F64:
    columns = (ops.flops, ops.size_bytes, ops.m, ops.n, ops.k, ops.batch)
    return np.stack([np.log(np.maximum(c.astype(np.float64), 1.0)) for c in columns], axis=1)
