"""Times from measured points: exact at a point, interpolated between points of a key, scaled roofline elsewhere.

The logarithm of measured over roofline is interpolated, linear in the logarithms of the free dimensions, one dimension
after another. Outside a key's points the ratio of the nearest edge holds, so that the roofline joins there. A key
without points takes the ratios of the nearest keys of its op, with weights that fall with distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.cost.compute import roofline_ns
from etude.cost.opdb.schema import ATTENTION, ATTENTION_BACKWARD, DIMS, FIXED, OPS, Shapes, distinct, packed, works_of
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device

Key = tuple[str, str, tuple[int, ...]]
"""Op, data type, fixed dimensions."""

NEAREST: Final = 6
"""Keys that a key without points takes ratios from."""
REACH: Final = 1.0
"""Distance in logarithms of fixed dimensions at which the roofline counts as much as a key."""


KINDS: Final = tuple(FIXED.index(name) for name in ("inputs", "element_bytes"))
"""Dimensions that are not sizes."""
SIXTEEN_BITS: Final = {"bf16": ("fp16",), "fp16": ("bf16",)}


class TimeOrigin(IntEnum):
    """Origin of a time."""

    NONE = 0
    """Neither points nor a roofline."""
    MEASURED = 1
    BETWEEN = 2
    """Interpolated between points of its key."""
    OUTSIDE = 3
    """The roofline, scaled to join the points of its key."""
    NEAR = 4
    """The roofline, corrected by other keys of its op."""
    ROOFLINE = 5


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The points of one key: logarithms of free dimensions, and of measured over roofline."""

    at: F64
    log_ratio: F64


def log_ratio_at(curve: Curve, where: F64) -> tuple[F64, NDArray[np.bool_]]:
    """Interpolated values at these places, and whether each is within the points."""
    return _along(curve.at, curve.log_ratio, where)


def _along(at: F64, value: F64, where: F64) -> tuple[F64, NDArray[np.bool_]]:
    """Linear in the first dimension between values that are linear in the others."""
    if at.shape[1] == 0:
        return np.full(len(where), value.mean()), np.ones(len(where), bool)
    if at.shape[1] == 1:
        order = np.argsort(at[:, 0], kind="stable")
        known, x = at[order, 0], where[:, 0]
        return np.interp(x, known, value[order]), (x >= known[0]) & (x <= known[-1])
    levels, level_of = np.unique(at[:, 0], return_inverse=True)
    x = where[:, 0]
    upper = np.clip(np.searchsorted(levels, x, side="left"), 0, len(levels) - 1)
    lower = np.where((upper > 0) & (levels[upper] > x), upper - 1, upper)
    gap = levels[upper] - levels[lower]
    weight = np.where(gap > 0, (x - levels[lower]) / np.where(gap > 0, gap, 1.0), 0.0)
    found, inside = np.zeros(len(x)), (x >= levels[0]) & (x <= levels[-1])
    for number in np.unique(np.concatenate([lower, upper])).tolist():
        here = level_of == number
        part = np.where(lower == number, 1.0 - weight, 0.0) + np.where(
            (upper == number) & (upper != lower), weight, 0.0
        )
        rows = np.flatnonzero((lower == number) | (upper == number))
        there, within = _along(at[here, 1:], value[here], where[rows, 1:])
        found[rows] += part[rows] * there
        inside[rows] &= within | (part[rows] == 0)
    return found, inside


def coordinates(op: str, dims: I64) -> F64:
    """Logarithms of the free dimensions of an op. Keys of attention count from its queries on, since they grow
    together."""
    column = {name: dims[:, DIMS.index(name)].astype(np.float64) for name in OPS[op].free}
    if op in (ATTENTION, ATTENTION_BACKWARD):
        column["keys"] = column["keys"] - column["tokens"]
    found = [np.sign(x) * np.log1p(np.abs(x)) for x in column.values()]
    return np.stack(found, axis=1) if found else np.zeros((len(dims), 0))


class Curves:
    """The points of a database, key by key, against the roofline of a device."""

    def __init__(self, points: Shapes, time_ns: F64, device: Device) -> None:
        self.device = device
        # For a device without a roofline, the time itself is interpolated.
        self._log_ratio = np.log(time_ns / _base_ns(device, points)[0])
        self._points = points
        self._rows = _by_key(points)
        self._curves: dict[Key, Curve] = {}
        self._by_op: dict[tuple[str, str], list[tuple[int, ...]]] = {}
        for op, dtype, dims in self._rows:
            self._by_op.setdefault((op, dtype), []).append(dims)

    def time_ns(self, shapes: Shapes) -> tuple[F64, NDArray[np.uint8]]:
        """Time of each op (NaN if unknown) and its `TimeOrigin`."""
        first, which = distinct(shapes)
        once = shapes.take(first)
        base, known = _base_ns(self.device, once)
        log_ratio = np.zeros(len(once))
        origin = np.where(known, np.uint8(TimeOrigin.ROOFLINE), np.uint8(TimeOrigin.NONE))
        for key, rows in _by_key(once).items():
            log_ratio[rows], origin[rows] = self._of_key(key, once.dims[rows], known[rows])
        time = np.where(origin == TimeOrigin.NONE, np.nan, base * np.exp(log_ratio))
        return time[which], origin[which]

    def _of_key(self, key: Key, dims: I64, known: NDArray[np.bool_]) -> tuple[F64, NDArray[np.uint8]]:
        op, _, fixed = key
        where = coordinates(op, dims)
        for name, dtype in _alike(key):
            if (name, dtype, fixed) in self._rows:
                curve = self._curve((name, dtype, fixed))
                found, inside = log_ratio_at(curve, where)
                exact = np.isin(packed(where), packed(curve.at)) if where.shape[1] else np.ones(len(where), bool)
                origin = np.where(exact, np.uint8(TimeOrigin.MEASURED), np.uint8(TimeOrigin.BETWEEN))
                # Without a roofline times cannot be extrapolated.
                beyond = np.where(known, np.uint8(TimeOrigin.OUTSIDE), np.uint8(TimeOrigin.NONE))
                return found, np.where(inside, origin, beyond)
        near = self._near(key, where)
        instead = TimeOrigin.ROOFLINE if near is None else TimeOrigin.NEAR
        found = np.zeros(len(dims)) if near is None else near
        return found, np.where(known, np.uint8(instead), np.uint8(TimeOrigin.NONE))

    def _curve(self, key: Key) -> Curve:
        if key not in self._curves:
            rows = self._rows[key]
            at = coordinates(key[0], self._points.dims[rows])
            self._curves[key] = Curve(at, self._log_ratio[rows])
        return self._curves[key]

    def _near(self, key: Key, where: F64) -> F64 | None:
        """Ratios of the nearest keys of this op at these places, weighted by distance; None: there are none."""
        op_and_type = next((pair for pair in _alike(key) if pair in self._by_op), None)
        if op_and_type is None:
            return None
        # The same number and width of inputs: otherwise it is another kernel.
        others = [dims for dims in self._by_op[op_and_type] if all(dims[i] == key[2][i] for i in KINDS)]
        if not others:
            return None
        apart = np.log1p(np.array(others, np.float64)) - np.log1p(np.array(key[2], np.float64))
        distance = np.sqrt((apart**2).sum(axis=1))
        nearest = np.argsort(distance, kind="stable")[:NEAREST]
        weights = 1.0 / distance[nearest] ** 2
        ratios = np.stack([log_ratio_at(self._curve((*op_and_type, others[i])), where)[0] for i in nearest.tolist()])
        found: F64 = (weights[:, None] * ratios).sum(axis=0) / (weights.sum() + REACH**-2)
        return found


def _alike(key: Key) -> list[tuple[str, str]]:
    """Ops and data types whose curves can be used, the best first. Both 16-bit types take the same time."""
    op, dtype, _ = key
    types = (dtype, *SIXTEEN_BITS.get(dtype, ()))
    return [(name, kind) for name in (op, *OPS[op].instead) for kind in types]


def _base_ns(device: Device, shapes: Shapes) -> tuple[F64, NDArray[np.bool_]]:
    """The roofline, 1 if there is none; and a mask of where there is one."""
    formula = roofline_ns(device, works_of(shapes))
    known = np.isfinite(formula) & (formula > 0)
    return np.where(known, formula, 1.0), known


def _by_key(shapes: Shapes) -> dict[Key, I64]:
    """Rows of each key, as they come."""
    rows: dict[Key, list[int]] = {}
    fixed = shapes.dims[:, : len(FIXED)].tolist()
    for row, key in enumerate(zip(shapes.op.tolist(), shapes.dtype.tolist(), map(tuple, fixed), strict=True)):
        if key[0]:
            rows.setdefault(key, []).append(row)
    return {key: np.array(found, np.int64) for key, found in rows.items()}
