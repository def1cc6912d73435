"""What a player itself takes between two operators: measured where it plays, under the same light profiler as the
program, gap by gap.

Times are counted in passes of `etude.rounds`, made between one playing and the next. Needs NumPy and PyTorch alone.
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
from numpy.typing import NDArray

from etude.quiet import quiet
from etude.replay.program import StepKind
from etude.rounds import Network, round_ns, worked_ns

MOST_TIMES: Final = 7
LEAST_TIMES: Final = 2
ENOUGH_NS: Final = 1_500_000_000
"""How often a program is played to measure it: less where that takes long."""
PASSES: Final = 5
COMM: Final = "c10d"
BACKEND: Final = "gloo:"
UNCLEAR: Final = ""

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class Expected(NamedTuple):
    """A step of the program, as events tell of it."""

    step: int
    kind: int
    name: str
    """How the name of its event begins; UNCLEAR where it may have none, or several."""
    row: int


class Events(NamedTuple):
    """What a profiler saw, in order of time, outer before inner."""

    names: list[str]
    start_ns: I64
    end_ns: I64
    thread: I64


class Session(NamedTuple):
    """A program played several times under a profiler, and as often without it in between."""

    events: Events
    pass_ns: F64
    rounds: F64
    """Of each time under the profiler the time of a pass of `etude.rounds`, and how many rounds that are."""
    more_ns: float
    """What the profiler added to all events of one time, of CPU time."""


class Own(NamedTuple):
    """Of each time that a program was played (rows) and of each of its steps; NaN where it is not known."""

    before_ns: F64
    """The player's time before it in which no operator of the program ran."""
    events: F64
    """Events of the profiler in it, and one."""
    inside_ns: F64
    """The time of its operator."""


def times_for(once_ns: int) -> int:
    """How often to play something that takes so long."""
    return min(max(ENOUGH_NS // max(once_ns, 1), LEAST_TIMES), MOST_TIMES)


def took(play: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    play()
    return time.perf_counter_ns() - begin


def session(play: Callable[[], object], times: int) -> Session:
    """What a light profiler sees of all threads when this is played `times` times. Playing with it and without it takes
    turns: how fast a core is changes from one moment to the next."""
    config: Any = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    try:
        settings = {"experimental_config": config(profile_all_threads=True)} if config is not None else {}
    except TypeError:  # older versions
        settings = {}
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **settings)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with quiet():
            profiler.start()
        network, passes, rounds, more = Network(torch), [], [], []
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
    events = Events([found[k].name() for k in order.tolist()], start[order], end[order], thread[order])
    return Session(events, np.array(passes), np.array(rounds), statistics.median(more))


def own(events: Events, expected: Sequence[Expected], times: int, steps: int) -> Own | None:
    """What the player took itself; None where the events are not those of the program."""
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


def _comm_ends(events: Events, expected: Sequence[Expected], times: int) -> dict[tuple[int, int], int]:
    """(time, row of a communication) -> when the backend was done with it; empty if the backend reports more or fewer
    calls than were issued."""
    rows = [(number, one.row) for number in range(times) for one in expected if one.kind == StepKind.COMM]
    ran = [k for k, name in enumerate(events.names) if name.startswith(BACKEND)]
    return dict(zip(rows, events.end_ns[ran].tolist(), strict=True)) if len(ran) == len(rows) else {}


def own_passes(found: Own, told: Session, event: float) -> F64:
    """Of each step what the player takes before it, where it is a call, in passes: the median of all times; where a gap
    is not known, that of all gaps. `event`: one of the profiler in the program, in passes. One of the player costs
    less, since more of what it needs is in near caches, but not less than half."""
    each = told.more_ns * len(told.pass_ns) / max(len(told.events.names), 1) / float(np.median(told.pass_ns))
    event = min(max(each, event / 2), event)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # steps that are no calls
        before = np.nanmedian(found.before_ns / told.pass_ns[:, None] - event * found.events, axis=0)
        usual = np.nanmedian(before)
    before = np.where(np.isfinite(before), before, usual if np.isfinite(usual) else 0.0)
    mine: F64 = np.where(np.isfinite(found.inside_ns).any(axis=0), np.maximum(before, 0.0), 0.0).astype(np.float64)
    return mine
