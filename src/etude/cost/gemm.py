"""Time of a matrix product on a device: tiles in waves over the cores, split reductions, bytes, the power limit.

What a library does is chosen here as it chooses: of a few tiles, each with its reduction whole or split over cores, the
fastest. The formula is in docs/costs.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.cost.ops import OpTable, Work
from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.machine.system import Device, OpCost

TILE_ROWS: Final = (64, 64, 64, 64, 128, 128, 128, 128, 256, 256)
TILE_COLUMNS: Final = (64, 128, 192, 256, 64, 128, 192, 256, 64, 128)
"""Tiles of the result that a core computes."""
LARGEST: Final = 128 * 256 / (128 + 256)
"""Multiply-adds of the largest tile per element that it reads."""
SPLITS: Final = (1, 2, 4, 8)
"""Parts into which the reduced dimension may be split, over as many cores."""
STEP: Final = 64
"""Elements of the reduced dimension that a core takes at once."""
SUM_BYTES: Final = 4
"""Bytes of an element of a partial sum."""
NEARLY: Final = 1.03
"""Times of tiles within this factor count as equal."""
SLOTS: Final = 4096
"""Products that are cached."""
NORM: Final = 2.5
"""How compute and memory of a product overlap: 1 would add them, infinity would take the longer."""


class Core(NamedTuple):
    """What one core does with a tile."""

    cores: int
    ns_per_flop: F64
    """For one core at the full rate, for each product."""
    falloff: float
    depth_ns: float
    wave_ns: float
    split_ns: float
    ns_per_byte: float
    """For partial sums, which are in the cache."""


def _core(device: Device, cost: OpCost, ns_per_flop: F64, ns_per_byte: float) -> Core:
    """All values as floats, whatever a file has, so that the kernel is compiled once."""
    times = map(float, (cost.tile_falloff, cost.depth_ns, cost.wave_ns, cost.split_ns, ns_per_byte))
    return Core(device.cores, ns_per_flop, *times)


def gemm_ns(
    device: Device, cost: OpCost, ops: OpTable, compute_ns: F64, memory_ns: F64, *, ragged: bool = False
) -> F64:
    """Time of each product without fixed costs; `compute_ns` and `memory_ns` are its lower bounds. `ragged`: `m` is a
    mean, and the rows of each of a batch end anywhere in a tile."""
    shaped = (ops.m > 0) & (ops.n > 0) & (ops.k > 0)
    work = np.maximum(2.0 * ops.m.astype(np.float64) * ops.n * ops.k * ops.batch, 1.0)
    rate = device.memory_bandwidth_bytes_per_s * cost.memory_efficiency / 1e9
    byte_ns = 1 / rate if rate > 0 else 0.0
    core = _core(device, cost, compute_ns / work * device.cores, byte_ns / max(device.cache_speedup, 1.0))
    waves_ns = np.where(shaped, fastest_tile_ns(ops.m, ops.n, ops.k, ops.batch, core, ragged), compute_ns)
    if cost.tile_rows < TILE_ROWS[0]:
        filled = np.ceil(ops.m / cost.tile_rows) * cost.tile_rows
        waves_ns = np.where(shaped, waves_ns * np.minimum(filled / TILE_ROWS[0], 1.0), waves_ns)
    # A long product reaches the power limit. Idle cores draw little, so time lost to tiles is not lost again.
    lasting = device.sustained_fraction
    limited = compute_ns / (lasting + (1 - lasting) / (1 + (waves_ns / device.sustained_after_ns) ** 2))
    busy_ns = np.maximum(waves_ns, limited)
    out_bytes = np.where(shaped, ops.size_bytes - _read_bytes(ops), 0.0)
    epilogue_ns = cost.epilogue * np.maximum(out_bytes, 0.0) * byte_ns
    return np.asarray((busy_ns**NORM + memory_ns**NORM) ** (1 / NORM) + epilogue_ns)


def _read_bytes(ops: OpTable) -> F64:
    """The fraction of a product's bytes that it reads, if all of its elements have the same width."""
    m, n, k = (column.astype(np.float64) for column in (ops.m, ops.n, ops.k))
    read, written = m * k + k * n, m * n
    return np.asarray(ops.size_bytes * read / np.maximum(read + written, 1.0))


@kernel
def fastest_tile_ns(m: I64, n: I64, k: I64, batch: I64, core: Core, ragged: bool) -> F64:
    """Time of each product. Traces repeat theirs: recent results are cached."""
    found = np.full(len(m), np.inf)
    seen = np.full(SLOTS, -1, np.int64)
    for i in range(len(m)):
        slot = (((m[i] * 31 + n[i]) * 31 + k[i]) * 31 + batch[i]) % SLOTS
        j = seen[slot]
        same = j >= 0 and m[i] == m[j] and n[i] == n[j] and k[i] == k[j] and batch[i] == batch[j]
        if same and core.ns_per_flop[i] == core.ns_per_flop[j]:
            found[i] = found[j]
        else:
            found[i] = _fastest(m[i], n[i], k[i], batch[i], core.ns_per_flop[i], core, ragged)[0]
            seen[slot] = i
    return found


def blocks_of(device: Device, cost: OpCost, work: Work) -> int:
    """Blocks of the product: its tiles, times the parts of a split reduction. Among tiles that are nearly as fast as
    the fastest a library takes the largest, which reads least."""
    ns_per_flop = device.cores / max(device.peak(work.dtype or "bf16") * cost.flop_efficiency / 1e9, 1e-9)
    rate = device.memory_bandwidth_bytes_per_s * cost.memory_efficiency / 1e9
    byte_ns = 1 / (rate * max(device.cache_speedup, 1.0)) if rate > 0 else 0.0
    core = _core(device, cost, np.array([ns_per_flop]), byte_ns)
    return int(_fastest(work.m, work.n, work.k, work.batch, ns_per_flop, core, False)[1])


@kernel(allocates=False)
def _fastest(m: int, n: int, k: int, batch: int, ns_per_flop: float, core: Core, ragged: bool) -> tuple[float, int]:
    """Over tiles and splits, the least of waves x (the longer of a tile's operations and its steps, plus the overhead
    of a wave), and its number of blocks."""
    best, fewest, blocks = np.inf, np.inf, 0
    for t in range(len(TILE_ROWS)):
        area = TILE_ROWS[t] * TILE_COLUMNS[t]
        lost = core.falloff * LARGEST * (TILE_ROWS[t] + TILE_COLUMNS[t]) / area
        flop_ns = ns_per_flop * (1.0 + lost) / (1.0 + core.falloff)
        tiles = -(-m // TILE_ROWS[t]) * -(-n // TILE_COLUMNS[t]) * batch
        if ragged:  # the last tile of each is half full on average, and none has less than one
            tiles = int(max(m / TILE_ROWS[t] + 0.5, 1.0) * batch) * -(-n // TILE_COLUMNS[t])
        for split in SPLITS:
            deep = -(-k // (split * STEP)) * STEP
            waves = -(-tiles * split // core.cores)
            tile_ns = max(2.0 * area * deep * flop_ns, core.depth_ns * deep / 1024.0)
            time_ns = waves * (tile_ns + core.wave_ns)
            if split > 1:
                sums = (split + 1.0) * SUM_BYTES * m * n * batch
                time_ns += core.split_ns + sums * core.ns_per_byte
            if time_ns <= fewest * NEARLY and (time_ns * NEARLY < fewest or tiles * split < blocks):
                fewest, blocks = time_ns, tiles * split
            best = min(best, time_ns)
    return best, blocks
