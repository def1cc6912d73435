"""merge: consecutive calls of one group become one."""

from __future__ import annotations

import numpy as np

from etude.base.errors import UsageError
from etude.make.transform.edits.definition import Definition, Here, Parameter, size, whole
from etude.model.schema import UNKNOWN, Kind


def rewrite(here: Here, s: int, bytes_each: int) -> None:
    """The last of every s calls carries the bytes of all, and has the dependencies of all."""
    trace, rows = here.trace, here.rows
    if s == 1 or not len(rows):
        return
    if (trace.kind[rows] != Kind.COLL).any():
        raise UsageError("only calls of a group are merged, and messages have none", hint="kind=collective")
    key = (trace.group[rows].astype(np.int64) << 8) + trace.collective[rows]
    order = np.argsort(key, kind="stable")
    first = np.concatenate([[0], np.flatnonzero(np.diff(key[order])) + 1])
    place = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
    starts = np.flatnonzero(place % s == 0)
    count = np.diff(np.append(starts, len(rows)))
    last = rows[order][starts + count - 1]
    many = count > 1
    for name in ("in_bytes", "out_bytes", "duration_ns"):
        each = getattr(trace, name)[rows][order]
        known = np.logical_and.reduceat(each != UNKNOWN, starts)
        whole_ = np.add.reduceat(np.where(each == UNKNOWN, 0, each), starts)
        if name == "duration_ns":
            known[:] = False  # the time of one call of this size was not recorded
        elif bytes_each and name == "in_bytes":
            whole_ = np.full(len(starts), bytes_each)
        if (getattr(trace, name)[last[many]] != UNKNOWN).any():
            here.made.set(name, last[many], np.where(known, whole_, UNKNOWN)[many])
    into = np.repeat(last, count)
    others = rows[order] != into
    here.made.replace(rows[order][others], into[others])


EDIT = Definition(
    doc="`s` consecutive calls of one group and kind become one call with the sum of their bytes (or `bytes_each`)",
    cannot="whether the program can wait for all of them; if one needs the result of another, the edit is refused",
    parameters={
        "s": Parameter(read=whole(1), doc="calls that become one: 4"),
        "bytes_each": Parameter(read=size, default="0", doc="bytes of the merged call, if not the sum"),
    },
    selects="collective",
    rewrite=rewrite,
)
