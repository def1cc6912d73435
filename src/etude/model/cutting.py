"""A part of a trace: some of its nodes, in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, Bool
from etude.model.schema import NODE
from etude.model.trace import Trace


def kept(trace: Trace, keep: Bool) -> Trace:
    """The nodes selected by `keep`, with their ids. Dependencies on dropped nodes are dropped, and a node called by a
    dropped one belongs to the nearest kept caller."""
    rows = np.flatnonzero(keep)
    place = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
    columns: dict[str, NDArray[Any]] = {}
    for c in NODE:
        column = getattr(trace, c.name)
        columns[c.name] = column[: len(rows)] if column.strides == (0,) else column[rows]
    columns["parent"] = np.append(place, np.int32(-1))[_around(trace.parent, keep)[rows]]
    for edges in ("data", "ctrl"):
        columns |= _edges(trace, edges, keep, place)
    extra = keep[trace.extra_row]
    return trace.replace(
        **columns,
        cells=trace.cells[np.repeat(keep, np.diff(trace.cell_start()))],
        extra_row=place[trace.extra_row[extra]],
        extra=trace.extra[extra],
    )


def _around(parent: I32, keep: Bool) -> I32:
    """The nearest kept caller of each node; -1: none."""
    there, above = np.append(keep, True), np.append(parent, np.int32(-1))
    found = parent.copy()
    while not there[found].all():
        gone = ~there[found]
        found[gone] = above[found[gone]]
    return found


def _edges(trace: Trace, name: str, keep: Bool, place: I32) -> dict[str, NDArray[Any]]:
    start, target = getattr(trace, f"{name}_start"), getattr(trace, name)
    waits = np.repeat(np.arange(len(trace)), np.diff(start))
    good = keep[waits] & ((target < 0) | keep[target])
    count = np.bincount(waits[good], minlength=len(trace))[keep]
    to = target[good]
    return {
        f"{name}_start": np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
        name: np.where(to < 0, to, place[to]).astype(np.int32),
        f"{name}_why": getattr(trace, f"{name}_why")[good],
    }
