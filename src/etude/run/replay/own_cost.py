"""The player's own time between two operators: measured where it plays, gap by gap, under the same light profiler as
the program.

Times are measured in passes of `etude.base.rounds`, which run between one playing and the next. Needs only NumPy and
PyTorch.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from etude.base.quiet import quiet
from etude.base.rounds import SmallNetwork, round_ns, worked_ns
from etude.kernels.arrays import F64, I64
from etude.run.replay.program import StepKind

MOST_TIMES: Final = 7
LEAST_TIMES: Final = 2
ENOUGH_NS: Final = 1_500_000_000
"""To measure it, a program is played for about this time, but from `LEAST_TIMES` to `MOST_TIMES` times."""
PASSES: Final = 5
COMM: Final = "c10d"
BACKEND: Final = "gloo:"
UNCLEAR: Final = ""


class Expected(NamedTuple):
    """A step of the program, to be matched with profiler events."""

    step: int
    kind: int
    name: str
    """The name of its event; UNCLEAR if it may have none, or several."""
    row: int


class ProfilerEvents(NamedTuple):
    """The events of a profiler, ordered by time, outer before inner."""

    names: list[str]
    start_ns: I64
    end_ns: I64
    thread: I64


class Session(NamedTuple):
    """A program played several times under a profiler, each time followed by a playing without it."""

    events: ProfilerEvents
    pass_ns: F64
    rounds: F64
    """For each playing under the profiler: `pass_ns`, the time of a pass of `rounds.py`, and the same in rounds."""
    more_ns: float
    """CPU time that the profiler added to one playing, over all its events."""


class Own(NamedTuple):
    """Arrays with a row for each playing and a column for each step; NaN if unknown."""

    before_ns: F64
    """The player's time before the step in which no operator of the program ran."""
    events: F64
    """Profiler events in that time, plus one."""
    inside_ns: F64
    """Time of the step's operator."""


def times_for(once_ns: int) -> int:
    """How many times to play something that takes `once_ns`."""
    return min(max(ENOUGH_NS // max(once_ns, 1), LEAST_TIMES), MOST_TIMES)


def took(play: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    play()
    return time.perf_counter_ns() - begin


def session(play: Callable[[], object], times: int) -> Session:
    """Plays `times` times under a light profiler of all threads. Playings with and without the profiler alternate,
    since the speed of a core changes over time."""
    config: Any = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    try:
        settings = {"experimental_config": config(profile_all_threads=True)} if config is not None else {}
    except TypeError:  # older versions of PyTorch
        settings = {}
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **settings)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with quiet():
            profiler.start()
        network, passes, rounds, more = SmallNetwork(torch), [], [], []
        for _ in range(times):
            with_it = worked_ns(play)
            passes.append(network.plain_ns(PASSES))
            rounds.append(passes[-1] / round_ns())
            torch.autograd._enable_record_function(False)
            more.append(with_it - worked_ns(play))
            torch.autograd._enable_record_function(True)
        with quiet():
            profiler.stop()
    finally:
        torch.autograd._enable_record_function(True)
        if collecting:
            gc.enable()
    results: Any = profiler.profiler
    found = list(results.kineto_results.events())
    start = np.array([e.start_ns() for e in found], np.int64)
    end = start + np.array([e.duration_ns() for e in found], np.int64)
    order = np.lexsort((-end, start))
    thread = np.array([e.start_thread_id() for e in found], np.int64)
    events = ProfilerEvents([found[k].name() for k in order.tolist()], start[order], end[order], thread[order])
    return Session(events, np.array(passes), np.array(rounds), statistics.median(more))


def own(events: ProfilerEvents, expected: Sequence[Expected], times: int, steps: int) -> Own | None:
    """The player's own time; None if the events do not match the program."""
    names, start, end, thread = events
    threads, counts = np.unique(thread, return_counts=True)
    if not len(threads):
        return None
    mine = np.flatnonzero(thread == threads[np.argmax(counts)])
    starts, until = start[mine], np.maximum.accumulate(end[mine])
    top = mine[np.append(True, starts[1:] >= until[:-1])].tolist()
    there = {names[k] for k in top}
    ends = _comm_ends(events, expected, times)
    found = Own(*np.full((3, times, steps), np.nan))
    at = 0
    for number in range(times):
        since, clear = 0, False
        for step, kind, name, row in expected:
            if kind == StepKind.WAIT:
                since, clear = max(since, ends.get((number, row), 0)), clear and (number, row) in ends
                continue
            if name == UNCLEAR or (kind == StepKind.CALL and name not in there):
                clear = False
                continue
            while at < len(top) and not (names[top[at]] == name or (kind == StepKind.COMM and COMM in names[top[at]])):
                at += 1
            if at == len(top):
                return None
            begin, over = int(start[top[at]]), int(end[top[at]])
            found.inside_ns[number, step] = over - begin
            if clear:
                since = min(since, begin)
                found.before_ns[number, step] = begin - since
                found.events[number, step] = np.searchsorted(starts, begin) - np.searchsorted(starts, since) + 1
            since, clear, at = over, True, at + 1
    return found


def _comm_ends(events: ProfilerEvents, expected: Sequence[Expected], times: int) -> dict[tuple[int, int], int]:
    """(playing, row of a communication) -> when the backend completed it; empty if the backend reports more or fewer
    calls than were issued."""
    rows = [(number, one.row) for number in range(times) for one in expected if one.kind == StepKind.COMM]
    ran = [k for k, name in enumerate(events.names) if name.startswith(BACKEND)]
    return dict(zip(rows, events.end_ns[ran].tolist(), strict=True)) if len(ran) == len(rows) else {}


def own_passes(found: Own, told: Session, event: float) -> F64:
    """The player's time before each step, in passes: the median over all playings; for an unknown gap, the median of
    all gaps; 0 for steps without an operator event. `event`: the cost of a profiler event in the program, in passes. An
    event costs the player less, since more of its data is in near caches, but at least half of that."""
    each = told.more_ns * len(told.pass_ns) / max(len(told.events.names), 1) / float(np.median(told.pass_ns))
    event = min(max(each, event / 2), event)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # steps with NaN alone
        before = np.nanmedian(found.before_ns / told.pass_ns[:, None] - event * found.events, axis=0)
        usual = np.nanmedian(before)
    before = np.where(np.isfinite(before), before, usual if np.isfinite(usual) else 0.0)
    mine: F64 = np.where(np.isfinite(found.inside_ns).any(axis=0), np.maximum(before, 0.0), 0.0).astype(np.float64)
    return mine
