"""What a kernel needs from a device for each op: operations, bytes, vector work, turns. The closed forms of
docs/costs.md.

Columns in, columns out: a `Need` has a row for each op of its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.cost.ops import DTYPE_BYTES, DTYPE_NUMBER, OpClass, OpTable
from etude.kernels.arrays import F64, Bool
from etude.machine.system import Device

VECTOR_OPERATIONS: Final = 32.0
"""For each partial sum of a group: fitted by others to two published points of one kernel."""
SCALE_BITS: Final = 16
ADDITIONS: Final = 18 / 7
"""Additions of blocks for each product of an algorithm with fewer products: Strassen's has 18 for 7."""
UNPACKED_BYTES: Final = 1
"""Bytes of a weight between unpacking and scaling."""
_WIDTHS: Final = np.array([2.0, *DTYPE_BYTES.values()])
"""Bytes of an element by number of its data type; bf16 if unknown."""


class Need(NamedTuple):
    """What a kernel needs from a device for each op."""

    flops: F64
    size_bytes: F64
    dtype: str = ""
    """Data type of the product; empty: that of the op."""
    vector_flops: F64 | float = 0.0
    """FLOPs of the vector units, in addition to the product."""
    series_bytes: F64 | float = 0.0
    """Read and written before or after, without overlap."""
    turns: F64 | None = None
    """How often all of this is done, one after another; None: once, in tiles and waves like any op."""
    kernels: int = 1
    """Launched one after another."""

    @property
    def all_flops(self) -> F64:
        """FLOPs of all turns."""
        return self.flops if self.turns is None else self.flops * self.turns

    @property
    def all_bytes(self) -> F64:
        """Bytes of all turns, with what is done in series."""
        return (self.size_bytes if self.turns is None else self.size_bytes * self.turns) + self.series_bytes


class Quantised(NamedTuple):
    """Weights of this many bits with a scale for each group, and products with activations of this many."""

    weight: int
    activation: int
    groups: tuple[tuple[int, float], ...] = ((0, 1.0),)
    """Size of a group (0: a row) and the fraction of the columns in such groups."""
    zero: int = 0
    """Bits of a zero point for each group."""
    apart: bool = False
    """Unpacked, scaled and multiplied by three kernels."""

    def per_group(self, depth: F64 | float) -> F64:
        """Groups per weight, for rows of this length."""
        sizes = [(np.minimum(size, depth) if size else depth, part) for size, part in self.groups]
        return np.asarray(sum(part / np.maximum(size, 1) for size, part in sizes), np.float64)

    def weight_bits(self, depth: F64 | float) -> F64:
        """Bits of a weight with its share of the scales."""
        return self.weight + (SCALE_BITS + self.zero) * self.per_group(depth)

    def need(self, device: Device, ops: OpTable) -> Need:
        """If activations keep 16 bits the product runs in the op's type; otherwise the vector units scale each partial
        sum of a group."""
        m, n, k, batch, width = sizes_of(ops)
        inputs = width if self.activation == 16 else self.activation / 8
        weights, flops = batch * k * n, 2.0 * batch * m * n * k
        around = batch * (m * k * inputs + width * m * n)
        if self.apart:
            between = weights * (UNPACKED_BYTES + width)
            return Need(
                flops,
                around + weights * width,
                kernels=3,
                series_bytes=weights * self.weight_bits(k) / 8 + 2 * between - weights * width,
            )
        size = weights * self.weight_bits(k) / 8 + around
        if self.activation == 16:
            return Need(flops, size)
        narrow = _narrow(device, self.activation)
        return Need(flops, size, narrow, VECTOR_OPERATIONS * batch * m * n * k * self.per_group(k))


def _narrow(device: Device, bits: int) -> str:
    """The narrowest type of a device that holds this many bits and has a rate."""
    for wide, name in ((4, "int4"), (4, "fp4"), (8, "int8"), (8, "fp8")):
        if bits <= wide and name in device.peak_flop_per_s:
            return name
    raise UsageError(f"device `{device.name}` has no rate for products of {bits} bits")


class FewerProducts(NamedTuple):
    """An algorithm <a, b, c; products> of Strassen's kind, applied recursively `levels` times."""

    a: int
    b: int
    c: int
    products: int
    levels: int = 1
    fused: float = 0.0
    """Fraction of the traffic of additions that is saved by fusing them into the products' kernels."""

    def need(self, device: Device, ops: OpTable) -> Need:
        """Additions of blocks in series, three accesses each: 18 for <2, 2, 2; 7>, for others in proportion to their
        products. A level below has blocks of blocks, and all of its products have theirs."""
        del device
        m, n, k, batch, width = sizes_of(ops)
        size, flops = ops.size_bytes.astype(np.float64), 2.0 * batch * m * n * k
        plain = self.a * self.b * self.c
        if self.products == plain:
            return Need(flops, size)
        additions, times = np.zeros(len(ops)), 1
        for _ in range(self.levels):
            m, k, n = m / self.a, k / self.b, n / self.c
            additions += times * ADDITIONS * self.products * 3 * width * batch * (m * k + k * n + m * n) / 3
            times *= self.products
        part = (self.products / plain) ** self.levels
        return Need(flops * part, size, series_bytes=additions * (1 - self.fused))


def array_need(ops: OpTable, tile: tuple[int, int, int]) -> Need:
    """A fixed array that works on one tile while it loads the next: the first load is waited for, and the result of a
    row of tiles over the depth is written once."""
    m, n, k = tile
    rows, columns, depth, batch, width = sizes_of(ops)
    deep, operands = np.ceil(depth / k), width * (m * k + k * n)
    turns = np.ceil(rows / m) * np.ceil(columns / n) * deep * batch
    return Need(
        2.0 * m * n * k * np.ones(len(ops)), operands + width * m * n / deep, series_bytes=operands, turns=turns
    )


def kept_part(tokens: F64, block: int, keep: float) -> tuple[F64, F64]:
    """Fraction of the tokens in kept whole blocks, and the number of blocks."""
    blocks = np.ceil(tokens / block)
    return np.minimum(np.rint(keep * blocks) * block, tokens) / tokens, blocks


def sparse_need(ops: OpTable, heads: Sequence[tuple[int, float, float]], centroid_bytes: float) -> Need:
    """For `heads` (block, kept fraction, share of the heads) the kept keys and values, and a centroid for each block of
    a head of keys. Scoring of centroids counts by its bytes."""
    queries, keys, head, batch, width = sizes_of(ops)
    size, flops = ops.size_bytes.astype(np.float64), ops.flops.astype(np.float64)
    cached = np.maximum(size - 2 * queries * batch * head * width, 0.0)
    rows = cached / (2 * keys * head * width)  # heads of keys and values of all sequences
    part, centroids = np.zeros(len(ops)), np.zeros(len(ops))
    for block, keep, share in heads:
        kept, blocks = kept_part(keys, block, keep)
        part += share * kept
        centroids += share * blocks
    return Need(flops * part, size - cached * (1 - part) + rows * centroids * head * centroid_bytes)


# -- which ops --------------------------------------------------------------------------------------------------------


def _shaped(ops: OpTable) -> Bool:
    return (ops.m > 0) & (ops.n > 0) & (ops.k > 0) & (ops.batch > 0)


def is_product(ops: OpTable) -> Bool:
    return _shaped(ops) & (ops.op_class == OpClass.GEMM)


def has_weights(ops: OpTable) -> Bool:
    """Whether ops have weights: a batch of products does not, but experts do."""
    experts = np.isin(ops.op_class, (OpClass.GROUPED_GEMM, OpClass.RAGGED_GEMM))
    return _shaped(ops) & (experts | ((ops.op_class == OpClass.GEMM) & (ops.batch == 1)))


def is_decode(ops: OpTable) -> Bool:
    """Attention of few queries over many keys."""
    return _shaped(ops) & (ops.op_class == OpClass.ATTENTION_DECODE)


def sizes_of(ops: OpTable) -> tuple[F64, F64, F64, F64, F64]:
    """m, n, k, batch and the bytes of an element."""
    m, n, k, batch = (column.astype(np.float64) for column in (ops.m, ops.n, ops.k, ops.batch))
    return m, n, k, batch, _WIDTHS[ops.dtype]


def input_bytes(ops: OpTable) -> F64:
    """What each op reads from other ops: the rows of a product, the queries of attention, half of the bytes of others.
    Without weights and the cache of keys and values."""
    m, _, k, batch, width = sizes_of(ops)
    shaped = is_product(ops) | has_weights(ops) | is_decode(ops)
    return np.where(shaped, batch * m * k * width, np.maximum(ops.size_bytes, 0) / 2)


def asked_ops(ops: OpTable, need: Need) -> OpTable:
    """The ops as a kernel runs them, for one turn and without what is in series."""
    dtype = np.full(len(ops), DTYPE_NUMBER[need.dtype], np.uint8) if need.dtype else ops.dtype
    return replace(
        ops,
        dtype=dtype,
        flops=np.rint(need.flops).astype(np.int64),
        size_bytes=np.ceil(need.size_bytes).astype(np.int64),
    )
