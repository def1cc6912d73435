"""How an operator is launched: blocks, the room that each takes on a core, its operations and its bytes.

    launch_of(device, matmul(2048, 2048, 2048))

The time of the operator alone is what its class's formula says, or what was measured; blocks share it out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.cost.compute import BLOCK, compute_time_ns
from etude.cost.contention.blocks import ONCE, Cores, Grids, ends_ns
from etude.cost.gemm import blocks_of
from etude.cost.ops import OpClass, OpTable, Work
from etude.machine.system import Device, OpCost
from etude.model.schema import UNKNOWN

BLOCK_BYTES: Final = 6144
"""Bytes of one block of an elementwise kernel: 128 threads of 8 elements, two operands and a result of two bytes."""
PARTS: Final = 4
"""Blocks of a core that streams: all threads that fit are treated as this many blocks, which does not change a wave's
length."""
MOST_WAVES: Final = 48
"""Most waves of a kernel that streams: beyond, blocks are merged."""
COPY_ENGINE: Final = ("h2d", "d2h")
"""Directions of copies that use no core."""
WAVE_NS: Final = 50_000
"""Approximate wave of a kernel of which only the time is known: that of a product of some thousand rows and columns."""
REPEAT: Final = 3
"""Corrections of a block's work until all of them together take the time alone."""


class BlockRoom(NamedTuple):
    """Room that a block takes on a core."""

    threads: float
    shared: float
    cluster: int


ROOMS: Final = {
    OpClass.GEMM: BlockRoom(1.0, 0.95, 2),
    OpClass.GROUPED_GEMM: BlockRoom(1.0, 0.95, 2),
    OpClass.CONVOLUTION: BlockRoom(1.0, 0.95, 1),
    OpClass.ATTENTION: BlockRoom(1.0, 0.95, 1),
    OpClass.ATTENTION_DECODE: BlockRoom(0.5, 0.5, 1),
}
"""Kernels of matrix units fill a core with registers and shared memory; all others take threads alone."""
STREAMING: Final = BlockRoom(1 / PARTS, 0.0, 1)
COPY: Final = BlockRoom(1.0, 0.0, 1)
HOLDER: Final = BlockRoom(0.25, 0.88, 1)
"""A kernel that holds cores: 512 threads and 200 KB of shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel as the device sees it. Bytes are those through the memory, without those in the cache."""

    alone_ns: float
    blocks: int = 1
    period: int = 0
    core_ns: float = 0.0
    size_bytes: float = 0.0
    room: BlockRoom = STREAMING
    gap_ns: float = 0.0
    copies: str = ""
    """`h2d` or `d2h`: a copy engine, no cores."""
    link_bytes: float = 0.0
    """Bytes in each direction over the link to the host, for a collective that uses it."""
    holds: bool = False
    """Its blocks stay on their cores to its end, as those of a collective do."""

    @property
    def memory_bytes(self) -> float:
        return self.blocks * self.size_bytes


def launch_of(device: Device, work: Work, alone_ns: float = 0.0, copies: str = "") -> Launch:
    """`alone_ns`: the measured time; by default from the device's constants."""
    if copies and copies not in COPY_ENGINE:
        raise UsageError(f"unknown direction `{copies}`", hint=f"known: {', '.join(COPY_ENGINE)}")
    if alone_ns <= 0:
        found = int(compute_time_ns(device, OpTable.of([work]))[0])
        if found == UNKNOWN or found <= 0:
            raise UsageError(
                "the time of an operator alone is not known", hint="give its FLOPs or bytes, or a measured time"
            )
        alone_ns = float(found)
    size = float(max(work.size_bytes, 0)) if work.size_bytes > device.cache_bytes else 0.0
    if copies:
        return Launch(alone_ns=alone_ns, size_bytes=float(max(work.size_bytes, 0)), copies=copies)
    gap_ns = min(device.sharing.gap_ns, alone_ns / 2)
    return _fitted(device, _shaped(device, work, size, alone_ns, gap_ns))


def transfer_of(
    device: Device, alone_ns: float, memory_bytes: float = 0.0, link_bytes: float = 0.0, cores: int = 0
) -> Launch:
    """A collective or a message: cores that it holds (0: as the device says), bytes that it draws from memory and over
    the host's link."""
    blocks = min(cores or device.sharing.communication_cores, device.cores - 1)
    if blocks < 1:
        return Launch(alone_ns=alone_ns, blocks=0, link_bytes=link_bytes, holds=True)
    return Launch(
        alone_ns=alone_ns, blocks=blocks, core_ns=alone_ns, size_bytes=memory_bytes / blocks, room=HOLDER,
        link_bytes=link_bytes, holds=True,
    )  # fmt: skip


def filling(device: Device, alone_ns: float) -> Launch:
    """A kernel with only a known time: waves on all cores, and no bytes."""
    gap_ns = min(device.sharing.gap_ns, alone_ns / 2)
    waves = max(round((alone_ns - gap_ns) / WAVE_NS), 1)
    core_ns = (alone_ns - gap_ns) / waves
    return Launch(alone_ns=alone_ns, blocks=waves * device.cores, core_ns=core_ns, room=COPY, gap_ns=gap_ns)


def _shaped(device: Device, work: Work, size: float, alone_ns: float, gap_ns: float) -> Launch:
    busy_ns = alone_ns - gap_ns
    base = Launch(alone_ns=alone_ns, gap_ns=gap_ns)
    if work.op_class in (OpClass.GEMM, OpClass.GROUPED_GEMM, OpClass.CONVOLUTION):
        cost = device.ops.get("gemm") or device.ops.get("default") or OpCost()
        blocks = max(blocks_of(device, cost, work), 1)
        waves = -(-blocks // device.cores)
        # The compute fraction of the time alone: a product bound by bytes has cores to spare.
        rate = device.peak(work.dtype or "bf16") * cost.flop_efficiency / 1e9
        compute_ns = max(work.flops, 0) / rate if rate else 0.0
        bound_ns = min(busy_ns, compute_ns) if size / memory_rate(device) > 0.6 * busy_ns else busy_ns
        room = ROOMS[work.op_class]
        room = room._replace(cluster=min(room.cluster, device.cores))
        return replace(base, blocks=blocks, core_ns=bound_ns / waves, size_bytes=size / blocks, room=room)
    if work.op_class in (OpClass.ATTENTION, OpClass.ATTENTION_DECODE):
        chain = max(-(-work.m // BLOCK), 1)
        blocks = max(work.batch * chain, 1)
        whole = 4.0 * work.m * work.n * work.k * work.batch
        period = chain if 0 < work.flops < 0.75 * whole else 0
        room = ROOMS[work.op_class]
        return replace(base, blocks=blocks, period=period, core_ns=busy_ns, size_bytes=size / blocks, room=room)
    per_core = 2048 // 128
    count = (
        work.m if work.op_class in (OpClass.NORMALISATION, OpClass.SOFTMAX) else max(work.size_bytes, 0) / BLOCK_BYTES
    )
    most = device.cores * PARTS * MOST_WAVES
    blocks = int(min(max(count * PARTS / per_core, 1), most))
    return replace(base, blocks=blocks, core_ns=0.0 if size else busy_ns, size_bytes=size / blocks)


def memory_rate(device: Device) -> float:
    """Bytes per ns that kernels reach together."""
    cost = device.ops.get("elementwise") or device.ops.get("default") or OpCost()
    return device.memory_bandwidth_bytes_per_s * cost.memory_efficiency / 1e9


@cache
def cores_of(device_cores: int, clusters: int) -> np.ndarray:
    """The cluster of each core, as evenly as possible in pairs."""
    pairs = np.arange(device_cores) // 2
    return np.sort(pairs % clusters).astype(np.int64)


def room_on(device: Device, held: int = 0, drawn_bytes_per_ns: float = 0.0) -> Cores:
    """The device, with this many cores held one by one across its clusters by a kernel that draws bytes."""
    if not 0 <= held < device.cores:
        raise UsageError(f"{held} of {device.cores} cores occupied", hint="use 0 to all but one")
    cluster = cores_of(device.cores, max(device.sharing.clusters, 1))
    threads, shared = np.ones(device.cores), np.ones(device.cores)
    order = np.argsort(np.arange(device.cores) - np.searchsorted(cluster, cluster), kind="stable")
    threads[order[:held]] -= HOLDER.threads
    shared[order[:held]] -= HOLDER.shared
    rate = memory_rate(device)
    core = device.sharing.core_bandwidth_bytes_per_s / 1e9 or rate
    return Cores(threads, shared, cluster, max(rate - drawn_bytes_per_ns, rate / 100), core)


def grids_of(first: Launch, second: Launch) -> Grids:
    both = (first, second)
    return Grids(
        np.array([x.blocks for x in both], np.int64),
        np.array([x.period for x in both], np.int64),
        np.array([x.core_ns for x in both], np.float64),
        np.array([x.size_bytes for x in both], np.float64),
        np.array([x.room.threads for x in both], np.float64),
        np.array([x.room.shared for x in both], np.float64),
        np.array([x.room.cluster for x in both], np.int64),
        np.array([x.gap_ns for x in both], np.float64),
    )


def _fitted(device: Device, launch: Launch) -> Launch:
    """The launch with its blocks' work scaled so that the kernel alone takes its time."""
    cores = room_on(device)
    for _ in range(REPEAT):
        took = float(ends_ns(grids_of(launch, launch), cores, ONCE)[0])
        factor = (launch.alone_ns - launch.gap_ns) / max(took, 1e-3)
        launch = replace(launch, core_ns=launch.core_ns * factor, size_bytes=launch.size_bytes * factor)
    return launch
