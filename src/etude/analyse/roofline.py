"""FLOP/s and bytes/s of operators against the peaks of the device, and its utilisation (MFU, HFU).

FLOPs and bytes are those that the trace says, else those that follow from an operator's recorded shapes (etude.cost).
An operator's time is that of all device work launched under it; where operators with known work call one another, the
innermost counts, so that nothing counts twice, and device work belongs to the nearest that counts. Products of 4-byte
numbers are compared with the rate of tf32 where the names of their kernels, or cuDNN's recorded `allow_tf32`, say that
they are computed so.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.breakdown import breakdown
from etude.analyse.device_work import on_device
from etude.analyse.grouping import by_rank, table
from etude.analyse.kernel_names import is_causal, is_tf32
from etude.analyse.kernels import add_to_callers
from etude.analyse.operators import device_times
from etude.cost.aten import aten_work, causal_known
from etude.cost.aten_matrix import CAUSAL
from etude.cost.ops import DTYPE_NUMBER, MATRIX, OpClass, OpTable
from etude.cost.traces import ops_of, values_of
from etude.kernels.arrays import I64, as_read
from etude.machine.system import Device
from etude.model.distinct import distinct
from etude.model.run import Run, RunPart
from etude.model.schema import UNKNOWN
from etude.model.trace import Trace
from etude.model.use import Use, segments, uses

__all__ = ["measured_ops", "not_known", "roofline", "utilisation"]

DTYPE: Final = {number: name for name, number in DTYPE_NUMBER.items()}


def roofline(run: Run, device: Device | None = None) -> pa.Table:
    """A row for each operator, shape and type: name, op_class, shapes, dtype, count, flops and size_bytes of one,
    at_most (FLOPs are an upper bound: whether attention is causal was not recorded), time_ns of all, flop_per_s,
    bytes_per_s, intensity (FLOPs per byte); with a device also bound (`compute` or `memory`) and roofline_pct, the
    percentage of the bound that is reached. The longest in all first.

    etude.roofline(run, etude.open_system("dgx-h100").device)
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    for part in run.parts():
        done = _measured(part)
        for key, count, total in _unique(part, done):
            entry = found.setdefault(key, [0, 0])
            entry[0] += count * len(part.at)
            entry[1] += total * len(part.at)
    rows_out = [_row(key, count, total, device) for key, (count, total) in found.items()]
    rows_out.sort(key=lambda row: -row["time_ns"])
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    names = {"name": text, "op_class": text, "shapes": text, "dtype": text, "count": whole, "flops": whole}
    names |= {"size_bytes": whole, "at_most": pa.bool_(), "time_ns": whole, "flop_per_s": real, "bytes_per_s": real}
    names |= {"intensity": real}
    return table(rows_out, names | ({"bound": text, "roofline_pct": real} if device else {}))


def measured_ops(run: Run) -> tuple[OpTable, I64]:
    """Distinct ops of a run as a table, and the mean time of each in ns, with equal ops of all ranks merged."""
    parts = [_measured(part) for part in run.parts()]
    columns = [f.name for f in fields(OpTable)]
    ops = OpTable(**{name: np.concatenate([getattr(p.ops, name) for p in parts]) for name in columns})
    time = np.concatenate([p.time for p in parts])
    alike = np.stack([getattr(ops, name).astype(np.int64) for name in columns], axis=1)
    _, first, which = np.unique(alike, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(which.ravel(), weights=time) / np.bincount(which.ravel())
    return ops.take(first), total.round().astype(np.int64)


def not_known(run: Run) -> pa.Table:
    """Device work with unknown FLOPs and bytes: name (of the operator that launched it, else its own), count, time_ns;
    the longest total first."""
    found: dict[str, list[int]] = {}
    for part in run.parts():
        kernels = _kernels(part)
        owner = _owner(part.trace, _measured(part).rows)[kernels]
        kernels = kernels[owner < 0]
        caller = part.trace.parent[kernels]
        codes, words = part.trace.coded("name", np.where(caller >= 0, caller, kernels))
        time = (part.end_ns - part.start_ns)[kernels]
        for code in np.unique(codes).tolist():
            entry = found.setdefault(words[code] if code >= 0 else "", [0, 0])
            entry[0] += int((codes == code).sum()) * len(part.at)
            entry[1] += int(time[codes == code].sum()) * len(part.at)
    longest = sorted(found.items(), key=lambda item: -item[1][1])
    rows = [{"name": name, "count": count, "time_ns": ns} for name, (count, ns) in longest]
    return table(rows, {"name": pa.string(), "count": pa.int64(), "time_ns": pa.int64()})


class _Measured(NamedTuple):
    """Rows with known work, the device time of each, what they do, and whether FLOPs are an upper bound."""

    rows: I64
    time: I64
    ops: OpTable
    at_most: NDArray[np.bool_]


def _measured(part: RunPart) -> _Measured:
    trace = part.trace
    ops = ops_of(trace)
    use = uses(trace)
    known = (ops.flops != UNKNOWN) | (ops.size_bytes != UNKNOWN)
    known &= ops.op_class != OpClass.NONE
    lasted = np.where(part.timed, part.end_ns - np.where(part.timed, part.start_ns, 0), 0)
    beside = (use == Use.HOST) | ((use == Use.NONE) & (trace.cpu == 1))
    operators = _innermost(trace, np.flatnonzero(known & beside & (device_times(part)[1] > 0)), ops)
    owner = _owner(trace, operators)
    device = np.flatnonzero(on_device(part, use) & (trace.cpu != 1) & (owner >= 0))
    time = np.where(beside, 0, lasted)
    np.add.at(time, owner[device], lasted[device])
    operators = operators[time[operators] > 0]
    rows = np.concatenate([operators, np.flatnonzero(known & (time > 0) & (use == Use.COMPUTE) & (owner < 0))])
    ops, at_most = _as_computed(part, rows, ops.take(rows))
    return _Measured(rows, time[rows], ops, at_most)


def _innermost(trace: Trace, rows: I64, ops: OpTable) -> I64:
    """Which of nested operators count. A product, attention or convolution counts although it calls fills or copies,
    with the rest of its time; otherwise the innermost counts."""
    matrix = np.isin(ops.op_class[rows], MATRIX)
    inner, products = _called(trace, rows)[rows], _called(trace, rows[matrix])[rows]
    return rows[(inner == 0) | (matrix & (products == 0))]


def _kernels(part: RunPart) -> I64:
    return np.flatnonzero(on_device(part, uses(part.trace)) & (uses(part.trace) == Use.COMPUTE) & (part.trace.cpu != 1))


def _as_computed(part: RunPart, rows: I64, ops: OpTable) -> tuple[OpTable, NDArray[np.bool_]]:
    """The work of these rows as their kernels did it: products in tf32, causal attention by the pairs that it computes;
    and of which rows it is not known whether they are causal."""
    trace, kernels = part.trace, _kernels(part)
    place = np.full(len(trace) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    of = place[_owner(trace, rows)[kernels]]
    kernels, of = kernels[of >= 0], of[of >= 0]
    codes, words = trace.coded("name", kernels)
    tf32 = np.zeros(len(rows), bool)
    tf32[of[np.array([is_tf32(word) for word in words] + [False])[codes]]] = True
    names, texts = trace.coded("name", rows)
    values, given = values_of(trace)
    allowed = np.array([bool(_ALLOWS.search(text)) for text in given] + [False])[values[rows]]
    silent = ~np.isin(np.arange(len(rows)), of)  # nothing ran for it on a device
    tf32 |= np.array([word == _CUDNN for word in texts] + [False])[names] & allowed & silent
    wide = np.isin(ops.dtype, (DTYPE_NUMBER["fp32"], DTYPE_NUMBER[""])) & np.isin(
        ops.op_class, (*MATRIX, OpClass.OTHER)
    )
    ops = replace(ops, dtype=np.where(wide & tf32, np.uint8(DTYPE_NUMBER["tf32"]), ops.dtype))
    attention = np.flatnonzero([name in CAUSAL for name in (texts[c] if c >= 0 else "" for c in names.tolist())])
    at_most, flops = np.zeros(len(rows), bool), ops.flops.copy()
    says = np.array([-1 if (flag := is_causal(word)) is None else int(flag) for word in words] + [-1])[codes]
    for i in attention.tolist():
        value = int(values[rows[i]])
        if causal_known(texts[names[i]], given[value] if value >= 0 else ""):
            continue
        flags = says[(of == i) & (says >= 0)]
        at_most[i] = not len(flags)
        if len(flags):
            flops[i] = _flops(trace, int(rows[i]), bool(flags.max()))
    return replace(ops, flops=flops), at_most


_CUDNN: Final = "aten::cudnn_convolution"
_ALLOWS: Final = re.compile(r"[\"']?true[\"']?\s*\]$", re.IGNORECASE)
"""`allow_tf32` is its last argument."""


def _flops(trace: Trace, row: int, causal: bool) -> int:
    """FLOPs of one attention, if it is causal or not."""
    texts = [
        words[codes[0]] if codes[0] >= 0 else ""
        for codes, words in (trace.coded(column, np.array([row])) for column in ("name", "in_shapes", "in_types"))
    ]
    return aten_work(*texts, causal=causal).flops


def _called(trace: Trace, rows: I64) -> I64:
    """How many of these rows each node called, directly or not."""
    count = np.zeros(len(trace), np.int64)
    add_to_callers(as_read(trace.parent), rows, np.ones(len(rows), np.int64), count)
    return count


def _owner(trace: Trace, rows: I64) -> I64:
    """The nearest of these rows that each node is, or that called or launched it, directly or not; -1: none."""
    found = np.full(len(trace), -1, np.int64)
    found[rows] = rows
    parent = np.where(trace.parent >= 0, trace.parent, np.arange(len(trace)))
    while True:
        more = np.where(found < 0, found[parent], found)
        if (more == found).all():
            return found
        found = more


def _unique(part: RunPart, done: _Measured) -> list[tuple[tuple[Any, ...], int, int]]:
    rows, ops = done.rows, done.ops
    if not len(rows):
        return []
    names, words = part.trace.coded("name")
    shapes, texts = part.trace.coded("in_shapes")
    own = segments(part.trace)[rows] & (part.trace.parent[rows] >= 0)
    named = np.where(own, part.trace.parent[rows], rows)  # what an operator does between others is called by its name
    columns: list[NDArray[Any]] = [names[named], shapes[named], ops.op_class, ops.dtype, ops.flops, ops.size_bytes]
    unique, which = distinct([*columns, done.at_most])
    count = np.bincount(which)
    total = np.zeros(len(unique), np.int64)
    np.add.at(total, which, done.time)
    return [
        ((words[n] if n >= 0 else "", texts[s] if s >= 0 else "", *rest), int(count[i]), int(total[i]))
        for i, (n, s, *rest) in enumerate(unique.tolist())
    ]


def _row(key: tuple[Any, ...], count: int, time_ns: int, device: Device | None) -> dict[str, Any]:
    name, shapes, op_class, dtype, flops, size, at_most = key
    flops, size = (None if value == UNKNOWN else value for value in (flops, size))
    row: dict[str, Any] = {
        "name": name,
        "op_class": OpClass(op_class).name.lower(),
        "shapes": shapes,
        "dtype": DTYPE[dtype],
        "count": count,
        "flops": flops,
        "size_bytes": size,
        "at_most": bool(at_most),
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
    """Minimum seconds for the FLOPs, and for the bytes; 0 where nothing is known."""
    rate = peak_flop_per_s(op_class, dtype, device)
    memory = device.memory_bandwidth_bytes_per_s
    return (flops / rate if flops and rate else 0.0), (size / memory if size and memory else 0.0)


def peak_flop_per_s(op_class: int, dtype: int, device: Device) -> float:
    """Peak of the units that an op of this class runs on: the matrix units, or the vector units' fp32 rate. An op of
    unknown type counts as bf16."""
    return device.peak(DTYPE[dtype] or "bf16") if OpClass(op_class) in (*MATRIX, OpClass.OTHER) else device.peak("fp32")


def utilisation(run: Run, device: Device, *, model_flops: int | None = None) -> pa.Table:
    """One row per rank: flops (executed, where known), span_ns, flop_per_s, hfu and, where the FLOPs that the model
    needs are given (on each rank, over the span), mfu. Utilisation is the time that the device's peak rates would need
    over the span; executed FLOPs include recomputation."""
    job = run.job
    span = dict(zip(job.ranks.tolist(), breakdown(run)["span_ns"].to_pylist(), strict=True))
    rows = []
    for part in run.parts():
        ops = _measured(part).ops
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
