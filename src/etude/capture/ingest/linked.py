"""Combines ranks that were linked one by one into the job that they ran together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.base.files import let_go
from etude.capture.ingest.graph import SEGMENT_NAME
from etude.capture.ingest.members import RankTimes, own_times
from etude.capture.ingest.program_time import AS_RECORDED, RECORDED, Timed
from etude.kernels.arrays import I64
from etude.model.as_recorded import is_twice_timed
from etude.model.cutting import kept
from etude.model.job import Job, Note, Part, assemble
from etude.model.match import match
from etude.model.timing import Origin, Timing


@dataclass(frozen=True, slots=True, eq=False)
class Linked:
    """One rank: its trace and groups, its recorded times, and its coverage."""

    part: Part
    start_ns: I64
    end_ns: I64
    report: dict[str, Any]
    world_size: int = 0
    device: str = ""
    """The device, as the profiler names it."""
    unprofiled_step_ns: int = 0
    """Time of a step without the profiler, if measured."""
    unprofiled_least_ns: int = 0
    """Of the shortest of them: where the device sets the pace, one in which the host ran ahead."""
    threads: int = 0
    """Threads of an operator on the CPU, if known."""
    timed: Timed = AS_RECORDED
    """Whose times it has."""
    source: str = "pytorch profiler"
    """What wrote it."""


def cut(one: Linked, keep: NDArray[np.bool_], what: str) -> Linked:
    """Some nodes of a rank, with a note."""
    part = replace(one.part, trace=kept(one.part.trace, keep))
    return with_notes(replace(one, part=part, start_ns=one.start_ns[keep], end_ns=one.end_ns[keep]), [what])


def with_notes(one: Linked, said: Iterable[str]) -> Linked:
    """The rank with more notes on it."""
    more = tuple(Note(one.part.rank, what) for what in said)
    return replace(one, part=replace(one.part, notes=(*one.part.notes, *more))) if more else one


def to_job(name: str, ranks: Sequence[Linked]) -> Job:
    """The ranks of one run as a job; `job.timing` holds all recorded starts and ends."""
    named = _own_names(sorted(ranks, key=lambda one: one.part.rank))
    ranks = _with_recorded(_one_beginning(_without_waiting(named)), named)
    timing = Timing(
        origin=Origin.MEASURED,
        start_ns=tuple(one.start_ns for one in ranks),
        end_ns=tuple(one.end_ns for one in ranks),
        block_of=np.arange(len(ranks), dtype=np.int32),
        clock_offset_ns=np.zeros(len(ranks), np.int64),
    )
    let_go()
    return assemble(
        name,
        [_noted(one) for one in ranks],
        world_size=max((one.world_size for one in ranks), default=0),
        timing=timing,
        provenance=_provenance(ranks),
    )


def _noted(one: Linked) -> Part:
    """The rank, with what is to be said of its times."""
    if not one.timed.note:
        return one.part
    return replace(one.part, notes=(*one.part.notes, Note(one.part.rank, one.timed.note)))


def _own_names(ranks: Sequence[Linked]) -> list[Linked]:
    """Renames groups that have one name and different members on different ranks: names must be unique."""
    members: dict[str, set[tuple[int, ...] | None]] = {}
    for one in ranks:
        for name, group in one.part.groups:
            members.setdefault(name, set()).add(None if group is None else tuple(group))
    clear = {name for name, found in members.items() if len(found) == 1}
    named = []
    for one in ranks:
        groups = [
            (name if name in clear or group is None else f"{name}:{'-'.join(map(str, group))}", group)
            for name, group in one.part.groups
        ]
        named.append(replace(one, part=replace(one.part, groups=groups)))
    return named


def _without_waiting(ranks: list[Linked]) -> list[Linked]:
    """Sets communications to their own time, without waits, from the times of all ranks."""
    if len(ranks) < 2:
        return ranks
    times = [RankTimes.of(one.part.trace, one.start_ns, one.end_ns) for one in ranks]
    own_times(times, match(assemble("run", [one.part for one in ranks])))
    return [
        replace(one, part=replace(one.part, trace=own.changed()), start_ns=own.start_ns, end_ns=own.end_ns)
        for one, own in zip(ranks, times, strict=True)
    ]


def _one_beginning(ranks: list[Linked]) -> list[Linked]:
    """Aligns the beginnings of ranks recorded at the same time: time before a rank's first event becomes host time, so
    that a late rank stays late. If the recorded times do not overlap, clocks are not comparable."""
    begins = [int(one.start_ns.min()) for one in ranks]
    if len(ranks) < 2 or max(begins) >= min(int(one.end_ns.max()) for one in ranks):
        return ranks
    shifted = []
    for one, begin in zip(ranks, begins, strict=True):
        trace, early = one.part.trace, min(begins)
        roots = np.flatnonzero((one.start_ns == begin) & (trace.parent < 0) & (np.diff(trace.data_start) == 0))
        first = [i for i in roots.tolist() if trace.cpu[i] == 1 and trace.text("name", i) == SEGMENT_NAME]
        duration, start = trace.duration_ns.copy(), one.start_ns.copy()
        duration[first] += begin - early
        start[first] = early
        shifted.append(replace(one, part=replace(one.part, trace=trace.replace(duration_ns=duration)), start_ns=start))
    return shifted


def _with_recorded(ranks: list[Linked], before: Sequence[Linked]) -> list[Linked]:
    """The times of the recording, together with those of the program, once the same is done to them."""
    if len(ranks) < 2 or not all(is_twice_timed(one.part.trace) for one in before):
        return ranks
    as_it_was = []
    for one in before:
        trace = one.part.trace
        part = replace(one.part, trace=trace.replace(duration_ns=trace.recorded_duration_ns))
        as_it_was.append(
            replace(one, part=part, start_ns=trace.recorded_start_ns, end_ns=trace.recorded_end_ns, timed=AS_RECORDED)
        )
    found = []
    for one, other in zip(ranks, _one_beginning(_without_waiting(as_it_was)), strict=True):
        trace = one.part.trace.replace(
            recorded_start_ns=other.start_ns,
            recorded_end_ns=other.end_ns,
            recorded_duration_ns=other.part.trace.duration_ns,
        )
        found.append(replace(one, part=replace(one.part, trace=trace)))
    return found


def _provenance(ranks: Sequence[Linked]) -> dict[str, str]:
    found = {"source_format": ranks[0].source if ranks else ""}
    devices = list(dict.fromkeys(one.device for one in ranks if one.device))
    unprofiled = max((one.unprofiled_step_ns for one in ranks), default=0)
    if unprofiled:  # a step takes as long as on its slowest rank
        found["unprofiled_step_ns"] = str(unprofiled)
    if least := max((one.unprofiled_least_ns for one in ranks), default=0):
        found["unprofiled_least_ns"] = str(least)
    if threads := max((one.threads for one in ranks), default=0):
        found["threads"] = str(threads)
    return found | ({"device": ", ".join(devices[:4])} if devices else {}) | _times_told(ranks)


def _times_told(ranks: Sequence[Linked]) -> dict[str, str]:
    """Whose times these are; nothing of those of the recording."""
    slowest = max((one.timed for one in ranks), key=lambda timed: timed.recorded_step_ns, default=Timed())
    if slowest.kind == RECORDED:
        return {}
    told = {"timing": slowest.kind, "anchored": "yes" if slowest.anchored else "no"}
    for name in ("recorded_step_ns", "low_ns", "high_ns", "step_ns"):
        if value := getattr(slowest, name):
            told[f"timing_{name}"] = str(value)
    return told
