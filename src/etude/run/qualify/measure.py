"""Micro jobs on this node: matrix products, memory, copies, dispatch, Python. Needs PyTorch, imported when it measures.

Every figure is the median of repetitions after a warm-up; each repetition lasts long enough for the clock.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

from etude.base.errors import UsageError
from etude.run.qualify.node import CPU_SHARE, NodeFigure

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """How long and how large."""

    repetitions: int = 9
    seconds: float = 0.1
    """Least length of a repetition."""
    side: int = 1024
    """Of the square matrices on a CPU; GPUs take 8 times that."""
    copy_bytes: int = 64 * MIB
    """Of the copies on a CPU; GPUs take 16 times that."""


def measure_node(options: MeasureOptions | None = None) -> tuple[list[NodeFigure], dict[str, Any]]:
    """The figures of this machine, and what there is to know about it."""
    asked = options or MeasureOptions()
    if find_spec("torch") is None:
        raise UsageError("qualifying a node needs PyTorch, which is not installed", hint='pip install "etude[torch]"')
    if asked.repetitions < 3 or asked.seconds <= 0 or asked.side < 8 or asked.copy_bytes < 4096:
        hint = "use at least 3, longer than 0 s"
        raise UsageError(f"{asked.repetitions} repetitions of {asked.seconds} s are not enough", hint=hint)
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    figures = [*_host(asked, torch)]
    if not gpus:
        figures += _device(asked, torch, torch.device("cpu"))
    for number in range(gpus):
        device = torch.device("cuda", number)
        figures += _device(asked, torch, device) + _copies(asked, torch, device)
    about = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(n) for n in range(gpus)] or ["cpu"],
    }
    return figures, about


def _host(asked: MeasureOptions, torch: Any) -> list[NodeFigure]:
    """What launches kernels: the interpreter, and PyTorch's dispatch of a small operator, by the CPU time that they
    take, so that other work of the node does not make them look slow; and the part of the time that they get a CPU."""
    one = torch.ones(1)

    def python() -> None:
        total = 0
        for i in range(10_000):
            total += i & 7

    def dispatch() -> None:
        for _ in range(1_000):
            one.add_(1.0)

    loop, shares = _worked(asked, "interpreter", "iterations/s of CPU time", 10_000, python)
    small, more = _worked(asked, "operator dispatch", "operators/s of CPU time", 1_000, dispatch)
    return [loop, small, _of_rates(CPU_SHARE, "host", "", shares + more)]


def _device(asked: MeasureOptions, torch: Any, device: Any) -> list[NodeFigure]:
    gpu = device.type == "cuda"
    wait = (lambda: torch.cuda.synchronize(device)) if gpu else (lambda: None)
    side = asked.side * (8 if gpu else 1)
    found = []
    for dtype in ("bfloat16", "float32") if gpu else ("float32",):
        a = torch.randn(side, side, device=device).to(getattr(torch, dtype))
        out = torch.empty_like(a)
        work = 2.0 * side**3
        multiply = partial(torch.mm, a, a, out=out)
        found.append(_figure(asked, f"gemm {dtype} {side}", "device", "FLOP/s", work, multiply, device, wait))
    count = asked.copy_bytes * (16 if gpu else 1)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    moved = 2.0 * count
    found.append(
        _figure(asked, f"memory {count // MIB} MiB", "device", "B/s", moved, lambda: target.copy_(source), device, wait)
    )
    if gpu:
        small = torch.ones(1, device=device)

        def launches() -> None:
            for _ in range(1_000):
                small.add_(1.0)

        found.append(_figure(asked, f"launch {device}", "host", "kernels/s", 1_000, launches, None, wait))
    return found


def _copies(asked: MeasureOptions, torch: Any, device: Any) -> list[NodeFigure]:
    """Between the host and a GPU, from and to pinned memory."""
    count = asked.copy_bytes * 4
    here = torch.ones(count, dtype=torch.uint8).pin_memory()
    there = torch.empty(count, dtype=torch.uint8, device=device)

    def wait() -> None:
        torch.cuda.synchronize(device)

    return [
        _figure(asked, f"host to device {count // MIB} MiB", "link", "B/s", count,
                lambda: there.copy_(here, non_blocking=True), device, wait),
        _figure(asked, f"device to host {count // MIB} MiB", "link", "B/s", count,
                lambda: here.copy_(there, non_blocking=True), device, wait),
    ]  # fmt: skip


def _figure(
    asked: MeasureOptions,
    name: str,
    part: str,
    unit: str,
    work: float,
    run: Callable[[], Any],
    device: Any = None,
    wait: Callable[[], None] = lambda: None,
) -> NodeFigure:
    """Work a second. `work`: what one call of `run` does."""
    calls = _calls(asked, run, wait)
    rates = [work * calls / _timed(run, wait, calls)[0] for _ in range(asked.repetitions)]
    return _of_rates(name, part, unit, rates, "" if device is None else str(device))


def _worked(
    asked: MeasureOptions, name: str, unit: str, work: float, run: Callable[[], Any]
) -> tuple[NodeFigure, list[float]]:
    """Work a second of this thread's CPU time, and in each repetition the part of the time that it had a CPU."""
    calls = _calls(asked, run, lambda: None)
    times = [_timed(run, lambda: None, calls) for _ in range(asked.repetitions)]
    rates = [work * calls / max(worked, 1e-9) for _, worked in times]
    return _of_rates(name, "host", unit, rates), [min(max(worked, 1e-9) / took, 1.0) for took, worked in times]


def _calls(asked: MeasureOptions, run: Callable[[], Any], wait: Callable[[], None]) -> int:
    """As many calls as a repetition needs."""
    run()
    wait()
    calls, took = 1, _timed(run, wait, 1)[0]
    while took < asked.seconds:
        calls = max(calls + 1, min(calls * 10, int(calls * asked.seconds / max(took, 1e-9)) + 1))
        took = _timed(run, wait, calls)[0]
    return calls


def _of_rates(name: str, part: str, unit: str, rates: list[float], device: str = "") -> NodeFigure:
    value = median(rates)
    return NodeFigure(name, part, unit, value, median(abs(rate - value) for rate in rates) / value, device)


def _timed(run: Callable[[], Any], wait: Callable[[], None], calls: int) -> tuple[float, float]:
    """Seconds on the clock, and of this thread's work."""
    before, worked = time.perf_counter(), time.thread_time()
    for _ in range(calls):
        run()
    wait()
    return time.perf_counter() - before, time.thread_time() - worked
