"""What a player itself takes between two operators: measured where it plays, under the same light profiler that told of
the program, gap by gap.

Times are counted in rounds of an empty loop of Python, run between one playing and the next: how fast a core is changes
from moment to moment, and by half as much again where two share one. Needs NumPy and PyTorch alone.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from etude.quiet import quiet
from etude.replay.program import StepKind

MOST_TIMES: Final = 7
LEAST_TIMES: Final = 2
ENOUGH_NS: Final = 1_500_000_000
"""How often a program is played to measure it: less where that takes long."""
ROUNDS: Final = 4000
"""Of the loop, to time one."""
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
    round_ns: F64
    """Of each time under the profiler the time of a round."""
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


def work(rounds: int) -> None:
    """Python for so many rounds: slower where the program would be, since it is work and no wait."""
    for _ in repeat(None, rounds):
        pass


def session(play: Callable[[], object], times: int) -> Session:
    """What a light profiler sees of all threads when this is played so often. Playing with it and without it takes
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
        rounds, more = [], []
        for _ in range(times):
            rounds.append(_round_ns())
            with_it = _worked(play)
            torch.autograd._enable_record_function(False)
            more.append(with_it - _worked(play))
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
    return Session(events, np.array(rounds), statistics.median(more))


def pause_rounds() -> float:
    """A pause of no rounds."""

    def pauses() -> None:
        for _ in repeat(None, ROUNDS):
            work(0)

    return max(_worked(pauses) / ROUNDS / _round_ns() - 1, 0.0)


def _round_ns() -> float:
    return _worked(lambda: work(ROUNDS)) / ROUNDS


def _worked(play: Callable[[], object]) -> int:
    begin = time.thread_time_ns()
    play()
    return time.thread_time_ns() - begin


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
    """(time, row of a communication) -> when the backend was done with it; empty where the backend tells of more calls
    or of fewer than were issued."""
    rows = [(number, one.row) for number in range(times) for one in expected if one.kind == StepKind.COMM]
    ran = [k for k, name in enumerate(events.names) if name.startswith(BACKEND)]
    return dict(zip(rows, events.end_ns[ran].tolist(), strict=True)) if len(ran) == len(rows) else {}


def rounds_before(python_ns: I64, light_ns: I64, event_ns: float, found: Own, told: Session) -> tuple[F64, F64, float]:
    """Of each step, in rounds: what the program took before it, and what the player does, where it is a call; and how
    many rounds are as much as a ns of the recording. The program's operators took `light_ns` under the light profiler,
    the player's are the same: the median of all tells how much faster this host is now. An event of the player costs
    less than one of the program, which has less of what it needs in near caches, but not less than half."""
    rounds_ns = told.round_ns
    each_event_ns = told.more_ns * len(rounds_ns) / max(len(told.events.names), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # steps that are no calls
        inside = np.nanmedian(found.inside_ns / rounds_ns[:, None], axis=0)
        each = (inside / light_ns)[(light_ns > 0) & np.isfinite(inside)]
        rate = float(np.median(each)) if len(each) else 1.0 / float(np.median(rounds_ns))
        most = rate * event_ns
        event = min(max(each_event_ns / float(np.median(rounds_ns)), most / 2), most)
        before = np.nanmedian(found.before_ns / rounds_ns[:, None] - event * found.events, axis=0)
        usual = np.nanmedian(before)
    calls = np.isfinite(inside)
    before = np.where(np.isfinite(before), before, usual if np.isfinite(usual) else 0.0)
    mine: F64 = np.where(calls, np.maximum(before, 0.0), 0.0).astype(np.float64)
    return (python_ns * rate).astype(np.float64), mine, rate
