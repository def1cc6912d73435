"""Time of a pass over a graph out of core: the tier, the host, the link and the device work in parallel.

While the device computes on one part, the link carries the next, the host gathers one more, and the tier reads ahead of
that, with two buffers between any two of them. A layer begins when the one before is over, since its features are that
layer's results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.units import format_bytes
from etude.cost.compute import roofline_ns
from etude.cost.ops import OpClass, OpTable, matmul
from etude.cost.tiers.graphs import GraphPass
from etude.cost.tiers.streaming import staged_ns
from etude.cost.tiers.transfers import copy_ns, tier_of
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device, System

DTYPE: Final = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Time of the pass, and of each of its participants, without waits."""

    time_ns: float
    tier_ns: float
    host_ns: float
    link_ns: float
    compute_ns: float


def pass_time(found: GraphPass, system: System, tier: str, host: Device) -> PassTime:
    """`host` gathers features for the device, or computes the sums of a stream; the device computes products, and the
    sums of gathered features."""
    steps, size = found.steps, found.feature_bytes
    sent = steps.nodes if found.is_stream else steps.gathered
    fullest = int((sent + steps.nodes).max(initial=0)) * size * 2  # two buffers
    if system.memory_bytes and fullest > system.memory_bytes:
        raise UsageError(
            f"a part with its neighbours, twice, is {format_bytes(fullest)}, but the device has "
            f"{format_bytes(system.memory_bytes)}",
            hint="use more --partitions",
        )
    place = tier_of(system, tier)
    rate = place.read_bytes_per_s
    if place.slots and place.latency_ns:  # Little's law
        rate = min(rate, place.slots * found.item_bytes / place.latency_ns * 1e9)
    stages = np.stack(
        [
            steps.read_bytes * 1e9 / rate + steps.written_bytes * 1e9 / place.write_bytes_per_s,
            _host_ns(found, host),
            _link_ns(system.device, sent * size, steps.nodes * size),
            _device_ns(found, system.device),
        ]
    )
    layers = range(0, stages.shape[1], found.turns)
    took = sum(staged_ns(stages[:, begin : begin + found.turns]) for begin in layers)
    each = dict(zip(("tier_ns", "host_ns", "link_ns", "compute_ns"), stages.sum(axis=1).tolist(), strict=True))
    return PassTime(time_ns=took, **each)


def _rows_ns(device: Device, moved_bytes: I64, flops: I64) -> F64:
    """Rows of a table, gathered or added up."""
    zeros = np.zeros(len(flops), np.int64)
    table = OpTable(
        op_class=np.full(len(flops), int(OpClass.EMBEDDING), np.uint8), dtype=np.zeros(len(flops), np.uint8),
        flops=flops, size_bytes=moved_bytes, m=zeros, n=zeros, k=zeros, batch=zeros + 1,
    )  # fmt: skip
    return np.where(moved_bytes > 0, roofline_ns(device, table, dtype=DTYPE), 0.0)


def _host_ns(found: GraphPass, host: Device) -> F64:
    steps, size = found.steps, found.feature_bytes
    if found.is_stream:  # a message is added to its sum, which is read and written
        return _rows_ns(host, (steps.gathered + 2 * steps.edges) * size, steps.edges * found.width)
    return _rows_ns(host, 2 * steps.gathered * size, np.zeros(len(steps.edges), np.int64))


def _link_ns(device: Device, up_bytes: I64, down_bytes: I64) -> F64:
    """Both ways at once."""
    ways = (("h2d_queued", up_bytes), ("d2h_queued", down_bytes))
    times = [[copy_ns(device, way, float(one)) if one else 0.0 for one in sizes.tolist()] for way, sizes in ways]
    return np.asarray(np.max(times, axis=0), np.float64)


def _device_ns(found: GraphPass, device: Device) -> F64:
    steps, size, width = found.steps, found.feature_bytes, found.width
    products = roofline_ns(device, OpTable.of([matmul(n, width, width, dtype=DTYPE) for n in steps.nodes.tolist()]))
    time = np.where(steps.nodes > 0, products, 0.0) * np.where(steps.is_backward, 2, 1)  # of inputs and of weights
    if not found.is_stream:
        time = time + _rows_ns(device, (steps.edges + steps.nodes) * size, steps.edges * width)
    return time
