"""Diff: the first difference of two jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.model.as_recorded import is_twice_timed
from etude.model.fold import fold
from etude.model.job import VALUE_COLUMNS, Job, ranges
from etude.model.schema import TWICE_TIMED, UNKNOWN
from etude.model.trace import Difference, Trace, first_difference

SLOT_COLUMNS = ("group", "src", "dst")
Slots = dict[str, list[tuple[int, int, int]]]
"""Column -> (first node, slot in one trace, slot in the other) for each pair of slots used at the same node."""


@dataclass(frozen=True, slots=True)
class JobDifference:
    """The first difference of two jobs. `rank` and `node` (the id in the file of job a) are None if not applicable."""

    rank: int | None
    node: int | None
    column: str
    a: Any
    b: Any


def diff(a: Job, b: Job) -> JobDifference | None:
    """The first difference in ranks, programs, values, bindings, times and metadata; None if the jobs are the same.

    Whether ranks share traces does not count: a folded job is the same as its expanded twin. Nor does the name.

    etude.diff(job, etude.open("other/"))
    """
    if not np.array_equal(a.ranks, b.ranks):
        return JobDifference(None, None, "ranks", ranges(a.ranks), ranges(b.ranks))
    a, b = fold(a), fold(b)
    known: dict[tuple[int, int], Difference | None] = {}
    slots: dict[tuple[int, int], Slots] = {}
    for i, rank in enumerate(a.ranks.tolist()):
        pair = int(a.trace_of[i]), int(b.trace_of[i])
        if pair not in known:
            known[pair] = first_difference(*_programs(a, b, *pair))
            slots[pair] = _slots(a.traces[pair[0]], b.traces[pair[1]])
        found = known[pair] or _values(a, b, rank) or _bindings(a, b, i, rank, slots[pair]) or _times(a, b, i)
        if found:
            node = None
            if found.node is not None:
                node = (int(a.trace(rank).source_id[found.node]) + int(a.id_base[i])) % 2**64
            return JobDifference(rank, node, found.column, found.a, found.b)
    if a.world_size != b.world_size:
        return JobDifference(None, None, "world_size", a.world_size, b.world_size)
    return None


def _programs(a: Job, b: Job, x: int, y: int) -> tuple[Trace, Trace]:
    """The two traces with the values and slots of the first, since ranks may replace and bind them; those are compared
    rank by rank."""
    first, second = a.traces[x], b.traces[y]
    if len(first) != len(second):
        return first, second
    same: tuple[str, ...] = (*VALUE_COLUMNS, *SLOT_COLUMNS)
    if is_twice_timed(first) != is_twice_timed(second):  # `.et` and JSON keep one of the two
        same = (*same, *TWICE_TIMED)
    return first, second.replace(**{c: getattr(first, c) for c in same})


def _values(a: Job, b: Job, rank: int) -> Difference | None:
    first, second = a.trace(rank), b.trace(rank)
    found = []
    for column in VALUE_COLUMNS:
        x, y = getattr(first, column), getattr(second, column)
        if x is y:
            continue
        rows = np.flatnonzero(x != y)
        if len(rows):
            found.append(Difference(int(rows[0]), column, _value(x[rows[0]]), _value(y[rows[0]])))
    return min(found, key=lambda d: d.node or 0) if found else None


def _value(value: Any) -> int | None:
    return None if value == UNKNOWN else int(value)


def _slots(a: Trace, b: Trace) -> Slots:
    """Which slots of the two traces are used at the same nodes. Slot numbers have no meaning: readers number slots by
    first use, and give one to peers or groups that happen to be the same on a rank."""
    found: Slots = {}
    for column in SLOT_COLUMNS if len(a) == len(b) else ():
        x, y = getattr(a, column), getattr(b, column)
        if x.strides == y.strides == (0,):
            x, y = x[:1], y[:1]
        at = np.sort(np.unique(x.astype(np.int64) << 32 | y.astype(np.uint32), return_index=True)[1])
        found[column] = list(zip(at.tolist(), x[at].tolist(), y[at].tolist(), strict=True))
    return found


def _behind(job: Job, rank: int, column: str, slot: int) -> Any:
    """The rank behind a peer slot, (name, members) behind a group slot; None: no slot."""
    if slot < 0:
        return None
    if column != "group":
        return int(job.peer_slots(rank)[slot])
    group = int(job.group_slots(rank)[slot])
    members = job.groups.ranks(group)
    return job.groups.names[group], None if members is None else members.tolist()


def _bindings(a: Job, b: Job, i: int, rank: int, slots: Slots) -> Difference | None:
    if a.id_base[i] != b.id_base[i]:
        return Difference(0, "source_id", int(a.id_base[i]), int(b.id_base[i]))
    if a.tag_base[i] != b.tag_base[i]:
        return Difference(None, "first tag", int(a.tag_base[i]), int(b.tag_base[i]))
    for column, met in slots.items():
        for node, x, y in met:
            first, second = _behind(a, rank, column, x), _behind(b, rank, column, y)
            if first != second:
                if column != "group":
                    return Difference(node, "peer", first, second)
                if first and second and first[0] == second[0]:
                    return Difference(node, f"members of group {first[0]}", first[1], second[1])
                return Difference(node, "group", first and first[0], second and second[0])
    if a.metadata[int(a.metadata_of[i])] != b.metadata[int(b.metadata_of[i])]:
        return Difference(None, "metadata", a.metadata[int(a.metadata_of[i])], b.metadata[int(b.metadata_of[i])])
    return None


def _times(a: Job, b: Job, i: int) -> Difference | None:
    if a.timing is None and b.timing is None:
        return None
    if a.timing is None or b.timing is None:
        return Difference(None, "recorded times", a.timing is not None, b.timing is not None)
    for column, x, y in zip(("start_ns", "end_ns"), a.timing.block(i), b.timing.block(i), strict=True):
        rows = np.flatnonzero(x != y)
        if len(rows):
            return Difference(int(rows[0]), column, _value(x[rows[0]]), _value(y[rows[0]]))
    return None
