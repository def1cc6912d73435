"""Costs of a whole trace: its ops as a table, and the time of each."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.aten import aten_work, needs_values
from etude.cost.compute import MeasuredOps, compute_time_ns
from etude.cost.ops import OpClass, OpTable
from etude.kernels.arrays import I64
from etude.machine.system import Device
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace

OPTIMIZERS: Final = ("aten::_fused_adamw_", "aten::_fused_adam_", "aten::_fused_sgd_")
"""Updates of lists of weights, for which a trace may have the work and not the shapes."""


def ops_of(trace: Trace) -> OpTable:
    """The nodes of a trace as ops, row by row.

    FLOPs and bytes are the trace's own where it has them, else those of its recorded shapes. A kernel that says nothing
    does the work of the operator that launched it, if that launched no other. A compute node of which only FLOPs or
    bytes are known is of class OTHER, or OPTIMIZER by its name; every other node of class NONE.
    """
    columns = [*(trace.coded(name) for name in ("name", "in_shapes", "in_types")), values_of(trace)]
    key = np.zeros(len(trace), np.int64)
    texts = [["", *c[1]] for c in columns]  # -1, no text, is the first
    for (codes, _), words in zip(columns, texts, strict=True):
        key = key * len(words) + codes + 1
    unique, which = np.unique(key, return_inverse=True)
    works = [aten_work(*_words(number, texts)) for number in unique.tolist()]
    table = OpTable.of(works).take(np.asarray(which).ravel())
    table = table.take(_worker(trace, table.op_class == int(OpClass.NONE)))
    compute = trace.kind == int(Kind.COMP)
    flops = np.where(trace.flops != UNKNOWN, trace.flops, table.flops)
    size_bytes = np.where(trace.tensor_bytes != UNKNOWN, trace.tensor_bytes, table.size_bytes)
    known = (flops != UNKNOWN) | (size_bytes != UNKNOWN)
    codes, words = columns[0]
    updates = np.array([word in OPTIMIZERS for word in words] + [False])[codes]
    plain = np.where(updates, np.uint8(OpClass.OPTIMIZER), np.uint8(OpClass.OTHER))
    plain = np.where(known, plain, np.uint8(OpClass.NONE))
    op_class = np.where(table.op_class == int(OpClass.NONE), plain, table.op_class)
    return OpTable(
        op_class=np.where(compute, op_class, np.uint8(OpClass.NONE)).astype(np.uint8),
        dtype=table.dtype,
        flops=np.where(compute, flops, UNKNOWN),
        size_bytes=np.where(compute, size_bytes, UNKNOWN),
        m=table.m,
        n=table.n,
        k=table.k,
        batch=table.batch,
    )


def values_of(trace: Trace) -> tuple[NDArray[np.int32], list[str]]:
    """Codes and words of the values of arguments, for operators whose work depends on them."""
    codes, words = trace.coded("name")
    rows = np.flatnonzero(np.array([needs_values(word) for word in words] + [False])[codes])
    found = np.full(len(trace), -1, np.int32)
    found[rows], texts = trace.coded("in_values", rows)
    return found, texts


def _words(key: int, texts: list[list[str]]) -> list[str]:
    """The texts behind the codes of a key."""
    found = []
    for words in reversed(texts):
        key, code = divmod(key, len(words))
        found.append(words[code])
    return found[::-1]


def _worker(trace: Trace, silent: NDArray[np.bool_]) -> I64:
    """The row that describes the work of each row: its own, or its launching operator's."""
    rows = np.arange(len(trace))
    kernels = np.flatnonzero((trace.kind == int(Kind.COMP)) & (trace.cpu == 0) & (np.diff(trace.ctrl_start) > 0))
    if not len(kernels):
        return rows
    launcher = trace.ctrl[trace.ctrl_start[kernels]].astype(np.int64)
    host = (launcher >= 0) & (trace.cpu[np.maximum(launcher, 0)] == 1)
    kernels, launcher = kernels[host], launcher[host]
    alone = np.bincount(launcher, minlength=len(trace))[launcher] == 1
    takes = alone & silent[kernels] & ~silent[launcher]
    rows[kernels[takes]] = launcher[takes]
    return rows


def trace_time_ns(
    device: Device, trace: Trace, *, mode: str = "roofline", scale: float = 1.0, table: MeasuredOps | None = None
) -> I64:
    """Time of each node of a trace in ns; UNKNOWN if it is not a compute node, or its work is unknown."""
    if mode in ("measured", "scaled"):
        nodes = OpTable.plain(trace.flops, trace.tensor_bytes)
        time_ns = compute_time_ns(device, nodes, mode=mode, measured_ns=trace.duration_ns, scale=scale)
        return np.where(trace.kind == int(Kind.COMP), time_ns, UNKNOWN)
    return compute_time_ns(device, ops_of(trace), mode=mode, table=table)
