"""Light steps, which `etude collect` recorded with as little profiling as possible: when each operator ran.

The file is stored with the recording. Its events correspond one to one to those of the recorded window, so each moment
of the window can be converted to a moment of a light step: the start or end of an event to that of the same event,
moments in between by linear interpolation.
"""

from __future__ import annotations

import glob
import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError
from etude.kernels.arrays import F64, I64, Bool
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace

DRIVER_CALL: Final = 1
"""What a driver call is in the column `kind`."""
_FILE: Final = re.compile(r".*\.rank(\d+)\.light\.json\.gz")
_STEP: Final = "ProfilerStep#"
_BACKEND: Final = "gloo:"
_COMMS: Final = (int(Kind.COLL), int(Kind.SEND), int(Kind.RECV))


@dataclass(frozen=True, slots=True, eq=False)
class LightEvents:
    """Events of one rank, ordered by time."""

    names: list[str]
    name: I64
    """Indices into `names`."""
    thread: I64
    start_ns: I64
    end_ns: I64
    event_ns: F64
    pass_ns: F64
    cpu_ns: I64
    """For each light step: `event_ns`, what the profiler added for each event; `pass_ns`, the time of a pass of
    `etude.base.rounds`; `cpu_ns`, the CPU time of the thread."""
    node_ns: float = 0.0
    """Time to create one autograd node."""
    page_faults: int = 0
    """New memory pages that a step without a profiler touched."""


def light_events(path: Path) -> dict[int, LightEvents]:
    """Rank -> light steps stored with a recording; empty if there are none."""
    folder, stem = (path, "") if path.is_dir() else (path.parent, path.name)
    found = {}
    for file in sorted(folder.glob(f"{glob.escape(stem)}*.light.json.gz")) if folder.is_dir() else ():
        match = _FILE.fullmatch(file.name)
        if match is None:
            continue
        try:
            found[int(match[1])] = _read(json.loads(gzip.decompress(file.read_bytes())))
        except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, OverflowError) as problem:
            raise FormatError(f"is not the light steps of a recording: {problem}", path=file) from None
    return found


def _read(told: dict[str, Any]) -> LightEvents:
    thread, start, end = (np.array(told[column], np.int64) for column in ("thread", "start_ns", "end_ns"))
    names, name = [str(one) for one in told["names"]], np.array(told["name"], np.int64)
    if not len(name) == len(thread) == len(start) == len(end):
        raise ValueError("columns of different lengths")
    if len(name) and not (name.min() >= 0 and name.max() < len(names)):
        raise ValueError("an event without a name")
    if told.get("device"):
        return _calls(told, names, name, thread, start, end)
    return LightEvents(
        names,
        name,
        thread,
        start,
        end,
        event_ns=np.array(told.get("event_ns", ()), np.float64),
        pass_ns=np.array(told.get("pass_ns", ()), np.float64),
        cpu_ns=np.array(told.get("cpu_ns", ()), np.int64),
        node_ns=float(told.get("node_ns", 0.0)),
        page_faults=int(told.get("page_faults", 0)),
    )


def _calls(told: dict[str, Any], names: list[str], name: I64, thread: I64, start: I64, end: I64) -> LightEvents:
    """The driver's calls of a light window of a device, and its steps as events; not those in which the profiler
    starts, if there are others."""
    marks = np.array(told["marks_ns"], np.int64).reshape(-1, 2) - int(told["base_ns"])
    others = np.delete(marks, told.get("starts", [0]), axis=0)
    marks = others if len(others) else marks
    calls = np.array(told["kind"], np.int64) == DRIVER_CALL
    nothing = np.zeros(len(marks), np.int64)
    return LightEvents(
        [*names, _STEP],
        np.concatenate([nothing + len(names), name[calls]]),
        np.concatenate([nothing - 1, thread[calls]]),
        np.concatenate([marks[:, 0], start[calls]]),
        np.concatenate([marks[:, 1], end[calls]]),
        event_ns=np.full(len(marks), float(told.get("call_ns", 0.0))),
        pass_ns=np.zeros(0),
        cpu_ns=np.zeros(0, np.int64),
    )


class LightClock:
    """Converts moments of the window to moments of one light step. That step is repeated for each recorded step, one
    after the other."""

    def __init__(self, window_ns: I64, light_ns: I64, comm_end_ns: dict[int, int], step: int, worked_ns: int) -> None:
        order = np.lexsort((light_ns, window_ns))
        self._window = window_ns[order].astype(np.float64)
        self._light = np.maximum.accumulate(light_ns[order]).astype(np.float64)
        self.comm_end_ns = comm_end_ns
        """Node of a communication on a backend thread -> when it ended."""
        self.step, self.worked_ns = step, worked_ns
        """Index of the light step, and the CPU time of the thread in it, multiplied by the number of recorded steps."""

    def __call__(self, moments_ns: I64) -> I64:
        found: I64 = np.rint(np.interp(moments_ns, self._window, self._light)).astype(np.int64)
        return found


def light_clocks(
    trace: Trace, events: Bool, start_ns: I64, end_ns: I64, light: LightEvents
) -> tuple[list[LightClock], str]:
    """A clock for each light step, except those in which the program did something else than in the window; if there is
    none, the reason. `events`: nodes that the profiler saw."""
    rows = np.flatnonzero(events & (trace.step != UNKNOWN))
    if not len(light.name):
        return [], "the file has no events"
    if not len(rows):
        return [], "the window has no steps"
    codes, names = trace.coded("name")
    known = {_plain(name): number for number, name in enumerate(light.names)}
    nodes = np.array([known.get(_plain(name), -1) for name in names], np.int64)[codes]
    lights = np.array([known[_plain(name)] for name in light.names], np.int64)[light.name]
    rows = rows[trace.thread[rows] == _busiest(trace.thread[rows])]
    rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
    window = [rows[trace.step[rows] == step] for step in np.unique(trace.step[rows]).tolist()]
    mine = np.flatnonzero(light.thread == _busiest(light.thread))
    beside = np.flatnonzero(np.array([name.startswith(_BACKEND) for name in light.names])[light.name])
    begins = np.flatnonzero(lights[mine] == known.get(_STEP, -1))
    if any(len(column) != len(begins) for column in (light.event_ns, light.pass_ns, light.cpu_ns)):
        return [], f"the file has {len(begins)} steps and figures of {len(light.event_ns)}"
    clocks, why = [], ""
    for which, step in enumerate(np.split(mine, begins)[1:]):
        begin, end = int(light.start_ns[step[0]]), int(light.end_ns[step[0]])
        step = step[light.start_ns[step] < end]
        other = next((part for part in window if not np.array_equal(nodes[part], lights[step])), None)
        if other is not None:
            why = why or _difference([names[code] for code in codes[other]], [light.names[k] for k in light.name[step]])
            continue
        sent = beside[(light.start_ns[beside] >= begin) & (light.start_ns[beside] < end)]
        moments, moments_light, ends = [], [], dict[int, int]()
        for number, part in enumerate(window):
            shift = number * (end - begin) - begin
            moments += [start_ns[part], end_ns[part]]
            moments_light += [light.start_ns[step] + shift, light.end_ns[step] + shift]
            comms = np.flatnonzero(np.isin(trace.kind, _COMMS) & (trace.step == trace.step[part[0]]))
            comms = comms[np.argsort(start_ns[comms], kind="stable")]
            if np.array_equal(nodes[comms], lights[sent]):
                ends |= dict(zip(comms.tolist(), (light.end_ns[sent] + shift).tolist(), strict=True))
        worked = int(light.cpu_ns[which]) * len(window)
        clocks.append(LightClock(np.concatenate(moments), np.concatenate(moments_light), ends, which, worked))
    return clocks, "" if clocks else why or "the file has no steps"


def _difference(window: list[str], light: list[str]) -> str:
    """Where the events of a light step first differ from those of a step of the window."""
    pairs = zip(map(_plain, window), map(_plain, light), strict=False)
    at = next((k for k, (one, other) in enumerate(pairs) if one != other), min(len(window), len(light)))
    one, other = (names[at] if at < len(names) else "the end" for names in (window, light))
    return f"the program did something else: event {at + 1} is {one} in the window and {other} in the light step"


def _busiest(threads: I64) -> int:
    found, count = np.unique(threads, return_counts=True)
    return int(found[np.argmax(count)])


def _plain(name: str) -> str:
    """The name without the step number, which differs from step to step."""
    return _STEP if name.startswith(_STEP) else name
