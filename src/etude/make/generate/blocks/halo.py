"""Halos: what a tile of a picture reads from its neighbours before a convolution, and the gradients sent back.

Ranks are on a grid; figures are those of an inner tile, which has all neighbours. At the border the messages are
removed again (train/mapped.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from etude.base.errors import ClusterError, UsageError
from etude.base.grammar import line
from etude.make.generate.blocks.ops import Op, Phase, Stream, add, bytes_of, message
from etude.make.generate.blocks.shard import Shard
from etude.model.schema import Kind


def parse(text: str) -> tuple[int, int]:
    """`2x4`: rows and columns of ranks."""
    whole = line(text, "domain", "2x4, rows and columns of ranks", ClusterError)
    rows, columns = whole.cut("x")
    if columns is None:
        raise whole.wrong(f"`{text}` is not two numbers")
    return rows.count(most=(1 << 20) - 1), columns.count(most=(1 << 20) - 1)


def tile(local: Shard, side: int) -> tuple[int, int]:
    """Rows and columns of a picture on one rank."""
    rows, columns = local.domain
    if side % rows or side % columns:
        problem = f"a picture of {side} x {side} cannot be cut into equal tiles on {rows} x {columns} ranks"
        raise UsageError(problem, hint="use a --domain that divides the picture, also after each stride")
    return side // rows, side // columns


def cells(local: Shard, size: tuple[int, int], radius: int) -> int:
    """Cells around a tile that has all neighbours: 2 h (a + b) + 4 h² if there are neighbours in both directions."""
    return sum(strip for _, strip in _strips(local, size, radius))


def _strips(local: Shard, size: tuple[int, int], radius: int) -> Iterator[tuple[str, int]]:
    """(offset of a neighbour, cells that come from it)."""
    rows, columns = local.domain
    for dy in (-1, 0, 1) if rows > 1 else (0,):
        for dx in (-1, 0, 1) if columns > 1 else (0,):
            if dy or dx:
                yield f"{dy:+d}{dx:+d}", (radius if dy else size[0]) * (radius if dx else size[1])


def with_halo(local: Shard, ops: list[Op], channels: int, size: tuple[int, int], radius: int) -> list[Op]:
    """A convolution, the first of `ops`, after the exchange of what it reads from other tiles, `channels` values per
    cell; its gradient is sent back while the weight gradient is computed."""
    if prod(local.domain) == 1 or not radius:
        return ops
    if radius > min(size):
        raise UsageError(f"tiles of {size[0]} x {size[1]} are smaller than a halo of {radius}", hint="use fewer ranks")
    one, part, dtype = ops[0], ops[0].part, local.dtype
    into: list[Op] = []
    back: list[Op] = []
    for offset, strip in _strips(local, size, radius):
        moved = bytes_of(local.samples * channels * strip, dtype)
        other = f"{-int(offset[:2]):+d}{-int(offset[2:]):+d}"
        for hops, phase, to, source, name in (
            (into, Phase.FORWARD, other, offset, "halo"),
            (back, Phase.INPUT, offset, other, "grad"),
        ):
            send = message(Kind.SEND, f"tile{to}", moved, f"{part}.halo.{to}", Stream.CONTEXT, start="sent")
            recv = message(Kind.RECV, f"tile{source}", moved, f"{part}.halo.{source}", Stream.NONE, start=name + source)
            hops += [send.replace(phase=phase, dtype=dtype), recv.replace(phase=phase, dtype=dtype)]
    names = tuple(op.start for op in into if op.kind == Kind.RECV)
    grads = tuple(op.start for op in back if op.kind == Kind.RECV)
    around = cells(local, size, radius)
    first = [op for op in one.backward if op.phase == Phase.INPUT]
    rest = [op for op in one.backward if op.phase != Phase.INPUT]
    total = add(local.samples * channels * around, f"{part}.halo", dtype=dtype)
    into[0] = into[0].replace(backward=(total.replace(phase=Phase.INPUT, waits=grads),))
    more = bytes_of(local.samples * channels * around, dtype)
    one = one.replace(waits=names, backward=(*first, *back, *rest), saved_bytes=one.saved_bytes + more)
    return [*into, one, *ops[1:]]
