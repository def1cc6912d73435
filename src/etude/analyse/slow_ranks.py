"""Ranks whose kernels, or whose host calls, take longer than the same ones of other ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.analyse.outliers import PEERS, grouped_median, profile, rounded_to, shared
from etude.analyse.segments import Segments
from etude.analyse.stretches import AT_LEAST, MOST_NAMED, Slow, slow_units, slower_than_before
from etude.kernels.arrays import F64, I64
from etude.model.distinct import distinct
from etude.model.run import Run, RunPart
from etude.model.trace import Trace
from etude.model.use import Use, segments, uses

_DIGITS: Final = re.compile(r"\d+")
MOST: Final = 1 << 23
"""Largest job of which all nodes are compared; of a larger one every second, third, ... of those that do the same."""
FEW: Final = 32
"""Up to this many nodes of a rank that do the same, all are compared anyway."""
POINTS: Final = 40
"""Amounts of work through which a line is fitted."""
TOUCH: Final = 0.95
"""Fraction of back-to-back times (up to the clock tick) in which one ends exactly where the next begins, if ends were
rounded; if durations were, every second one would be a tick off."""
_SHAPE: Final = re.compile(r"\[([\d, ]+)\]")
_WAITS: Final = re.compile(r"Synchronize|EventQuery|^ProfilerStep|wait")


class Keys:
    """What nodes do, as numbers that mean the same in every trace: name without its numbers, its owner, work,
    shapes."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.families: dict[tuple[str, str], int] = {}
        self.family: list[int] = []
        """Family of each key: a number for what nodes do, whatever the amount."""
        self.work: list[float] = []
        """Work of each key: operations, else bytes, else elements; 0 where nothing is known."""
        self.latest: dict[int, I64] = {}
        """Keys of the last requested program: runs are ordered by program."""

    def of(self, trace: Trace) -> I64:
        if id(trace.name) not in self.latest:
            self.latest = {id(trace.name): self._new(trace)}
        return self.latest[id(trace.name)]

    def _new(self, trace: Trace) -> I64:
        names, words = trace.coded("name")
        shapes, texts = trace.coded("in_shapes")
        plain = [_DIGITS.sub("#", word) for word in words] + [""]
        between = segments(trace)  # all have the same name: the operator around them distinguishes them
        around = np.where(between & (trace.parent >= 0), names[trace.parent], -1)
        unique, which = distinct([names, around, shapes, trace.flops, trace.tensor_bytes])
        number = [
            self._number(plain[n], plain[a], texts[s] if s >= 0 else "", f, b) for n, a, s, f, b in unique.tolist()
        ]
        return np.array(number, np.int64)[which]

    def _number(self, name: str, around: str, shapes: str, flops: int, size: int) -> int:
        key = name, around, shapes, flops, size
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.family.append(self.families.setdefault((name, around), len(self.families)))
            self.work.append(float(flops if flops > 0 else size if size > 0 else _elements(shapes)))
        return self.numbers[key]


class TimeSamples(NamedTuple):
    """Times of what ranks did: rank by position, key, segment, log time; in the order in which each rank ran them."""

    unit: I64
    key: I64
    segment: I64
    log: F64

    def where(self, rows: NDArray[Any]) -> TimeSamples:
        return TimeSamples(*(column[rows] for column in self))


class Rounded(NamedTuple):
    """The clock tick of times, and whether ends were rounded: then the mean of several is exact."""

    step_ns: int
    cancels: bool


def slow_ranks(run: Run, stretches: Segments, use: Use, least: float) -> list[Slow]:
    """Ranks by position; `use` selects the times that are compared."""
    keys = Keys()
    found, rounded = _samples(run, stretches, use, keys)
    if not len(found.unit):
        return []
    shape = len(run.job.ranks), 2 * len(keys.numbers), stretches.count
    units = len(np.unique(found.unit))
    found, adjusted = by_work(found, np.array(keys.family, np.int64), np.array(keys.work))
    compared = found.where((shared(found.unit, found.key, shape[1]) >= PEERS)[found.key])
    told: list[Slow] = []
    if len(compared.unit):
        told = slow_units(profile(*compared, shape, **rounded._asdict()), least)
    if use == Use.COMPUTE and stretches.by_step:
        past = _than_before(found, shape, rounded, least)
        if len(past) > len(told) and (units < PEERS or len(past) > max(1, units // MOST_NAMED)):
            told = past  # few are comparable, or so many are slow that the median is not a reference
    return [replace(one, uneven=adjusted) for one in told]


def _samples(run: Run, stretches: Segments, use: Use, keys: Keys) -> tuple[TimeSamples, Rounded]:
    parts: list[tuple[I64, I64, I64, F64]] = []
    counted: dict[int, NDArray[np.bool_]] = {}
    step_ns, near, touching = 1000, 0, 0
    for part in run.parts():
        if id(part.trace.name) not in counted:
            counted = {id(part.trace.name): (uses(part.trace) == use) & ~waiting_nodes(part.trace)}
        rows = np.flatnonzero(counted[id(part.trace.name)] & part.timed)
        rows = rows[np.argsort(part.start_ns[rows], kind="stable")]
        lasted = part.end_ns[rows] - part.start_ns[rows]
        rows, lasted = rows[lasted > 0], lasted[lasted > 0]
        step_ns = min(step_ns, rounded_to(lasted)) if len(lasted) else step_ns
        if step_ns > 1:
            gap = _gaps(part, rows)
            near, touching = near + int((np.abs(gap) <= step_ns).sum()), touching + int((gap == 0).sum())
        segment, key = stretches.of(part, rows), keys.of(part.trace)[rows]
        chosen = (segment >= 0) & _every(-(-run.job.nodes // MOST), key)
        key, log = key[chosen], np.log(lasted[chosen].astype(np.float64))
        parts += [(np.full(len(key), at, np.int64), key, segment[chosen], log) for at in part.at.tolist()]
    none = [np.zeros(0, np.int64)] * 3 + [np.zeros(0)]
    samples = TimeSamples(*(np.concatenate([none[k], *(p[k] for p in parts)]) for k in range(4)))
    return samples, Rounded(step_ns, step_ns > 1 and near > 0 and touching >= TOUCH * near)


def _gaps(part: RunPart, rows: NDArray[np.signedinteger]) -> I64:
    """Time from the end of each row to the start of the next in its lane."""
    rows = rows[np.argsort(part.trace.lane[rows], kind="stable")]
    same = part.trace.lane[rows[1:]] == part.trace.lane[rows[:-1]]
    return (part.start_ns[rows[1:]] - part.end_ns[rows[:-1]])[same]


def _than_before(found: TimeSamples, shape: tuple[int, int, int], rounded: Rounded, least: float) -> list[Slow]:
    """Ranks that are slower than themselves in other steps: their work is compared with the same work at other
    times."""
    _, own = distinct([found.unit, found.key])
    often = (np.bincount(own) >= AT_LEAST)[own]
    if not often.any():
        return []
    mine = found.where(often)
    _, own = distinct([mine.unit, mine.key])
    profiled = profile(
        mine.unit, own, mine.segment, mine.log, (shape[0], int(own.max()) + 1, shape[2]), **rounded._asdict()
    )
    return slower_than_before(profiled, least)


def by_work(
    found: TimeSamples, family: I64, work: F64, *, apart: NDArray[np.bool_] | None = None
) -> tuple[TimeSamples, bool]:
    """(samples, was any changed?): work that too few others did exactly is normalised to one amount; `apart` says so by
    key where it is known better.

    Ranks with longer sequences have more to do. Where the work of a node is known, and others do the same with other
    amounts of it, its time is compared with  t = a + b x work,  a robust line through the times of its family; its key
    is then that of the family.
    """
    keys = len(family)
    alone = (shared(found.unit, found.key, keys) < PEERS if apart is None else apart)[found.key]
    alone &= work[found.key] > 0
    lone = np.flatnonzero(alone)
    lone = lone[np.argsort(family[found.key[lone]], kind="stable")]
    bounds = np.flatnonzero(np.diff(family[found.key[lone]])) + 1
    log, key = found.log.copy(), found.key.copy()
    for rows in np.split(lone, bounds) if len(lone) else ():
        one = int(family[found.key[rows[0]]])
        if len(np.unique(found.unit[rows])) >= PEERS:
            expected = expected_times(work[found.key[rows]], np.exp(found.log[rows]))
            if expected is not None:
                log[rows] += np.median(found.log[rows]) - np.log(expected)
                key[rows] = keys + one
    changed = key != found.key
    return TimeSamples(found.unit, key, found.segment, log), bool(2 * changed.sum() > len(changed))


def expected_times(work: F64, lasted: F64) -> F64 | None:
    """Expected time of each: the median slope between amounts of work; None where they hardly differ."""
    amounts, which = np.unique(work, return_inverse=True)
    if len(amounts) < PEERS:
        return None
    middle = grouped_median(which.reshape(-1), lasted, len(amounts))
    points = np.unique(np.linspace(0, len(amounts) - 1, POINTS).astype(np.int64))
    x, y = amounts[points], middle[points]
    apart = x[None, :] - x[:, None] > 0
    slope = max(float(np.median((y[None, :] - y[:, None])[apart] / (x[None, :] - x[:, None])[apart])), 0.0)
    expected = float(np.median(y - slope * x)) + slope * work
    return expected if expected.min() > 0 else lasted.sum() / work.sum() * work


def _every(step: int, key: I64) -> NDArray[np.bool_]:
    """Every n-th of the samples of each key, and all where there are few: the same ones on ranks that do the same, so
    that samples at one position of their order are still compared."""
    if step <= 1:
        return np.ones(len(key), bool)
    order = np.argsort(key, kind="stable")
    count = np.bincount(key)
    first = np.cumsum(count) - count
    number = np.empty(len(key), np.int64)
    number[order] = np.arange(len(key)) - first[key[order]]
    return (number % step == 0) | (count[key] <= FEW)


def _elements(shapes: str) -> int:
    """Elements of all tensors in a list of shapes as it was recorded."""
    return sum(prod(int(n) for n in _DIGITS.findall(one)) for one in _SHAPE.findall(shapes) if len(one) < 100)


def waiting_nodes(trace: Trace) -> NDArray[np.bool_]:
    """Nodes whose name says that they wait."""
    codes, words = trace.coded("name")
    return np.array([bool(_WAITS.search(w)) for w in words] + [False])[codes]
