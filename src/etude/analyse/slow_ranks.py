"""Ranks whose kernels, or whose host calls, take longer than the same ones of other ranks."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.analyse.outliers import LIKES, Slow, profile, rounded_to, shared, slow_units
from etude.analyse.segments import Segments
from etude.model.distinct import distinct
from etude.model.run import Run
from etude.model.trace import Trace
from etude.model.use import Use, segments, uses

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_DIGITS: Final = re.compile(r"\d+")
MOST: Final = 1 << 23
"""Nodes of a job up to which all are compared; of a larger one every second, third, ... of those that do the same."""
FEW: Final = 32
"""Nodes of a rank that do the same, up to which all are compared anyway."""
_WAITS: Final = re.compile(r"Synchronize|EventQuery|^ProfilerStep|wait")


class Keys:
    """What nodes do, as numbers that mean the same in every trace: name without its numbers, whose it is, work,
    shapes."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.latest: dict[int, I64] = {}
        """Of the program that was asked for last: runs come by program."""

    def of(self, trace: Trace) -> I64:
        if id(trace.name) not in self.latest:
            self.latest = {id(trace.name): self._new(trace)}
        return self.latest[id(trace.name)]

    def _new(self, trace: Trace) -> I64:
        names, words = trace.coded("name")
        shapes, texts = trace.coded("in_shapes")
        plain = [_DIGITS.sub("#", word) for word in words] + [""]
        between = segments(trace)  # all are called alike: what they are says the operator around them
        around = np.where(between & (trace.parent >= 0), names[trace.parent], -1)
        unique, which = distinct([names, around, shapes, trace.flops, trace.tensor_bytes])
        number = np.array(
            [
                self.numbers.setdefault((plain[n], plain[a], texts[s] if s >= 0 else "", f, b), len(self.numbers))
                for n, a, s, f, b in unique.tolist()
            ],
            np.int64,
        )
        return number[which]


def slow_ranks(run: Run, stretches: Segments, use: Use, least: float) -> list[Slow]:
    """Ranks by position; `use` says whose times are compared."""
    keys = Keys()
    parts: list[tuple[I64, I64, I64, F64]] = []
    counted: dict[int, NDArray[np.bool_]] = {}
    step_ns = 1000
    for part in run.parts():
        if id(part.trace.name) not in counted:
            counted = {id(part.trace.name): (uses(part.trace) == use) & ~_waiting(part.trace)}
        rows = np.flatnonzero(counted[id(part.trace.name)] & part.timed)
        rows = rows[np.argsort(part.start_ns[rows], kind="stable")]
        lasted = part.end_ns[rows] - part.start_ns[rows]
        rows, lasted = rows[lasted > 0], lasted[lasted > 0]
        step_ns = min(step_ns, rounded_to(lasted)) if len(lasted) else step_ns
        segment, key = stretches.of(part, rows), keys.of(part.trace)[rows]
        chosen = (segment >= 0) & _every(-(-run.job.nodes // MOST), key)
        key, log = key[chosen], np.log(lasted[chosen].astype(np.float64))
        parts += [(np.full(len(key), at, np.int64), key, segment[chosen], log) for at in part.at.tolist()]
    if not parts or not sum(len(p[0]) for p in parts):
        return []
    unit, key, segment, log = (np.concatenate([p[k] for p in parts]) for k in range(4))
    parts.clear()
    enough = (shared(unit, key, len(keys.numbers)) >= LIKES)[key]
    if not enough.any():
        return []
    unit, key, segment, log = unit[enough], key[enough], segment[enough], log[enough]
    shape = len(run.job.ranks), len(keys.numbers), stretches.count
    return slow_units(profile(unit, key, segment, log, shape, step_ns=step_ns), least)


def _every(step: int, key: I64) -> NDArray[np.bool_]:
    """Every so many-th of the samples of each key, and all where there are few: the same ones on ranks that do the
    same, so that samples in one place of their order are still compared."""
    if step <= 1:
        return np.ones(len(key), bool)
    order = np.argsort(key, kind="stable")
    count = np.bincount(key)
    first = np.cumsum(count) - count
    number = np.empty(len(key), np.int64)
    number[order] = np.arange(len(key)) - first[key[order]]
    return (number % step == 0) | (count[key] <= FEW)


def _waiting(trace: Trace) -> NDArray[np.bool_]:
    """Nodes whose time is waiting by what they are called."""
    codes, words = trace.coded("name")
    return np.array([bool(_WAITS.search(w)) for w in words] + [False])[codes]
