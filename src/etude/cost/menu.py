"""Units on one memory, and other kernels for a product: closed forms, and the fastest of them.

    units_ns(flops, size_bytes, (tensor, cpu), bandwidth)           one operator on the best of several units, or split
    kernel_ns(device, 4096, 4096, 4096, "product:w4a16:g128")       a named kernel
    fastest_kernel(device, 1, 4096, 4096, names)                    the fastest, the plain product among them

Rates are peaks, in FLOP/s and bytes/s: these compare kernels, and know nothing of waves and launches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from etude.errors import UsageError
from etude.machine.system import Device

PLAIN: Final = "product"
VECTOR_OPERATIONS: Final = 32.0
"""For each partial sum of a group: fitted by others to two published points of one kernel."""
WIDTH: Final = 2.0
"""Bytes of an element of a plain product."""
EXAMPLES: Final = "product, product:w4a16:g128, product:w8a8:g128, product:lcma:2,2,2,7, product:array:64,64,64"


def units_ns(flops: float, size_bytes: float, peaks: Sequence[float], bandwidth: float) -> tuple[float, list[float]]:
    """Time of an operator on units that share one memory, and the part of it that each unit takes: in proportion to
    their rates if that pays, and all of it on the fastest where the memory is the limit anyway."""
    if not peaks or min(peaks) <= 0 or not bandwidth > 0 or flops < 0 or size_bytes < 0:
        raise UsageError("a unit or a memory without a rate, or negative work", hint="at least one unit")
    memory = size_bytes / bandwidth
    fastest = max(range(len(peaks)), key=lambda i: peaks[i])
    alone = max(flops / peaks[fastest], memory)
    together = max(flops / sum(peaks), memory)
    if together < alone:
        return together * 1e9, [peak / sum(peaks) for peak in peaks]
    return alone * 1e9, [float(i == fastest) for i in range(len(peaks))]


def kernel_ns(device: Device, m: int, n: int, k: int, kernel: str = PLAIN) -> float:
    """Time of a product of m x k and k x n by a named kernel."""
    if min(m, n, k) < 1:
        raise UsageError(f"a product of {m} x {n} x {k}")
    if kernel == PLAIN:
        return _bound(2.0 * m * n * k / _peak(device, "bf16"), WIDTH * (m * k + k * n + m * n), device)
    if found := re.fullmatch(r"product:w(\d+)a(\d+)(?::g(\d+))?", kernel):
        return _quantised(device, (m, n, k), *(int(part) if part else k for part in found.groups()))
    if found := re.fullmatch(r"product:lcma:(\d+),(\d+),(\d+),(\d+)", kernel):
        return _fewer_products(device, (m, n, k), *map(int, found.groups()))
    if found := re.fullmatch(r"product:array:(\d+),(\d+),(\d+)", kernel):
        return _array(device, (m, n, k), *map(int, found.groups()))
    raise UsageError(f"unknown kernel `{kernel}`", hint=f"for example {EXAMPLES}")


def fastest_kernel(device: Device, m: int, n: int, k: int, kernels: Sequence[str]) -> tuple[str, float]:
    """The fastest of these and of the plain product, which wins where none is faster."""
    times = {name: kernel_ns(device, m, n, k, name) for name in dict.fromkeys((PLAIN, *kernels))}
    best = min(times, key=lambda name: times[name])
    return best, times[best]


def array_iterations(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> int:
    """Tiles of a product on a fixed array."""
    a, b, c = (-(-whole // part) for whole, part in zip(shape, tile, strict=True))
    return a * b * c


def sparse_bytes(tokens: int, head: int, heads: Sequence[tuple[int, float]], centroid_bytes: float) -> float:
    """Bytes that a step of decoding reads of a cache of keys and values in bf16: of each head (block, kept part) its
    kept whole blocks, and a centroid for each block."""
    total = 0.0
    for block, kept in heads:
        if block < 1 or not 0 <= kept <= 1:
            raise UsageError(f"blocks of {block} of which {kept:g} are kept")
        blocks = -(-tokens // block)
        total += min(round(kept * blocks) * block, tokens) * 2 * head * WIDTH + blocks * head * centroid_bytes
    return total


def _peak(device: Device, dtype: str) -> float:
    found = device.peak(dtype)
    if not found:
        raise UsageError(f"device `{device.name}` has no rate for {dtype}")
    return found


def _bound(compute_s: float, size_bytes: float, device: Device) -> float:
    if not device.memory_bandwidth_bytes_per_s:
        raise UsageError(f"device `{device.name}` says nothing of its memory's bandwidth")
    return max(compute_s, size_bytes / device.memory_bandwidth_bytes_per_s) * 1e9


def _quantised(device: Device, shape: tuple[int, int, int], weight: int, activation: int, group: int) -> float:
    """Weights of so many bits with a 16-bit scale for each group. Where activations keep 16 bits the product runs in
    bf16; where they do not, each partial sum of a group is scaled by the vector units."""
    m, n, k = shape
    if not (1 <= weight <= 16 and 1 <= activation <= 16 and group >= 1):
        raise UsageError(f"w{weight}a{activation}:g{group}: bits from 1 to 16, groups from 1 on")
    weights = k * n * (weight + 16 / min(group, k)) / 8
    size = weights + m * k * activation / 8 + WIDTH * m * n
    if activation == 16:
        return _bound(2.0 * m * n * k / _peak(device, "bf16"), size, device)
    narrow = next((name for bits, name in ((4, "fp4"), (8, "int8"), (8, "fp8")) if activation <= bits and
                   name in device.peak_flop_per_s), "")  # fmt: skip
    if not narrow:
        raise UsageError(f"device `{device.name}` has no rate for products of {activation} bits")
    scaled = VECTOR_OPERATIONS * m * n * k / (group * _peak(device, "fp32"))
    return _bound(max(2.0 * m * n * k / device.peak(narrow), scaled), size, device)


def _fewer_products(device: Device, shape: tuple[int, int, int], a: int, b: int, c: int, products: int) -> float:
    """One level of an algorithm <a, b, c; products> after Strassen's kind, with its 18 additions of blocks in series,
    three accesses each, for <2, 2, 2; 7>; of another in proportion to its products."""
    m, n, k = shape
    if not 0 < products <= a * b * c:
        raise UsageError(f"lcma:{a},{b},{c},{products}: more products than the plain {a * b * c}, or none")
    if products == a * b * c:
        return kernel_ns(device, m, n, k)
    plain = 2.0 * m * n * k / _peak(device, "bf16")
    block = (m * k / (a * b) + k * n / (b * c) + m * n / (a * c)) / 3
    additions = 18 * products / 7 * 3 * WIDTH * block / device.memory_bandwidth_bytes_per_s
    multiplied = _bound(plain * products / (a * b * c), WIDTH * (m * k + k * n + m * n), device)
    return multiplied + additions * 1e9


def _array(device: Device, shape: tuple[int, int, int], m: int, n: int, k: int) -> float:
    """A fixed array that works on one tile at a time."""
    if min(m, n, k) < 1:
        raise UsageError(f"array:{m},{n},{k}: a tile without elements")
    tile = _bound(2.0 * m * n * k / _peak(device, "bf16"), WIDTH * (m * k + k * n), device)
    return array_iterations(shape, (m, n, k)) * tile
