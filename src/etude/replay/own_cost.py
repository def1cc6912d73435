"""What a player itself takes for a call, beside the operator: measured where it plays, under the same light profiler
that told of the program. Needs NumPy and PyTorch alone."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from etude.quiet import quiet
from etude.replay.stand_ins import spin

TIMES: Final = 5
VIEW: Final = "aten::as_strided"


def own_call_ns(chunks: Sequence[Callable[[], None]], calls: int, views: int, most_ns: float) -> float:
    """A call's share of the time of these functions in which no operator of the program ran, and no profiler. `views`:
    operators that only the player calls; `most_ns`: what an event of the profiler cost in the recording, which it does
    not exceed here: times of large tensors differ by themselves."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        _took(chunks)  # once before it counts
        plain = [_took(chunks) for _ in range(TIMES)]
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        with quiet():
            profiler.start()
        spans = [_took(chunks) for _ in range(TIMES)]
        with quiet():
            profiler.stop()
    finally:
        if collecting:
            gc.enable()
    events: list[Any] = list(profiler.events())
    found = sorted((e for e in events if e.cpu_parent is None), key=lambda e: e.time_range.start)
    if not found or not calls or len(found) % TIMES:
        return 0.0
    each = len(found) // TIMES
    own = [span - _inside(found[k * each : (k + 1) * each], views) for k, span in enumerate(spans)]
    event_ns = TIMES * (min(spans) - min(plain)) / len(events)  # others on the machine only add
    return max((min(own) - each * min(max(event_ns, 0.0), most_ns)) / calls, 0.0)


def pause_ns() -> float:
    """A pause of no length."""
    took = []
    for _ in range(50):
        begin = time.perf_counter_ns()
        spin(0)
        took.append(time.perf_counter_ns() - begin)
    return float(statistics.median(took))


def _took(chunks: Sequence[Callable[[], None]]) -> int:
    begin = time.perf_counter_ns()
    for chunk in chunks:
        chunk()
    return time.perf_counter_ns() - begin


def _inside(events: list[Any], views: int) -> float:
    """Time of operators of the program, in ns."""
    took = 1000 * sum(e.time_range.elapsed_us() for e in events)
    of_views = [1000 * e.time_range.elapsed_us() for e in events if e.name == VIEW]
    return float(took - sum(of_views) * min(views / max(len(of_views), 1), 1.0))
