"""Who holds the others up: slow ranks, slow links, late hosts, participants that never came.

Being slow is told apart from waiting: kernels are compared with the same kernels of other ranks, host calls with the
same calls, and the transfer of a collective is what its last member saw, so a rank that waits looks no slower than one
that does not. `outliers` says how likes are compared; docs/analyse/stragglers.md has the definitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.clocks import offsets
from etude.analyse.grouping import table
from etude.analyse.missing import missing
from etude.analyse.operations import Calls, calls, group_name, messages, times_of
from etude.analyse.outliers import LIKES, Slow, profile, shared, slow_units
from etude.analyse.runs import Use, runs, uses
from etude.errors import UsageError
from etude.model.job import Job, ranges
from etude.model.match import WORLD, match
from etude.model.schema import UNKNOWN
from etude.model.timing import Origin, Timing
from etude.model.trace import Trace

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

Samples = tuple[I64, I64, I64, F64]
"""Unit, key, segment and log time of each."""

LEAST: Final = 0.06
"""A unit is named if it is this much slower than its likes."""
SEGMENTS: Final = 8
"""Stretches of a run that says nothing of steps."""
MOST_SEGMENTS: Final = 32
NODE: Final = 8
"""Ranks of a node, where nothing else is said."""
_DIGITS: Final = re.compile(r"\d+")
_WAITS: Final = re.compile(r"Synchronize|EventQuery|^ProfilerStep|wait")


@dataclass(frozen=True, slots=True)
class Finding:
    rank: int
    kind: str
    """slow_rank, slow_link, late_host, missing."""
    confidence: float
    evidence: str
    ranks: tuple[int, ...] = ()
    """All that are meant: both ends of a link, or the members of the group in which it lies."""
    slowdown_pct: float | None = None
    pattern: str = ""
    """chronic: all along; acute: since or for a part of the run."""
    since: int | None = None
    """First step (or eighth of the run, where no steps are known) in which it shows."""


def stragglers(job: Job, timing: Timing, *, least: float = LEAST, ranks_per_node: int = NODE) -> pa.Table:
    """A row a finding, the surest first: rank, kind, confidence, evidence, ranks, slowdown_pct, pattern, since.

    `least` is the slow-down from which one is named. Links are compared with those that lie alike, which depends on
    where nodes begin: ranks are taken to fill them one after the other, `ranks_per_node` in each.
    """
    if ranks_per_node < 1:
        raise UsageError(f"{ranks_per_node} ranks in a node")
    found = list(findings(job, timing, least=least, ranks_per_node=ranks_per_node))
    found.sort(key=lambda f: (-f.confidence, -(f.slowdown_pct or 0), f.rank))
    rows = [{name: getattr(f, name) for name in Finding.__slots__} for f in found]
    names = {"rank": pa.int32(), "kind": pa.string(), "confidence": pa.float64(), "evidence": pa.string()}
    names |= {"ranks": pa.list_(pa.int32()), "slowdown_pct": pa.float64(), "pattern": pa.string(), "since": pa.int64()}
    return table([row | {"ranks": list(row["ranks"])} for row in rows], names)


def findings(job: Job, timing: Timing, *, least: float = LEAST, ranks_per_node: int = NODE) -> Iterator[Finding]:
    matching = match(job)
    found = calls(job, timing, matching)
    for rank, what in missing(job, timing, found):
        yield Finding(rank, "missing", 1.0, what, (rank,))
    if len(job.ranks) < 2:
        return
    segments = _Segments(job)
    late = _Lateness(job, timing, found)
    slow = list(_slow_ranks(job, timing, segments, Use.COMPUTE, least))
    for one in slow:
        yield _rank_finding(job, one, "slow_rank", segments, late)
    for one in _slow_ranks(job, timing, segments, Use.HOST, least):
        if one.unit not in {s.unit for s in slow}:
            yield _rank_finding(job, one, "late_host", segments, late)
    yield from _Links(job, timing, segments, ranks_per_node).findings(found, least)


# -- ranks -------------------------------------------------------------------------------------------------------------


class _Segments:
    """Steps of a run as numbers 0, 1, ...; where no steps are known, eighths of each rank's nodes."""

    def __init__(self, job: Job) -> None:
        known = [np.unique(t.step[t.step != UNKNOWN]) for t in job.traces]
        self.steps = np.unique(np.concatenate(known)) if known else np.zeros(0, np.int64)
        self.by_step = len(self.steps) > 1
        self.width = max(1, -(-len(self.steps) // MOST_SEGMENTS)) if self.by_step else 1
        self.count = -(-len(self.steps) // self.width) if self.by_step else SEGMENTS

    def of(self, trace: Trace, rows: NDArray[np.signedinteger]) -> I64:
        if not self.by_step:
            return (np.asarray(rows, np.int64) * SEGMENTS) // max(len(trace), 1)
        at = np.searchsorted(self.steps, trace.step[rows])
        return np.where(trace.step[rows] == UNKNOWN, -1, at // self.width)

    def name(self, segment: int) -> str:
        return f"step {self.first_step(segment)}" if self.by_step else f"{segment} eighths of the run"

    def first_step(self, segment: int) -> int:
        return int(self.steps[segment * self.width]) if self.by_step else segment


class _Keys:
    """What nodes do, as numbers that mean the same in every trace: name without its numbers, work, shapes."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.cached: dict[int, I64] = {}

    def of(self, trace: Trace) -> I64:
        cached = self.cached.get(id(trace.name))
        if cached is None:
            cached = self.cached[id(trace.name)] = self._new(trace)
        return cached

    def _new(self, trace: Trace) -> I64:
        names, words = trace.coded("name")
        shapes, texts = trace.coded("in_shapes")
        plain = [_DIGITS.sub("#", word) for word in words] + [""]
        columns = np.stack([names.astype(np.int64), shapes.astype(np.int64), trace.flops, trace.tensor_bytes], 1)
        unique, inverse = np.unique(columns, axis=0, return_inverse=True)
        number = np.array(
            [
                self.numbers.setdefault((plain[n], texts[s] if s >= 0 else "", f, b), len(self.numbers))
                for n, s, f, b in unique.tolist()
            ],
            np.int64,
        )
        return number[inverse.reshape(-1)]


def _slow_ranks(job: Job, timing: Timing, segments: _Segments, use: Use, least: float) -> list[Slow]:
    keys = _Keys()
    parts: list[tuple[I64, I64, I64, F64]] = []
    counted: dict[int, tuple[NDArray[np.uint8], NDArray[np.bool_]]] = {}
    for run in runs(job, timing):
        cached = counted.get(id(run.trace.name))
        if cached is None:
            cached = counted[id(run.trace.name)] = uses(run.trace), _waiting(run.trace)
        rows = np.flatnonzero((cached[0] == use) & run.timed & ~cached[1])
        lasted = run.end_ns[rows] - run.start_ns[rows]
        rows, lasted = rows[lasted > 0], lasted[lasted > 0]
        segment = segments.of(run.trace, rows)
        inside = segment >= 0
        key, log = keys.of(run.trace)[rows[inside]], np.log(lasted[inside].astype(np.float64))
        parts += [(np.full(len(key), at, np.int64), key, segment[inside], log) for at in run.at.tolist()]
    if not parts or not sum(len(p[0]) for p in parts):
        return []
    unit, key, segment, log = (np.concatenate([p[k] for p in parts]) for k in range(4))
    enough = (shared(unit, key, len(keys.numbers)) >= LIKES)[key]
    if not enough.any():
        return []
    unit, key, segment, log = unit[enough], key[enough], segment[enough], log[enough]
    shape = len(job.ranks), len(keys.numbers), segments.count
    return slow_units(profile(unit, key, segment, log, shape), least)


def _waiting(trace: Trace) -> NDArray[np.bool_]:
    """Nodes whose time is waiting by what they are called."""
    codes, words = trace.coded("name")
    return np.array([bool(_WAITS.search(w)) for w in words] + [False])[codes]


class _Lateness:
    """How often and by how much each rank is the last to come to its collectives."""

    def __init__(self, job: Job, timing: Timing, found: Calls) -> None:
        seen = (found.start_ns != UNKNOWN) & (np.diff(found.first) > 1)[found.of]
        offset = offsets(job, timing, found)
        at, call = found.at[seen].astype(np.int64), found.of[seen]
        start = found.start_ns[seen] + offset[at]
        last, first = np.full(len(found), -(2**62)), np.full(len(found), 2**62)
        np.maximum.at(last, call, start)
        np.minimum.at(first, call, start)
        is_last = (start == last[call]) & (last > first)[call]
        self.calls = np.bincount(at, minlength=len(job.ranks))
        self.last = np.bincount(at[is_last], minlength=len(job.ranks))
        held = np.bincount(at[is_last], (last - first)[call[is_last]].astype(np.float64), len(job.ranks))
        self.held_ns = held / np.maximum(self.last, 1)

    def text(self, at: int) -> str:
        if not self.calls[at] or not self.last[at]:
            return ""
        share = 100 * self.last[at] / self.calls[at]
        return f"; it comes last to {share:.0f}% of its collectives, {self.held_ns[at] / 1e6:.2f} ms after the first"


def _rank_finding(job: Job, one: Slow, kind: str, segments: _Segments, late: _Lateness) -> Finding:
    what = "kernels" if kind == "slow_rank" else "host calls"
    pct = 100 * (one.factor - 1)
    rank = int(job.ranks[one.unit])
    when = "all along" if one.whole else f"since {segments.name(one.first)}"
    return Finding(
        rank,
        kind,
        one.confidence,
        f"its {what} take {pct:.1f}% longer than the same ones of other ranks, {when}{late.text(one.unit)}",
        (rank,),
        pct,
        "chronic" if one.whole else "acute",
        segments.first_step(one.first),
    )


# -- links -------------------------------------------------------------------------------------------------------------


class _Links:
    """Transfers by unit: a group of ranks or a pair, with the key of those that lie alike."""

    def __init__(self, job: Job, timing: Timing, segments: _Segments, ranks_per_node: int) -> None:
        self.job, self.timing, self.segments, self.node = job, timing, segments, ranks_per_node
        self.units: list[tuple[int, ...]] = []
        self.labels: list[str] = []
        self.keys: dict[tuple[Any, ...], int] = {}

    def findings(self, found: Calls, least: float) -> Iterator[Finding]:
        parts = [part for part in (self._transfers(found), self._sent()) if part is not None]
        if not parts:
            return
        unit, key, segment, log = (np.concatenate([p[k] for p in parts]) for k in range(4))
        inside = segment >= 0
        unit, key, segment, log = unit[inside], key[inside], segment[inside], log[inside]
        alone = shared(unit, key, len(self.keys)) < LIKES
        shape = len(self.units), len(self.keys), self.segments.count
        for itself in (False, True):  # those that have likes are compared with them, others with themselves over time
            mine = alone[key] == itself
            if not mine.any():
                continue
            profiles = profile(unit[mine], key[mine], segment[mine], log[mine], shape)
            for one in slow_units(profiles, least):
                if not (itself and one.whole):
                    yield self._finding(one)

    def _place(self, ranks: NDArray[np.signedinteger]) -> tuple[int, ...]:
        """Where ranks lie to one another: their distances, and which of them share a node."""
        return (*(ranks - ranks[0]).tolist(), *(ranks // self.node - ranks[0] // self.node).tolist())

    def _transfers(self, found: Calls) -> Samples | None:
        """Transfers of collectives: what the member that waited least saw."""
        if not len(found):
            return None
        seen = (found.start_ns != UNKNOWN) & (found.end_ns != UNKNOWN)
        lasted = np.where(seen, found.end_ns - np.where(seen, found.start_ns, 0), 2**62)
        transfer = np.minimum.reduceat(lasted, found.first[:-1])
        good = (transfer > 0) & (transfer < 2**62) & (np.diff(found.first) > 1)
        unit, key = np.full(len(found), -1, np.int64), np.zeros(len(found), np.int64)
        for group in np.unique(found.group[good]).tolist():
            mine = np.flatnonzero(good & (found.group == group))
            members = self._members(found, group, mine)
            unit[mine] = len(self.units)
            self.units.append(tuple(members.tolist()))
            self.labels.append(f"collectives of group `{group_name(self.job, group)}` ({ranges(members)})")
            place = self._place(members)
            for i in mine.tolist():
                what = (int(found.collective[i]), int(found.size_bytes[i]), place)
                key[i] = self.keys.setdefault(what, len(self.keys))
        rows = np.flatnonzero(unit >= 0)
        first = found.first[rows]
        segment = _segment_of(self.job, self.segments, found.at[first], found.row[first])
        return unit[rows], key[rows], segment, np.log(transfer[rows].astype(np.float64))

    def _members(self, found: Calls, group: int, rows: I64) -> NDArray[np.int32]:
        """Who is in a group: as the job says, else who was seen in its calls."""
        if group == WORLD:
            return self.job.ranks
        known = self.job.groups.ranks(group)
        if known is not None and len(known):
            return known
        seen = np.concatenate([found.at[found.first[i] : found.first[i + 1]] for i in rows.tolist()])
        return self.job.ranks[np.unique(seen)]

    def _sent(self) -> Samples | None:
        """Transfers of messages: of a simulated one its send, of a measured one the shorter of send and receive."""
        job, timing = self.job, self.timing
        found = messages(job)
        sent, there = times_of(timing, found.src_at, found.src_row), times_of(timing, found.dst_at, found.dst_row)
        known = (sent[0] != UNKNOWN) & (sent[1] != UNKNOWN) & (there[0] != UNKNOWN) & (there[1] != UNKNOWN)
        lasted = np.where(known, sent[1] - np.where(known, sent[0], 0), 0)
        if timing.origin != Origin.SIMULATED:
            lasted = np.minimum(lasted, np.where(known, there[1] - np.where(known, there[0], 0), 0))
        src, dst = job.ranks[found.src_at].astype(np.int64), job.ranks[found.dst_at].astype(np.int64)
        good = np.flatnonzero((lasted > 0) & (src != dst))
        if not len(good):
            return None
        ends = np.stack([np.minimum(src, dst), np.maximum(src, dst)], 1)[good]
        pairs, which = np.unique(ends, axis=0, return_inverse=True)
        base = len(self.units)
        self.units += [(int(a), int(b)) for a, b in pairs.tolist()]
        self.labels += [f"messages between ranks {a} and {b}" for a, b in pairs.tolist()]
        places = [self._place(pair) for pair in pairs]
        what = zip(found.size_bytes[good].tolist(), which.reshape(-1).tolist(), strict=True)
        key = [self.keys.setdefault(("message", size, places[pair]), len(self.keys)) for size, pair in what]
        segment = _segment_of(job, self.segments, found.src_at[good], found.src_row[good])
        return which.reshape(-1) + base, np.array(key, np.int64), segment, np.log(lasted[good].astype(np.float64))

    def _finding(self, one: Slow) -> Finding:
        members = self.units[one.unit]
        pct = 100 * (one.factor - 1)
        when = "all along" if one.whole else f"since {self.segments.name(one.first)}"
        evidence = f"{self.labels[one.unit]} take {pct:.1f}% longer than those of their likes, waiting apart, {when}"
        pattern, since = "chronic" if one.whole else "acute", self.segments.first_step(one.first)
        return Finding(members[0], "slow_link", one.confidence, evidence, members, pct, pattern, since)


def _segment_of(job: Job, segments: _Segments, at: NDArray[np.signedinteger], row: NDArray[np.signedinteger]) -> I64:
    found = np.empty(len(at), np.int64)
    trace_of = job.trace_of[at]
    for t in np.unique(trace_of).tolist():
        mine = np.flatnonzero(trace_of == t)
        found[mine] = segments.of(job.traces[t], row[mine])
    return found
