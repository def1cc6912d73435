"""Memory that PyTorch's caching allocator takes from a device for tensors of given sizes.

A tensor's block is rounded up to 512 bytes. Blocks of up to 1 MiB share segments of 2 MiB, blocks of less than 10 MiB
share segments of 20 MiB; a larger block has a segment of its own, rounded up to 2 MiB. Fragmentation (freed blocks that
do not fit the next tensor) is not modelled.
"""

from __future__ import annotations

from typing import Final

from etude.kernels.arrays import I64

MIB: Final = 1 << 20
BLOCK: Final = 512


def segments_bytes(sizes: I64) -> int:
    """Bytes of the segments that hold tensors of these sizes."""
    blocks = -(-sizes // BLOCK) * BLOCK
    small, large = blocks <= MIB, blocks >= 10 * MIB
    shared = _up(int(blocks[small].sum()), 2 * MIB) + _up(int(blocks[~small & ~large].sum()), 20 * MIB)
    return shared + int((-(-blocks[large] // (2 * MIB)) * 2 * MIB).sum())


def rounding(sizes: I64) -> float:
    """Ratio of segment bytes to tensor bytes."""
    total = int(sizes.sum())
    return segments_bytes(sizes) / total if total else 1.0


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
