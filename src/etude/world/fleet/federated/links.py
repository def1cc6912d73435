"""Transfers that share one link, max-min: each at most at its own rate, all together at most at the limit."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel


def finished(size: F64, rate: F64, start: F64, limit: float) -> F64:
    """End times of transfers that begin at `start`; `limit` 0: no limit."""
    if not limit or not len(size):
        return start + size / rate
    return np.asarray(_shared(size, rate, start, *_orders(rate, start), float(limit), np.inf)[0])


def moved_by(time_s: float, size: F64, rate: F64, start: F64, limit: float) -> F64:
    """Bytes of these transfers that have been moved by a time, at which all of them stop."""
    if not limit or not len(size):
        return np.minimum(size, rate * np.maximum(time_s - start, 0.0))
    return size - np.asarray(_shared(size, rate, start, *_orders(rate, start), float(limit), float(time_s))[1])


def _orders(rate: F64, start: F64) -> tuple[I64, I64]:
    return np.argsort(rate, kind="stable"), np.argsort(start, kind="stable")


@kernel
def common_level(active: Any, rate: Any, by_rate: Any, limit: float) -> float:
    """The rate that is the same for all active ones whose own is above it; infinite: each has its own."""
    others, over = active.sum(), limit
    for i in by_rate:
        if active[i]:
            if rate[i] * others >= over:
                return over / others
            over -= rate[i]
            others -= 1
    return np.inf


@kernel
def _shared(size: Any, rate: Any, start: Any, by_rate: Any, by_start: Any, limit: float, until: float) -> Any:
    """Between two events every transfer runs at its rate, or at the common level of all that are above it. End of each,
    and what is left of it at `until`."""
    n = len(size)
    end, left, active = np.full(n, np.inf), size.copy(), np.zeros(n, np.bool_)
    now, begun, going = 0.0, 0, 0
    while (begun < n or going) and now < until:
        level = common_level(active, rate, by_rate, limit)
        then, first = np.inf, -1
        for i in range(n):
            if active[i] and now + left[i] / min(rate[i], level) < then:
                then, first = now + left[i] / min(rate[i], level), i
        if begun < n and start[by_start[begun]] < then:
            then, first = start[by_start[begun]], -1
        if until < then:
            then, first = until, -1
        for i in range(n):
            if active[i]:
                left[i] -= min(rate[i], level) * (then - now)
                if i == first or (first >= 0 and left[i] <= 1e-9 * size[i]):
                    end[i], active[i], left[i] = then, False, 0.0
                    going -= 1
        now = then
        while begun < n and start[by_start[begun]] <= now:
            active[by_start[begun]] = True
            begun += 1
            going += 1
    return end, left
