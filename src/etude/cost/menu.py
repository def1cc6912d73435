"""Other kernels for an op: what each asks of a device, its time at the device's peaks, and the fastest of several.

    kernel_ns(device, 4096, 4096, 4096, "product:w4a16:g128")       a named kernel
    fastest_kernel(device, 1, 4096, 4096, names)                    the fastest, the plain product among them
    units_ns(flops, size_bytes, (tensor, cpu), bandwidth)           one operator on the best of several units, or split

Rates here are peaks, in FLOP/s and bytes/s: these compare kernels, and know nothing of waves and launches.
`etude.cost.choice` prices the same kernels over the ops of a job, with the device's constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.cost.ops import DTYPE_BYTES, DTYPE_NUMBER, OpClass, OpTable, matmul
from etude.errors import UsageError
from etude.machine.system import Device

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

PLAIN: Final = "product"
STRASSEN: Final = "product:lcma:2,2,2,7"
VECTOR_OPERATIONS: Final = 32.0
"""For each partial sum of a group: fitted by others to two published points of one kernel."""
EXAMPLES: Final = (
    "product:w4a16:g128, product:w8a8:g128, product:lcma:2,2,2,7, product:array:64,64,64, "
    "`attention:sparse keep=0.05 block=32 centroid=int8`"
)
_WIDTHS: Final = np.array([2.0, *DTYPE_BYTES.values()])
"""Bytes of an element by number of its data type; of an unknown one as of bf16."""


class Need(NamedTuple):
    """What a kernel asks of a device for each op."""

    flops: F64
    size_bytes: F64
    dtype: str = ""
    """Data type of the product; that of the op where empty."""
    vector_flops: F64 | float = 0.0
    """Of the vector units, beside the product."""
    series_bytes: F64 | float = 0.0
    """Read and written before or after, with nothing beside."""
    turns: F64 | None = None
    """How often all of this is done, one after another; None: once, in tiles and waves as any op."""


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    takes: Callable[[OpTable], Bool]
    """Ops that it is an alternative for."""
    need: Callable[[Device, OpTable], Need]

    @property
    def op_class(self) -> str:
        """`product` or `attention`: one kernel of each can be asked for."""
        return self.name.partition(":")[0]


def open_kernel(name: str) -> Kernel:
    """A kernel by its name."""
    if found := re.fullmatch(r"product:w(\d+)a(\d+)(?::g(\d+|row))?", name):
        bits, group = (int(found[1]), int(found[2])), int(found[3]) if found[3] not in (None, "row") else 0
        if not all(1 <= b <= 16 for b in bits) or found[3] == "0":
            raise UsageError(f"kernel `{name}`: bits from 1 to 16, groups from 1 on")
        return Kernel(name, _has_weights, lambda device, ops: _quantised(device, ops, *bits, group))
    if found := re.fullmatch(r"product:lcma:(\d+),(\d+),(\d+),(\d+)", name):
        a, b, c, products = map(int, found.groups())
        if not 0 < products <= a * b * c:
            raise UsageError(f"kernel `{name}`: more products than the plain {a * b * c}, or none")
        return Kernel(name, _is_product, lambda _, ops: _fewer_products(ops, a, b, c, products))
    if found := re.fullmatch(r"product:array:(\d+),(\d+),(\d+)", name):
        tile = (int(found[1]), int(found[2]), int(found[3]))
        if min(tile) < 1:
            raise UsageError(f"kernel `{name}`: a tile without elements")
        return Kernel(name, _is_product, lambda _, ops: _array(ops, tile))
    if name.split()[:1] == ["attention:sparse"]:
        heads, centroid = _sparse_of(name)
        return Kernel(name, _is_decode, lambda _, ops: _sparse(ops, heads, centroid))
    raise UsageError(f"unknown kernel `{name}`", hint=f"for example {EXAMPLES}")


def kernel_ns(device: Device, m: int, n: int, k: int, kernel: str = PLAIN) -> float:
    """Time of a product of m x k and k x n in bf16 by a named kernel, at the device's peaks."""
    if min(m, n, k) < 1:
        raise UsageError(f"a product of {m} x {n} x {k}")
    ops = OpTable.of([matmul(m, n, k)])
    need = Need(ops.flops.astype(np.float64), ops.size_bytes.astype(np.float64))
    if kernel != PLAIN:
        found = open_kernel(kernel)
        if not found.takes(ops)[0]:
            raise UsageError(f"kernel `{kernel}` is not one of a product", hint=f"for example {EXAMPLES}")
        need = found.need(device, ops)
    rate = device.memory_bandwidth_bytes_per_s
    if not rate:
        raise UsageError(f"device `{device.name}` says nothing of its memory's bandwidth")
    times = [need.flops / _peak(device, need.dtype or "bf16"), need.size_bytes / rate]
    if np.any(need.vector_flops):
        times.append(np.asarray(need.vector_flops / _peak(device, "fp32")))
    turns = 1.0 if need.turns is None else need.turns
    return float((turns * np.max(times, axis=0) + need.series_bytes / rate)[0] * 1e9)


def fastest_kernel(device: Device, m: int, n: int, k: int, kernels: Sequence[str]) -> tuple[str, float]:
    """The fastest of these and of the plain product, which wins where none is faster."""
    times = {name: kernel_ns(device, m, n, k, name) for name in dict.fromkeys((PLAIN, *kernels))}
    best = min(times, key=lambda name: times[name])
    return best, times[best]


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
        part, blocks = _kept(np.array([float(tokens)]), block, kept)
        total += float(part[0] * tokens * 2 * head * 2 + blocks[0] * head * centroid_bytes)
    return total


# -- what each takes and needs -----------------------------------------------------------------------------------------


def _shaped(ops: OpTable) -> Bool:
    return (ops.m > 0) & (ops.n > 0) & (ops.k > 0) & (ops.batch > 0)


def _is_product(ops: OpTable) -> Bool:
    return _shaped(ops) & (ops.op_class == OpClass.GEMM)


def _has_weights(ops: OpTable) -> Bool:
    """A batch of products has no weights, but experts do."""
    experts = np.isin(ops.op_class, (OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM))
    return _shaped(ops) & (experts | ((ops.op_class == OpClass.GEMM) & (ops.batch == 1)))


def _is_decode(ops: OpTable) -> Bool:
    return _shaped(ops) & (ops.op_class == OpClass.ATTENTION_DECODE)


def _sizes(ops: OpTable) -> tuple[F64, F64, F64, F64, F64]:
    """m, n, k, batch and the bytes of an element."""
    m, n, k, batch = (column.astype(np.float64) for column in (ops.m, ops.n, ops.k, ops.batch))
    return m, n, k, batch, _WIDTHS[ops.dtype]


def _peak(device: Device, dtype: str) -> float:
    found = device.peak(dtype)
    if not found:
        raise UsageError(f"device `{device.name}` has no rate for {dtype}")
    return found


def _quantised(device: Device, ops: OpTable, weight: int, activation: int, group: int) -> Need:
    """Weights of so many bits with a 16-bit scale for each group (0: for each row). Where activations keep 16 bits the
    product runs in the op's type; where they do not, each partial sum of a group is scaled by the vector units."""
    m, n, k, batch, width = _sizes(ops)
    groups = np.minimum(group, k) if group else k
    inputs = width if activation == 16 else activation / 8
    size = batch * (k * n * (weight + 16 / groups) / 8 + m * k * inputs + width * m * n)
    flops = 2.0 * batch * m * n * k
    if activation == 16:
        return Need(flops, size)
    narrow = next((name for bits, name in ((4, "fp4"), (8, "int8"), (8, "fp8")) if activation <= bits and
                   name in device.peak_flop_per_s), "")  # fmt: skip
    if not narrow:
        raise UsageError(f"device `{device.name}` has no rate for products of {activation} bits")
    return Need(flops, size, narrow, VECTOR_OPERATIONS * batch * m * n * k / (group or k))


def _fewer_products(ops: OpTable, a: int, b: int, c: int, products: int) -> Need:
    """One level of an algorithm <a, b, c; products> after Strassen's kind, with its 18 additions of blocks in series,
    three accesses each, for <2, 2, 2; 7>; of another in proportion to its products."""
    m, n, k, batch, width = _sizes(ops)
    size, flops = ops.size_bytes.astype(np.float64), 2.0 * batch * m * n * k
    if products == a * b * c:
        return Need(flops, size)
    block = (m * k / (a * b) + k * n / (b * c) + m * n / (a * c)) / 3
    additions = 18 * products / 7 * 3 * width * batch * block
    return Need(flops * products / (a * b * c), size, series_bytes=additions)


def _array(ops: OpTable, tile: tuple[int, int, int]) -> Need:
    """A fixed array that works on one tile at a time."""
    m, n, k = tile
    rows, columns, depth, batch, width = _sizes(ops)
    turns = np.ceil(rows / m) * np.ceil(columns / n) * np.ceil(depth / k) * batch
    one = np.ones(len(ops))
    return Need(2.0 * m * n * k * one, width * (m * k + k * n), turns=turns)


def _kept(tokens: F64, block: int, keep: float) -> tuple[F64, F64]:
    """Part of the tokens in kept whole blocks, and the number of blocks."""
    blocks = np.ceil(tokens / block)
    return np.minimum(np.rint(keep * blocks) * block, tokens) / tokens, blocks


def _sparse(ops: OpTable, heads: Sequence[tuple[int, float, float]], centroid_bytes: float) -> Need:
    """Of `heads` (block, kept part, share of the heads) the kept keys and values, and a centroid for each block of a
    head of keys. Scoring of centroids counts by its bytes."""
    queries, keys, head, batch, width = _sizes(ops)
    size, flops = ops.size_bytes.astype(np.float64), ops.flops.astype(np.float64)
    cached = np.maximum(size - 2 * queries * batch * head * width, 0.0)
    rows = cached / (2 * keys * head * width)  # heads of keys and values of all sequences
    part, centroids = np.zeros(len(ops)), np.zeros(len(ops))
    for block, keep, share in heads:
        kept, blocks = _kept(keys, block, keep)
        part += share * kept
        centroids += share * blocks
    return Need(flops * part, size - cached * (1 - part) + rows * centroids * head * centroid_bytes)


def _sparse_of(name: str) -> tuple[list[tuple[int, float, float]], float]:
    """`attention:sparse keep=0.05 block=16:2,32:4,64:2 centroid=int8`: heads by block size, and bytes of an element of
    a centroid."""
    given = {"keep": "1", "block": "32", "centroid": "bf16"}
    for part in name.split()[1:]:
        key, equals, value = part.partition("=")
        if key not in given or not equals:
            raise UsageError(f"kernel `{name}`: `{part}` is not known", hint="keep=0.05 block=32 centroid=int8")
        given[key] = value
    try:
        keep = float(given["keep"])
        parts = [part.partition(":") for part in given["block"].split(",")]
        blocks = [(int(block), float(count or 1)) for block, _, count in parts]
    except ValueError:
        raise UsageError(f"kernel `{name}`: not a number", hint="keep=0.05 block=16:2,32:4,64:2") from None
    centroid = {"free": 0.0, **DTYPE_BYTES}.get(given["centroid"])
    if centroid is None or not 0 <= keep <= 1 or any(block < 1 or not count > 0 for block, count in blocks):
        raise UsageError(
            f"kernel `{name}`: a kept part outside 0 to 1, a block or a number of heads below 1, or an unknown type",
            hint=f"centroid: free, {', '.join(DTYPE_BYTES)}",
        )
    heads = sum(count for _, count in blocks)
    return [(block, keep, count / heads) for block, count in blocks], centroid


def asked_ops(ops: OpTable, need: Need) -> OpTable:
    """The ops as a kernel carries them out."""
    dtype = np.full(len(ops), DTYPE_NUMBER[need.dtype], np.uint8) if need.dtype else ops.dtype
    return replace(
        ops,
        dtype=dtype,
        flops=np.rint(need.flops).astype(np.int64),
        size_bytes=np.ceil(need.size_bytes).astype(np.int64),
    )
