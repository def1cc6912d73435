"""Operators of recordings with their times on the device and the host, by name, shapes and types."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from etude.cost.aten_inputs import listed, tensor_types
from etude.cost.traces import trace_time_ns
from etude.kernels.arrays import F64, I64, Bool
from etude.machine.system import Device
from etude.model.frames import DISPATCH, frames
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace

OTHER_RANK: Final = 1000
"""Distance of operators whose tensors have another number of dimensions."""
DEVICE_PACE: Final = 0.9
"""Part of a step that the device works, from which on it sets the pace."""
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class OperatorKey(NamedTuple):
    name: str
    shapes: Shapes
    """Of tensors of at least one dimension."""
    types: tuple[str, ...]

    @property
    def elements(self) -> int:
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    def distance(self, other: OperatorKey) -> tuple[int, float]:
        """(Sizes and types that differ, how far the numbers of elements are apart.)"""
        apart = float(abs(np.log(max(self.elements, 1) / max(other.elements, 1))))
        if [len(shape) for shape in self.shapes] != [len(shape) for shape in other.shapes]:
            return OTHER_RANK, apart
        sizes = zip(self.shapes, other.shapes, strict=True)
        differ = sum(x != y for mine, theirs in sizes for x, y in zip(mine, theirs, strict=True))
        return differ + 2 * sum(x != y for x, y in zip(self.types, other.types, strict=False)), apart


class OperatorTime(NamedTuple):
    device_ns: float
    inside_ns: float
    """Of the host, in it and in what it calls."""
    formula_ns: float
    """What the formulas of a device give for it; NaN where they do not know it."""


@dataclass(slots=True)
class RecordedOperators:
    """Of the names that are asked for, the outermost ones, with all that they call."""

    names: set[str]
    device: Device | None
    times: dict[OperatorKey, list[OperatorTime]]
    by_name: dict[str, list[OperatorKey]]
    host: dict[tuple[str, str], list[tuple[float, float]]]
    """Host time before an operator and in it, by the name before and its own; by its own alone with `` before."""
    device_ns: float = 0.0
    placed_ns: float = 0.0
    """Device time, and that of it which belongs to these operators."""
    host_factor: float = 1.0

    @classmethod
    def of(cls, job: Job, names: set[str], device: Device | None) -> RecordedOperators:
        made = cls(
            names | {f"{name}_" for name in names}, device, defaultdict(list), defaultdict(list), defaultdict(list)
        )
        for trace in job.traces:
            made._add(trace)
        made.host_factor = _host_factor(job, made.device_ns)
        return made

    def time_of(self, key: OperatorKey) -> OperatorTime | None:
        """The mean of an operator's times, if it was recorded with these shapes; also if it is in place."""
        found = self.times.get(key) or self.times.get(key._replace(name=f"{key.name}_"))
        return OperatorTime(*np.mean(found, axis=0).tolist()) if found else None

    def nearest(self, key: OperatorKey) -> tuple[OperatorKey, OperatorTime] | None:
        """The recorded operator of that name which differs least."""
        found = [*self.by_name.get(key.name, ()), *self.by_name.get(f"{key.name}_", ())]
        if not found:
            return None
        best = min(found, key=key.distance)
        return best, OperatorTime(*np.mean(self.times[best], axis=0).tolist())

    def host_ns(self, before: str, name: str) -> tuple[float, float]:
        """The host's time before an operator and in it; of one that was not recorded, that of all."""
        places = [(last, word) for word in (name, f"{name}_") for last in (before, "")]
        found = next((self.host[place] for place in places if place in self.host), None)
        if found is None:
            found = [value for (last, _), values in self.host.items() if not last for value in values]
        ahead, inside = (self.host_factor * np.mean(found, axis=0)).tolist() if found else (0.0, 0.0)
        return ahead, inside

    def formula_factor(self) -> float:
        """Recorded device time over what the formulas give, in the median."""
        ratios = [
            one.device_ns / one.formula_ns for found in self.times.values() for one in found if one.formula_ns > 0
        ]
        return float(np.median([ratio for ratio in ratios if ratio > 0] or [1.0]))

    def _add(self, trace: Trace) -> None:
        codes, words = trace.coded("name")
        outer = _outermost(trace, np.array([word in self.names for word in words] + [False])[codes])
        rows = np.flatnonzero((outer == np.arange(len(trace))) & _in_steps(trace))
        if not len(rows):
            return
        rows = rows[np.lexsort((rows, trace.thread[rows]))]
        inside, before, device = _own_times(trace, outer, rows)
        self.device_ns += float(trace.duration_ns[_on_device(trace)].sum())
        self.placed_ns += float(device.sum())
        formula, last, thread = formula_ns(trace, rows, self.device), "", UNKNOWN
        for i, key in enumerate(operator_keys(trace, rows)):
            if trace.thread[rows[i]] != thread:
                last, thread = "", trace.thread[rows[i]]
            if key not in self.times:
                self.by_name[key.name].append(key)
            self.times[key].append(OperatorTime(float(device[i]), float(inside[i]), float(formula[i])))
            for one in {last, ""}:
                self.host[one, key.name].append((float(before[i]), float(inside[i])))
            last = key.name


def _host_factor(job: Job, device_ns: float) -> float:
    """Factor on the host's times where the device sets the pace: then a step without a profiler says nothing of the
    host, but the shortest one does, in which it ran ahead."""
    told = [int(job.provenance.get(name, "0")) for name in ("unprofiled_step_ns", "unprofiled_least_ns")]
    steps = sum(len(np.unique(trace.step[_in_steps(trace)])) for trace in job.traces)
    host_ns = sum(float(trace.duration_ns[_on_host(trace)].sum()) for trace in job.traces) / max(steps, 1)
    if not all(told) or device_ns / max(steps, 1) < DEVICE_PACE * told[0]:
        return 1.0
    return min(1.0, told[1] / host_ns) if host_ns else 1.0


def operator_keys(trace: Trace, rows: I64) -> list[OperatorKey]:
    columns = [trace.coded(name) for name in ("name", "in_shapes", "in_types")]
    made: dict[tuple[int, ...], OperatorKey] = {}
    found = []
    for codes in zip(*(codes[rows].tolist() for codes, _ in columns), strict=True):
        if codes not in made:
            texts = [words[code] if code >= 0 else "" for code, (_, words) in zip(codes, columns, strict=True)]
            made[codes] = OperatorKey(texts[0], _shapes(texts[1]), _types(texts[2]))
        found.append(made[codes])
    return found


def _types(text: str) -> tuple[str, ...]:
    return tuple(one for given in listed(text) if "Tensor(" in str(given) for one in tensor_types(given))


def _shapes(text: str) -> Shapes:
    found: list[tuple[int, ...]] = []

    def walk(value: Any) -> None:
        if isinstance(value, list) and value and all(isinstance(size, int) for size in value):
            found.append(tuple(value))
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(listed(text))
    return tuple(found)


def formula_ns(trace: Trace, rows: I64, device: Device | None) -> F64:
    """What the formulas of a device give for nodes; NaN where they do not know."""
    if device is None:
        return np.full(len(rows), np.nan)
    found = trace_time_ns(device, trace)[rows]
    return np.where(found == UNKNOWN, np.nan, found.astype(np.float64))


# -- nodes of a recording ----------------------------------------------------------------------------------------------


def _outermost(trace: Trace, known: Bool) -> I64:
    """The outermost operator of a known name that each node is in; -1: none."""
    found = np.where(known & (trace.cpu == 1), np.arange(len(trace)), -1)
    above = trace.parent.astype(np.int64)
    at = above.copy()
    while (at >= 0).any():
        inside = np.maximum(at, 0)
        found = np.where((at >= 0) & known[inside], inside, found)
        at = np.where(at >= 0, above[inside], -1)
    return found


def _own_times(trace: Trace, outer: I64, rows: I64) -> tuple[F64, F64, F64]:
    """(Host time inside of each operator, host time between the one before it and it, its device time.) `rows` are
    sorted by thread and time. What comes after the last of a thread counts for that one."""
    number = np.full(len(trace) + 1, -1, np.int64)
    number[rows] = np.arange(len(rows))
    host = np.flatnonzero(_on_host(trace) & _in_steps(trace))
    own = number[outer[host]]
    inside = np.bincount(own[own >= 0], trace.duration_ns[host[own >= 0]], len(rows))
    gaps = host[own < 0]
    thread = np.unique(trace.thread, return_inverse=True)[1].reshape(-1)
    place = thread * np.int64(len(trace)) + np.arange(len(trace))
    following = np.searchsorted(place[rows], place[gaps])
    to = np.minimum(following, len(rows) - 1)
    to = np.where(thread[rows[to]] == thread[gaps], to, np.maximum(following - 1, 0))
    same = thread[rows[to]] == thread[gaps]
    before = np.bincount(to[same], trace.duration_ns[gaps[same]], len(rows))
    work = np.flatnonzero(_on_device(trace) & (outer >= 0))
    of = number[outer[work]]
    device = np.bincount(of[of >= 0], trace.duration_ns[work[of >= 0]], len(rows))
    return inside.astype(np.float64), before.astype(np.float64), device.astype(np.float64)


def _on_device(trace: Trace) -> Bool:
    works = np.isin(trace.kind, (Kind.COMP, Kind.MEM_LOAD, Kind.MEM_STORE))
    return (trace.cpu == 0) & works & (trace.duration_ns > 0) & _in_steps(trace)


def _on_host(trace: Trace) -> Bool:
    """Host time; dispatch delays of the device are not."""
    codes, words = trace.coded("name")
    is_way = np.array([word == DISPATCH for word in words] + [False])[codes]
    timed = (trace.kind == Kind.COMP) & (trace.duration_ns > 0)
    return (trace.cpu == 1) & timed & ~frames(trace) & ~(is_way & (trace.parent < 0)) & _in_steps(trace)


def _in_steps(trace: Trace) -> Bool:
    known = trace.step != UNKNOWN
    return known if known.any() else ~known
