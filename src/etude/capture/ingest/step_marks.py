"""The steps of a recording, by the annotations around them: `ProfilerStep#7`.

A program may mark steps of its own, by the same name, while something else marks them too (`etude collect`, at the end
of an optimizer's step). Marks of one series follow each other; those of two overlap:

    one     |---- 6 ----|---- 7 ----|---- 8 ----|
    other         |--- 106 --|  |--- 107 ---|

Only the series that covers most of the time counts. A mark whose end was rounded, or written a little late, may reach
into the next one of its series; the moments that both have belong to the later one.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Final

import numpy as np

from etude.capture.ingest.engine_passes import engine_passes
from etude.capture.ingest.events import ROUNDING_NS
from etude.capture.ingest.graph import ACTIVITY, CausalGraph
from etude.capture.link.device import DeviceTrace
from etude.kernels.arrays import I64
from etude.model.schema import UNKNOWN

REACHES: Final = 0.01
"""Part of a mark by which the next one of its series may begin before its end."""


def steps(device: DeviceTrace, found: CausalGraph) -> I64:
    """Number of the step in which a node, or its launch, began; without marks, of the engine's pass."""
    rows, number = _chosen(device)
    when = found.start_ns.copy()
    launched = found.what >= ACTIVITY
    call = found.device.call[found.index[launched]]
    when[launched] = np.where(call >= 0, np.append(found.host.start_ns, 0)[call], when[launched])
    of_device = device.tid[rows] == UNKNOWN  # steps that the device itself counts, of what no call is known of
    alone = np.zeros(len(found), np.bool_)
    alone[launched] = call < 0
    on_host = _steps_at(device, rows[~of_device], number[~of_device], when)
    return np.where(alone & of_device.any(), _steps_at(device, rows[of_device], number[of_device], when), on_host)


def steps_at(device: DeviceTrace, when: I64) -> I64:
    """Number of the step that contains each moment of the host; UNKNOWN: none."""
    rows, number = _chosen(device)
    on_host = device.tid[rows] != UNKNOWN
    return _steps_at(device, rows[on_host], number[on_host], when)


def crossing(device: DeviceTrace) -> Iterator[str]:
    """What to say of marks that do not count."""
    rows, number = _marks(device)
    left = np.setdiff1d(np.arange(len(rows)), _of_one_series(device, rows, number))
    if len(left):
        shown = f"the first of {len(left):,} is `ProfilerStep#{number[left[0]]}`"
        yield f"two series of steps are marked, and overlap: that which covers less time is not counted ({shown})"


def _steps_at(device: DeviceTrace, rows: I64, number: I64, when: I64) -> I64:
    """Number of the step among `rows` that contains each moment."""
    if not len(rows):
        return np.full(len(when), UNKNOWN, np.int64)
    begin = device.start_ns[rows]
    end = begin + device.duration_ns[rows]
    at = np.searchsorted(begin, when, "right") - 1
    inside = (at >= 0) & (when < end[at])
    return np.where(inside, number[at], UNKNOWN)


def _chosen(device: DeviceTrace) -> tuple[I64, I64]:
    """(Rows of the annotations around steps by start, the number of each.)"""
    rows, number = _marks(device)
    if not len(rows):
        rows = engine_passes(device).row
        return rows, np.arange(len(rows))
    kept = _of_one_series(device, rows, number)
    return rows[kept], number[kept]


def _marks(device: DeviceTrace) -> tuple[I64, I64]:
    """The same of all annotations that mark a step."""
    number = np.array([_step(name) for name in device.names] + [-1], np.int64)
    is_mark = (number[device.name] >= 0) & device.is_category("user_annotation") & device.is_phase("X")
    rows = np.flatnonzero(is_mark & (device.start_ns != UNKNOWN))
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    return rows, number[device.name[rows]]


def _step(name: str) -> int:
    number = name.removeprefix("ProfilerStep#")
    return int(number) if number != name and number.isdigit() and len(number) < 18 else -1


def _of_one_series(device: DeviceTrace, rows: I64, number: I64) -> I64:
    """Positions of the marks that count: those of devices, and one series of the host's."""
    of_device = device.tid[rows] == UNKNOWN
    on_host = np.flatnonzero(~of_device)
    start = device.start_ns[rows[on_host]]
    lasts = np.maximum(device.duration_ns[rows[on_host]], 0)
    follows = np.diff(number[on_host]) == 1
    little = (start + lasts)[:-1] - start[1:] <= REACHES * np.minimum(lasts[:-1], lasts[1:])
    end = start + lasts
    end[:-1] = np.where(follows & little, np.minimum(end[:-1], start[1:]), end[:-1])
    if not (start[1:] < end[:-1] - ROUNDING_NS).any():
        return np.arange(len(rows))
    series = _series(start.tolist(), end.tolist())
    covered = np.bincount(series, weights=end - start)
    return np.sort(np.concatenate([np.flatnonzero(of_device), on_host[series == covered.argmax()]]))


def _series(start: list[int], end: list[int]) -> I64:
    """The series of each mark: that whose last mark ended last before this one began, else a new one."""
    open_ends: list[tuple[int, int]] = []  # by end
    found = np.empty(len(start), np.int64)
    for mark, (begin, over) in enumerate(zip(start, end, strict=True)):
        at = bisect.bisect_right(open_ends, (begin + ROUNDING_NS, len(start))) - 1
        found[mark] = open_ends.pop(at)[1] if at >= 0 else len(open_ends)
        bisect.insort(open_ends, (over, int(found[mark])))
    return found
