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

from etude.errors import UsageError
from etude.qualify.node import Figure

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


def measure_node(options: MeasureOptions | None = None) -> tuple[list[Figure], dict[str, Any]]:
    """The figures of this machine, and what there is to know about it."""
    asked = options or MeasureOptions()
    if find_spec("torch") is None:
        raise UsageError("to qualify a node needs PyTorch, which is not installed", hint='pip install "etude[torch]"')
    if asked.repetitions < 3 or asked.seconds <= 0 or asked.side < 8 or asked.copy_bytes < 4096:
        raise UsageError(f"{asked.repetitions} repetitions of {asked.seconds} s", hint="at least 3, longer than 0 s")
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    figures = [*_host(asked, torch)]
    if not gpus:
        figures += _device(asked, torch, torch.device("cpu"))
    for number in range(gpus):
        device = torch.device("cuda", number)
        figures += _device(asked, torch, device) + _copies(asked, torch, device)
    about = {
        "torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(n) for n in range(gpus)] or ["cpu"],
    }  # fmt: skip
    return figures, about


def _host(asked: MeasureOptions, torch: Any) -> list[Figure]:
    """What launches kernels: the interpreter, and PyTorch's dispatch of a small operator."""
    one = torch.ones(1)

    def python() -> None:
        total = 0
        for i in range(10_000):
            total += i & 7

    def dispatch() -> None:
        for _ in range(1_000):
            one.add_(1.0)

    return [
        _figure(asked, "python loop", "host", "iterations/s", 10_000, python),
        _figure(asked, "dispatch", "host", "operators/s", 1_000, dispatch),
    ]


def _device(asked: MeasureOptions, torch: Any, device: Any) -> list[Figure]:
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
    found.append(_figure(asked, f"memory {count // MIB} MiB", "device", "B/s", moved,
                         lambda: target.copy_(source), device, wait))  # fmt: skip
    if gpu:
        small = torch.ones(1, device=device)

        def launches() -> None:
            for _ in range(1_000):
                small.add_(1.0)

        found.append(_figure(asked, f"launch {device}", "host", "kernels/s", 1_000, launches, None, wait))
    return found


def _copies(asked: MeasureOptions, torch: Any, device: Any) -> list[Figure]:
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
) -> Figure:
    """Work a second. `work`: what one call of `run` does."""
    run()
    wait()
    times, calls = [_timed(run, wait, 1)], 1
    while times[-1] < asked.seconds:  # as many calls as a repetition needs
        calls = max(calls + 1, min(calls * 10, int(calls * asked.seconds / max(times[-1], 1e-9)) + 1))
        times.append(_timed(run, wait, calls))
    rates = [work * calls / _timed(run, wait, calls) for _ in range(asked.repetitions)]
    value = median(rates)
    spread = median(abs(rate - value) for rate in rates) / value
    return Figure(name, part, unit, value, spread, "" if device is None else str(device))


def _timed(run: Callable[[], Any], wait: Callable[[], None], calls: int) -> float:
    before = time.perf_counter()
    for _ in range(calls):
        run()
    wait()
    return time.perf_counter() - before
