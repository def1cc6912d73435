"""What a recording reports, or shows, as missing: the profiler drops records when its buffers are full.

A kernel launch and what it launched have one correlation id. A launch without activity, or activity without launch, is
a record that was dropped or is outside of the recording; the position of the gap shows which of the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from etude.capture.ingest.events import DEVICE, OPERATORS, is_call_category
from etude.capture.link.device import DeviceTrace
from etude.capture.link.recording import TOLD
from etude.kernels.arrays import I64, Bool
from etude.model.job import Note
from etude.model.schema import UNKNOWN

# Not copies and fills: for some sizes they intentionally have no record.
_LAUNCH: Final = re.compile(r"^(cuda|hip|cu)(Ext|Module|Cooperative)*(Launch|GraphLaunch)")
_CAPTURE: Final = re.compile(r"StreamBeginCapture|StreamEndCapture")
_LOST: Final = re.compile(r"drop|lost|out of memory|buffer|overflow|incomplete|truncat", re.IGNORECASE)
_LOG: Final = re.compile(r"^(ERROR|WARNING):.*?\] ")
_CALLS: Final = ("cuda_runtime", "cuda_driver")
_ACTIVITIES: Final = ("kernel", "gpu_memcpy", "gpu_memset")
NODES: Final = (*OPERATORS, *DEVICE)
LONGEST: Final = 200
LATE_NS, LATE = 1_000_000, 0.1
"""How late the device may start: in ns, and as a fraction of the span."""


def dropped(device: DeviceTrace, rank: int) -> Iterator[Note]:
    """Notes for a reader, one each for launches without activity, activity without launch, and what Kineto said."""
    whole = device.is_phase("X") & (device.correlation != UNKNOWN) & (device.correlation != 0)
    whole &= device.start_ns != UNKNOWN
    calls, activity = whole & device.is_category(*_CALLS), whole & device.is_category(*_ACTIVITIES)
    if calls.any() and activity.any():
        launch = calls & _named(device, _LAUNCH)
        for what, at_edge in (
            *_launches(device, launch, device.correlation[activity]),
            *_activities(device, activity, device.correlation[calls]),
            *_late_start(device, activity, calls),
        ):
            yield Note(rank, what, at_edge)
    for what in _bad_times(device):
        yield Note(rank, what)
    for told in device.members.get(TOLD, ()):
        yield Note(rank, told)
    for key in ("ERROR", "WARNING"):
        said = device.members.get(key)
        for text in said if isinstance(said, list) else [said]:
            if isinstance(text, str) and _LOST.search(text):
                yield Note(rank, f"the profiler said: {_LOG.sub('', text)[:LONGEST]}")


def _named(device: DeviceTrace, pattern: re.Pattern[str]) -> Bool:
    return np.array([bool(pattern.search(name)) for name in device.names] + [False])[device.name]


def _bad_times(device: DeviceTrace) -> Iterator[str]:
    """Events that would be nodes, but have an invalid time: not a number, missing, negative."""
    wanted = np.array([c in NODES or is_call_category(c) for c in device.categories] + [False])[device.category]
    wanted &= device.is_phase("X")
    start, duration = device.start_ns, device.duration_ns
    for problem, bad in (
        ("have an unreadable start time: they are left out", start == UNKNOWN),
        ("have an unreadable duration: they count as instants", (start != UNKNOWN) & (duration == UNKNOWN)),
        (
            "have a negative duration: they count as instants",
            (start != UNKNOWN) & (duration > UNKNOWN) & (duration < 0),
        ),
    ):
        rows = np.flatnonzero(wanted & bad)
        if len(rows):
            first = device.names[device.name[rows[0]]] if device.name[rows[0]] >= 0 else "without a name"
            yield f"{len(rows):,} events {problem}; the first is event {rows[0]:,} of the file, `{first[:LONGEST]}`"


Said = tuple[str, bool]
"""Text of a note, and whether it is about an edge of the recording."""


def _launches(device: DeviceTrace, launch: Bool, answered: I64) -> Iterator[Said]:
    """Launches without activity; those captured into a graph run when it is launched."""
    rows = np.flatnonzero(launch)
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    rows = rows[~_captured(device, device.start_ns[rows])]
    empty = ~np.isin(device.correlation[rows], answered)
    count = int(empty.sum())
    if not count or count == len(rows):  # if there is none at all, kernels were not recorded
        return
    at_the_end = int(np.argmin(empty[::-1]))
    if at_the_end:
        what = f"the last {at_the_end:,} of {len(rows):,} launches have no device activity"
        yield f"{what}: the recording ends before it", True
    if count > at_the_end:
        what = f"{count - at_the_end:,} of {len(rows):,} launches have no device activity"
        yield f"{what}: records were dropped", False


def _captured(device: DeviceTrace, when: I64) -> Bool:
    marks = np.flatnonzero(_named(device, _CAPTURE) & device.is_category(*_CALLS))
    marks = marks[np.argsort(device.start_ns[marks], kind="stable")]
    if not len(marks):
        return np.zeros(len(when), bool)
    at = np.searchsorted(device.start_ns[marks], when, "right") - 1
    begins = _named(device, re.compile("BeginCapture"))[marks]
    return (at >= 0) & begins[np.maximum(at, 0)]


def _late_start(device: DeviceTrace, activity: Bool, calls: Bool) -> Iterator[Said]:
    """The first activity launched here should follow its launch; if it is far behind, unrecorded work held the device,
    or the two clocks differ."""
    rows = np.flatnonzero(activity & np.isin(device.correlation, device.correlation[calls]))
    if not len(rows):
        return
    first = rows[np.argmin(device.start_ns[rows])]
    call = np.flatnonzero(calls & (device.correlation == device.correlation[first]))[0]
    delay = int(device.start_ns[first]) - int(device.start_ns[call]) - int(device.duration_ns[call])
    span = int((device.start_ns[rows] + device.duration_ns[rows]).max() - device.start_ns[call])
    if delay > max(LATE_NS, LATE * span):
        what = f"the device starts {delay / 1e6:,.0f} ms after its first launch"
        yield f"{what}: the cause was not recorded, or the clocks of host and device differ", False


def _activities(device: DeviceTrace, activity: Bool, launched: I64) -> Iterator[Said]:
    rows = np.flatnonzero(activity)
    lost = rows[~np.isin(device.correlation[rows], launched)]
    if not len(lost):
        return
    known = np.setdiff1d(rows, lost)
    first = device.start_ns[known].min() if len(known) else 0
    before = int((device.start_ns[lost] < first).sum())
    if before:
        yield f"{_counted(before)} {'was' if before == 1 else 'were'} launched before the recording began", True
    if len(lost) > before:
        what = f"{len(lost) - before:,} of {_counted(len(rows))} have no launch in the trace"
        yield f"{what}: it was dropped, or launched by something the profiler does not see", False


def _counted(count: int) -> str:
    return f"{count:,} device {'activity' if count == 1 else 'activities'}"
