"""Layers whose weights are loaded while others compute."""

from __future__ import annotations

from etude.base.errors import UsageError
from etude.kernels.arrays import F64


def streamed_ns(compute_ns: F64, load_ns: F64, buffers: int = 2) -> float:
    """End of the last layer. A layer's load waits for the one before and for a free buffer; a layer computes when it
    is loaded and the one before is over."""
    if len(compute_ns) != len(load_ns) or buffers < 1:
        raise UsageError(f"{len(compute_ns)} layers, {len(load_ns)} loads and {buffers} buffers do not match")
    loaded = 0.0
    ends: list[float] = []
    for i, (work, load) in enumerate(zip(compute_ns.tolist(), load_ns.tolist(), strict=True)):
        free = ends[i - buffers] if i >= buffers else 0.0
        loaded = max(loaded, free) + load
        ends.append(max(loaded, ends[-1] if ends else 0.0) + work)
    return ends[-1] if ends else 0.0


def staged_ns(times_ns: F64, buffers: int = 2) -> float:
    """End of the last item: row s of `times_ns` is stage s, which takes one item after the other when the previous
    stage is done with it and one of the buffers to the next stage is free."""
    if times_ns.ndim != 2 or not times_ns.size or buffers < 1:
        raise UsageError(f"{times_ns.shape} times of stages and {buffers} buffers do not match")
    stages, items = times_ns.shape
    ends = [[0.0] * items for _ in range(stages)]
    for i, column in enumerate(times_ns.T.tolist()):
        ready = 0.0
        for s, took in enumerate(column):
            begin = max(ready, ends[s][i - 1] if i else 0.0)
            if s + 1 < stages and i >= buffers:
                begin = max(begin, ends[s + 1][i - buffers])
            ready = ends[s][i] = begin + took
    return ready


def resident_needed(
    layer_bytes: float, compute_ns: float, bytes_per_ns: float, shared_bytes: float = 0.0, *, in_series: bool = False
) -> float | None:
    """The smallest resident fraction of equal layers without a stall, in the steady state. `shared_bytes` go over the
    same link in each layer: inside `compute_ns`, or `in_series` with it. None: no fraction is enough."""
    if not layer_bytes > 0 or not bytes_per_ns > 0:
        raise UsageError("layers without bytes, or a link without a rate")
    room = compute_ns * bytes_per_ns - (0.0 if in_series else shared_bytes)
    return None if room < 0 else max(0.0, 1 - room / layer_bytes)
