"""When the host makes its calls, if it is to take the time that it took where the program was recorded.

A recording says when the host made each call under a profiler, which makes every operator several times slower. How
many times is measured here: the same calls are made with and without the profiler that recordings are made with. That
part of the recorded time between calls is what the host took without it, its Python and autograd included. Needs the
standard library, NumPy and PyTorch alone.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from etude.errors import UsageError
from etude.replay.program import Program, StepKind

ROUNDS: Final = 7
LONGEST_NS: Final = 1_000_000
LONGEST_TENSOR_NS: Final = 20_000
"""A profiler holds up a host by less, for a call and for each tensor that it is given: what is above is time of the
program itself (reading data)."""

Chunks = Sequence[Callable[[], None]]
Opened = Callable[[], AbstractContextManager[None]]


def has_host_time(program: Program) -> bool:
    """Was the host recorded that gave work to a device?"""
    return "host_events" in program.about and any(not name.startswith("cpu") for name in program.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPace:
    """The host here, for one iteration."""

    plain_ns: float
    slowed_ns: float
    """Under the profiler; the shortest time of each part of the calls."""
    share: float
    """Part of the recorded time of the host that it takes without the profiler."""


def host_pace(
    program: Program, chunks: Chunks, synchronise: Callable[[], None], opened: Opened = nullcontext
) -> HostPace:
    """Makes the calls with and without the profiler. The device is waited for between chunks, so that it never holds up
    the host; iterations with and without take turns, since others on this machine make it slower for a while."""
    plain: list[list[int]] = []
    slowed: list[list[int]] = []
    try:
        with _profiler():
            for _ in range(ROUNDS):
                for records, took in ((False, plain), (True, slowed)):
                    torch.autograd._enable_record_function(records)
                    took.append(_host_ns(chunks, synchronise, opened))
    except RuntimeError as problem:
        raise UsageError(f"the profiler cannot be started: {str(problem).splitlines()[0][:160]}", where="--host",
                         hint="--host fast") from None  # fmt: skip
    finally:
        torch.autograd._enable_record_function(True)
    faster = statistics.median(sum(one) / sum(other) for one, other in zip(plain, slowed, strict=True))
    least = float(np.array(slowed, np.int64).min(axis=0).sum())
    return HostPace(plain_ns=faster * least, slowed_ns=least, share=share_of(program, faster * least, least))


def share_of(program: Program, plain_ns: float, slowed_ns: float) -> float:
    """The profiler makes the host slower here by `slowed / plain`. The recorded host took another time for an event of
    the profiler than this one; that tells how fast it is, but only roughly, and hosts of one kind differ as much: half
    of the difference (its root) is believed."""
    events, recorded_ns = program.about["host_events"], float(program.steps.host_ns.sum())
    speed = (recorded_ns / events["recorded"]) / (slowed_ns / max(events["called"], 1))
    return min(plain_ns / slowed_ns / math.sqrt(speed), 1.0)


def due_ns(program: Program, share: float) -> list[int]:
    """Of each step when the host is to take it, from the begin of the iteration."""
    took, is_call = program.steps.host_ns, program.steps.kind == StepKind.CALL
    tensors = np.zeros(len(took), np.int64)
    tensors[is_call] = np.diff(program.calls.inputs.start)[program.steps.row[is_call]]
    slowed = np.minimum(took, LONGEST_NS + LONGEST_TENSOR_NS * tensors)
    due: list[int] = np.cumsum(slowed * share + (took - slowed)).astype(np.int64).tolist()
    return due


def _host_ns(chunks: Chunks, synchronise: Callable[[], None], opened: Opened) -> list[int]:
    """Of each chunk the time of the host."""
    took = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        with opened():
            for chunk in chunks:
                synchronise()
                begin = time.perf_counter_ns()
                chunk()
                took.append(time.perf_counter_ns() - begin)
        synchronise()
    finally:
        if collecting:
            gc.enable()
    return took


@contextmanager
def _profiler() -> Iterator[None]:
    """As `etude collect` records: operators with shapes, and the observer that writes their arguments. But without the
    device: once its kernels have been recorded, launches of the process stay slower, and to record them adds little."""
    observer = torch.profiler.ExecutionTraceObserver()
    takes = "execution_trace_observer" in signature(torch.profiler.profile.__init__).parameters
    more: dict[str, Any] = {"execution_trace_observer": observer} if takes else {}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        observer.register_callback(str(Path(folder) / "host.json"))
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, **more):
                if not takes:
                    observer.start()
                yield
                if not takes:
                    observer.stop()
        finally:
            observer.unregister_callback()


@contextmanager
def _quiet() -> Iterator[None]:
    """The observer says on file descriptor 2 that it begins and ends."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
