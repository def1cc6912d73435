"""Synthetic work of given FLOPs and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch

from etude.run.replay.program import Program, StandInKind
from etude.run.replay.stand_in_sizes import (
    LARGEST_BYTES,
    Dims,
    extents,
    multiplied,
    product_dims,
    product_dtype,
    stream_count,
)

_SLEEP_CYCLES: Final = 10_000_000


class StandInWork:
    """Makes the functions of stand-ins. All of one data type share their memory, since nothing reads what they
    write."""

    def __init__(self, device: torch.device, program: Program) -> None:
        self._device = device
        self._extents = extents(program)
        self._sources: dict[torch.dtype, torch.Tensor] = {}
        self._targets: dict[torch.dtype, torch.Tensor] = {}
        self._made: dict[tuple[Any, ...], Callable[[], Any]] = {}
        self._clock = 0.0
        self.lost: set[int] = set()
        """Rows of `stand_ins` whose work is impossible here: they only take their recorded time."""

    def of(self, program: Program, row: int, work_ns: int) -> Callable[[], Any]:
        """The function to call for a row of `stand_ins`."""
        table = program.stand_ins
        if row in self.lost:
            return self.lasting(program, "", work_ns) or (lambda: None)
        kind, flops, size = StandInKind(int(table.kind[row])), int(table.flops[row]), int(table.size_bytes[row])
        dtype = getattr(torch, program.dtypes[int(table.dtype[row])])
        dims = tuple(table.dims[row])
        key = (kind, flops, size, dtype, dims, work_ns if kind == StandInKind.HOST else 0)
        if key not in self._made:
            self._made[key] = self._make(kind, flops, size, dtype, dims, work_ns)
        return self._made[key]

    def lasting(self, program: Program, name: str, work_ns: int) -> Callable[[], Any] | None:
        """A function that takes the recorded time of an operator that cannot be called: on the device, or on the host
        if there is none; None if there is nothing to take. Times of a CPU are as without the profiler, if known."""
        share = program.about.get("light_share", {}).get(name, 1.0) if self._device.type == "cpu" else 1.0
        wait_ns = round(work_ns * share)
        if wait_ns <= 0:
            return None
        if self._device.type == "cuda":
            cycles = max(round(wait_ns * self._cycles_per_ns()), 1)
            return lambda: torch.cuda._sleep(cycles)
        return lambda: spin(wait_ns)

    def _cycles_per_ns(self) -> float:
        """Clock rate of the device, measured once."""
        if not self._clock:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(2):  # the first time includes loading the kernel
                begin.record()
                torch.cuda._sleep(_SLEEP_CYCLES)
                end.record()
                torch.cuda.synchronize(self._device)
            self._clock = _SLEEP_CYCLES / max(begin.elapsed_time(end) * 1e6, 1.0)
        return self._clock

    def _make(
        self, kind: StandInKind, flops: int, size: int, dtype: torch.dtype, dims: tuple[int, ...], work_ns: int
    ) -> Callable[[], Any]:
        if kind == StandInKind.HOST:
            return lambda: spin(work_ns)
        if multiplied(kind, flops, size):
            dtype = getattr(torch, product_dtype(_name(dtype)))
            return self._product(dtype, product_dims(kind, flops, size, dtype.itemsize, dims))
        return self._stream(size, dtype) if size > 0 else lambda: None

    def _product(self, dtype: torch.dtype, dims: Dims) -> Callable[[], Any]:
        (m, n, k, batch), source = dims, self._source(dtype)
        a, b = source[: batch * m * k].view(batch, m, k), source[: batch * k * n].view(batch, k, n)
        out = self._target(dtype)[: batch * m * n].view(batch, m, n)
        return lambda: torch.bmm(a, b, out=out)

    def _stream(self, size: int, dtype: torch.dtype) -> Callable[[], Any]:
        """A function that reads half of `size` bytes and writes the other half."""
        count, limit = stream_count(size, dtype.itemsize), LARGEST_BYTES // dtype.itemsize
        whole, rest = divmod(count, limit)
        source = self._source(dtype)[: min(count, limit)]
        out = self._target(dtype)[: min(count, limit)]

        def stream() -> None:
            for _ in range(whole):
                torch.neg(source, out=out)
            if rest:
                torch.neg(source[:rest], out=out[:rest])

        return stream if dtype != torch.bool else lambda: out.copy_(source)

    def _source(self, dtype: torch.dtype) -> torch.Tensor:
        """The memory that all stand-ins of a data type read, large enough for the largest of them."""
        if dtype not in self._sources:
            made = torch.ones(self._extents[_name(dtype)].source, dtype=dtype, device=self._device)
            if dtype.is_floating_point and dtype.itemsize > 1:
                made.normal_(0.0, 0.02)
            self._sources[dtype] = made
        return self._sources[dtype]

    def _target(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._targets:
            count = self._extents[_name(dtype)].target
            self._targets[dtype] = torch.empty(count, dtype=dtype, device=self._device)
        return self._targets[dtype]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def spin(work_ns: int) -> None:
    """Keeps the host busy for this much CPU time of the thread: time in which others have the core does not count."""
    end = time.thread_time_ns() + work_ns
    while time.thread_time_ns() < end:
        pass
