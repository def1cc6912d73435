"""Sizes of the products and streams that stand in for given FLOPs and bytes. Without PyTorch, since memory is planned
from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from etude.run.replay.program import Program, StandInKind
from etude.run.replay.sizes import ELEMENT

LARGEST_BYTES: Final = 1 << 28
"""The most memory that a stream covers at once."""
SIDE: Final = 4096
_PRODUCTS: Final = (StandInKind.GEMM, StandInKind.ATTENTION)
INTENSE: Final = 4
"""FLOPs per byte above which work of an unknown kind is played as a product. Streams do less, and work with less is
limited by memory in any case."""


class Extent(NamedTuple):
    """Numbers of elements read and written."""

    source: int
    target: int


class Dims(NamedTuple):
    """Dimensions of a matrix product."""

    m: int
    n: int
    k: int
    batch: int


def multiplied(kind: StandInKind, flops: int, size_bytes: int) -> bool:
    """Whether the work is played as a product, rather than as a stream of bytes."""
    return flops > 0 and (kind in _PRODUCTS or flops > INTENSE * size_bytes)


def product_dims(kind: StandInKind, flops: int, size_bytes: int, width: int, dims: Sequence[int]) -> Dims:
    """m, n, k and batch: as recorded, or a product of these FLOPs (2 m n k) and, if possible, of these bytes. Sides are
    at most SIDE unless the bytes require more."""
    if kind == StandInKind.GEMM and len(dims) == 4 and min(dims) > 0:
        return Dims(*dims)
    side = min(max((flops / 2) ** (1 / 3), 1.0), SIDE)
    elements = size_bytes / width
    # n = m: two factors of m k elements and a result of m m, where k = flops / (2 m m). If there are more elements than
    # in a cube, the result is made larger and the sum shorter.
    while flops / side + side * side < elements:
        side *= 1.01
    m = max(round(side), 1)
    return Dims(m, m, max(round(flops / (2 * m * m)), 1), 1)


def product_dtype(name: str) -> str:
    """Integers are multiplied as float32, since not every device has integer matrix products."""
    return name if "float" in name else "float32"


def stream_count(size_bytes: int, width: int) -> int:
    """Number of elements that are read; as many are written."""
    return max(size_bytes // 2 // width, 1)


def extents(program: Program) -> dict[str, Extent]:
    """Data type -> the most elements that a stand-in of the program reads and writes in it."""
    table, found = program.stand_ins, dict[str, Extent]()
    for row in range(len(table.kind)):
        kind, flops, size = StandInKind(int(table.kind[row])), int(table.flops[row]), int(table.size_bytes[row])
        dtype = program.dtypes[int(table.dtype[row])]
        if kind == StandInKind.HOST or (flops <= 0 and size <= 0):
            continue
        if multiplied(kind, flops, size):
            dtype = product_dtype(dtype)
            m, n, k, batch = product_dims(kind, flops, size, ELEMENT[dtype], table.dims[row])
            source, target = batch * k * max(m, n), batch * m * n
        else:
            source = target = min(stream_count(size, ELEMENT[dtype]), LARGEST_BYTES // ELEMENT[dtype])
        known = found.get(dtype, Extent(0, 0))
        found[dtype] = Extent(max(known.source, source), max(known.target, target))
    return found
