"""Diff: where two jobs differ first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.model.fold import fold
from etude.model.job import VALUE_COLUMNS, Job, ranges
from etude.model.schema import UNKNOWN
from etude.model.trace import Difference, first_difference


@dataclass(frozen=True, slots=True)
class JobDifference:
    """The first difference of two jobs. `rank` and `node` (the id in the file of job a) are None where it has none."""

    rank: int | None
    node: int | None
    column: str
    a: Any
    b: Any


def diff(a: Job, b: Job) -> JobDifference | None:
    """The first difference in ranks, programs, values, bindings, times and metadata; None if the jobs are the same.

    Whether ranks share traces does not count: a folded job is the same as its expanded twin. Nor does the name.
    """
    if not np.array_equal(a.ranks, b.ranks):
        return JobDifference(None, None, "ranks", ranges(a.ranks), ranges(b.ranks))
    a, b = fold(a), fold(b)
    known: dict[tuple[int, int], Difference | None] = {}
    for i, rank in enumerate(a.ranks.tolist()):
        pair = int(a.trace_of[i]), int(b.trace_of[i])
        if pair not in known:
            known[pair] = first_difference(*_without_values(a, b, *pair))
        found = known[pair] or _values(a, b, rank) or _bindings(a, b, i, rank) or _times(a, b, i)
        if found:
            node = None
            if found.node is not None:
                node = (int(a.trace(rank).source_id[found.node]) + int(a.id_base[i])) % 2**64
            return JobDifference(rank, node, found.column, found.a, found.b)
    if a.world_size != b.world_size:
        return JobDifference(None, None, "world_size", a.world_size, b.world_size)
    return None


def _without_values(a: Job, b: Job, x: int, y: int) -> tuple[Any, Any]:
    """The two traces with the values of the first, since ranks may replace them; values are compared rank by rank."""
    first, second = a.traces[x], b.traces[y]
    if len(first) != len(second):
        return first, second
    return first, second.replace(**{c: getattr(first, c) for c in VALUE_COLUMNS})


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


def _bindings(a: Job, b: Job, i: int, rank: int) -> Difference | None:
    if a.id_base[i] != b.id_base[i]:
        return Difference(0, "source_id", int(a.id_base[i]), int(b.id_base[i]))
    if a.tag_base[i] != b.tag_base[i]:
        return Difference(None, "first tag", int(a.tag_base[i]), int(b.tag_base[i]))
    x, y = a.peer_slots(rank), b.peer_slots(rank)
    if not np.array_equal(x, y):
        slot = int(np.flatnonzero(x != y)[0])
        trace = a.trace(rank)
        node = int(np.flatnonzero((trace.src == slot) | (trace.dst == slot))[0])
        return Difference(node, "peer", int(x[slot]), int(y[slot]))
    for slot, (g, h) in enumerate(zip(a.group_slots(rank).tolist(), b.group_slots(rank).tolist(), strict=True)):
        names = a.groups.names[g], b.groups.names[h]
        members = [None if m is None else m.tolist() for m in (a.groups.ranks(g), b.groups.ranks(h))]
        if names[0] != names[1] or members[0] != members[1]:
            node = int(np.flatnonzero(a.trace(rank).group == slot)[0])
            column = "group" if names[0] != names[1] else f"members of group {names[0]}"
            shown = names if names[0] != names[1] else tuple(members)
            return Difference(node, column, *shown)
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
