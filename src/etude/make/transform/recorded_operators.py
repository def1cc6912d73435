"""Operators of recordings with their times on the device and the host, by name, shapes and types."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from etude.cost.aten_inputs import listed, tensor_types
from etude.cost.compute import compute_time_ns
from etude.cost.ops import DTYPE_NUMBER, OpClass
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64, I64, Bool
from etude.machine.system import Device
from etude.model.frames import host_work
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
    """Means of the calls of an operator."""

    device_ns: float
    inside_ns: float
    """Of the host, in it and in what it calls."""
    formula_ns: float
    """What the formulas of a device give for it; NaN where they do not know it."""
    calls: int


class HostTime(NamedTuple):
    """The host's time before an operator, and in it."""

    ahead_ns: float
    inside_ns: float


@dataclass(slots=True)
class RecordedOperators:
    """Of the names that are asked for, the outermost ones, with all that they call."""

    names: set[str]
    device: Device | None
    sums: dict[OperatorKey, F64]
    """Device time, host time inside, what the formulas give, and calls."""
    by_name: dict[str, list[OperatorKey]]
    host: dict[tuple[str, str], F64]
    """Host time before an operator, host time in it, and calls, by the name before and its own; by its own alone with
    `` before."""
    device_ns: float = 0.0
    placed_ns: float = 0.0
    """Device time, and that of it which belongs to these operators."""
    host_factor: float = 1.0
    least_ns: float = 1.0
    """Of the shortest operator on the device."""

    @classmethod
    def of(cls, job: Job, names: set[str], device: Device | None) -> RecordedOperators:
        sums: dict[OperatorKey, F64] = defaultdict(partial(np.zeros, 4))
        host: dict[tuple[str, str], F64] = defaultdict(partial(np.zeros, 3))
        made = cls(names | {f"{name}_" for name in names}, device, sums, defaultdict(list), host)
        for trace in job.traces:
            made._add(trace)
        made.host_factor = _host_factor(job, made.device_ns)
        times = [device / calls for device, _, _, calls in (one.tolist() for one in sums.values()) if device > 0]
        made.least_ns = max(1.0, min(times, default=1.0))
        return made

    def time_of(self, key: OperatorKey) -> OperatorTime | None:
        """An operator's times, if it was recorded with these shapes; also if it is in place."""
        found = key if key in self.sums else key._replace(name=f"{key.name}_")
        if found not in self.sums:
            return None
        device, inside, formula, calls = self.sums[found].tolist()
        return OperatorTime(device / calls, inside / calls, formula / calls, round(calls))

    def moved_ns(self, elements: int) -> float:
        """Time in which the device's memory moves this number of elements, or that of the shortest operator if that is
        longer; without a device the number."""
        if self.device is None or not self.device.memory_bandwidth_bytes_per_s:
            return float(max(elements, 1))
        return max(self.least_ns, 4e9 * elements / self.device.memory_bandwidth_bytes_per_s)

    def nearest(self, key: OperatorKey) -> tuple[OperatorKey, OperatorTime] | None:
        """The recorded operator of that name which differs least."""
        found = [*self.by_name.get(key.name, ()), *self.by_name.get(f"{key.name}_", ())]
        best = min(found, key=key.distance, default=None)
        time = None if best is None else self.time_of(best)
        return None if best is None or time is None else (best, time)

    def host_time(self, before: str, name: str) -> HostTime:
        """The host's time before an operator and in it; of one that was not recorded, that of all."""
        places = [(last, word) for word in (name, f"{name}_") for last in (before, "")]
        found = next((self.host[place] for place in places if place in self.host), None)
        if found is None:
            found = np.sum([sums for (last, _), sums in self.host.items() if not last], axis=0)
        ahead, inside, calls = found.tolist()
        return HostTime(self.host_factor * ahead / calls, self.host_factor * inside / calls)

    def formula_factor(self) -> float:
        """Recorded device time over what the formulas give, the median of all calls; on a CPU the time in operators."""
        times = [time for key in self.sums if (time := self.time_of(key)) is not None]
        on_cpu = self.device is not None and self.device.cpu
        known = [time for time in times if (time.inside_ns if on_cpu else time.device_ns) > 0 and time.formula_ns > 0]
        taken = [(time.inside_ns if on_cpu else time.device_ns) / time.formula_ns for time in known]
        ratios = np.repeat(taken, [time.calls for time in known])
        return float(np.median(ratios)) if len(ratios) else 1.0

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
        keys, which = distinct_operators(trace, rows)
        columns = (device, inside, formula_ns(trace, rows, self.device), np.ones(len(rows)))
        for key, sums in zip(keys, _summed(which, len(keys), columns), strict=True):
            if key not in self.sums:
                self.by_name[key.name].append(key)
            self.sums[key] += sums
        first = np.append(True, np.diff(trace.thread[rows]) != 0)
        pairs, pair = distinct_pairs(codes[rows], first)
        host = _summed(pair, len(pairs), (before, inside, np.ones(len(rows))))
        for (last, name), sums in zip(pairs, host, strict=True):
            self.host[words[last] if last >= 0 else "", words[name]] += sums
            if last >= 0:
                self.host["", words[name]] += sums


def _summed(which: I64, length: int, columns: Sequence[F64]) -> F64:
    """Sums of columns by number: a row for each number."""
    return np.stack([np.bincount(which, column, length) for column in columns], axis=1)


def distinct_pairs(codes: NDArray[np.signedinteger[Any]], first: Bool) -> tuple[list[tuple[int, int]], I64]:
    """(Distinct pairs of a code and the one before it, -1 where one is the first; which of them each row has.)"""
    before = np.where(first, -1, np.append(-1, codes[:-1])).astype(np.int64)
    each = int(codes.max(initial=0)) + 1
    found, which = np.unique((before + 1) * each + codes, return_inverse=True)
    return [(one // each - 1, one % each) for one in found.tolist()], which.reshape(-1)


def _host_factor(job: Job, device_ns: float) -> float:
    """Factor on the host's times where the device sets the pace: then a step without a profiler says nothing of the
    host, but the shortest one does, in which it ran ahead."""
    told = [int(job.provenance.get(name, "0")) for name in ("unprofiled_step_ns", "unprofiled_least_ns")]
    steps = sum(len(np.unique(trace.step[_in_steps(trace)])) for trace in job.traces)
    host_ns = sum(float(trace.duration_ns[host_work(trace) & _in_steps(trace)].sum()) for trace in job.traces) / max(
        steps, 1
    )
    if not all(told) or device_ns / max(steps, 1) < DEVICE_PACE * told[0]:
        return 1.0
    return min(1.0, told[1] / host_ns) if host_ns else 1.0


def distinct_operators(trace: Trace, rows: I64) -> tuple[list[OperatorKey], I64]:
    """(Distinct operators of these rows; which of them each row is.)"""
    columns = [trace.coded(name) for name in ("name", "in_shapes", "in_types")]
    codes = np.stack([codes[rows] for codes, _ in columns], axis=1)
    found, which = np.unique(codes, axis=0, return_inverse=True)
    made: dict[OperatorKey, int] = {}
    number = np.zeros(len(found), np.int64)
    for i, each in enumerate(found.tolist()):
        name, shapes, types = (words[code] if code >= 0 else "" for code, (_, words) in zip(each, columns, strict=True))
        number[i] = made.setdefault(OperatorKey(name, _shapes(shapes), _types(types)), len(made))
    return list(made), number[which.reshape(-1)]


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
    """What the formulas of a device give for nodes; NaN where they do not know. Convolutions of 32 bits run in TF32 on
    devices that have it, unless a program says otherwise (`torch.backends.cudnn.allow_tf32`)."""
    if device is None:
        return np.full(len(rows), np.nan)
    ops = ops_of(trace)
    wide = (ops.op_class == int(OpClass.CONVOLUTION)) & (ops.dtype == DTYPE_NUMBER["fp32"])
    ops = replace(ops, dtype=np.where(wide, np.uint8(DTYPE_NUMBER["tf32"]), ops.dtype))
    found = compute_time_ns(device, ops)[rows]
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
    host = np.flatnonzero(host_work(trace) & _in_steps(trace))
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


def _in_steps(trace: Trace) -> Bool:
    known = trace.step != UNKNOWN
    return known if known.any() else ~known
