"""A device's constants from a table of measured ops."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from os import PathLike
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError
from etude.base.figures import key_of
from etude.cost.compute import MeasuredOps, roofline_ns
from etude.cost.fit import fit
from etude.cost.ops import OpClass, OpTable, Work
from etude.kernels.arrays import F64
from etude.machine.system import Device, OpCost

# The parameters that the rows of each class determine: name, start, factor by which it may differ.
_FIXED: Final = ("fixed_ns", 2500.0, 1.5)
_MEMORY: Final = ("memory_efficiency", 0.9, 1.05)
_CACHE: Final = ("cache_speedup", 2.0, 1.3)
_ALONG: Final = ("depth_ns", 700.0, 2.0)
_ROWS: Final = (_FIXED, ("memory_efficiency", 0.9, 1.3), ("row_ns", 0.5, 2.0), ("width_exponent", 0.15, 2.0))
_PARAMETERS: Final[dict[OpClass, tuple[tuple[str, float, float], ...]]] = {
    OpClass.COPY: (_FIXED, _MEMORY, _CACHE),
    OpClass.ELEMENTWISE: (_FIXED, _MEMORY),
    OpClass.ACTIVATION: (_FIXED, ("flop_efficiency", 0.1, 2.0), _ALONG),
    OpClass.NORMALISATION: (*_ROWS, _ALONG),
    OpClass.SOFTMAX: _ROWS,
    OpClass.EMBEDDING: (_FIXED, ("traffic", 1.5, 2.0)),
    OpClass.GEMM: (
        _FIXED,
        _MEMORY,
        ("flop_efficiency", 0.85, 1.1),
        ("depth_ns", 600.0, 1.5),
        ("wave_ns", 400.0, 2.0),
        ("tile_falloff", 0.2, 2.0),
        ("split_ns", 3000.0, 2.0),
        ("epilogue", 0.4, 2.0),
        _CACHE,
        ("sustained_fraction", 0.87, 1.1),
        ("sustained_after_ns", 150_000.0, 2.0),
    ),
    OpClass.GROUPED_GEMM: (
        ("fixed_ns", 15_000.0, 1.5),
        ("memory_efficiency", 0.8, 1.2),
        ("flop_efficiency", 0.85, 1.1),
        ("depth_ns", 600.0, 1.5),
        ("wave_ns", 400.0, 2.0),
        ("tile_falloff", 0.2, 2.0),
        ("split_ns", 30_000.0, 1.5),
        ("epilogue", 0.4, 2.0),
    ),
    OpClass.ATTENTION: (("fixed_ns", 4000.0, 1.5), ("flop_efficiency", 0.65, 1.15)),
    OpClass.ATTENTION_DECODE: (("fixed_ns", 4000.0, 1.5), ("traffic", 1.0, 1.5)),
}
_KNOWN_SPREAD: Final = 0.4
"""Constants that the device already has are kept closer: spread to the power of this."""
_OF_DEVICE: Final = ("cache_speedup", "sustained_fraction", "sustained_after_ns")
_FRACTIONS: Final = ("flop_efficiency", "memory_efficiency", "sustained_fraction")


def calibrate(device: Device, measured: MeasuredOps) -> Device:
    """The device with constants fitted to measured ops, class by class; a class without rows keeps its constants.

    The search starts from the device's own constants, if any, and otherwise from general ones; so few rows move a
    constant only as far as necessary.
    """
    known, found = device, set[str]()
    for op_class, general in _PARAMETERS.items():
        rows = np.flatnonzero(measured.ops.op_class == int(op_class))
        if not len(rows):
            continue
        ops, time_ns = measured.ops.take(rows), measured.time_ns[rows].astype(np.float64)
        # Constants of the device are fitted with the first class that depends on them. Rows without a width do not.
        parameters = [p for p in general if p[0] not in found and (p is not _ALONG or ops.n.any())]
        found |= {name for name, _, _ in parameters if name in _OF_DEVICE}
        names = [name for name, _, _ in parameters]
        start = np.array([_start(known, op_class, name, general) for name, general, _ in parameters])
        trust = _KNOWN_SPREAD if op_class.key in known.ops else 1.0
        spread = np.array([factor**trust for _, _, factor in parameters])
        predict = _predictor(device, op_class, names, ops)
        device = _with(device, op_class, names, fit(predict, time_ns, start, spread))
    return device


def _start(device: Device, op_class: OpClass, name: str, general: float) -> float:
    if op_class.key not in device.ops:
        return general
    value = float(getattr(device if name in _OF_DEVICE else device.ops[op_class.key], name))
    return value or general


def described(device: Device) -> list[str]:
    """Constants of a device as lines of its file, to three digits."""
    of_device = {key_of(f): getattr(device, f.name) for f in fields(Device) if f.name in _OF_DEVICE}
    lines = [f"{key}: {_digits(value)}" for key, value in of_device.items()]
    lines.append("ops:")
    for name, cost in device.ops.items():
        changed = {key_of(f): getattr(cost, f.name) for f in fields(OpCost) if getattr(cost, f.name) != f.default}
        lines.append(f"  {name}: {{{', '.join(f'{key}: {_digits(value)}' for key, value in changed.items())}}}")
    return lines


def _digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):.10g}"


def _predictor(device: Device, op_class: OpClass, names: list[str], ops: OpTable) -> Callable[[F64], F64]:
    return lambda values: roofline_ns(_with(device, op_class, names, values), ops)


def _with(device: Device, op_class: OpClass, names: list[str], values: Iterable[float]) -> Device:
    of_op: dict[str, float] = {}
    of_device: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        value = min(float(value), 1.0) if name in _FRACTIONS else float(value)
        value = max(value, 1.0) if name == "cache_speedup" else value
        (of_device if name in _OF_DEVICE else of_op)[name] = value
    return replace(device, ops={**device.ops, op_class.key: OpCost(**of_op)}, **of_device)  # type: ignore[arg-type]


# ---- tables of measured ops


_FAMILY: Final[dict[str, OpClass]] = {
    "linear": OpClass.GEMM,
    "grouped": OpClass.GROUPED_GEMM,
    "grouped_weight": OpClass.GROUPED_GEMM,
    "grouped_uneven": OpClass.RAGGED_GEMM,
    "grouped_weight_zipf05": OpClass.GROUPED_GEMM,
    "grouped_weight_zipf1": OpClass.GROUPED_GEMM,
    "grouped_zipf05": OpClass.RAGGED_GEMM,
    "grouped_zipf1": OpClass.RAGGED_GEMM,
    "sdpa_causal": OpClass.ATTENTION,
    "sdpa_decode": OpClass.ATTENTION_DECODE,
    "add": OpClass.ELEMENTWISE,
    "gelu": OpClass.ACTIVATION,
    "copy": OpClass.COPY,
    "layernorm": OpClass.NORMALISATION,
    "rmsnorm": OpClass.NORMALISATION,
    "gather": OpClass.EMBEDDING,
    "cast": OpClass.COPY,
    "softmax": OpClass.SOFTMAX,
}


def read_measured(path: str | PathLike[str]) -> tuple[list[str], MeasuredOps]:
    """(`op shape` of each row, the ops and their times) of a CSV with columns op, shape, flops, bytes, microseconds."""
    names, works, times = [], [], []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"cannot be read: {getattr(problem, 'strerror', None) or problem}", path=path) from None
    for line, row in enumerate(rows, 2):
        try:
            works.append(row_work(row))
            times.append(_fitting(round(float(row["microseconds"]) * 1000)))
        except KeyError as problem:
            hint = "columns: op, shape, flops, bytes, microseconds"
            raise FormatError(f"line {line}: no column {problem}", path=path, hint=hint) from None
        except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as problem:
            raise FormatError(f"line {line}: {problem!r}", path=path) from None
        names.append(f"{row['op']} {row['shape']}")
    return names, MeasuredOps(OpTable.of(works), np.array(times, np.int64))


def _fitting(number: int) -> int:
    """A number of a file, if a column can hold it."""
    if abs(number) >= 1 << 62:
        raise ValueError(f"{number} is too large")
    return number


def row_work(row: dict[str, Any]) -> Work:
    """The op of a row of such a file."""
    family, _, dtype = row["op"].rpartition("_")
    op_class = _FAMILY.get(family, OpClass.OTHER)
    sizes = [_fitting(int(part)) for part in row["shape"].split("x")]
    flops, size_bytes = _fitting(round(float(row["flops"]))), _fitting(round(float(row["bytes"])))
    known = {"op_class": op_class, "flops": flops, "size_bytes": size_bytes, "dtype": dtype}
    if op_class == OpClass.GEMM:
        return Work(m=sizes[0], n=sizes[1], k=sizes[2], **known)
    if op_class in (OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM):
        count, rows, n, k = sizes
        m, n, k = (n, k, rows) if family.startswith("grouped_weight") else (rows, n, k)
        return Work(m=m, n=n, k=k, batch=count, **known)
    if op_class in (OpClass.ATTENTION, OpClass.ATTENTION_DECODE):
        batch, heads, length, head_size = sizes
        queries = length if op_class == OpClass.ATTENTION else 1
        return Work(m=queries, n=length, k=head_size, batch=_fitting(batch * heads), **known)
    if op_class in (OpClass.NORMALISATION, OpClass.SOFTMAX):
        return Work(m=sizes[0], n=sizes[1], **known)
    return Work(**known)
