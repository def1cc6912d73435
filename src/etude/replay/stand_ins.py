"""Synthetic work of given FLOPs and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch

from etude.replay.program import Program, StandInKind

LARGEST_BYTES: Final = 1 << 30
"""Of the memory that stand-ins of one data type share."""
SIDE: Final = 4096


class StandInWork:
    """Makes the functions; memory is shared by all of one data type, since nothing reads what they write."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: dict[torch.dtype, torch.Tensor] = {}
        self._made: dict[tuple[Any, ...], Callable[[], Any]] = {}

    def of(self, program: Program, row: int, work_ns: int) -> Callable[[], Any]:
        """What to call for a row of `stand_ins`."""
        table = program.stand_ins
        kind, flops, size = StandInKind(int(table.kind[row])), int(table.flops[row]), int(table.size_bytes[row])
        dtype = getattr(torch, program.dtypes[int(table.dtype[row])])
        dims = tuple(table.dims[row])
        key = (kind, flops, size, dtype, dims, work_ns if kind == StandInKind.HOST else 0)
        if key not in self._made:
            self._made[key] = self._make(kind, flops, size, dtype, dims, work_ns)
        return self._made[key]

    def _make(
        self, kind: StandInKind, flops: int, size: int, dtype: torch.dtype, dims: tuple[int, ...], work_ns: int
    ) -> Callable[[], Any]:
        if kind == StandInKind.HOST:
            return lambda: spin(work_ns)
        if kind in (StandInKind.GEMM, StandInKind.ATTENTION) and flops > 0:
            return self._product(flops, size, dtype, dims if kind == StandInKind.GEMM else ())
        if size > 0:
            return self._stream(size, dtype)
        if flops > 0:
            return self._product(flops, 0, dtype, ())
        return lambda: None

    def _product(self, flops: int, size: int, dtype: torch.dtype, dims: tuple[int, ...]) -> Callable[[], Any]:
        if not dtype.is_floating_point:
            dtype = torch.float32
        m, n, k, batch = dims if len(dims) == 4 and min(dims) > 0 else self._square(flops)
        a, b = self._take(dtype, batch * m * k).view(batch, m, k), self._take(dtype, batch * k * n).view(batch, k, n)
        out = torch.empty(batch, m, n, dtype=dtype, device=self._device)
        return lambda: torch.bmm(a, b, out=out)

    def _square(self, flops: int) -> tuple[int, int, int, int]:
        """A product of these FLOPs: 2 m n k, in several of SIDE where it is large."""
        side = max(round((flops / 2) ** (1 / 3)), 1)
        if side <= SIDE:
            return side, side, max(round(flops / (2 * side * side)), 1), 1
        return SIDE, SIDE, max(round(flops / (2 * SIDE * SIDE)), 1), 1

    def _stream(self, size: int, dtype: torch.dtype) -> Callable[[], Any]:
        """Half is read, half is written."""
        count = max(size // 2 // dtype.itemsize, 1)
        limit = LARGEST_BYTES // dtype.itemsize
        whole, rest = divmod(count, limit)
        source = self._take(dtype, min(count, limit))
        out = torch.empty_like(source)

        def stream() -> None:
            for _ in range(whole):
                torch.neg(source, out=out)
            if rest:
                torch.neg(source[:rest], out=out[:rest])

        return stream if dtype != torch.bool else lambda: out.copy_(source)

    def _take(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        held = self._memory.get(dtype)
        if held is None or len(held) < count:
            made = torch.randn(count, device=self._device).mul_(0.02).to(dtype) if dtype.is_floating_point else None
            held = made if made is not None else torch.ones(count, dtype=dtype, device=self._device)
            self._memory[dtype] = held
        return held[:count]


def spin(work_ns: int) -> None:
    """The host is busy for so long."""
    end = time.perf_counter_ns() + work_ns
    while time.perf_counter_ns() < end:
        pass
